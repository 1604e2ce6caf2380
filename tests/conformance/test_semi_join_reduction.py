"""Tests that filtering a table by the keys of a later join does not change a query's rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.contract.reports import RuleOutcome
from tests.support.counts import count
from workers.engine.plan.nodes import Node, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.statistics.cardinality import conditions_of, terms_by_table
from workers.engine.statistics.model import Statistics, TableSize

pytestmark = pytest.mark.spark

RULE = "semi_join_reduction"
ROWS = {"names": 100_000, "mixed": 2_000_000, "hot": 50_000_000, "empty": 50_000_000}
WHERE = (
    "n.d > 0",
    "n.name <> 'one'",
    "n.g IN (1, 2)",
    "n.d IS NULL",
    "NOT n.d > 0",
    "(n.d > 1 OR n.name = 'two')",
    "COALESCE(n.d, 1) > 0",
    "n.g + 1 = 2",
)
FEW = {
    "names": "names AS n",
    "derived": "(SELECT g, d, name FROM names WHERE g < 9) AS n",
    "joined": "mixed AS a JOIN names AS n ON a.g = n.g",
    "kept": "mixed AS a LEFT JOIN names AS n ON a.g = n.g AND n.d > 0",
    "matched": "names AS n LEFT SEMI JOIN mixed AS a ON a.g = n.g AND a.q",
    "unmatched": "names AS n LEFT ANTI JOIN mixed AS a ON a.g = n.g AND a.q",
    "distinct": "(SELECT DISTINCT g, d, name FROM names) AS n",
    "grouped": "(SELECT g, MAX(d) AS d, MIN(name) AS name FROM names WHERE d < 9 GROUP BY g) AS n",
}
"""Sources of `n.g`, by which others are filtered."""
MANY = {
    "table": "{table} AS t",
    "conditions": "(SELECT g, i AS x FROM {table} WHERE q) AS t",
    "groups": "(SELECT g, COUNT(*) AS x FROM {table} GROUP BY g) AS t",
    "sums": "(SELECT g, i, SUM(m) AS x FROM {table} GROUP BY g, i HAVING COUNT(*) > 1) AS t",
    "sets": "(SELECT g, i, COUNT(*) AS x FROM {table} GROUP BY ROLLUP (g, i)) AS t",
    "distinct": "(SELECT DISTINCT g, s AS x FROM {table}) AS t",
    "joined": "(SELECT h.g, m.s AS x FROM {table} AS h JOIN mixed AS m ON h.i = m.i) AS t",
    "kept": "(SELECT h.g, m.s AS x FROM {table} AS h LEFT JOIN mixed AS m ON h.i = m.i) AS t",
    "optional": "(SELECT h.g, m.s AS x FROM mixed AS m LEFT JOIN {table} AS h ON h.i = m.i) AS t",
    "united": "(SELECT g, i AS x FROM {table} UNION ALL SELECT g, i FROM mixed) AS t",
    "limited": "(SELECT g, id AS x FROM {table} ORDER BY id LIMIT 20) AS t",
    "ranked": "(SELECT g, ROW_NUMBER() OVER (PARTITION BY s ORDER BY id) AS x FROM {table}) AS t",
}
"""Sources of `t.g`, which may be filtered."""


def known(plan: Node) -> Statistics:
    """Returns statistics by which each condition leaves few rows, and shuffles are expensive."""
    scans = [node for node in walk_up(plan) if isinstance(node, Scan)]
    tables = {scan.alias: TableSize(scan.table, 1, 1_000 * ROWS[scan.table], ROWS[scan.table], True) for scan in scans}
    alias_of = {field.name: scan.alias for scan in scans for field, _ in scan.columns}
    shares = {
        condition.sql: dict.fromkeys(terms_by_table(condition, alias_of)[0], 0.01) for condition in conditions_of(plan)
    }
    widths = dict.fromkeys(alias_of, 8.0)
    return Statistics(tables, {}, slots=2, task_memory=1 << 40, table_shares=shares, widths=widths)


@st.composite
def queries(draw: st.DrawFn) -> str:
    """A join of a source with conditions and a large one, at times below an outer join."""
    few, many = draw(st.sampled_from(list(FEW))), draw(st.sampled_from(list(MANY)))
    table = draw(st.sampled_from(["hot", "hot", "hot", "empty"]))
    kind = draw(
        st.sampled_from(
            ["JOIN", "JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"]
        )
    )
    sides, extra = [FEW[few], MANY[many].format(table=table)], draw(st.sampled_from(["", "", " AND t.g > -1"]))
    if draw(st.booleans()) and " JOIN " not in sides[0]:
        sides.reverse()
    joined = f"{sides[0]} {kind} {sides[1]} ON n.g = t.g{extra}"
    is_one_sided = kind in {"LEFT SEMI JOIN", "LEFT ANTI JOIN"}
    shown = [name for name in ("n", "t") if not is_one_sided or f" AS {name}" in sides[0]]
    where = draw(st.lists(st.sampled_from(WHERE), min_size=1, max_size=2)) if "n" in shown else []
    columns = ", ".join(f"{name}.g AS {name}_g" for name in shown)
    above = draw(st.sampled_from(["", "", "LEFT JOIN", "RIGHT JOIN"]))
    if above:
        joined += f" {above} names AS o ON o.g = {shown[-1]}.g"
        columns += ", o.name"
    return f"SELECT {columns} FROM {joined}{' WHERE ' + ' AND '.join(where) if where else ''}"


@settings(max_examples=count(sample=40, full=300))
@given(sql=queries())
def test_rows_are_those_of_the_unfiltered_table(oracle: Any, sql: str) -> None:
    oracle.check_sql(sql, known)


def test_random_queries_make_the_rule_fire(oracle: Any) -> None:
    found = oracle.outcomes(queries(), RULE, known)
    assert min(found[RuleOutcome.FIRED], found[None]) >= 40, found
