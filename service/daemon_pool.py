"""Threads that do not delay the end of the process, unlike those of `ThreadPoolExecutor`."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_Call = tuple[Callable[[], Any], "Future[Any]"]


class DaemonPool:
    """Runs calls in at most `most` daemon threads, in order. Safe to share between threads."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = 0
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Runs the call as soon as a thread is free, and never once the pool is closed. Returns at once.

        Raises RuntimeError where the pool has no thread and cannot start one. The call does not run then.
        """
        answer: Future[T] = Future()
        with self._lock:
            if self._closed:
                answer.cancel()
                return answer
            if self._threads < self._most:
                self._start_thread()
            self._calls.put((call, answer))
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

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=f"{self._name}-{self._threads + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The operating system has no thread to spare. Those that the pool has run the calls.
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _run(self) -> None:
        while (taken := self._calls.get()) is not None:
            _complete(*taken)
            # While the thread waits, it keeps neither the call nor its result.
            del taken


def _complete(call: Callable[[], T], answer: Future[T]) -> None:
    if answer.set_running_or_notify_cancel():
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - raised where the result is read
            answer.set_exception(error)
        else:
            answer.set_result(result)
