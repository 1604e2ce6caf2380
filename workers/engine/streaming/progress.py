"""What Spark tells of a mini-batch, read into numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StateProgress:
    """One stateful operator. `rows` is None where the store does not count them; `updated` are keys that the mini-batch
    wrote, `removed` those that it dropped, `reads` how often it looked one up, where the store tells. `state_bytes` is
    the size of the state, None where it is not known; `memory_bytes` what is held in memory of it, and beside it.
    """

    operator: str
    rows: int | None
    updated: int
    removed: int
    memory_bytes: int
    state_bytes: int | None
    late_rows: int
    reads: int | None
    partitions: int
    commit_ms: int


@dataclass(frozen=True)
class SourceProgress:
    """One stream: `rows` came from it, as often as the plan reads it; it was read up to `end`, as Spark notes it."""

    description: str
    rows: int
    end: str


@dataclass(frozen=True)
class BatchProgress:
    """One mini-batch."""

    batch_id: int
    duration_ms: int
    durations_ms: Mapping[str, int]
    watermark: str | None
    state: tuple[StateProgress, ...]
    sources: tuple[SourceProgress, ...]


def progress_of(text: str) -> BatchProgress | None:
    """A `StreamingQueryProgress` as JSON; None for one of a trigger that ran no mini-batch."""
    told: dict[str, Any] = json.loads(text)
    durations = told.get("durationMs", {})
    if "addBatch" not in durations:
        return None
    return BatchProgress(
        batch_id=told["batchId"],
        duration_ms=durations.get("triggerExecution", 0),
        durations_ms=durations,
        watermark=told.get("eventTime", {}).get("watermark"),
        state=tuple(map(_state, told.get("stateOperators", ()))),
        sources=tuple(map(_source, told.get("sources", ()))),
    )


def _source(told: Mapping[str, Any]) -> SourceProgress:
    return SourceProgress(told["description"], told.get("numInputRows", 0), json.dumps(told.get("endOffset")))


def _state(told: Mapping[str, Any]) -> StateProgress:
    custom = told.get("customMetrics", {})
    reads = custom.get("rocksdbGetCount")
    return StateProgress(
        operator=told["operatorName"],
        # RocksDB that does not count them says 0 all along.
        rows=told["numRowsTotal"] or None,
        updated=told["numRowsUpdated"],
        removed=told.get("numRowsRemoved", 0),
        memory_bytes=told["memoryUsedBytes"],
        # RocksDB's files: it has none, and reports 0, before it first writes them. Of a state in memory, the newest
        # version.
        state_bytes=custom.get("rocksdbSstFileSize") or custom.get("stateOnCurrentVersionSizeBytes"),
        late_rows=told.get("numRowsDroppedByWatermark", 0),
        reads=reads,
        partitions=told.get("numShufflePartitions", 0),
        commit_ms=told.get("commitTimeMs", 0),
    )
