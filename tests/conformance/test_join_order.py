"""Tests that another order of inner joins does not change a query's rows."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.contract.reports import RuleOutcome
from tests.support.counts import count
from workers.engine.plan.nodes import Node, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.required_statistics import statistics_keys
from workers.engine.statistics.cardinality import conditions_of, terms_by_table
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

pytestmark = pytest.mark.spark

RULE = "join_order"
SETTINGS = {"optimizer.join_reorder": True}
FACTS = ("mixed", "mixed", "mixed", "empty")
DERIVED = "(SELECT i, g, MAX(b) AS b, MIN(q) AS q FROM mixed GROUP BY i, g)"
KEYS = (
    "{0}.i = {1}.i",
    "{0}.i = {1}.b",
    "CAST({0}.i AS BIGINT) = {1}.b",
    "{0}.i = {1}.i AND {0}.g = {1}.g",
    "{0}.b = {1}.i",
)
ALSO = (" AND {0}.i < {1}.b", " AND ({0}.q OR {1}.q)", " AND {0}.g IS NULL", " AND {0}.i + {1}.i > 0", " AND {0}.q")
WHERE = ("t0.g > 0", "t1.i IS NOT NULL", "t0.b <> t2.b", "t2.i BETWEEN -20 AND 20", "COALESCE(t1.g, t2.g) < 2")


def known(plan: Node) -> Statistics:
    """Returns statistics of large tables, whose sizes and values differ by alias and column."""
    scans = [node for node in walk_up(plan) if isinstance(node, Scan)]
    rows = {scan.alias: 1_000 * 10 ** (_draw(scan.alias) % 5) for scan in scans}
    tables = {scan.alias: TableSize(scan.table, 1, 100 * rows[scan.alias], rows[scan.alias], True) for scan in scans}
    alias_of = {field.name: scan.alias for scan in scans for field, _ in scan.columns}
    keys = {
        columns: KeySketch(
            alias_of[columns[0]],
            columns,
            1_000,
            max(rows[alias_of[columns[0]]] // 10 ** (_draw(*columns) % 4), 1),
            0.0,
            (),
        )
        for columns in statistics_keys(plan)
    }
    shares = {
        condition.sql: dict.fromkeys(terms_by_table(condition, alias_of)[0], 0.1) for condition in conditions_of(plan)
    }
    return Statistics(tables, keys, slots=2, task_memory=1 << 40, table_shares=shares)


def _draw(*names: str) -> int:
    return zlib.crc32("".join(names).encode())


@st.composite
def queries(draw: st.DrawFn) -> str:
    """Three to six tables, joined in chains and stars with a table before, at times with hints and outer joins."""
    number = draw(st.integers(3, 6))
    names = [draw(st.sampled_from([*FACTS, DERIVED])) for _ in range(number)]
    joined = f"{names[0]} AS t0"
    for new in range(1, number):
        kind = draw(st.sampled_from(["JOIN"] * 8 + ["LEFT JOIN", "LEFT SEMI JOIN"])) if new > 2 else "JOIN"
        on = draw(st.sampled_from(KEYS)).format(f"t{draw(st.integers(0, min(new - 1, 2)))}", f"t{new}")
        on += draw(st.sampled_from(["", "", "", *ALSO])).format(f"t{draw(st.integers(0, min(new - 1, 2)))}", f"t{new}")
        if draw(st.integers(0, 4)) == 0:
            on += f" AND t0.g = t{new}.g"
        joined += f" {kind} {names[new]} AS t{new} ON {on}"
    hint = draw(st.sampled_from(["", "", "", "/*+ BROADCAST(t1) */ ", "/*+ MERGE(t2) */ "]))
    where = draw(st.lists(st.sampled_from(WHERE), max_size=2))
    above = f" WHERE {' AND '.join(where)}" if where else ""
    if draw(st.booleans()):
        return f"SELECT {hint}t1.g, COUNT(*) AS n, SUM(t0.i) AS s, MAX(t2.b) AS m FROM {joined}{above} GROUP BY t1.g"
    return f"SELECT {hint}t0.i AS a, t1.b, t2.i AS c, t0.g + t2.g AS d FROM {joined}{above}"


@settings(max_examples=count(sample=40, full=400))
@given(sql=queries())
def test_rows_are_those_of_the_written_order(oracle: Any, sql: str) -> None:
    oracle.check_sql(sql, known, SETTINGS)


def test_random_queries_make_the_rule_fire(oracle: Any) -> None:
    found = oracle.outcomes(queries(), RULE, known, SETTINGS)
    assert min(found[RuleOutcome.FIRED], found[None]) >= 30, found
