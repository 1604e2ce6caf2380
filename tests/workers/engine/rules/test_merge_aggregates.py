"""`merge_aggregates`: which aggregates it merges, by the number of scans and filters that the plan has afterwards."""

from __future__ import annotations

import pytest

from service.contract.options import JobSettings
from tests.support.compiled import compiled
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Aggregate, Node, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.planner import apply_some_rules
from workers.engine.rules.merge_aggregates import MergeAggregates
from workers.engine.rules.rule import RuleContext
from workers.engine.statistics.model import Statistics

SCHEMAS = {
    "sales": "id INT, day DATE, price DOUBLE, paid DOUBLE, tax DOUBLE, fee DOUBLE, note STRING",
    "stores": "id INT, name STRING",
}
LOW, HIGH = "(SELECT AVG(price) AS x FROM sales WHERE id < 10)", "(SELECT MAX(price) AS x FROM sales WHERE id > 90)"


def merged(sql: str) -> Node:
    """The plan after the rule, which checks that its columns stay the same."""
    built = build(compiled(SCHEMAS, sql, name="merged"))
    ctx = RuleContext(JobSettings(), Statistics({}, {}, slots=2))
    return apply_some_rules(built, [MergeAggregates()], ctx).after


def scans(sql: str) -> int:
    return sum(isinstance(node, Scan) for node in walk_up(merged(sql)))


@pytest.mark.parametrize(
    ("sql", "left"),
    [
        (f"SELECT a.x, b.x AS y FROM {LOW} AS a, {HIGH} AS b", 1),
        (f"SELECT a.x, b.x AS y FROM {LOW} AS a CROSS JOIN {HIGH} AS b WHERE a.x < b.x", 1),
        (f"SELECT {LOW} AS a, {HIGH} AS b", 1),
        (f"SELECT s.name, {LOW} AS a, {HIGH} AS b FROM stores AS s", 2),
        (f"SELECT a.x FROM {LOW} AS a, stores AS s, {HIGH} AS b", 2),
        # Each side of an inner join has cross joins of its own.
        (f"SELECT s.name FROM (SELECT a.x FROM {LOW} AS a, {HIGH} AS b) AS t JOIN stores AS s ON s.id = t.x", 2),
        ("SELECT (SELECT COUNT(*) FROM sales) AS a, (SELECT MAX(paid) FROM sales) AS b", 1),
        ("SELECT (SELECT COUNT(*) FILTER (WHERE id = 1) FROM sales) AS a, (SELECT MAX(paid) FROM sales) AS b", 1),
        # Other rows than those of tables and joins.
        ("SELECT (SELECT COUNT(*) FROM sales) AS a, (SELECT MAX(id) FROM stores) AS b", 2),
        ("SELECT (SELECT COUNT(*) FROM sales) AS a, (SELECT MAX(id) FROM (SELECT id FROM sales LIMIT 5) AS t) AS b", 2),
        (f"SELECT a.x FROM {LOW} AS a, (SELECT id FROM sales WHERE id > 90) AS b", 2),
        (f"SELECT a.x FROM {LOW} AS a, (SELECT MAX(price) AS x FROM sales WHERE id > 90 GROUP BY id) AS b", 2),
        # Spark may skip rows for one of them only.
        (f"SELECT {LOW} AS a, (SELECT MAX(price) FROM sales) AS b", 2),
        # Each reads two columns; three of them together read four, and with another one five.
        (
            "SELECT (SELECT MAX(price) FROM sales WHERE id = 1) AS a, (SELECT MAX(paid) FROM sales WHERE id = 2) AS b,"
            "(SELECT MAX(tax) FROM sales WHERE id = 3) AS c, (SELECT MAX(fee) FROM sales WHERE id = 4) AS d",
            2,
        ),
        # Calls that Spark would compute in another way with a FILTER.
        (f"SELECT {LOW} AS a, (SELECT COUNT(DISTINCT price) FROM sales WHERE id > 90) AS b", 2),
        (f"SELECT {LOW} AS a, (SELECT LISTAGG(note, ',') FROM sales WHERE id > 90) AS b", 2),
        # What fails for a row of the other one.
        (f"SELECT {LOW} AS a, (SELECT SUM(CAST(note AS INT)) FROM sales WHERE id > 90) AS b", 2),
        (f"SELECT {LOW} AS a, (SELECT MAX(price) FROM sales WHERE id > 90 AND 1 / price > 2) AS b", 2),
    ],
)
def test_scans_that_are_left(sql: str, left: int) -> None:
    assert scans(sql) == left


def test_equal_calls_are_computed_once() -> None:
    plan = merged(f"SELECT {LOW} AS a, {LOW} + 1 AS b, {HIGH} AS c")
    (aggregate,) = (node for node in walk_up(plan) if isinstance(node, Aggregate))
    assert len(aggregate.calls) == 2


def test_a_self_join_keeps_its_sides_apart() -> None:
    both = "(SELECT COUNT(*) AS n FROM sales AS {0} JOIN sales AS {1} ON {0}.id = {1}.paid WHERE {0}.price > 1)"
    assert scans(f"SELECT a.n, b.n AS m FROM {both.format('s', 't')} AS a, {both.format('u', 'v')} AS b") == 2
    # Here the condition is on the other side.
    swapped = both.format("u", "v").replace("u.price", "v.price")
    plan = merged(f"SELECT a.n, b.n AS m FROM {both.format('s', 't')} AS a, {swapped} AS b")
    (aggregate,) = (node for node in walk_up(plan) if isinstance(node, Aggregate))
    assert [str(call.filter) for call in aggregate.calls] == ["s.price > 1", "t.price > 1"]
