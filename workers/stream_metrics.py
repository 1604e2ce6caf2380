"""What is told of a mini-batch, from what Spark tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.store.streams import BatchMeasures
from workers.engine.streaming.progress import BatchProgress, StateProgress


def measures_of(progress: BatchProgress, scans: Mapping[str, int]) -> BatchMeasures:
    """`scans` tells, by directory, how often the plan reads it: Spark counts a row as often as it is read."""
    rows = sum(source.rows // _times(source.description, scans) for source in progress.sources)
    operations = sum(map(_operations, progress.state))
    metrics: dict[str, Any] = {
        "duration_ms": progress.duration_ms,
        "rows_per_second": round(1000 * rows / progress.duration_ms, 1) if progress.duration_ms else None,
        "durations_ms": dict(progress.durations_ms),
        "watermark": progress.watermark,
        "state_operations_per_row": round(operations / rows, 4) if rows else None,
        "state": [
            {
                "operator": one.operator,
                "rows": one.rows,
                "updated": one.updated,
                "removed": one.removed,
                "bytes": one.bytes,
                "late_rows": one.late_rows,
                "partitions": one.partitions,
                "commit_ms": one.commit_ms,
            }
            for one in progress.state
        ],
    }
    return BatchMeasures(progress.batch_id, rows, metrics)


def _operations(state: StateProgress) -> int:
    """Looks and writes; of a store that does not count its looks, a write stands for both."""
    return state.updated + (state.reads if state.reads is not None else state.updated)


def _times(description: str, scans: Mapping[str, int]) -> int:
    return next((times for directory, times in scans.items() if directory in description), 1)
