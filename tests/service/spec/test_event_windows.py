"""Windows over tables: which columns they may be over, and what is told of those that they may not."""

from __future__ import annotations

from typing import Any

import pytest

from service.spec.bound import BoundQuery, BoundWatermark, BoundWindow
from service.spec.compile import compile_job
from service.spec.ddl import parse_schema
from service.spec.errors import SpecError
from service.spec.job import JobSpec
from service.spec.scalar import column
from service.spec.types import TIMESTAMP, TIMESTAMP_NTZ, Field, Schema

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


def test_a_window_knows_how_late_rows_may_come() -> None:
    query = bound(f"SELECT k, HOP_START(ts, INTERVAL '1' MINUTE, {HOUR}) AS b, COUNT(*) AS n FROM s GROUP BY k, "
                  f"HOP(ts, INTERVAL '1' MINUTE, {HOUR})")  # fmt: skip
    assert query.window == BoundWindow(
        column("s.ts", TIMESTAMP),
        size_ms=3_600_000,
        slide_ms=60_000,
        start=Field("b", TIMESTAMP),
        end=Field("window_end", TIMESTAMP),
        watermarks=(BoundWatermark("s", "s.ts", 600_000),),
    )
    assert query.is_aggregate
    assert [key.name for key in query.keys] == ["k"]
    assert query.output.names == ("k", "b", "n")


def test_the_structured_form_shows_the_ends_by_default() -> None:
    query = bound(structured(end="until"))
    assert query.output.fields[:2] == (Field("window_start", TIMESTAMP), Field("until", TIMESTAMP))
    assert query.output.names == ("window_start", "until", "n")


def test_the_column_of_the_window_is_read() -> None:
    (source,) = (bound(tumble("SELECT COUNT(v) AS n FROM s")).source,)
    assert [name for _, name in source.columns] == ["v", "ts"]


@pytest.mark.parametrize(
    ("sql", "watermarks"),
    [
        (tumble("SELECT COUNT(*) AS n FROM s JOIN d ON s.k = d.k", "s.ts"), [("s", "s.ts", 600_000)]),
        (
            tumble("SELECT COUNT(*) AS n FROM (SELECT ts AS x FROM s UNION ALL SELECT ts FROM t) u", "x"),
            [("s", "s.ts", 600_000), ("t", "t.ts", 0)],
        ),
        (tumble("SELECT COUNT(*) AS n FROM (SELECT DISTINCT k, ts AS x FROM t) u", "u.x"), [("t", "t.ts", 0)]),
        (tumble("WITH c AS (SELECT * FROM s WHERE v > 1) SELECT COUNT(*) AS n FROM c"), [("s", "s.ts", 600_000)]),
    ],
)
def test_the_column_may_come_through_other_queries(sql: str, watermarks: list[tuple[str, str, int]]) -> None:
    window = bound(sql).window
    assert window is not None
    assert [(mark.alias, mark.column, mark.delay_ms) for mark in window.watermarks] == watermarks


def test_times_without_a_zone_are_windowed_where_their_table_is_read() -> None:
    local = {**STREAM, "event_time": {"column": "at"}}
    window = bound(tumble("SELECT COUNT(*) AS n FROM s", "at"), s=local).window
    assert window is not None
    assert window.start.type == TIMESTAMP_NTZ
    code, detail, *_ = refused(tumble("SELECT COUNT(*) AS n FROM (SELECT at AS x FROM s) u", "x"), s=local)
    assert (code, "write GROUP BY there" in detail) == ("type_mismatch", True)


@pytest.mark.parametrize(
    ("sql", "code", "words"),
    [
        (tumble("SELECT 1 AS n FROM s", "other"), "watermark_required", "The event time of table 's' is ts"),
        (tumble("SELECT 1 AS n FROM d"), "watermark_required", "Table 'd' is static"),
        (tumble("SELECT 1 AS n FROM s", "v"), "type_mismatch", "s.v is BIGINT"),
        (
            tumble(f"SELECT 1 AS n FROM (SELECT ts + {HOUR} AS x FROM s) u", "x"),
            "watermark_required",
            "u.x is computed by s.ts + INTERVAL '1' HOUR",
        ),
        (
            tumble("SELECT 1 AS n FROM (SELECT k, MAX(ts) AS x FROM s GROUP BY k) u", "x"),
            "watermark_required",
            "u.x is the result of an aggregate",
        ),
        (
            tumble(f"SELECT 1 AS n FROM ({tumble(f'SELECT TUMBLE_END(ts, {HOUR}) AS x FROM s')}) u", "x"),
            "watermark_required",
            "u.x is the result of an aggregate",
        ),
        (tumble("SELECT 1 AS n FROM s JOIN t ON s.k = t.k", "s.ts"), "window_over_joined_streams", "s and t"),
        (
            tumble("SELECT 1 AS n FROM (SELECT s.ts AS x FROM s JOIN t ON s.k = t.k) u", "x"),
            "window_over_joined_streams",
            "s and t",
        ),
        (
            f"SELECT 1 AS n FROM s GROUP BY HOP(ts, INTERVAL '2' HOUR, {HOUR})",
            "unsupported_construct",
            "The slide is longer than the window",
        ),
        (
            f"SELECT 1 AS n FROM s GROUP BY HOP(ts, INTERVAL '2' SECOND, {HOUR})",
            "unsupported_construct",
            "Each row would be in 1800 windows",
        ),
    ],
)
def test_what_is_refused(sql: str, code: str, words: str) -> None:
    told = refused(sql)
    assert told[0] == code
    assert words in told[1]
    assert told[2] == "/sql"
    assert told[3] is not None


DELTA = {"kind": "delta", "path": "out"}


def job_of(query: str, **parts: Any) -> BoundQuery:
    spec = JobSpec.model_validate({"mode": "continuous", "tables": TABLES, "sql": query, **parts})
    return compile_job(spec, SCHEMAS)


def test_updated_windows_need_one_of_their_ends_in_a_sink_that_replaces_rows() -> None:
    job_of(tumble("SELECT COUNT(*) AS n FROM s"), sink=DELTA)
    job_of(tumble(f"SELECT TUMBLE_END(ts, {HOUR}) AS e, COUNT(*) AS n FROM s"), sink=DELTA, output="update")
    with pytest.raises(SpecError) as caught:
        job_of(tumble("SELECT COUNT(*) AS n FROM s"), sink=DELTA, output="update")
    assert caught.value.code == "sink_keys_missing"
    assert "the start or the end of the window" in caught.value.issues[0].detail


def test_having_may_ask_for_the_windows_ends() -> None:
    having = f"HAVING TUMBLE_END(ts, {HOUR}) > '2024-01-01'"
    job_of(tumble("SELECT COUNT(*) AS n FROM s") + f" {having} AND COUNT(*) < 3")
    job_of(tumble("SELECT COUNT(*) AS n FROM s") + f" {having}", output="update")
    with pytest.raises(SpecError) as caught:
        job_of(tumble("SELECT COUNT(*) AS n FROM s") + f" {having} AND COUNT(*) < 3", output="update")
    assert caught.value.code == "having_may_turn_false"


def test_what_comes_out_of_windows_is_not_aggregated() -> None:
    inner = tumble(f"SELECT TUMBLE_END(ts, {HOUR}) AS e, COUNT(*) AS n FROM s")
    job_of(f"SELECT e, n + 1 AS m FROM ({inner}) w WHERE n > 1")
    with pytest.raises(SpecError) as caught:
        job_of(f"SELECT SUM(n) AS n FROM ({inner}) w")
    assert caught.value.code == "aggregate_of_aggregate"


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
