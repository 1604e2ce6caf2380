"""Progress reports as recorded from Spark 4.3.0."""

from __future__ import annotations

import json
from typing import Any

from workers.engine.streaming.query import SourceProgress, StateProgress, progress_of

RECORDED: dict[str, Any] = {
    "id": "4a7d1ea1-9a3b-4e5c-8a0e-6d3b2a1c0f11",
    "runId": "0d1a52a3-2b36-4a2c-b8a1-0a9a1e2d3c4b",
    "name": None,
    "timestamp": "2026-11-22T08:00:00.000Z",
    "batchId": 7,
    "batchDuration": 412,
    "numInputRows": 120,
    "inputRowsPerSecond": 0.0,
    "processedRowsPerSecond": 291.2621359223301,
    "durationMs": {"addBatch": 350, "commitOffsets": 20, "getBatch": 3, "triggerExecution": 412, "walCommit": 18},
    "eventTime": {"max": "2026-11-22T07:59:00.000Z", "watermark": "2026-11-22T07:49:00.000Z"},
    "stateOperators": [
        {
            "operatorName": "stateStoreSave",
            "numRowsTotal": 5,
            "numRowsUpdated": 4,
            "allUpdatesTimeMs": 12,
            "numRowsRemoved": 1,
            "allRemovalsTimeMs": 0,
            "commitTimeMs": 33,
            "memoryUsedBytes": 70208,
            "numRowsDroppedByWatermark": 2,
            "numShufflePartitions": 2,
            "numStateStoreInstances": 2,
            "customMetrics": {"rocksdbGetCount": 9, "rocksdbPutCount": 4, "rocksdbSstFileSize": 788040},
        },
        {
            "operatorName": "dedupe",
            "numRowsTotal": 0,
            "numRowsUpdated": 60,
            "numRowsRemoved": 0,
            "commitTimeMs": 40,
            "memoryUsedBytes": 1024,
            "customMetrics": {"rocksdbSstFileSize": 0},
        },
    ],
    "sources": [
        {
            "description": "FileStreamSource[file:/data/s]",
            "startOffset": {"logOffset": 6},
            "endOffset": {"logOffset": 7},
            "latestOffset": None,
            "numInputRows": 120,
        }
    ],
    "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
}


def test_a_report_of_a_mini_batch_is_read() -> None:
    told = progress_of(json.dumps(RECORDED))
    assert told is not None
    assert (told.batch_id, told.duration_ms) == (7, 412)
    assert told.durations_ms["addBatch"] == 350
    assert told.watermark == "2026-11-22T07:49:00.000Z"
    assert told.sources == (SourceProgress("FileStreamSource[file:/data/s]", 120, '{"logOffset": 7}'),)
    assert told.state[0] == StateProgress("stateStoreSave", 5, 4, 1, 70208, 788040, 2, 9, 2, 33)


def test_uncounted_rows_and_reads_are_unknown() -> None:
    told = progress_of(json.dumps(RECORDED))
    assert told is not None
    assert told.state[1] == StateProgress("dedupe", None, 60, 0, 1024, None, 0, None, 0, 40)


def test_a_state_in_memory_has_the_size_of_its_newest_version() -> None:
    operator = {**RECORDED["stateOperators"][1], "customMetrics": {"stateOnCurrentVersionSizeBytes": 512}}
    told = progress_of(json.dumps({**RECORDED, "stateOperators": [operator]}))
    assert told is not None
    assert told.state[0].state_bytes == 512


def test_a_trigger_without_a_mini_batch_has_no_report() -> None:
    idle = {**RECORDED, "durationMs": {"latestOffset": 2, "triggerExecution": 2}}
    assert progress_of(json.dumps(idle)) is None
    assert progress_of(json.dumps({"batchId": 7})) is None


def test_optional_fields_may_be_missing() -> None:
    bare = progress_of(json.dumps({"batchId": 0, "durationMs": {"addBatch": 5}, "processedRowsPerSecond": None}))
    assert bare is not None
    assert (bare.duration_ms, bare.watermark) == (0, None)
    assert (bare.state, bare.sources) == ((), ())
