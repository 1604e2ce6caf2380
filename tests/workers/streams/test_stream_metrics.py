"""The metrics of a mini-batch: each row counts once, and operations of the state per row."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from workers.engine.streaming.query import BatchProgress, SourceProgress, StateProgress
from workers.engine.streaming.sources import SourceRead
from workers.engine.streaming.state import StateChanges
from workers.streams.batch_metrics import measures_of

STATE = StateProgress(
    operator="stateStoreSave",
    rows=None,
    updated=30,
    removed=1,
    memory_bytes=4096,
    state_bytes=1 << 20,
    late_rows=2,
    reads=50,
    partitions=2,
    commit_ms=11,
)
PROGRESS = BatchProgress(
    batch_id=7,
    duration_ms=500,
    durations_ms={"addBatch": 400},
    watermark="2026-01-01T00:00:00.000Z",
    state=(STATE,),
    sources=(
        SourceProgress("FileStreamSource[file:/data/orders]", 300, "{}"),
        SourceProgress("FileStreamSource[file:/data/users]", 20, "{}"),
    ),
)
READS = (SourceRead("orders", 3), SourceRead("users", 1))


def test_rows_that_are_read_several_times_count_once() -> None:
    measures = measures_of(PROGRESS, READS)
    assert (measures.batch_id, measures.rows_in) == (7, 120)
    assert measures.metrics["rows_per_second"] == 240.0
    assert measures.metrics["durations_ms"] == {"addBatch": 400}
    assert measures.metrics["watermark"] == "2026-01-01T00:00:00.000Z"


def test_state_operations_are_reported_per_row() -> None:
    measures = measures_of(PROGRESS, READS)
    assert measures.metrics["state_operations_per_row"] == round(80 / 120, 4)
    (state,) = measures.metrics["state"]
    assert (state["updated"], state["removed"], state["late_rows"], state["memory_bytes"]) == (30, 1, 2, 4096)
    assert (state["state_bytes"], state["skew"]) == (1 << 20, None)


def test_a_store_that_does_not_count_reads_has_one_for_each_write() -> None:
    progress = replace(PROGRESS, state=(replace(STATE, reads=None),))
    assert measures_of(progress, READS).metrics["state_operations_per_row"] == round(60 / 120, 4)


def test_a_mini_batch_without_rows_has_no_rate() -> None:
    metrics = measures_of(replace(PROGRESS, sources=(), duration_ms=0), READS).metrics
    assert (metrics["rows_per_second"], metrics["state_operations_per_row"]) == (None, None)


def test_the_skew_of_changes_is_reported_for_its_operator() -> None:
    changes = (StateChanges("stateStoreSave", (100, 110, 500)),)
    (state,) = measures_of(PROGRESS, READS, changes=changes).metrics["state"]
    assert (state["changed_bytes"], state["largest_changed_bytes"], state["skew"]) == (710, 500, 4.55)
    (other,) = measures_of(PROGRESS, READS, changes=(StateChanges("dedupe", (1,)),)).metrics["state"]
    assert other["changed_bytes"] is None
    assert StateChanges("dedupe", (0, 0, 5)).skew is None


def test_changes_are_reported_by_the_number_of_their_operator() -> None:
    progress = replace(PROGRESS, state=(STATE, STATE))
    first, second = measures_of(progress, READS, changes=(None, StateChanges(STATE.operator, (7,)))).metrics["state"]
    assert (first["changed_bytes"], second["changed_bytes"]) == (None, 7)


def test_a_state_without_a_reported_size_has_the_size_of_its_changes() -> None:
    new, old = replace(STATE, state_bytes=None), replace(STATE, state_bytes=700)
    progress = replace(PROGRESS, state=(new, old, new, new))
    state = measures_of(progress, READS, sizes_from_changelog=(50, 60, None)).metrics["state"]
    assert [one["state_bytes"] for one in state] == [50, 700, None, None]


def test_a_mini_batch_longer_than_its_interval_is_reported() -> None:
    assert measures_of(PROGRESS, READS, timedelta(milliseconds=400)).metrics["busy"] == 1.25
    assert measures_of(PROGRESS, READS, timedelta(0)).metrics["busy"] is None


def test_two_tables_over_one_directory_have_their_own_counts() -> None:
    same = "FileStreamSource[file:/data/orders]"
    progress = replace(PROGRESS, sources=(SourceProgress(same, 300, "{}"), SourceProgress(same, 50, "{}")))
    assert measures_of(progress, (SourceRead("orders", 3), SourceRead("again", 1))).rows_in == 150


def test_the_aliases_of_one_table_count_its_rows_once() -> None:
    same = "FileStreamSource[file:/data/orders]"
    progress = replace(PROGRESS, sources=(SourceProgress(same, 30, "{}"), SourceProgress(same, 10, "{}")))
    assert measures_of(progress, (SourceRead("orders", 3), SourceRead("orders", 1))).rows_in == 10


def test_a_report_of_another_plan_counts_as_spark_does() -> None:
    assert measures_of(PROGRESS, READS[:1]).rows_in == 320
