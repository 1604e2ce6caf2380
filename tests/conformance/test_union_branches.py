"""Tests that removing UNION branches that the conditions exclude does not change a query's rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.contract.reports import RuleOutcome
from tests.support.counts import count

pytestmark = pytest.mark.spark

RULE = "prune_union_branches"
KINDS = ("'a'", "'b'", "''", "CAST(NULL AS STRING)", "k")
LEVELS = ("1", "2", "-1", "NULL", "i", "CAST(2 AS TINYINT)", "COALESCE(i, m, d)")
CONDITIONS = (
    "t.kind = 'a'",
    "'b' = t.kind",
    "t.kind IN ('a', '')",
    "t.level = 1",
    "t.level IN (2, -1, NULL)",
    "t.kind = 'a' AND t.level = 2",
    "t.kind = 'b' AND t.g > 0",
    "t.kind IS NULL",
    "(t.kind = 'a' OR t.level = 1)",
    "t.g > 0",
)
JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")


@st.composite
def branches(draw: st.DrawFn) -> str:
    table = draw(st.sampled_from(["mixed", "mixed", "names_", "empty"]))
    kind, level = draw(st.sampled_from(KINDS)), draw(st.sampled_from(LEVELS))
    if table == "names_":
        kind, level = ("name" if kind == "k" else kind), ("g" if "i" in level else level)
        return f"SELECT g, {kind} AS kind, {level} AS level FROM names"
    if draw(st.booleans()):
        return f"SELECT g, {kind} AS kind, {level} AS level FROM {table}"
    return f"SELECT DISTINCT g, {kind} AS kind, {level} AS level FROM {table} WHERE q"


@st.composite
def queries(draw: st.DrawFn) -> str:
    found = draw(st.lists(branches(), min_size=2, max_size=4))
    union = " UNION ALL ".join(found)
    if draw(st.booleans()):
        union = f"SELECT x.g, x.kind, x.level FROM ({union}) x"
        union += draw(st.sampled_from([" WHERE x.kind IN ('a', 'b')", " GROUP BY x.g, x.kind, x.level", " LIMIT 1000"]))
    on = draw(st.sampled_from(["", *(f" AND {condition}" for condition in CONDITIONS)]))
    where = draw(st.sampled_from(["", *(f" WHERE {condition}" for condition in CONDITIONS)]))
    join = draw(st.sampled_from(JOINS))
    swapped = draw(st.booleans())
    one_sided = join in JOINS[-2:]
    columns = "n.name" if swapped and one_sided else "t.g, t.kind, t.level" if one_sided else "t.kind, t.level, n.name"
    if swapped and one_sided:
        where = ""
    sides = (f"names n {join} ({union}) t" if swapped else f"({union}) t {join} names n") + f" ON t.g = n.g{on}"
    return f"SELECT {columns} FROM {sides}{where}"


@settings(max_examples=count(sample=25, full=60))
@given(sql=queries())
def test_rows_are_those_of_the_whole_union(oracle: Any, sql: str) -> None:
    oracle.check_sql(sql)


def test_random_queries_make_the_rule_fire_and_skip(oracle: Any) -> None:
    found = oracle.outcomes(queries(), RULE)
    assert min(found[RuleOutcome.FIRED], found[None]) >= 50, found
    assert found[RuleOutcome.SKIPPED], found


@pytest.mark.parametrize("join", JOINS)
def test_row_without_remaining_partners_is_dropped(oracle: Any, join: str) -> None:
    """The condition is true for none of the unmatched rows of the outer join."""
    union = "SELECT g, 'a' AS kind FROM mixed UNION ALL SELECT g, 'b' FROM names"
    plan, rows = oracle.check_sql(f"SELECT t.g, t.kind FROM ({union}) t {join} names n ON t.g = n.g WHERE t.kind = 'b'")
    assert any(trace.rule == RULE and trace.outcome is RuleOutcome.FIRED for trace in plan.trace)
    assert rows


@pytest.mark.parametrize(
    "sql",
    [
        # The type of x depends on both branches; only Spark knows it.
        "SELECT t.x FROM (SELECT g, COALESCE(i, m, d) AS x, 'a' AS k FROM mixed"
        " UNION ALL SELECT g, i, 'b' FROM mixed) t WHERE t.k = 'b'",
        # Spark compares the texts as instants.
        "SELECT t.g FROM (SELECT g, '2013-1-1' AS x FROM names"
        " UNION ALL SELECT g, da + INTERVAL '1' HOUR FROM mixed) t WHERE t.x = '2013-01-01'",
    ],
)
def test_column_whose_type_only_spark_knows(oracle: Any, sql: str) -> None:
    _, rows = oracle.check_sql(sql)
    assert rows
