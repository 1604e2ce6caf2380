"""Tests that merging aggregates of the same tables does not change a query's rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.contract.reports import RuleOutcome
from tests.support.counts import count

pytestmark = pytest.mark.spark

RULE = "merge_aggregates"
CALLS = (
    "COUNT(*)",
    "COUNT({0}.i)",
    "SUM({0}.m)",
    "AVG({0}.m)",
    "MIN({0}.s)",
    "MAX({0}.d)",
    "COUNT(*) FILTER (WHERE {0}.q)",
    "MIN({0}.i) FILTER (WHERE {0}.s IS NULL)",
    "SUM({0}.m) + COUNT(*)",
    "COUNT(DISTINCT {0}.i)",
)
CONDITIONS = (
    "{0}.i > 1",
    "{0}.i <= 1",
    "{0}.q",
    "NOT {0}.q",
    "{0}.s IS NULL",
    "{0}.d > 0",
    "{0}.g = 1",
    "({0}.g = 1 OR {0}.i IS NULL)",
    "{0}.m BETWEEN -1 AND 2",
    "{0}.i > 1000000",
)
JOINED = {
    "": "",
    "JOIN": " JOIN names AS {1} ON {0}.g = {1}.g",
    "LEFT JOIN": " LEFT JOIN names AS {1} ON {0}.g = {1}.g AND {1}.d > 0",
    "self-join": " JOIN mixed AS {1} ON {0}.i = {1}.g",
}


@st.composite
def aggregates(draw: st.DrawFn, table: str, join: str, place: int) -> str:
    names = f"t{place}", f"u{place}"
    call = draw(st.sampled_from(CALLS)).format(*names)
    found = draw(st.lists(st.sampled_from(CONDITIONS), max_size=3))
    where = " AND ".join(found).format(*names)
    source = f"{table} AS {names[0]}{JOINED[join].format(*names)}"
    return f"(SELECT {call} AS x FROM {source}{' WHERE ' + where if where else ''})"


@st.composite
def queries(draw: st.DrawFn) -> str:
    """Two to five numbers, most of the same table and joins, as derived tables or subqueries in SELECT."""
    table, join = draw(st.sampled_from(["mixed", "mixed", "hot", "empty"])), draw(st.sampled_from(list(JOINED)))
    count = draw(st.sampled_from([2, 2, 2, 3, 4, 5]))
    odd = draw(st.sampled_from([None, None, "names"]))
    parts = [draw(aggregates(table, join, place)) for place in range(count)]
    further = f" CROSS JOIN {odd} AS n" if odd else ""
    if draw(st.booleans()):
        columns = ", ".join(f"{part} AS c{place}" for place, part in enumerate(parts))
        return f"SELECT n.g, {columns} FROM names AS n"
    columns = ", ".join(f"v{place}.x AS c{place}" for place in range(count))
    source = " CROSS JOIN ".join(f"{part} AS v{place}" for place, part in enumerate(parts))
    return f"SELECT {columns} FROM {source}{further}"


@settings(max_examples=count(sample=15, full=40))
@given(sql=queries())
def test_rows_are_those_of_separate_aggregates(oracle: Any, sql: str) -> None:
    oracle.check_sql(sql)


def test_random_queries_make_the_rule_fire_and_skip(oracle: Any) -> None:
    found = oracle.outcomes(queries(), RULE)
    assert min(found[RuleOutcome.FIRED], found[RuleOutcome.SKIPPED]) >= 20, found
