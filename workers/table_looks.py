"""The looks of one attempt at the tables that it follows, one after the other, each on a thread of its own: a table may
be large and its store slow, and whoever looks at the stream is not to wait for that.

Copies take one of a few places, and nothing else does: stores that hang keep nobody from seeing what others have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import copy_context

from workers.attempt import AttemptStopped

AT_ONCE = 4
"""Looks of a worker that copy at the same time: they contend for its disk and its network."""

_PLACE_SECONDS = 0.2
_END_SECONDS = 2.0


class TableLooks:
    """`check` raises AttemptStopped once the attempt is to end; `places` are those of all attempts of a worker. One
    thread at a time calls it; `check` is for the looks themselves.
    """

    def __init__(self, check: Callable[[], object], places: threading.Semaphore) -> None:
        self._check = check
        self._places = places
        self._ended = threading.Event()
        self._answer: Future[bool] | None = None

    def check(self) -> None:
        """Called while files are copied. Raises AttemptStopped once the attempt is to end, or has ended."""
        if self._ended.is_set():
            raise AttemptStopped("the attempt has ended")
        self._check()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Holds the place of a copy, once one is free. Raises as `check`."""
        while not self._places.acquire(timeout=_PLACE_SECONDS):
            self.check()
        try:
            yield
        finally:
            self._places.release()

    @property
    def is_under_way(self) -> bool:
        """Whether there is a look that was begun and has not ended."""
        return self._answer is not None and not self._answer.done()

    def begin(self, look: Callable[[], bool]) -> None:
        """Begins a look, of which `found` has not to be told any more. Returns at once."""
        answer: Future[bool] = Future()
        # A daemon, and no pool, whose threads would keep a process from ending.
        thread = threading.Thread(
            target=copy_context().run, args=(self._look, look, answer), name="follow", daemon=True
        )
        thread.start()
        self._answer = answer

    def found(self) -> bool | None:
        """What the last look came to, told once, or what it raised; None where there is nothing to tell."""
        answer = self._answer
        if answer is None or not answer.done():
            return None
        self._answer = None
        return answer.result()

    def end(self) -> None:
        """With the attempt: a look that is under way ends within a few megabytes, for which is waited a moment."""
        self._ended.set()
        if self._answer is not None:
            wait([self._answer], _END_SECONDS)

    def _look(self, look: Callable[[], bool], answer: Future[bool]) -> None:
        try:
            found = look()
        except AttemptStopped:
            answer.set_result(False)
        except BaseException as error:  # noqa: BLE001 - told to the one who asks
            answer.set_exception(error)
        else:
            answer.set_result(found)
