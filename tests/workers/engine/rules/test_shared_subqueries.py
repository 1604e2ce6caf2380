"""Which subqueries are shared, and what the plan has of them."""

from __future__ import annotations

import pytest

from service.contract.options import JobSettings
from service.contract.reports import RuleOutcome
from tests.support.compiled import compiled
from workers.engine.plan.builder import build
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Node, Scan, Shared
from workers.engine.plan.traversal import id_of, walk_up
from workers.engine.planner import Plan, plan_query
from workers.engine.rules.shared_subqueries import SUBQUERIES
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

TABLES = {"o": "k BIGINT, v BIGINT", "u": "k BIGINT, name STRING"}
SUMS = "WITH s AS (SELECT o.k, SUM(o.v) AS v, COUNT(*) AS n FROM o JOIN u ON o.k = u.k GROUP BY o.k) "
TWICE = f"{SUMS} SELECT a.n, b.n AS m FROM s AS a JOIN s AS b ON a.k = b.k"


def known(plan: Node, rows: int, groups: int) -> Statistics:
    """Returns the statistics of tables with as many rows, and `groups` values in each column."""
    scans = [node for node in walk_up(plan) if isinstance(node, Scan)]
    return Statistics(
        {scan.alias: TableSize(scan.alias, 1, 8 * rows, rows, True) for scan in scans},
        {
            (field.name,): KeySketch(scan.alias, (field.name,), 1000, groups, 0.0, ())
            for scan in scans
            for field, _ in scan.columns
        },
        slots=2,
    )


def planned(sql: str, rows: int = 30_000_000, groups: int = 100) -> Plan:
    query = compiled(TABLES, sql)
    return plan_query(query, known(build(query), rows, groups), JobSettings())


def numbers(plan: Plan) -> list[int]:
    return [node.number for node in walk_up(plan.after) if isinstance(node, Shared)]


@pytest.mark.parametrize(
    ("sql", "shared"),
    [
        (TWICE, [1, 1]),
        (f"{SUMS} SELECT s.v FROM s WHERE s.v > (SELECT AVG(t.v) FROM s AS t WHERE t.k = s.k)", [1, 1]),
        (f"{SUMS} SELECT k FROM s WHERE n > 1 UNION ALL SELECT k FROM s WHERE n < 1", [1, 1]),
        # One use needs all rows.
        (f"{SUMS} SELECT a.n, b.n AS m FROM s AS a JOIN s AS b ON a.n = b.n AND a.k < b.k WHERE a.k = 1", [1, 1]),
        (f"{TWICE} WHERE a.k = 1", []),
        (f"{TWICE} WHERE b.k = 2", []),
        (f"{SUMS} SELECT a.n, b.n AS m FROM s AS a CROSS JOIN s AS b WHERE a.k = 1 AND b.k = 2", []),
        # A condition on a sum does not move below the aggregate.
        (f"{TWICE} WHERE a.n > 1 AND b.n > 2", [1, 1]),
        (
            "WITH s AS (SELECT k, MAX(v) AS n FROM o GROUP BY k UNION ALL SELECT k, COUNT(*) FROM u GROUP BY k) "
            "SELECT a.n, b.n AS m FROM s AS a JOIN s AS b ON a.k = b.k",
            [1, 2, 1, 2],
        ),
        (
            "SELECT a.n, b.n AS m FROM (SELECT COUNT(*) AS n FROM o WHERE v = 1) a, "
            "(SELECT COUNT(*) AS n FROM o WHERE v = 2) b",
            [],
        ),
    ],
)
def test_shared_subqueries(sql: str, shared: list[int]) -> None:
    plan = planned(sql)
    assert numbers(plan) == shared
    said = [trace.reason for trace in plan.trace if trace.rule == SUBQUERIES]
    assert len(said) == (1 if shared else 0)


@pytest.mark.parametrize(("rows", "groups"), [(5_000, 100), (30_000_000, 29_000_000)])
def test_small_inputs_and_large_outputs_are_not_shared(rows: int, groups: int) -> None:
    assert not numbers(planned(TWICE, rows, groups))


def test_nothing_is_shared_without_statistics() -> None:
    assert not numbers(plan_query(compiled(TABLES, TWICE), Statistics({}, {}, slots=2), JobSettings()))


def test_uses_have_equal_inputs_and_their_own_names() -> None:
    plan = planned(TWICE)
    one, other = (node for node in walk_up(plan.after) if isinstance(node, Shared))
    assert one == other
    assert "Project k AS b.k, n AS b.n" in text_of(plan.after)
    assert {id_of(one), id_of(other)} <= plan.changed_by.keys()
    assert not any(isinstance(node, Shared) for node in walk_up(plan.before))
    (trace,) = (trace for trace in plan.trace if trace.rule == SUBQUERIES)
    assert trace.outcome is RuleOutcome.FIRED
    assert trace.reason == (
        "a and b are 2 uses of one subquery, which is computed once: of 60,000,000 rows it emits about 100, which are "
        "kept until the job ends."
    )


def test_literals_that_look_like_columns_are_compared() -> None:
    """Both texts are equal if the aliases of the tables are replaced by numbers."""
    counts = "(SELECT k, COUNT(*) AS n FROM o AS {0} WHERE CAST(v AS STRING) <> '{0}.v' GROUP BY k)"
    sql = f"SELECT a.n, b.n AS m FROM {counts.format('x')} AS a JOIN {counts.format('y')} AS b ON a.k = b.k"
    assert not numbers(planned(sql))
    same = sql.replace("'x.v'", "'z'").replace("'y.v'", "'z'")
    assert numbers(planned(same)) == [1, 1]
