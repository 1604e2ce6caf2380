"""Windows over tables: which columns they may be over, and what is told of those that they may not."""

from __future__ import annotations

from typing import Any

import pytest

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema
from service.sql.resolve.bound import BoundQuery
from service.sql.types.data_types import TIMESTAMP, TIMESTAMP_NTZ, Field, Schema

COLUMNS = "k STRING, v BIGINT, ts TIMESTAMP, at TIMESTAMP_NTZ, other TIMESTAMP"
SCHEMAS: dict[str, Schema] = {name: parse_schema(COLUMNS, "/x") for name in ("s", "t", "d")}
TABLE = {"format": "parquet", "path": "p"}
STREAM = {**TABLE, "role": "stream"}
TABLES = {
    "s": {**STREAM, "event_time": {"column": "ts", "delay": "10m"}},
    "t": {**STREAM, "event_time": {"column": "TS"}},
    "d": {**TABLE, "role": "static"},
}
HOUR = "INTERVAL '1' HOUR"


def bound(query: str | dict[str, Any], **tables: dict[str, Any]) -> BoundQuery:
    part = {"sql": query} if isinstance(query, str) else {"query": query}
    spec = JobSpec.model_validate({"mode": "continuous", "tables": {**TABLES, **tables}, **part})
    return compile_job(spec, SCHEMAS)


def refused(query: str | dict[str, Any], **tables: dict[str, Any]) -> tuple[str, str, str | None, int | None]:
    with pytest.raises(SpecError) as caught:
        bound(query, **tables)
    issue = caught.value.issues[0]
    return issue.code, issue.detail, issue.pointer, issue.column


def tumble(query: str, of: str = "ts") -> str:
    return f"{query} GROUP BY TUMBLE({of}, {HOUR})"


def structured(**window: Any) -> dict[str, Any]:
    return {
        "source": {"kind": "table", "table": "s"},
        "window": {"kind": "tumble", "column": "ts", "size": "1h", **window},
        "aggregates": [{"function": "COUNT", "name": "n"}],
    }


def test_the_structured_form_shows_the_ends_by_default() -> None:
    query = bound(structured(end="until"))
    assert query.output.fields[:2] == (Field("window_start", TIMESTAMP), Field("until", TIMESTAMP))
    assert query.output.names == ("window_start", "until", "n")


def test_times_without_a_zone_are_windowed_where_their_table_is_read() -> None:
    local = {**STREAM, "event_time": {"column": "at"}}
    window = bound(tumble("SELECT COUNT(*) AS n FROM s", "at"), s=local).window
    assert window is not None
    assert window.start.type == TIMESTAMP_NTZ
    code, detail, *_ = refused(tumble("SELECT COUNT(*) AS n FROM (SELECT at AS x FROM s) u", "x"), s=local)
    assert (code, "Write GROUP BY there" in detail) == ("type_mismatch", True)


def test_a_missing_event_time_is_told_as_it_is_declared() -> None:
    code, detail, pointer, _ = refused(structured(), s=STREAM)
    assert (code, pointer) == ("watermark_required", "/query/window/column")
    assert '"event_time": {"column": "ts", "delay": "10m"}' in detail


def test_a_batch_job_has_no_windows() -> None:
    spec = JobSpec.model_validate({"tables": {"s": TABLE}, "query": structured()})
    with pytest.raises(SpecError) as caught:
        compile_job(spec, SCHEMAS)
    issue = caught.value.issues[0]
    assert (issue.code, issue.pointer) == ("window_without_stream", "/query/window")
    assert "date_trunc" in issue.detail


@pytest.mark.parametrize(
    ("parts", "code", "pointer"),
    [
        ({"column": "ts + INTERVAL '1' DAY"}, "unsupported_construct", "/query/window/column"),
        ({"column": "nothing"}, "unknown_column", "/query/window/column"),
        ({"end": "Window_Start"}, "duplicate_column", "/query/window/end"),
        ({"end": "n"}, "duplicate_column", "/query/aggregates/0/name"),
    ],
)
def test_what_is_refused_of_the_structured_form(parts: dict[str, Any], code: str, pointer: str) -> None:
    told = refused(structured(**parts))
    assert (told[0], told[2]) == (code, pointer)


def test_no_expression_holds_a_window() -> None:
    query = structured() | {"group_by": [{"expression": f"TUMBLE(ts, {HOUR})", "name": "w"}]}
    code, detail, pointer, _ = refused(query)
    assert (code, pointer) == ("unsupported_construct", "/query/group_by/0/expression")
    assert "the query's `window`" in detail
    sets = structured() | {"group_by": [{"expression": "k", "name": "k"}], "grouping_sets": [["k"]]}
    assert refused(sets)[2] == "/query/grouping_sets"
