"""Tests of many queries with all valid combinations of settings against plain Spark.

By default, some combinations of every seventh query run, different ones for each. The variable EVENKEEL_CONFORMANCE
selects more: `sampled` for some combinations of every query (minutes), `alone` for each choice of a setting alone,
`pairs` for all pairs of choices, `product` for all combinations (hours). Combinations with the same plan run it once.
Floats agree within 1e-9, everything else exactly; a failing query must fail with the same error condition.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from service.contract.options import AggPhase, DistinctMethod, JoinLocal, JoinShip, JoinSkew, Toggle
from tests.conformance import nasty_tables
from tests.conformance.broad_queries import GROUPS, OVERFLOWS, QUERIES
from tests.conformance.combinations import ALL_OFF, Settings, all_together, alone, dimensions, in_pairs, is_legal
from tests.conformance.laboratory import Laboratory, interpreted, parquet
from tests.conformance.refusals import facts_of, refused
from tests.support.counts import count
from workers.engine.rules.rulebook import RULES

pytestmark = pytest.mark.spark

WIDTH = os.environ.get("EVENKEEL_CONFORMANCE", "some")
TEXTS = QUERIES[::7] if WIDTH == "some" else QUERIES
_ALONE, _TOGETHER = (1, 1) if WIDTH == "some" else (2, 1)
"""The number of single choices and of combinations that run for a query."""


@pytest.fixture(scope="module")
def laboratory(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    """The nasty tables, as files and in memory."""
    root = nasty_tables.write_all(tmp_path_factory.mktemp("nasty"))
    with interpreted(spark):
        found = Laboratory(spark, root, nasty_tables.AS_PARQUET, cached=True, thorough=WIDTH not in {"some", "sampled"})
        yield found
        found.close()


def wanted(choices: tuple[tuple[Settings, ...], ...], text: str) -> list[Settings]:
    """Returns the combinations to run for a query."""
    every = {"alone": alone, "pairs": in_pairs, "product": all_together}
    if WIDTH in every:
        return every[WIDTH](choices)
    random, single, product = Random(text), alone(choices)[2:], all_together(choices)
    return [
        {},
        *random.sample(single, min(_ALONE, len(single))),
        *random.sample(product, min(_TOGETHER, len(product))),
    ]


@pytest.mark.parametrize("text", TEXTS)
def test_every_setting_has_sparks_rows(laboratory: Laboratory, text: str) -> None:
    combinations = wanted(laboratory.choices(text), text)
    tally = laboratory.check(text, combinations)
    assert tally.wrong == []
    assert tally.unheard == []
    facts = facts_of(text)
    assert set(tally.refused) == {str(dict(settings)) for settings in combinations if refused(facts, settings)}


def test_every_rule_fires(laboratory: Laboratory) -> None:
    # No setting forces the first three, which have tests of their own; test_distinct_methods has percentiles, and
    # test_join_order has joins of more tables.
    others = {"prune_union_branches", "merge_aggregates", "semi_join_reduction", "counted_percentiles", "join_order"}
    missing = {rule.name for rule in RULES} - others
    for text in (text for name, texts in GROUPS.items() for text in texts if name != "nested"):
        if missing:
            missing -= laboratory.plans(text, alone(laboratory.choices(text))).fired
    assert missing == set()


def test_combinations_have_every_value_of_every_strategy() -> None:
    every = alone(dimensions(distinct=True, aggregate=True, join=True, window=True))
    for key, kind in {
        "agg_phase": AggPhase,
        "distinct_method": DistinctMethod,
        "eager_aggregation": Toggle,
        "join.ship": JoinShip,
        "join.local": JoinLocal,
        "join.skew": JoinSkew,
        "skewed_windows": Toggle,
    }.items():
        tried = {settings[key] for settings in every if key in settings}
        assert tried | {kind.AUTO.value} == {value.value for value in kind}  # type: ignore[attr-defined]
    assert {settings.get("incremental_agg") for settings in every} == {True, False, None}
    assert ALL_OFF in every
    forced = [(ship, local) for ship in JoinShip for local in JoinLocal if "AUTO" not in {ship.value, local.value}]
    assert sum(is_legal(*pair) for pair in forced) == 5
    assert len(all_together(dimensions(distinct=True, aggregate=True, join=True))) > len(every)


def test_overflows_are_errors_in_spark(spark: SparkSession, laboratory: Laboratory) -> None:
    """Otherwise, these queries would prove nothing."""
    assert laboratory.fails(OVERFLOWS[0])


KEYS = st.sampled_from(["t.k", "t.g", "t.x", "t.d", "t.q", "t.s % 2", "t.m"])
CALLS = [
    "COUNT(*)",
    *(f"COUNT(t.{name})" for name in ("x", "k", "w")),
    *(f"COUNT(DISTINCT t.{name})" for name in ("big", "g", "x", "r", "k", "m", "w", "d", "ts", "q", "y")),
    *(f"SUM({distinct}t.{name})" for name in ("b", "s", "m", "y") for distinct in ("", "DISTINCT ")),
    *(f"AVG({distinct}t.{name})" for name in ("b", "m", "y") for distinct in ("", "DISTINCT ")),
    *(f"{function}(t.{name})" for function in ("MIN", "MAX") for name in ("big", "x", "k", "w", "ts")),
    "COUNT(DISTINCT t.g, t.k)",
    "COUNT(DISTINCT t.g) FILTER (WHERE t.q)",
    "SUM(t.s) FILTER (WHERE t.g > 0)",
]
CALLS_ON_THE_RIGHT = ["COUNT(u.v)", "SUM(u.v)", "AVG(u.v)", "MIN(u.name)", "COUNT(DISTINCT u.v)", "MAX(u.x)"]


@st.composite
def queries(draw: st.DrawFn) -> str:
    """Draws aggregates over `t` and over its join with `u`."""
    keys = draw(st.lists(KEYS, max_size=2, unique=True))
    kind = draw(st.sampled_from([None, "INNER", "LEFT", "RIGHT", "LEFT SEMI", "LEFT ANTI", "FULL"]))
    calls = draw(st.lists(st.sampled_from(CALLS), min_size=1, max_size=3, unique=True))
    if kind is not None and " " not in kind:
        calls += draw(st.lists(st.sampled_from(CALLS_ON_THE_RIGHT), max_size=2, unique=True))
    on = draw(st.sampled_from(["t.g = u.g", "t.k = u.k", "t.x = u.x", "t.g = u.g AND t.k = u.k", "t.d = u.d"]))
    where = draw(st.sampled_from(["", " WHERE t.s > 0", " WHERE t.g IS NOT NULL"]))
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    joined = f" {kind} JOIN u ON {on}" if kind else ""
    return f"SELECT {', '.join([*keys, *calls])} FROM t{joined}{where}{group}"


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list[nasty_tables.Row]]:
    """Draws no, one or some rows, with one key or several; rows of `u` are among the known ones."""
    rows = draw(st.sampled_from([0, 1, 2, 7, 30]))
    hot = draw(st.sampled_from([0.0, 0.7, 1.0]))
    sides = draw(st.lists(st.sampled_from(nasty_tables.SIDES), max_size=6))
    return {"t": nasty_tables.facts(rows, hot, draw(st.integers(0, 1000))), "u": sides}


@settings(max_examples=count(sample=3, full=25))
@given(text=queries(), rows=tables(), seed=st.integers(0, 1_000_000))
def test_random_queries_over_random_tables_have_sparks_rows(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, text: str, rows: dict[str, Any], seed: int
) -> None:
    root = tmp_path_factory.mktemp("any")
    for name, schema in {"t": nasty_tables.FACTS, "u": nasty_tables.SIDE}.items():
        nasty_tables.write(root, name, rows[name], schema)
    with interpreted(spark):
        found = Laboratory(spark, root, {name: parquet(name) for name in ("t", "u")}, cached=False)
        product = all_together(found.choices(text))
        tally = found.check(text, Random(seed).sample(product, min(6, len(product))))
        found.close()
    assert tally.wrong == []
