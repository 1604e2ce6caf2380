"""Which joins change their order. The golden plans have the reasons, and tests/conformance the rows."""

from __future__ import annotations

from typing import Any

import pytest

from service.contract.options import JobSettings
from service.contract.reports import RuleOutcome, RuleTrace
from tests.support.compiled import compiled
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Join, Node, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.planner import Plan, plan_query
from workers.engine.rules.joins.join_order import JoinOrder
from workers.engine.rules.required_statistics import statistics_keys
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

COLUMNS = "id BIGINT, f BIGINT, g BIGINT, n INT"
ROWS = {"facts": 10_000_000, "many": 50_000_000, "few": 1_000, "some": 100_000}
FILTER = "c.n = 1"
CHAIN = "facts AS a JOIN many AS b ON a.f = b.f JOIN few AS c ON c.id = a.id"
"""Without its condition on `few`, its order costs as much as any other."""


def known(plan: Node) -> Statistics:
    """Every value of a key is in ten rows of a large table, and in one of a small one; a condition keeps 1 %."""
    scans = {scan.alias: scan for scan in walk_up(plan) if isinstance(scan, Scan)}
    rows = {alias: ROWS[scan.table] for alias, scan in scans.items()}
    tables = {alias: TableSize(scan.table, 1, 30 * rows[alias], rows[alias], True) for alias, scan in scans.items()}
    alias_of = {field.name: scan.alias for scan in scans.values() for field, _ in scan.columns}
    keys = {}
    for columns in statistics_keys(plan):
        alias = alias_of[columns[0]]
        values = rows[alias] // (10 if rows[alias] > 1_000_000 else 1)
        keys[columns] = KeySketch(alias, columns, 10_000, values, 0.0, ())
    shares = {FILTER: {"c": 0.01}}
    return Statistics(tables, keys, slots=4, task_memory=1 << 30, table_shares=shares)


def planned(sql: str, **settings: Any) -> Plan:
    used = {name: COLUMNS for name in ROWS if name in sql}
    query = compiled(used, sql)
    return plan_query(query, known(build(query)), JobSettings.model_validate(settings))


def traces(plan: Plan) -> list[RuleTrace]:
    return [trace for trace in plan.trace if trace.rule == JoinOrder.name]


def order(plan: Plan) -> str:
    """The aliases of the tables in the order in which they are joined, without those of semi-joins by rules."""
    joins = [node for node in walk_up(plan.after) if isinstance(node, Join)]
    return "".join(part.alias for part in walk_up(joins[-1]) if isinstance(part, Scan))


def test_selective_table_is_joined_first() -> None:
    plan = planned(f"SELECT a.g, b.g AS h FROM {CHAIN} WHERE {FILTER}")
    assert order(plan) == "acb"
    (trace,) = traces(plan)
    assert trace.outcome is RuleOutcome.FIRED


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(f"SELECT a.g FROM {CHAIN.replace('a.id', 'a.id + b.id')} WHERE {FILTER}", id="two tables"),
        pytest.param(f"SELECT a.g FROM {CHAIN} AND a.n / b.n > 1 WHERE {FILTER}", id="a condition that can fail"),
        pytest.param(f"SELECT a.g FROM {CHAIN} WHERE {FILTER} AND a.n / c.g > 1", id="one above the joins"),
        pytest.param(
            f"SELECT x.r FROM (SELECT a.n / c.g AS r FROM {CHAIN} WHERE {FILTER}) AS x WHERE x.r > 1",
            id="one above a subquery",
        ),
        pytest.param(
            f"SELECT a.n / c.g AS r, COUNT(*) AS n FROM {CHAIN} WHERE {FILTER} GROUP BY 1 HAVING a.n / c.g > 1",
            id="one above groups",
        ),
        pytest.param(f"SELECT a.g FROM {CHAIN.replace('JOIN few', 'LEFT JOIN few')} WHERE {FILTER}", id="a left join"),
        pytest.param(f"SELECT /*+ MERGE(b) */ a.g FROM {CHAIN} WHERE {FILTER}", id="a hint"),
        pytest.param(f"SELECT a.g FROM {CHAIN.replace('facts', 'few').replace('many', 'some')}", id="few rows"),
    ],
)
def test_written_order_stays(sql: str) -> None:
    assert order(planned(sql)) == "abc"


def test_conditions_on_one_table_may_fail() -> None:
    assert order(planned(f"SELECT a.g, a.n / c.g AS r FROM {CHAIN} WHERE {FILTER} AND 1 / a.n > 0")) == "acb"


def test_condition_in_on_counts_as_well() -> None:
    assert order(planned(f"SELECT a.g FROM {CHAIN} AND c.n = 1 JOIN some AS d ON d.id = a.g"))[:2] == "ac"


def test_derived_tables_have_an_order_of_their_own() -> None:
    inner = f"(SELECT a.id, a.g FROM {CHAIN} WHERE {FILTER}) AS x"
    plan = planned(f"SELECT x.g FROM {inner} JOIN some AS y ON y.id = x.id JOIN few AS z ON z.id = y.id")
    assert [trace.node.split()[0] for trace in traces(plan) if trace.outcome is RuleOutcome.FIRED] == ["Project"]
    assert order(plan).replace("x/", "")[:3] == "acb"


def test_conditions_are_checked_as_soon_as_their_tables_are_joined() -> None:
    plan = planned(f"SELECT b.g FROM {CHAIN} AND b.n < c.n JOIN some AS d ON d.id = a.id AND c.n < d.n WHERE {FILTER}")
    joins = [node for node in walk_up(plan.after) if isinstance(node, Join)]
    tables = [{part.alias for part in walk_up(join) if isinstance(part, Scan)} for join in joins]
    residuals = [str(join.residual) for join in joins]
    assert residuals.index("b.n < c.n") == next(at for at, found in enumerate(tables) if {"b", "c"} <= found)
    assert residuals.index("c.n < d.n") == next(at for at, found in enumerate(tables) if {"c", "d"} <= found)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"join.ship": "REPARTITION"}, "abc"),
        ({"join.ship": "REPARTITION", "optimizer.join_reorder": True}, "acb"),
        ({"optimizer.join_reorder": False}, "abc"),
    ],
)
def test_settings_decide(settings: dict[str, Any], expected: str) -> None:
    assert order(planned(f"SELECT a.g, b.g AS h FROM {CHAIN} WHERE {FILTER}", **settings)) == expected


def test_setting_without_joins_is_reported() -> None:
    plan = planned("SELECT a.g FROM facts AS a JOIN few AS c ON a.id = c.id", **{"optimizer.join_reorder": True})
    assert [trace.reason for trace in traces(plan)] == [
        "optimizer.join_reorder is set, but the query joins fewer than three tables."
    ]
