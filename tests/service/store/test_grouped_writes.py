"""Writes of several threads together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from service.store.grouped_writes import GroupedWrites
from tests.support.processes import wait_for


class Writes:
    """Records its groups. Waits in the first one until `gate` is set."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.reached, self.gate = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def write(self, items: Sequence[int]) -> list[int | Exception]:
        self.groups.append(list(items))
        if len(self.groups) == 1:
            self.reached.set()
            assert self.gate.wait(60)
        elif self.error is not None:
            raise self.error
        return [ValueError(f"{item} is odd") if item % 2 else 10 * item for item in items]


def run_together(writes: Writes, items: Sequence[int]) -> list[Future[int]]:
    """Writes 0 alone, and all items while that lasts."""
    grouped, write = GroupedWrites(), writes.write
    with ThreadPoolExecutor(len(items) + 1) as pool:
        first = pool.submit(grouped.run, write, 0)
        assert writes.reached.wait(60)
        futures = []
        for place, item in enumerate(items, start=1):
            futures.append(pool.submit(grouped.run, write, item))
            wait_for("the item to wait", lambda: len(grouped._waiting) == place)  # noqa: B023
        writes.gate.set()
        assert first.result() == 0
    return futures


def test_items_that_wait_are_written_together_and_each_has_its_result() -> None:
    writes = Writes()
    one, two, three, four = run_together(writes, [1, 2, 3, 4])
    assert writes.groups == [[0], [1, 2, 3, 4]]
    assert [two.result(), four.result()] == [20, 40]
    for future in (one, three):
        with pytest.raises(ValueError, match="is odd"):
            future.result()


def test_an_error_of_the_write_is_that_of_all_and_later_items_are_written() -> None:
    writes = Writes()
    writes.error = OSError("no disk")
    for future in run_together(writes, [2, 4]):
        with pytest.raises(OSError, match="no disk"):
            future.result()


def test_a_group_has_a_largest_size() -> None:
    writes = Writes()
    assert [future.result() for future in run_together(writes, [2] * 150)] == [20] * 150
    assert [len(group) for group in writes.groups] == [1, 100, 50]


def test_different_writes_are_not_mixed() -> None:
    grouped = GroupedWrites()
    seen: list[list[object]] = []

    def texts(items: Sequence[str]) -> Sequence[str]:
        seen.append(list(items))
        return items

    def numbers(items: Sequence[int]) -> Sequence[int]:
        seen.append(list(items))
        return items

    with ThreadPoolExecutor(16) as pool:
        one = [pool.submit(grouped.run, texts, str(number)) for number in range(100)]
        two = [pool.submit(grouped.run, numbers, number) for number in range(100)]
        assert [future.result() for future in one] == [str(number) for number in range(100)]
        assert [future.result() for future in two] == list(range(100))
    assert all(len({type(item) for item in group}) == 1 for group in seen)
