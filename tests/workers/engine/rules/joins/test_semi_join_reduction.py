"""Which tables are filtered by the keys of a later join. The golden plans have what becomes of them."""

from __future__ import annotations

import pytest

from service.contract.options import JobSettings, JoinShip
from service.contract.query import JoinKind
from tests.support.compiled import compiled
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Join, Node, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.planner import plan_query
from workers.engine.rules.joins.semi_join_reduction import SemiJoinReduction
from workers.engine.statistics.cardinality import conditions_of, terms_by_table
from workers.engine.statistics.model import Statistics, TableSize

LINES = "part BIGINT, name STRING, ratio DOUBLE, number INT, amount INT"
TABLES = {"lines": LINES, "parts": "id BIGINT, name STRING, ratio DOUBLE, size INT", "plants": "id BIGINT, part BIGINT"}
ROWS = {"lines": 60_000_000, "parts": 200_000, "plants": 20_000_000}
TOTALS = "(SELECT part, SUM(amount) AS n FROM lines GROUP BY part) AS t"


def known(plan: Node, share: float) -> Statistics:
    scans = [node for node in walk_up(plan) if isinstance(node, Scan)]
    tables = {scan.alias: TableSize(scan.table, 1, 60 * ROWS[scan.table], ROWS[scan.table], True) for scan in scans}
    tables |= {alias: TableSize("parts", 1, 60_000_000, 200_000, True) for alias in tables if alias in {"p", "q"}}
    alias_of = {field.name: scan.alias for scan in scans for field, _ in scan.columns}
    shares = {one.sql: dict.fromkeys(terms_by_table(one, alias_of)[0], share) for one in conditions_of(plan)}
    return Statistics(tables, {}, slots=4, task_memory=1 << 30, table_shares=shares)


def reduced(sql: str, share: float = 0.01) -> list[str]:
    """The tables that the plan of `sql` filters, with the tables of the keys."""
    used = {name: columns for name, columns in TABLES.items() if f" {name} " in f"{sql} "}
    query = compiled(used, sql)
    plan = plan_query(query, known(build(query), share), JobSettings())
    fired = [trace for trace in plan.trace if trace.rule == SemiJoinReduction.name and trace.outcome.value == "fired"]
    joins = [node for node in walk_up(plan.after) if isinstance(node, Join) and node.kind is JoinKind.LEFT_SEMI]
    semi_joins = [join for join in joins if join.strategy.ship is JoinShip.BROADCAST_RIGHT]
    assert len(semi_joins) == len(fired)
    return [f"{_table(node.left)} by {_table(node.right)}" for node in semi_joins]


def _table(node: Node) -> str:
    return next(part.table for part in walk_up(node) if isinstance(part, Scan))


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(f"SELECT t.n FROM parts AS p JOIN {TOTALS} ON t.part = p.id WHERE p.size < 3", id="an aggregate"),
        pytest.param(
            f"SELECT t.n FROM {TOTALS} RIGHT JOIN (SELECT id FROM parts WHERE size < 3) AS p ON t.part = p.id",
            id="a right join",
        ),
        pytest.param(
            f"SELECT t.n FROM {TOTALS} LEFT SEMI JOIN (SELECT id FROM parts WHERE size < 3) AS p ON t.part = p.id",
            id="a semi join",
        ),
        pytest.param(
            "SELECT l.amount FROM plants AS f JOIN lines AS l ON f.part = l.part JOIN parts AS p ON p.id = f.part "
            "WHERE p.size < 3 AND f.id > 5",
            id="a key of three tables",
        ),
        pytest.param(
            f"SELECT f.id FROM plants AS f JOIN parts AS p ON p.id = f.part LEFT ANTI JOIN {TOTALS} ON t.part = f.part "
            "WHERE p.size < 3",
            id="an anti join",
        ),
    ],
)
def test_rows_without_a_key_are_dropped_early(sql: str) -> None:
    assert "lines by parts" in reduced(sql)


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(f"SELECT t.n FROM parts AS p JOIN {TOTALS} ON t.part = p.id", id="no condition"),
        pytest.param(
            f"SELECT t.n FROM parts AS p JOIN {TOTALS} ON t.part <=> p.id WHERE p.size < 3", id="NULL equals NULL"
        ),
        pytest.param(
            f"SELECT t.n FROM parts AS p JOIN {TOTALS} ON t.part = p.id WHERE p.size IS NULL", id="true of NULLs"
        ),
        pytest.param(f"SELECT t.n FROM parts AS p JOIN {TOTALS} ON t.part = p.id WHERE p.size + 1 < 3", id="may fail"),
        pytest.param(f"SELECT t.n FROM parts AS p JOIN {TOTALS} ON t.part = p.size WHERE p.size < 3", id="other types"),
        pytest.param(
            f"SELECT t.n FROM parts AS p JOIN {TOTALS} ON t.part = p.id + 1 WHERE p.size < 3", id="a computed key"
        ),
        pytest.param(
            "SELECT t.n FROM parts AS p JOIN (SELECT ratio, COUNT(*) AS n FROM lines GROUP BY ratio) AS t "
            "ON t.ratio = p.ratio WHERE p.size < 3",
            id="DOUBLE",
        ),
        pytest.param(
            "SELECT t.n FROM parts AS p JOIN (SELECT name, COUNT(*) AS n FROM lines GROUP BY name) AS t "
            "ON t.name = p.name WHERE p.size < 3",
            id="texts of unknown length",
        ),
        pytest.param(
            "SELECT t.n FROM parts AS p JOIN (SELECT part, SUM(amount) AS n FROM lines GROUP BY ROLLUP (part)) AS t "
            "ON t.part = p.id WHERE p.size < 3",
            id="grouping sets",
        ),
        pytest.param(
            "SELECT t.part FROM parts AS p JOIN (SELECT part FROM lines ORDER BY amount LIMIT 9000000) AS t "
            "ON t.part = p.id WHERE p.size < 3",
            id="a limit",
        ),
        pytest.param(
            f"SELECT t.n FROM {TOTALS} LEFT JOIN (SELECT id FROM parts WHERE size < 3) AS p ON t.part = p.id",
            id="rows without a partner",
        ),
        pytest.param(
            f"SELECT t.n FROM {TOTALS} FULL JOIN (SELECT id FROM parts WHERE size < 3) AS p ON t.part = p.id",
            id="a full join",
        ),
    ],
)
def test_other_tables_are_read_as_a_whole(sql: str) -> None:
    assert "lines by parts" not in reduced(sql)


def test_keys_of_an_optional_side_are_not_those_of_all_rows() -> None:
    source = "plants AS f LEFT JOIN parts AS p ON p.id = f.part AND p.size < 3"
    assert reduced(f"SELECT t.n FROM {source} JOIN {TOTALS} ON t.part = p.id") == []


def test_rows_that_conditions_drop_are_not_counted() -> None:
    source = "lines AS l JOIN plants AS f ON f.part = l.part JOIN parts AS p ON p.id = l.part"
    assert reduced(f"SELECT l.amount FROM {source} WHERE p.size < 3") == ["lines by parts"]
    few = f"SELECT l.amount FROM {source} WHERE l.amount = 7 AND f.id = 3 AND p.size < 3"
    assert reduced(few, share=0.001) == []
