"""`bitmap_distinct`: when it fires, and what it makes. Whole plans are in `tests/golden`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.contract.options import JobSettings
from service.contract.query import AggregateFunction as F
from service.contract.reports import HotKey
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, BOOLEAN, STRING, Field
from tests.support.applied_rules import applied, matched, skipped
from tests.support.scalars import scalar
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Aggregate, AggregateRole, Call, Named, Node, Phases, Scan, output_of
from workers.engine.plan.validation import check
from workers.engine.rules.distinct.bitmap_distinct import BitmapDistinct
from workers.engine.rules.distinct.methods import GROUP_BITMAPS
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.cardinality import estimate_rows
from workers.engine.statistics.model import KeySketch, Statistics, TableSize, ValueRange

RULE = BitmapDistinct()
UID, ITEM, NAME = column("o.uid", BIGINT), column("o.item", BIGINT), column("o.name", STRING)
ORDERS = Scan("orders", "o", tuple((Field(f"o.{name}", BIGINT), name) for name in ("uid", "item")))
ITEMS = Call(F.COUNT, (ITEM,), Field("items", BIGINT), distinct=True)
ROWS = Call(F.COUNT, (), Field("n", BIGINT))
WHOLE = Aggregate(ORDERS, (Named(UID, "uid"),), (ITEMS, ROWS))


def context(high: int | None = 1_000_000, rows: int = 10_000_000, **settings: Any) -> RuleContext:
    distinct = {("o.uid",): 20, ("o.uid", "o.item"): round(rows * 0.9)}
    keys = {names: KeySketch("o", names, 60_000, count, 0.0, ()) for names, count in distinct.items()}
    ranges = {} if high is None else {"o.item": ValueRange(0, high)}
    tables = {"o": TableSize("o", 8, rows * 16, rows, True)}
    return RuleContext(JobSettings.model_validate(settings), Statistics(tables, keys, slots=4, ranges=ranges))


@pytest.mark.parametrize(
    "node",
    [
        ORDERS,
        replace(WHOLE, calls=(ROWS,)),
        replace(WHOLE, role=AggregateRole.PARTIAL),
        replace(WHOLE, phases=Phases.TWO_PHASE),
        replace(WHOLE, calls=(replace(ITEMS, function=F.MAX),)),
    ],
)
def test_it_is_about_undecided_whole_aggregates_that_tell_values_apart(node: Node) -> None:
    assert RULE.match(node, context()) is None


@pytest.mark.parametrize(
    ("node", "ctx", "words"),
    [
        (WHOLE, context(distinct_method="branches"), "distinct_method is branches."),
        (WHOLE, context(**{"distinct_split.enabled": True}), "distinct_split.enabled is true"),
        (WHOLE, context(agg_phase="ONE_PHASE"), "agg_phase is ONE_PHASE"),
        (WHOLE, context(high=None), "range of the values is not known"),
        (WHOLE, context(rows=1000), "1,000 rows are too few"),
        (WHOLE, context(high=2**62), "not expected to be clearly cheaper"),
        (replace(WHOLE, keys=(Named(NAME, "name"),)), context(), "no statistics for the group keys"),
        (replace(WHOLE, grouping_sets=((0,), ())), context(), "grouping sets"),
        (replace(WHOLE, calls=(replace(ITEMS, arguments=(NAME,)),)), context(), "o.name has the type STRING"),
        (replace(WHOLE, calls=(replace(ITEMS, arguments=(ITEM, UID)),)), context(), "2 expressions together"),
        (replace(WHOLE, calls=(replace(ITEMS, function=F.SUM),)), context(), "needs the values themselves"),
        (
            replace(WHOLE, calls=(ITEMS, Call(F.VAR_POP, (ITEM,), Field("v", BIGINT)))),
            context(distinct_method="bitmap"),
            "VAR_POP(o.item) cannot be split: sums of squares",
        ),
        (replace(WHOLE, calls=(ITEMS, replace(ITEMS, arguments=(UID,)))), context(), "2 sets of distinct values"),
    ],
)
def test_it_leaves_the_plan_with_a_reason(node: Node, ctx: RuleContext, words: str) -> None:
    skip = skipped(RULE, node, ctx)
    assert words in skip.reason


def test_half_a_million_rows_are_enough() -> None:
    assert "499,999 rows are too few" in skipped(RULE, WHOLE, context(rows=499_999)).reason
    found = RULE.match(WHOLE, context(rows=500_000))
    assert found is not None
    assert "BITMAP" in {way.name for way in found.alternatives}


def test_close_values_are_counted_by_bitmaps() -> None:
    match = matched(RULE, WHOLE, context())
    costs = {way.name: way for way in match.alternatives}
    assert costs["BITMAP"].chosen
    assert costs["BITMAP"].cost * 2 < costs["NATIVE"].cost


@pytest.mark.parametrize(
    ("high", "slots", "lanes"),
    [
        (10_000, 4, 1),  # few bitmaps of one lane, which stay in the caches
        (1_000_000, 4, 0),  # many, so blocks
        (1_000_000, 2_000, 1),  # each of many tasks would fill its own
        (2**50, 4, 1),  # far apart
        (None, 4, 1),
    ],
)
def test_bitmaps_are_as_wide_as_costs_least(high: int | None, slots: int, lanes: int) -> None:
    ctx = context(high, distinct_method="bitmap")
    ctx = replace(ctx, statistics=replace(ctx.statistics, slots=slots))
    _, after = applied(RULE, WHOLE, ctx)
    assert text_of(after).count("BIT_OR(") == lanes
    assert text_of(after).count("BITMAP_CONSTRUCT_AGG(") == (lanes == 0)


@pytest.mark.parametrize(
    "node",
    [
        replace(WHOLE, calls=(ITEMS, Call(F.MAX, (NAME,), Field("most", STRING)))),
        replace(WHOLE, keys=(Named(NAME, "o.uid"),)),
    ],
)
def test_no_blocks_are_used_together_with_texts(node: Aggregate) -> None:
    ctx = context(1_000_000, distinct_method="bitmap")
    assert "BITMAP_CONSTRUCT_AGG" not in text_of(RULE.rewrite(Match(node, "BITMAP", ""), ctx))


def test_blocks_are_not_chosen_where_spark_may_not_hash_them() -> None:
    ctx = context(1_000_000, distinct_method="bitmap")
    ctx = replace(ctx, statistics=replace(ctx.statistics, hashes_blocks=False))
    assert text_of(RULE.rewrite(Match(WHOLE, "BITMAP", ""), ctx)).count("BIT_OR(") == 4


def test_blocks_fit_in_memory() -> None:
    ctx = context(1_000_000, distinct_method="bitmap")
    ctx = replace(ctx, statistics=replace(ctx.statistics, task_memory=1 << 20))
    assert text_of(RULE.rewrite(Match(WHOLE, "BITMAP", ""), ctx)).count("BIT_OR(") == 4


def test_what_is_forced_without_knowledge_says_what_it_costs() -> None:
    match = matched(RULE, WHOLE, context(high=None, distinct_method="bitmap"))
    assert "in the worst case every bitmap holds one value" in match.reason


NAMED = Scan("orders", "o", (*ORDERS.columns, (Field("o.name", STRING), "name")))
NAMES = Call(F.COUNT, (NAME,), Field("names", BIGINT), distinct=True)
BY_NAME = Aggregate(NAMED, (Named(UID, "uid"),), (NAMES,))


def context_of_names(
    names: int = 500_000,
    pairs: int = 6_000_000,
    groups: int | None = 20,
    hot: str = "",
    keys: int = 20,
    **settings: Any,
) -> RuleContext:
    """Names of 20 M rows in groups of so many `keys`, which are known to be below `groups`; the `hot` column has a
    value with 60 % of them.
    """
    rows = 20_000_000
    top = (HotKey(value="x", share=0.6, estimated_rows=round(0.6 * rows)),)
    counts = {("o.uid",): keys, ("o.name",): names, ("o.uid", "o.name"): pairs}
    sketches = {
        columns: KeySketch("o", columns, 60_000, count, 0.0, top if columns == (hot,) else ())
        for columns, count in counts.items()
    }
    ranges = {} if groups is None else {"o.uid": ValueRange(0, groups - 1)}
    statistics = Statistics({"o": TableSize("o", 8, rows * 100, rows, True)}, sketches, slots=4, ranges=ranges)
    return RuleContext(JobSettings.model_validate(settings), statistics)


def test_values_of_any_type_have_their_groups_as_bits() -> None:
    match = matched(RULE, BY_NAME, context_of_names())
    assert match.choice == GROUP_BITMAPS
    after = RULE.rewrite(match, context_of_names())
    check(after, RULE.name, output_of(BY_NAME))
    assert "Exchange BY o.name" in text_of(after)
    costs = {way.name: way.cost for way in match.alternatives}
    assert costs[GROUP_BITMAPS] < costs["ONE_PHASE_BY_VALUE"] < costs["NATIVE"]


@pytest.mark.parametrize(
    "ctx",
    [
        context_of_names(groups=None),
        context_of_names(groups=2**40),  # every value would have a bitmap for each of its groups
        context_of_names(names=5_500_000),  # nearly every value is in one group
        context_of_names(hot="o.name"),
        context_of_names(groups=2**40, keys=1_000_000, hot="o.uid", names=200_000),
        context_of_names(groups=10**9, keys=100_000, hot="o.uid", names=200_000, pairs=15_000_000),
        context_of_names(agg_phase="TWO_PHASE"),
        context_of_names(agg_phase="ONE_PHASE"),
        context_of_names(names=10, pairs=200),
    ],
)
def test_groups_are_no_bits_where_that_does_not_pay(ctx: RuleContext) -> None:
    skip = skipped(RULE, BY_NAME, ctx)
    assert "o.name has the type STRING" in skip.reason
    assert not any(way.chosen for way in skip.alternatives if way.name == GROUP_BITMAPS)


def test_rows_too_wide_for_generated_code_are_not_chosen() -> None:
    other = replace(NAMES, filter=scalar("o.uid > 0", BOOLEAN), output=Field("some", BIGINT))
    assert isinstance(RULE.match(replace(BY_NAME, calls=(NAMES, other)), context_of_names()), Skip)


@pytest.mark.parametrize(
    ("ctx", "phases"),
    [
        (context_of_names(distinct_method="bitmap"), "Aggregate PARTIAL ONE_PHASE"),
        (context_of_names(distinct_method="bitmap", agg_phase="TWO_PHASE"), "Aggregate PARTIAL TWO_PHASE"),
        (context_of_names(distinct_method="bitmap", hot="o.name"), "Aggregate PARTIAL TWO_PHASE"),
    ],
)
def test_values_are_deduplicated_in_two_phases_if_one_is_hot_or_two_are_forced(ctx: RuleContext, phases: str) -> None:
    _, after = applied(RULE, BY_NAME, ctx)
    assert phases in text_of(after)
    assert ("Exchange" in text_of(after)) is phases.endswith("ONE_PHASE")


def test_the_replacement_of_an_aggregate_has_its_groups() -> None:
    ctx = context_of_names()
    after = RULE.rewrite(Match(BY_NAME, GROUP_BITMAPS, ""), ctx)
    assert estimate_rows(after, ctx.statistics) == estimate_rows(BY_NAME, ctx.statistics) == 20


def test_groups_are_the_bits_where_bitmaps_are_forced_and_values_are_none() -> None:
    match = matched(RULE, BY_NAME, context(distinct_method="bitmap"))
    assert match.choice == GROUP_BITMAPS
    assert "the values are not integers" in match.reason
