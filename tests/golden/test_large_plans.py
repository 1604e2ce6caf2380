"""Plans of as many joins as a query may have."""

from __future__ import annotations

import pytest

from service.contract.options import JobSettings
from service.contract.reports import HotKey
from service.sql.resolve.bound import BoundQuery
from tests.support.compiled import compiled
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Join, Node, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.planner import plan_query, plan_report
from workers.engine.rules.required_statistics import statistics_keys
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

COLUMNS = "k BIGINT, g BIGINT, v BIGINT"
HOT = HotKey(value="7", share=0.3, estimated_rows=600_000)


def joins(of: str, first: int, last: int) -> str:
    return " ".join(f"JOIN t AS b{number} ON {of}.k = b{number}.k" for number in range(first, last + 1))


STAR = f"SELECT x.g, SUM(x.v) AS s, COUNT(*) AS n FROM t AS x {joins('x', 1, 100)} GROUP BY x.g"
NESTED = (
    f"SELECT x.g, SUM(x.v) AS s, COUNT(*) AS n FROM (SELECT y.k, y.g, y.v FROM t AS y {joins('y', 1, 100)}) AS x "
    f"{joins('x', 101, 126)} GROUP BY x.g"
)


def bound(sql: str) -> BoundQuery:
    return compiled({"t": COLUMNS}, sql, name="large")


def known(built: Node) -> Statistics:
    sizes = {
        scan.alias: TableSize(scan.alias, 8, 200_000_000, 2_000_000, True)
        for scan in walk_up(built)
        if isinstance(scan, Scan)
    }
    sketches = {
        columns: KeySketch(
            columns[0].partition(".")[0], columns, 50_000, 100_000, 0.0, (HOT,) if len(columns) == 1 else ()
        )
        for columns in statistics_keys(built)
    }
    return Statistics(sizes, sketches, slots=4)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"eager_aggregation": True}, {"join.skew": "ISOLATE"}], ids=str)
@pytest.mark.parametrize(("sql", "number"), [(STAR, 100), (NESTED, 126)], ids=["star", "nested"])
def test_the_largest_queries_are_planned_within_the_stack_of_python(
    sql: str, number: int, settings: dict[str, object]
) -> None:
    query = bound(sql)
    statistics = known(build(query))
    plan = plan_query(query, statistics, JobSettings.model_validate(settings))
    assert sum(isinstance(node, Join) for node in walk_up(plan.before)) == number
    assert plan_report(plan, statistics, None).after.nodes
