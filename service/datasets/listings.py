"""Listings that are waited for no longer than a given time.

Arrow lists a directory as a whole: it can neither be stopped nor told to end after so many entries. A listing that
takes too long is therefore left to itself, in a thread of its own, until its last request has been answered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

AT_ONCE = 16
"""Listings of a store that are under way at the same time, those included that nobody waits for any more."""

T = TypeVar("T")


class OverdueError(Exception):
    """The listing did not end in time."""


class Listings:
    """The listings of one store. Safe to share between threads."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._places = threading.BoundedSemaphore(at_once)
        self._lock = threading.Lock()
        self._overdue: set[str] = set()

    def within(self, seconds: float, path: str, listing: Callable[[], T]) -> T:
        """What `listing` of the directory `path` gives, or what it raises; OverdueError where it takes longer.

        At once where an earlier one of that directory took too long and has not ended yet: jobs that ask for a
        directory again and again keep no more than one listing of it busy.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            if path in self._overdue:
                raise OverdueError
        if seconds <= 0 or not self._places.acquire(timeout=seconds):
            raise OverdueError
        answer: Future[T] = Future()
        # A daemon, and no pool, whose threads would keep a process from ending.
        thread = threading.Thread(
            target=copy_context().run, args=(self._list, path, listing, answer), name="listing", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            self._places.release()
            raise
        try:
            return answer.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            with self._lock:
                if not answer.done():
                    self._overdue.add(path)
                    raise OverdueError from None
            return answer.result()  # it ended at the last moment, or raised this error itself

    def _list(self, path: str, listing: Callable[[], T], answer: Future[T]) -> None:
        try:
            found = listing()
        except BaseException as error:  # noqa: BLE001 - told to the one who waits
            with self._lock:
                self._overdue.discard(path)
                answer.set_exception(error)
        else:
            with self._lock:
                self._overdue.discard(path)
                answer.set_result(found)
        finally:
            self._places.release()
