"""Sets of file names that need little memory."""

from __future__ import annotations

from workers.streams.backlog import HashedNames


def test_only_added_names_are_in_the_set() -> None:
    names = HashedNames()
    for _ in range(2):
        for number in range(20_000):
            names.add(f"{number}.csv")
    assert len(names) == 20_000
    assert all(f"{number}.csv" in names for number in range(20_000))
    assert not any(f"{number}.json" in names for number in range(20_000))
    assert names._sorted.itemsize == 8
    assert len(names._new) < len(names) / 4
