"""The record of which versions mini-batches use."""

from __future__ import annotations

from pathlib import Path

from workers.streams.lookup_table_versions import KEPT, BatchVersions, Use


def test_the_decision_of_the_newest_attempt_is_used(tmp_path: Path) -> None:
    late, newer = (BatchVersions(tmp_path / "versions", fence) for fence in (1, 2))
    assert (late.newest(), late.of(0)) == (None, None)
    assert late.decide(0, {"u": 1, "w": 1}) == {"u": Use(1, 0), "w": Use(1, 0)}
    assert (newer.of(0), newer.of(0, by_earlier=False)) == (late.of(0), None)
    decided = {"u": Use(2, 0), "w": Use(1, 0)}
    assert newer.decide(0, {"u": 2, "w": 1}) == decided
    assert newer.decide(0, {"u": 3, "w": 1}) == decided
    assert late.decide(0, {"u": 1, "w": 1}) == decided
    assert (late.of(0, by_earlier=False), newer.of(0, by_earlier=False)) == (decided, decided)


def test_a_decision_records_since_when_a_version_is_used(tmp_path: Path) -> None:
    decided = BatchVersions(tmp_path / "versions", 1)
    decided.decide(0, {"u": 1, "w": 1})
    decided.decide(1, {"u": 2, "w": 1})
    assert decided.decide(2, {"u": 2, "w": 1}) == {"u": Use(2, 1), "w": Use(1, 0)}


def test_decisions_for_old_mini_batches_are_removed(tmp_path: Path) -> None:
    decided = BatchVersions(tmp_path / "versions", 1)
    for batch_id in range(KEPT + 5):
        decided.decide(batch_id, {"u": 1})
    assert (decided.newest(), decided.of(4), decided.of(5)) == (KEPT + 4, None, {"u": Use(1, 0)})
