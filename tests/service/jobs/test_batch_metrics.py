"""Metrics as clients see them, of whatever release stored them."""

from __future__ import annotations

from typing import Any

from service.contract.stream_reports import Backlog, BatchMetrics
from service.jobs.stream_progress import split_metrics

OF_THE_FIRST_RELEASE: dict[str, Any] = {
    "duration_ms": 500,
    "rows_per_second": 240.0,
    "durations_ms": {"addBatch": 400},
    "watermark": None,
    "state_operations_per_row": 0.6667,
    "state": [
        {
            "operator": "stateStoreSave",
            "rows": None,
            "updated": 30,
            "removed": 1,
            "bytes": 4096,
            "late_rows": 2,
            "partitions": 2,
            "commit_ms": 11,
        }
    ],
}
"""As the release stored it that was the first to measure mini-batches."""


def test_what_an_earlier_release_stored_has_the_shape_that_is_promised() -> None:
    told = split_metrics(OF_THE_FIRST_RELEASE)
    assert told["backlog"] is None
    metrics = BatchMetrics.model_validate(told["metrics"])
    assert (metrics.busy, metrics.rows_per_second) == (None, 240.0)
    (state,) = metrics.state
    assert (state.memory_bytes, state.state_bytes, state.updated) == (4096, None, 30)


def test_what_is_stored_now_is_told_as_it_is() -> None:
    state = {"operator": "dedupe", "memory_bytes": 5, "state_bytes": 7}
    stored = {"busy": 0.5, "state": [state], "versions": {"t": 1}, "backlog": {"tables": {}}}
    assert split_metrics(stored) == {
        "metrics": {"busy": 0.5, "state": [state], "versions": {"t": 1}},
        "backlog": {"tables": {}},
    }


def test_a_backlog_has_the_current_names_of_fields() -> None:
    waiting: dict[str, Any] = {"files": 1, "rows": None, "bytes": 7}
    stored = {"at": "2026-01-01T00:00:00Z", "tables": {"t": {**waiting, "oldest_seconds": 2.5}, "u": None}}
    told = {**stored, "tables": {"t": {**waiting, "oldest_age_seconds": 2.5}, "u": None}}
    assert split_metrics({"backlog": stored}) == {"metrics": None, "backlog": told}
    assert Backlog.model_validate(told).stored() == stored


def test_nothing_is_told_before_the_first_measurement() -> None:
    assert split_metrics(None) == split_metrics({"backlog": None}) == {"metrics": None, "backlog": None}
