"""The fields that each mode allows, and the place of errors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from service.contract.enums import OutputMode
from service.contract.job import DeltaSink, JobSpec, ParquetSink, PostgresSink
from service.contract.tables import RateTable, StreamTable, TableRole

FILES: dict[str, Any] = {"format": "parquet", "path": "t/"}
CLICKS: dict[str, Any] = {"format": "stream", "stream": "clicks"}
RATE: dict[str, Any] = {"format": "rate", "rows_per_second": 10}


def spec(**parts: Any) -> JobSpec:
    return JobSpec.model_validate({"mode": "continuous", "tables": {"t": FILES}, "sql": "SELECT 1 FROM t", **parts})


def test_a_job_with_every_field_can_be_read_back() -> None:
    given = spec(
        mode="incremental",
        tables={
            "o": {**FILES, "role": "stream", "event_time": {"column": "ts", "delay": "10m"}},
            "c": {**CLICKS, "event_time": {"column": "at"}},
            "r": RATE,
            "u": {"format": "csv", "path": "u", "schema": "id INT", "role": "static", "refresh": True},
        },
        output_mode="append",
        schedule={"every": "90s"},
        sink={"kind": "postgres", "connection": "warehouse", "table": "public.uniques"},
        settings={"state": {"provider": "memory", "partitions": 8}},
    )
    assert isinstance(given.tables["c"], StreamTable)
    assert isinstance(given.tables["r"], RateTable)
    assert isinstance(given.sink, PostgresSink)
    assert (given.output_mode, given.schedule and given.schedule.every) == (OutputMode.APPEND, timedelta(seconds=90))
    assert given.streams == ("o", "c", "r")
    assert list(given.file_tables) == ["o", "u"]
    assert list(given.refreshed) == ["u"]
    assert JobSpec.model_validate(given.stored()) == given


def test_a_single_table_is_the_stream() -> None:
    assert (spec().role_of("t"), spec().streams) == (TableRole.STREAM, ("t",))
    assert spec(mode="batch").streams == ()


def test_only_workers_of_version_17_run_a_job_with_a_driver_of_its_own() -> None:
    own, shared = (spec(mode="batch", settings={"isolation": value}) for value in ("driver", "shared"))
    assert (own.needs_version, shared.needs_version) == (17, 3)
    assert own.stored()["settings"]["isolation"] == "driver"
    assert "isolation" not in shared.stored()["settings"]
    assert JobSpec.model_validate(own.stored()) == own


def test_only_a_continuous_job_has_no_time_limit() -> None:
    assert spec().limits.timeout is None
    assert spec(limits={"max_attempts": 5}).limits.timeout is None
    assert spec(mode="incremental").limits.timeout == timedelta(hours=1)
    # As a client that posts what it was told.
    assert JobSpec.model_validate(spec().model_dump(mode="json", by_alias=True)) == spec()


@pytest.mark.parametrize(
    ("sink", "kind"),
    [({"kind": "delta", "path": "out/uniques"}, DeltaSink), ({"kind": "parquet", "path": "out/windows"}, ParquetSink)],
)
def test_sinks(sink: dict[str, Any], kind: type[object]) -> None:
    assert isinstance(spec(sink=sink).sink, kind)


@pytest.mark.parametrize(
    ("parts", "code", "at"),
    [
        ({"mode": "batch", "tables": {"t": CLICKS}}, "only_for_streams", "tables.t.format"),
        ({"mode": "batch", "tables": {"t": RATE}}, "only_for_streams", "tables.t.format"),
        ({"mode": "batch", "tables": {"t": {**FILES, "role": "stream"}}}, "only_for_streams", "tables.t.role"),
        (
            {"mode": "batch", "tables": {"t": {**FILES, "event_time": {"column": "ts"}}}},
            "only_for_streams",
            "tables.t.event_time",
        ),
        ({"mode": "batch", "sink": {"kind": "managed", "change_log": True}}, "only_for_streams", "sink.change_log"),
        ({"mode": "batch", "tables": {"t": {**FILES, "refresh": True}}}, "only_for_streams", "tables.t.refresh"),
        ({"tables": {"t": {**FILES, "refresh": True}}}, "refresh_not_applicable", "tables.t.refresh"),
        ({"tables": {"t": {**CLICKS, "refresh": True}}}, "extra_forbidden", "tables.t.refresh"),
        ({"mode": "batch", "output_mode": "update"}, "only_for_streams", "output_mode"),
        ({"mode": "batch", "schedule": {"every": "1m"}}, "only_for_streams", "schedule"),
        ({"mode": "batch", "sink": {"kind": "delta", "path": "x"}}, "only_for_streams", "sink"),
        ({"schedule": {"every": "1m"}}, "schedule_not_applicable", "schedule"),
        ({"limits": {"timeout": "1h"}}, "limits_timeout_not_for_streams", "limits.timeout"),
        ({"mode": "incremental", "limits": {"timeout": None}}, "timeout_required", "limits.timeout"),
        ({"limits": {"failure_retries": 1}}, "retries_not_for_streams", "limits.failure_retries"),
        (
            {"mode": "incremental", "limits": {"failure_retries": 1}},
            "retries_not_for_streams",
            "limits.failure_retries",
        ),
        ({"compare_with": "a job"}, "comparison_not_for_streams", "compare_with"),
        ({"mode": "incremental", "compare_with": "a job"}, "comparison_not_for_streams", "compare_with"),
        ({"settings": {"isolation": "driver"}}, "isolation_not_for_streams", "settings.isolation"),
        (
            {"mode": "incremental", "settings": {"isolation": "DRIVER"}},
            "isolation_not_for_streams",
            "settings.isolation",
        ),
        ({"tables": {"t": {**FILES, "role": "static"}}}, "no_stream", "tables"),
        (
            {"tables": {"t": {**FILES, "role": "static"}, "u": {**FILES, "role": "static"}}},
            "no_stream",
            "tables",
        ),
        ({"tables": {"t": {**FILES, "role": "stream"}, "u": FILES}}, "role_required", "tables.u.role"),
        ({"tables": {"t": CLICKS, "u": FILES}}, "role_required", "tables.u.role"),
        (
            {"tables": {"t": CLICKS, "u": {**FILES, "role": "static", "event_time": {"column": "ts"}}}},
            "event_time_not_applicable",
            "tables.u.event_time",
        ),
        (
            {"tables": {"t": CLICKS, "u": {**FILES, "role": "static", "operation": "op"}}},
            "operation_not_applicable",
            "tables.u.operation",
        ),
        (
            {"tables": {"t": CLICKS, "u": {**FILES, "role": "static", "upsert": {"keys": ["k"], "order": "at"}}}},
            "operation_not_applicable",
            "tables.u.upsert",
        ),
        ({"tables": {"t": {**CLICKS, "upsert": {"keys": ["k"]}}}}, "upsert_needs_order", "tables.t"),
        ({"tables": {"t": {**CLICKS, "upsert": {"keys": [], "order": "at"}}}}, "too_short", "tables.t.upsert.keys"),
        ({"tables": {"t": {**FILES, "envelope": "debezium"}}}, "envelope_not_applicable", "tables.t"),
        (
            {"tables": {"t": {"format": "json", "path": "t", "envelope": "debezium"}}},
            "envelope_needs_schema",
            "tables.t",
        ),
        ({"tables": {"t": {**CLICKS, "role": "static"}}}, "literal_error", "tables.t.role"),
        ({"tables": {"t": {**CLICKS, "path": "x"}}}, "extra_forbidden", "tables.t.path"),
        ({"tables": {"t": {"format": "stream", "stream": "../x"}}}, "string_pattern_mismatch", "tables.t.stream"),
        ({"tables": {"t": {"format": "rate", "rows_per_second": 0}}}, "greater_than_equal", "tables.t.rows_per_second"),
        ({"tables": {"t": {"format": "excel"}}}, "enum", "tables.t.format"),
        ({"tables": {"t": {"format": ["parquet"]}}}, "enum", "tables.t.format"),
        ({"tables": {"t": "t/"}}, "model_type", "tables.t"),
        ({"sink": {"kind": "parquet"}}, "missing", "sink.path"),
        ({"sink": {"kind": "mysql"}}, "enum", "sink.kind"),
        (
            {"sink": {"kind": "postgres", "connection": "a b", "table": "t"}},
            "string_pattern_mismatch",
            "sink.connection",
        ),
        (
            {"sink": {"kind": "postgres", "connection": "a", "table": "t; DROP"}},
            "string_pattern_mismatch",
            "sink.table",
        ),
        ({"settings": {"state.partitions": 0}}, "greater_than_equal", "settings.state.partitions"),
    ],
)
def test_refused(parts: dict[str, Any], code: str, at: str) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(**parts)
    assert [(error["type"], ".".join(map(str, error["loc"]))) for error in caught.value.errors()] == [(code, at)]


def test_the_error_of_an_unknown_format_lists_all_formats() -> None:
    with pytest.raises(
        ValidationError,
        match="'parquet', 'csv', 'json', 'orc', 'avro', 'xml', 'delta', 'jsonl', 'ndjson', 'stream' or 'rate'",
    ):
        spec(tables={"t": {"format": "excel"}})
