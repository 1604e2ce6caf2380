"""The plan of GROUP BY with a window, before and after the planner of streams."""

from __future__ import annotations

from service.contract.job import JobSpec
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema
from service.sql.resolve.bound import BoundQuery
from service.sql.types.data_types import BIGINT, STRING, TIMESTAMP, TIMESTAMP_NTZ, Field
from workers.engine.plan.builder import build
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Project, output_of
from workers.engine.plan.validation import check

SCHEMAS = {"s": parse_schema("k STRING, v BIGINT, ts TIMESTAMP, at TIMESTAMP_NTZ", "/x")}
MINUTE = "INTERVAL '1' MINUTE"


def bound(sql: str, event_time: str = "ts") -> BoundQuery:
    table = {"format": "parquet", "path": "s", "event_time": {"column": event_time, "delay": "10m"}}
    return compile_job(JobSpec.model_validate({"mode": "incremental", "tables": {"s": table}, "sql": sql}), SCHEMAS)


def test_the_window_is_a_key_in_one_piece() -> None:
    sql = f"SELECT k, TUMBLE_END(ts, {MINUTE}) AS e, MAX(v) AS m FROM s WHERE v > 1 GROUP BY TUMBLE(ts, {MINUTE}), k"
    plan = build(bound(sql))
    check(plan, "the test")
    assert text_of(plan).splitlines() == [
        "Project k, e, m",
        "  Project $window.start AS window_start, $window.end AS e, k, m",
        "    Aggregate BY $window, s.k AS k [MAX(s.v) AS m]",
        "      Windows s.ts SIZE 1min AS $window",
        "        Filter s.v > 1",
        "          Watermark s.ts DELAY 10min",
        "            Scan s AS s [s.k, s.v, s.ts]",
    ]
    assert output_of(plan) == (Field("k", STRING), Field("e", TIMESTAMP), Field("m", BIGINT))


def test_windows_alone_are_counted_too() -> None:
    plan = build(bound(f"SELECT HOP_START(ts, {MINUTE}, INTERVAL '3' MINUTE) AS b FROM s "
                       f"GROUP BY HOP(ts, {MINUTE}, INTERVAL '3' MINUTE)"))  # fmt: skip
    assert text_of(plan).splitlines()[:4] == [
        "Project b",
        "  Project $window.start AS b, $window.end AS window_end",
        "    Aggregate BY $window [COUNT(*) AS $rows]",
        "      Windows s.ts SIZE 3min SLIDE 1min AS $window",
    ]


def test_times_without_a_zone_are_read_as_instants() -> None:
    sql = f"SELECT TUMBLE_START(at, {MINUTE}) AS b, COUNT(at) AS n FROM s GROUP BY TUMBLE(at, {MINUTE})"
    plan = build(bound(sql, "at"))
    check(plan, "the test")
    assert output_of(plan)[0] == Field("b", TIMESTAMP_NTZ)
    assert text_of(plan).splitlines()[1:] == [
        "  Project CAST($window.start AS TIMESTAMP_NTZ) AS b, CAST($window.end AS TIMESTAMP_NTZ) AS window_end, n",
        "    Aggregate BY $window [COUNT(s.at) AS n]",
        "      Windows $time SIZE 1min AS $window",
        "        Watermark $time DELAY 10min",
        "          Project s.at, CAST(s.at AS TIMESTAMP) AS $time",
        "            Scan s AS s [s.at]",
    ]


def test_a_name_of_the_query_is_not_taken() -> None:
    sql = f"SELECT k AS `$window`, COUNT(*) AS n FROM s GROUP BY TUMBLE(ts, {MINUTE}), k"
    plan = build(bound(sql))
    assert isinstance(plan, Project)
    assert "Windows s.ts SIZE 1min AS $window_" in text_of(plan)
    check(plan, "the test")


def test_every_stream_of_a_union_has_its_watermark() -> None:
    sql = (
        "SELECT COUNT(*) AS n FROM (SELECT ts AS t FROM s UNION ALL SELECT ts FROM s WHERE v = 1) u "
        f"GROUP BY TUMBLE(t, {MINUTE})"
    )
    text = text_of(build(bound(sql)))
    assert text.count("Watermark ") == text.count("Scan ") == 2
