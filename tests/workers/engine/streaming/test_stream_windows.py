"""Streams that group by windows: what they emit, and what identifies a window."""

from __future__ import annotations

import pytest

from service.contract.enums import OutputMode
from service.contract.job import JobSpec
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema
from workers.engine.plan.builder import build
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Aggregate, Node
from workers.engine.plan.traversal import walk_up
from workers.engine.streaming.stream_plan import (
    Shape,
    StreamPlan,
    StreamPlanError,
    stream_plan,
    windowed_aggregate,
    windows_of,
)

SCHEMAS = {"s": parse_schema("k STRING, v BIGINT, ts TIMESTAMP", "/x")}
MINUTE = "INTERVAL '1' MINUTE"
TUMBLE = f"TUMBLE(ts, {MINUTE})"
START, END = f"TUMBLE_START(ts, {MINUTE})", f"TUMBLE_END(ts, {MINUTE})"


def built(sql: str) -> Node:
    table = {"format": "parquet", "path": "s", "event_time": {"column": "ts", "delay": "10m"}}
    spec = {"mode": "incremental", "tables": {"s": table}, "sql": sql}
    # As a job that was taken by a version that refused less.
    return build(compile_job(JobSpec.model_validate(spec), SCHEMAS, is_accepted=True))


def planned(sql: str, output: OutputMode | None = None) -> StreamPlan:
    return stream_plan(built(sql), frozenset("s"), output=output)


def test_closed_windows_are_appended_by_default() -> None:
    sql = f"SELECT k, COUNT(*) AS n FROM s GROUP BY {TUMBLE}, k HAVING COUNT(*) < 3"
    plan = planned(sql)
    assert (plan.shape, plan.keys) == (Shape.PLAIN, None)
    assert plan == planned(sql, OutputMode.APPEND)
    assert plan.node == built(sql)
    assert "A window is emitted once" in plan.reason


@pytest.mark.parametrize(
    ("selected", "keys"),
    [
        (f"k, {START} AS b, {END} AS e", ("b", "k")),
        (f"{END} AS e, k", ("e", "k")),
        (f"{START} AS b", ("b", "$key1")),
        ("k", ("$key0", "k")),
    ],
)
def test_updated_windows_are_identified_by_either_bound(selected: str, keys: tuple[str, ...]) -> None:
    plan = planned(f"SELECT {selected}, COUNT(*) AS n FROM s GROUP BY {TUMBLE}, k", OutputMode.UPDATE)
    assert plan.keys == keys
    assert {field.name for field in plan.columns} >= set(keys)
    assert "once" not in plan.reason


def test_having_may_use_the_bounds_of_updated_windows() -> None:
    sql = f"SELECT {START} AS b, k FROM s GROUP BY {TUMBLE}, k HAVING {END} > '2024-01-01' AND k > 'a'"
    assert planned(sql, OutputMode.UPDATE).keys == ("b", "k")


def test_distinct_values_are_deduplicated_within_their_window() -> None:
    plan = planned(f"SELECT k, COUNT(DISTINCT v) AS c, SUM(v) AS s FROM s GROUP BY {TUMBLE}, k")
    assert plan.shape is Shape.UNITED
    lines = [line.strip() for line in text_of(plan.node).splitlines()]
    assert lines[1:6] == [
        "Project $window.start AS window_start, $window.end AS window_end, k, c, s",
        "Aggregate BY $window, k [COUNT($u2) AS c, SUM($u3) AS s]",
        "Union 2 inputs",
        "Project $u0 AS $window, $u1 AS k, $u2, CAST(NULL AS BIGINT) AS $u3",
        "Deduplicate",
    ]
    assert lines[6] == "Project $window AS $u0, s.k AS $u1, s.v AS $u2"


ROWS = f"SELECT b, n FROM (SELECT {START} AS b, COUNT(DISTINCT v) AS n FROM s GROUP BY {TUMBLE}) t WHERE n > 1"


def test_closed_windows_are_rows() -> None:
    plan = planned(ROWS)
    assert (plan.shape, plan.keys) == (Shape.DISTINCT, None)
    assert [field.name for field in plan.output] == ["b", "n"]
    assert "Deduplicate" in text_of(plan.node)
    kept = "Every distinct row is kept"
    assert kept not in plan.reason
    assert kept in planned(ROWS.replace("SELECT b, n", "SELECT DISTINCT n")).reason


@pytest.mark.parametrize(
    ("sql", "output", "words"),
    [
        (ROWS, OutputMode.UPDATE, "that is not closed"),
        ("SELECT k, COUNT(*) AS n FROM s GROUP BY k", OutputMode.APPEND, "needs a window"),
        (f"SELECT SUM(n) AS n FROM ({ROWS}) u", None, "cannot read the result of an aggregate"),
        (f"SELECT COUNT(*) AS n FROM s GROUP BY {TUMBLE} ORDER BY n", None, "ORDER BY and LIMIT"),
    ],
)
def test_queries_of_windows_that_no_stream_can_run(sql: str, output: OutputMode | None, words: str) -> None:
    with pytest.raises(StreamPlanError, match=words):
        planned(sql, output)


def test_windows_of_an_aggregate_are_found() -> None:
    plan = built(f"SELECT COUNT(*) AS n FROM s GROUP BY {TUMBLE}")
    windowed = windowed_aggregate(plan)
    assert windowed is not None
    assert windows_of(windowed) is not None
    assert windowed_aggregate(built("SELECT COUNT(*) AS n FROM s")) is None
    assert [windows_of(node) for node in walk_up(built("SELECT 1 AS x FROM s")) if isinstance(node, Aggregate)] == []
