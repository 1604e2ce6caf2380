"""Property tests that the rules change no column, type or row, for random queries, data, settings and statistics."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.contract.reports import HotKey, RuleOutcome
from tests.support.counts import count
from workers.engine.plan.aggregates import ALGEBRA
from workers.engine.rules.rulebook import RULES
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

pytestmark = pytest.mark.spark

NUMERIC = ("d", "f", "i", "y", "s", "b", "m", "w")
ALL = ("k", "g", *NUMERIC, "q", "da", "ts")
KEYS = ("t.k", "t.g", "t.d", "t.f", "t.i % 3", "t.da", "upper(t.k)", "t.q", "t.m")
FILTERS = (None, None, "t.i > 0", "t.q", "t.k IS NOT NULL", "t.d > 1", "t.k = ''", "t.id < 0")
WHERES = (None, None, "t.i % 2 = 0", "t.k <> 'a'", "t.id < 0")
BUCKETS = (3, 7, 1, 2, 1024)

Json = dict[str, Any]


def call(
    function: str, *columns: str, distinct: bool = False, where: str | None = None, order_by: str | None = None
) -> Json:
    return {
        "function": function,
        "arguments": [f"t.{name}" for name in columns],
        "distinct": distinct,
        "filter": where,
        "order_by": order_by,
    }


@st.composite
def calls(draw: st.DrawFn, function: str, distinct: bool) -> Json:
    where = draw(st.sampled_from(FILTERS))
    if function == "COUNT":
        columns = draw(st.lists(st.sampled_from(ALL), min_size=int(distinct), max_size=1 + int(distinct), unique=True))
        return call(function, *columns, distinct=distinct, where=where)
    column = draw(st.sampled_from(NUMERIC if function in {"SUM", "AVG"} else ALL))
    order_by = "t.id" if function.endswith("VALUE") else None
    return call(function, column, distinct=distinct, where=where, order_by=order_by)


DISTINCT_CALLS = st.sampled_from(["COUNT", "SUM", "AVG"]).flatmap(lambda name: calls(name, True))
ANY_CALLS = st.sampled_from(["MIN", "MAX", "FIRST_VALUE", "LAST_VALUE", "AVG", "SUM", "COUNT"]).flatmap(
    lambda name: calls(name, False)
)


@st.composite
def queries(draw: st.DrawFn) -> Json:
    """Draws queries, mostly with a group key and a DISTINCT call."""
    key_count = draw(st.sampled_from([1, 1, 2, 1, 2, 0]))
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=key_count, max_size=key_count, unique=True))
    distinct_count = draw(st.sampled_from([1, 2, 2, 1, 0]))
    aggregates = draw(st.lists(DISTINCT_CALLS, min_size=distinct_count, max_size=distinct_count))
    aggregates += draw(st.lists(ANY_CALLS, min_size=0 if aggregates else 1, max_size=2))
    query: Json = {
        "source": {"kind": "table", "table": draw(st.sampled_from(["mixed", "hot", "mixed", "empty"])), "alias": "t"},
        "group_by": [{"expression": key, "name": f"key{number}"} for number, key in enumerate(keys)],
        "aggregates": [{**made, "name": f"x{number}"} for number, made in enumerate(aggregates)],
        "where": draw(st.sampled_from(WHERES)),
    }
    kind = draw(st.sampled_from([None, None, None, None, "inner", "left", "right", "full", "left_semi", "left_anti"]))
    if kind is not None:
        key = draw(st.sampled_from(["g", "d"]))
        right = {"kind": "table", "table": "names", "alias": "u"}
        query["joins"] = [{"kind": kind, "right": right, "on": [{"left": f"t.{key}", "right": f"u.{key}"}]}]
    return query


DISTINCT_WAYS: tuple[Json, ...] = (
    {"distinct_split.enabled": "true"},
    {"distinct_method": "branches"},
    {"distinct_split.enabled": "auto"},
    {"distinct_method": "bitmap"},
    {"distinct_split.enabled": "false"},
    {"distinct_split.enabled": "true"},
)


def _with_distinct_way(drawn: Json) -> Json:
    return {**drawn["distinct"], **{key: value for key, value in drawn.items() if key != "distinct"}}


options = st.fixed_dictionaries(
    {
        "agg_phase": st.sampled_from(["ONE_PHASE", "AUTO", "TWO_PHASE"]),
        "distinct": st.sampled_from(DISTINCT_WAYS),
        "distinct_split.bucket_num": st.sampled_from(BUCKETS),
        "eager_aggregation": st.sampled_from(["true", "auto"]),
        "join.ship": st.sampled_from(["AUTO", "REPARTITION"]),
        "skew.threshold": st.just(0),
    }
).map(_with_distinct_way)


def _sketch(columns: tuple[str, ...], distinct: int, hot: float) -> KeySketch:
    keys = (HotKey(value="a", share=hot, estimated_rows=round(10_000_000 * hot)),) if hot else ()
    return KeySketch("t", columns, 60_000, distinct, 0.0, keys)


def statistics(distinct: int, hot: float) -> Statistics:
    """Returns statistics that differ from the data: a plan must be right even then."""
    sizes = {alias: TableSize(alias, 8, 1 << 36, 10_000_000, True) for alias in ("t", "u")}
    single = [(f"t.{name}",) for name in ALL]
    pairs = [(one, other) for (one,) in single for (other,) in single if one != other]
    return Statistics(sizes, {key: _sketch(key, distinct, hot) for key in (*single, *pairs)}, slots=2)


KNOWN = {
    "nothing": Statistics({}, {}, slots=2),
    "nearly unique": statistics(9_000_000, 0.0),
    "few and even": statistics(100, 0.0),
    "one hot": statistics(5_000_000, 0.9),
}


@st.composite
def cases_by_cost(draw: st.DrawFn) -> tuple[Json, Json, str]:
    """Draws cases in which the cost model decides, mostly for a rewrite: simple keys and one set of distinct values."""
    key = draw(st.sampled_from(["t.k", "t.g", "t.da", "t.m"]))
    phase, known = draw(
        st.sampled_from([("ONE_PHASE", "one hot"), ("ONE_PHASE", "one hot"), ("AUTO", "nearly unique")])
    )
    distinct = (
        draw(st.sampled_from(["t.i", "t.b", "t.ts", "t.f"])) if phase == "ONE_PHASE" or draw(st.booleans()) else None
    )
    aggregates = [call("COUNT", distinct.removeprefix("t."), distinct=True)] if distinct else []
    aggregates.append(draw(ANY_CALLS))
    query: Json = {
        "source": {"kind": "table", "table": draw(st.sampled_from(["mixed", "hot"])), "alias": "t"},
        "group_by": [{"expression": key, "name": "key"}],
        "aggregates": [{**made, "name": f"x{number}"} for number, made in enumerate(aggregates)],
        "where": draw(st.sampled_from(WHERES)),
        "having": draw(st.sampled_from([None, None, "key IS NOT NULL"])),
        "order_by": draw(st.sampled_from([[], [{"expression": "key"}]])),
    }
    if query["order_by"]:
        query["limit"] = draw(st.sampled_from([None, 3]))
    chosen = {"agg_phase": phase, "distinct_split": {"bucket_num": draw(st.sampled_from(BUCKETS))}, "skew.threshold": 0}
    if phase == "AUTO":
        chosen["distinct_method"] = draw(st.sampled_from(["bitmap", "auto"]))
    return query, chosen, known


cases = st.one_of(cases_by_cost(), st.tuples(queries(), options, st.sampled_from(sorted(KNOWN))), cases_by_cost())


@settings(max_examples=count(sample=20, full=40))
@given(case=cases)
def test_random_queries_are_equivalent_after_the_rules(oracle: Any, case: tuple[Json, Json, str]) -> None:
    query, chosen, known = case
    oracle.check(query, chosen, KNOWN[known])


FORCED_BY = {
    "split_distinct_aggregate": ("distinct_split.enabled", "auto"),
    "two_phase_aggregate": ("agg_phase", "AUTO"),
}
"""For rules that also fire by cost here: the forcing setting, and its value that does not force."""


def test_random_queries_make_every_rule_fire(oracle: Any) -> None:
    fired: Counter[str] = Counter()
    by_cost: Counter[str] = Counter()

    @settings(max_examples=200, database=None)
    @given(case=cases)
    def count(case: tuple[Json, Json, str]) -> None:
        query, chosen, known = case
        plan = oracle.plan(query, chosen, KNOWN[known])
        rules = {trace.rule for trace in plan.trace if trace.outcome is RuleOutcome.FIRED}
        fired.update(rules)
        chosen_by_cost = {rule for rule, (key, auto) in FORCED_BY.items() if chosen.get(key, auto) == auto}
        by_cost.update(rules & chosen_by_cost)

    count()
    # The hot keys of a join are only known as literals: test_settings has such statistics. Queries with
    # a UNION are in test_union_branches, several aggregates of a table in test_merge_aggregates, windows in
    # test_skewed_windows, percentiles in test_distinct_methods, joins of many tables in test_join_order, and joins with
    # conditions in test_semi_join_reduction.
    elsewhere = {
        "counted_percentiles",
        "join_order",
        "merge_aggregates",
        "prune_union_branches",
        "semi_join_reduction",
        "skewed_join",
        "skewed_windows",
    }
    assert set(fired) == {rule.name for rule in RULES} - elsewhere
    assert all(5 <= by_cost[rule] <= fired[rule] - 20 for rule in FORCED_BY), (fired, by_cost)


DISTINCT_OR_NOT = [False, True]
EVERY_CALL: dict[str, list[Json]] = {
    "counts": [call("COUNT"), *(call("COUNT", name, distinct=one) for name in ALL[:6] for one in DISTINCT_OR_NOT)],
    "more counts": [call("COUNT", name, distinct=True) for name in ALL[6:]],
    "sums": [call("SUM", name, distinct=one) for name in NUMERIC for one in DISTINCT_OR_NOT],
    "averages": [
        call("AVG", name, distinct=one) for name in ("d", "f", "i", "y", "s", "b", "m") for one in DISTINCT_OR_NOT
    ],
    "extremes": [
        call("COUNT", "g", distinct=True),
        *(call(function, name, distinct=one) for function in ("MIN", "MAX") for name in ALL for one in DISTINCT_OR_NOT),
    ],
    "bits": [
        call("COUNT", "g", distinct=True),
        *(call(f"BIT_{name}", "g", distinct=one) for name in ("AND", "OR", "XOR") for one in DISTINCT_OR_NOT),
    ],
    "first and last": [
        call("COUNT", "k", "g", distinct=True),
        *(call(function, name, order_by="t.id") for function in ("FIRST_VALUE", "LAST_VALUE") for name in ALL),
    ],
}


@pytest.mark.parametrize("phase", ["AUTO", "ONE_PHASE"])
@pytest.mark.parametrize("group", [[], ["t.k"]], ids=["global", "by key"])
@pytest.mark.parametrize("name", list(EVERY_CALL))
def test_every_aggregate_can_be_split(oracle: Any, name: str, group: list[str], phase: str) -> None:
    query = {
        "source": {"kind": "table", "table": "mixed", "alias": "t"},
        "group_by": [{"expression": key, "name": "key"} for key in group],
        "aggregates": [{**made, "name": f"x{number}"} for number, made in enumerate(EVERY_CALL[name])],
    }
    chosen = {"agg_phase": phase, "distinct_split.enabled": "true", "distinct_split.bucket_num": 3}
    plan, _ = oracle.check(query, chosen)
    assert [trace.outcome for trace in plan.trace if trace.rule == "split_distinct_aggregate"] == [RuleOutcome.FIRED]


def test_every_row_of_the_partial_final_table_is_tested() -> None:
    covered = {(made["function"], made["distinct"]) for made_of in EVERY_CALL.values() for made in made_of}
    assert {(row.function.value, row.distinct) for row in ALGEBRA if row.refusal is None} <= covered
