"""Threads that do not delay the end of the process, unlike those of `ThreadPoolExecutor`."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

_Call = tuple[Callable[[], None], Future[None]]


class DaemonPool:
    """Runs calls in at most `most` daemon threads, in order. Safe to share between threads."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = 0
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Runs the call as soon as a thread is free, and never once the pool is closed. Returns at once."""
        answer: Future[None] = Future()
        with self._lock:
            if self._closed:
                answer.cancel()
                return answer
            self._calls.put((call, answer))
            if self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()
        return answer

    def close(self) -> None:
        """Drops the calls that have not begun. Waits for none: each thread ends after its call."""
        with self._lock:
            self._closed = True
            with suppress(queue.Empty):
                while True:
                    dropped = self._calls.get_nowait()
                    if dropped is not None:
                        dropped[1].cancel()
            for _ in range(self._threads):
                self._calls.put(None)

    def _run(self) -> None:
        while (taken := self._calls.get()) is not None:
            call, answer = taken
            if answer.set_running_or_notify_cancel():
                try:
                    call()
                except BaseException as error:  # noqa: BLE001 - for the one who asks for the answer
                    answer.set_exception(error)
                else:
                    answer.set_result(None)
