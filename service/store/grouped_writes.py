"""Runs writes of several threads together: those that wait while one transaction commits share the next one.

A commit waits for the disk, and each transaction costs processor time. With one writer at a time, concurrent requests
also do not wait for each other's locks, which SQLite would grant in any order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_MAX_TOGETHER = 100
"""Items of one transaction, so that it does not hold its locks for long."""


class GroupedWrites:
    """Collects items while others are written. Safe to share between threads. Has no thread of its own: a caller writes
    the items of all that wait, then one of the callers that have come meanwhile does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._is_writing = False

    def run(self, write: Callable[[Sequence[T]], Sequence[R | Exception]], item: T) -> R:
        """Passes `item` to `write`, perhaps together with other callers' items, and returns its result.

        `write` is called in the thread of one of the callers, and must be equal for items that may be written
        together. It returns a result for each item, or an exception, which is raised to that caller. What
        `write` raises is raised to all callers of the group.
        """
        mine = _Waiting(write, item)
        with self._lock:
            self._waiting.append(mine)
            leads, self._is_writing = not self._is_writing, True
        if leads or mine.turn.result():
            self._write_group(mine)
        result: R = mine.result.result()
        return result

    def _write_group(self, first: _Waiting) -> None:
        with self._lock:
            same = [one for one in self._waiting if one.write == first.write]
            group = [first, *(one for one in same if one is not first)][:_MAX_TOGETHER]
            taken = set(map(id, group))
            self._waiting = [one for one in self._waiting if id(one) not in taken]
        try:
            results: Sequence[Any] = first.write([one.item for one in group])
            for one, result in zip(group, results, strict=True):
                one.end(result)
        except BaseException as error:
            for one in group:
                one.end(error)
            raise
        finally:
            self._pass_on()
            for one in group:
                if one is not first:
                    one.turn.set_result(False)

    def _pass_on(self) -> None:
        with self._lock:
            following = self._waiting[0] if self._waiting else None
            self._is_writing = following is not None
        if following is not None:
            following.turn.set_result(True)


class _Waiting:
    """An item whose caller waits. `turn` is whether the caller must write the next group; otherwise, its item has been
    written.
    """

    __slots__ = ("item", "result", "turn", "write")

    def __init__(self, write: Callable[[Sequence[Any]], Sequence[Any]], item: object) -> None:
        self.write = write
        self.item = item
        self.turn: Future[bool] = Future()
        self.result: Future[Any] = Future()

    def end(self, result: object) -> None:
        if self.result.done():
            return
        if isinstance(result, BaseException):
            self.result.set_exception(result)
        else:
            self.result.set_result(result)
