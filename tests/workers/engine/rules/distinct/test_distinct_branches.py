"""`distinct_branches`: when it fires, and what it makes. Whole plans are in `tests/golden`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.contract.options import JobSettings
from service.contract.query import AggregateFunction as F
from service.contract.query import JoinKind
from service.contract.reports import HotKey
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, DOUBLE, STRING, Field
from tests.support.applied_rules import applied, matched, skipped
from tests.support.plan_parts import USERS
from tests.support.scalars import scalar
from workers.engine.plan.explain import line_of, text_of
from workers.engine.plan.nodes import Aggregate, AggregateRole, Call, Join, Limit, Named, Node, Phases, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.cost import PARSED
from workers.engine.rules.distinct.cost import READ_AGAIN
from workers.engine.rules.distinct.distinct_branches import DistinctBranches
from workers.engine.rules.rule import RuleContext
from workers.engine.statistics.model import KeySketch, Statistics, TableSize, ValueRange

RULE = DistinctBranches()
TYPES = {"uid": BIGINT, "item": BIGINT, "shop": STRING, "rate": DOUBLE}
UID, ITEM, SHOP, RATE = (column(f"o.{name}", type_) for name, type_ in TYPES.items())
ORDERS = Scan("orders", "o", tuple((Field(f"o.{name}", type_), name) for name, type_ in TYPES.items()))
ITEMS = Call(F.COUNT, (ITEM,), Field("items", BIGINT), distinct=True)
SHOPS = Call(F.COUNT, (SHOP,), Field("shops", BIGINT), distinct=True)
TOTAL = Call(F.SUM, (RATE,), Field("total", DOUBLE))
WHOLE = Aggregate(ORDERS, (Named(UID, "uid"),), (ITEMS, TOTAL, SHOPS))
JOINED = replace(WHOLE, input=Join(ORDERS, USERS, JoinKind.INNER, ((ITEM, column("u.uid", BIGINT)),)))
GLOBAL = replace(WHOLE, keys=())
VARIANCE = replace(WHOLE, calls=(ITEMS, SHOPS, Call(F.VAR_POP, (RATE,), Field("v", DOUBLE))))
OF_GROUPS = replace(WHOLE, calls=(SHOPS, Call(F.COUNT, (RATE,), Field("rates", BIGINT), distinct=True)))
BY_RATE = replace(WHOLE, keys=(Named(RATE, "rate"),))


def context(groups: int = 3_000_000, pairs: int = 19_000_000, hot: float = 0.0, **settings: Any) -> RuleContext:
    rows = 20_000_000
    top = (HotKey(value="7", share=hot, estimated_rows=round(hot * rows)),) if hot else ()
    keys: dict[tuple[str, ...], KeySketch] = {
        names: KeySketch("o", names, 60_000, count, 0.0, top if len(names) == 1 else ())
        for key in ("o.uid", "o.rate")
        for names, count in (((key,), groups), ((key, "o.item"), pairs), ((key, "o.shop"), pairs))
    }
    tables = {"o": TableSize("o", 8, rows * 100, rows, True), "u": TableSize("u", 1, 1 << 30, 3_000_000, True)}
    ranges = {"o.item": ValueRange(0, 5_000_000)}
    return RuleContext(JobSettings.model_validate(settings), Statistics(tables, keys, slots=16, ranges=ranges))


def made(node: Aggregate, ctx: RuleContext) -> tuple[str, Node]:
    match, after = applied(RULE, node, ctx)
    return match.choice, after


@pytest.mark.parametrize(
    "node",
    [
        ORDERS,
        replace(WHOLE, calls=(TOTAL,)),
        replace(WHOLE, role=AggregateRole.PARTIAL),
        replace(WHOLE, phases=Phases.TWO_PHASE),
    ],
)
def test_it_is_about_undecided_whole_aggregates_that_tell_values_apart(node: Node) -> None:
    assert RULE.match(node, context()) is None


@pytest.mark.parametrize(
    ("node", "ctx", "words"),
    [
        (WHOLE, context(distinct_method="native"), "distinct_method is native."),
        (WHOLE, context(distinct_method="split"), "distinct_method is split."),
        (WHOLE, context(**{"distinct_split.enabled": True}), "distinct_split.enabled is true."),
        (replace(WHOLE, calls=(ITEMS,)), context(distinct_method="branches"), "one set of distinct values"),
        (replace(WHOLE, grouping_sets=((0,), ())), context(), "grouping sets"),
        (replace(BY_RATE, calls=(SHOPS, replace(SHOPS, arguments=(RATE,)))), context(distinct_method="bitmap"), "None"),
        (replace(WHOLE, keys=(Named(SHOP, "shop"),)), context(), "no statistics for the group keys"),
        (replace(WHOLE, calls=(ITEMS, replace(SHOPS, arguments=(RATE,)))), context(), "for the distinct values"),
        (WHOLE, context(groups=20, pairs=100), "not expected to be clearly cheaper"),
        (WHOLE, context(agg_phase="TWO_PHASE"), "not expected"),
        (VARIANCE, context(), "not expected"),
        (BY_RATE, context(), "not expected"),
    ],
)
def test_it_leaves_the_plan_with_a_reason(node: Node, ctx: RuleContext, words: str) -> None:
    skip = skipped(RULE, node, ctx)
    assert words in skip.reason


@pytest.mark.parametrize(
    ("node", "ctx", "choice"),
    [
        (WHOLE, context(), "KEYED_BRANCHES"),
        (JOINED, context(), "KEYED_BRANCHES"),
        (WHOLE, context(groups=20, pairs=18_000_000), "BRANCHES"),
        (WHOLE, context(distinct_method="branches"), "KEYED_BRANCHES"),
        (VARIANCE, context(distinct_method="branches"), "BRANCHES"),
        (GLOBAL, context(distinct_method="branches"), "BRANCHES"),
        (WHOLE, context(distinct_method="bitmap"), "BRANCHES"),
        (OF_GROUPS, context(distinct_method="bitmap"), "BRANCHES"),
    ],
)
def test_it_uses_the_cheapest_possible_method(node: Aggregate, ctx: RuleContext, choice: str) -> None:
    assert made(node, ctx)[0] == choice


def test_what_is_below_is_computed_once_where_it_can_be() -> None:
    forced = RuleContext(JobSettings.model_validate({"distinct_method": "branches"}), Statistics({}, {}, slots=2))
    assert made(WHOLE, forced)[0] == "BRANCHES"
    choice, after = made(JOINED, forced)
    assert choice == "KEYED_BRANCHES"
    assert sum(isinstance(node, Join) for node in walk_up(after)) == 1
    match = matched(RULE, replace(JOINED, keys=()), forced)
    assert "computed once for each branch" in match.reason


SUMMED = Aggregate(
    ORDERS, (Named(ITEM, "o.item"), Named(SHOP, "o.shop")), (replace(TOTAL, output=Field("o.uid", DOUBLE)),)
)


@pytest.mark.parametrize("below", [Limit(ORDERS, 1000), SUMMED, Limit(JOINED.input, 9)], ids=["limit", "sum", "join"])
def test_what_may_differ_each_time_is_computed_once(below: Node) -> None:
    """Branches would lose groups that one of them has not, and count values of other rows."""
    forced = RuleContext(JobSettings.model_validate({"distinct_method": "branches"}), Statistics({}, {}, slots=2))
    whole = replace(WHOLE, input=below, calls=(ITEMS, SHOPS))
    assert made(whole, forced)[0] == "KEYED_BRANCHES"
    bitmaps = RuleContext(JobSettings.model_validate({"distinct_method": "bitmap"}), forced.statistics)
    for node, ctx in ((replace(whole, keys=()), forced), (whole, bitmaps), (replace(whole, keys=()), bitmaps)):
        skip = skipped(RULE, node, ctx)
        assert "might differ each time" in skip.reason


def test_a_global_aggregate_is_a_row_of_each_branch() -> None:
    _, after = made(GLOBAL, context(distinct_method="branches"))
    joins = [node for node in walk_up(after) if isinstance(node, Join)]
    assert [line_of(join) for join in joins] == ["Join CROSS"]


def test_calls_of_one_set_share_a_branch_and_a_filter_is_kept_by_value() -> None:
    positive = scalar("`o.rate` > 0", None)
    calls = (ITEMS, SHOPS, replace(ITEMS, function=F.SUM, output=Field("sum", BIGINT), filter=positive))
    choice, after = made(replace(WHOLE, calls=calls), context())
    assert choice == "KEYED_BRANCHES"
    assert "SUM($v0) FILTER (WHERE $branch = 1 AND $m0) AS $r2" in text_of(after)
    assert "MAX(o.rate > 0) AS $m0" in text_of(after)
    assert "Expand 2 branches" in text_of(after)


def test_the_rows_of_a_hot_group_are_shuffled_by_value() -> None:
    choice, after = made(WHOLE, context(hot=0.6))
    assert choice == "BRANCHES"
    exchanges = [line.strip() for line in text_of(after).splitlines() if "Exchange" in line]
    assert exchanges == ["Exchange BY o.uid, o.item INTO 64", "Exchange BY o.uid, o.shop INTO 64"]


def test_a_forced_phase_is_no_mixture_of_one_and_two() -> None:
    for phase in ("ONE_PHASE", "TWO_PHASE"):
        match = matched(RULE, WHOLE, context(hot=0.6, distinct_method="branches", agg_phase=phase))
        assert "Exchange" not in text_of(RULE.rewrite(match, context(hot=0.6, agg_phase=phase)))


def test_each_branch_parses_the_text_that_it_reads() -> None:
    ctx = context(groups=20)
    tables = {name: replace(size, is_text=True) for name, size in ctx.statistics.tables.items()}
    of_text = replace(ctx, statistics=replace(ctx.statistics, tables=tables))
    costs = [
        {way.name: way.cost for way in found.alternatives}
        for found in (RULE.match(WHOLE, one) for one in (ctx, of_text))
        if found is not None
    ]
    assert costs[1]["NATIVE"] == costs[0]["NATIVE"]
    # One of two branches reads the rows again.
    assert costs[1]["BRANCHES"] - costs[0]["BRANCHES"] == pytest.approx((PARSED - READ_AGAIN) * 20_000_000 / 16)


def test_a_call_without_parts_is_sent_by_no_group() -> None:
    above_a_join = replace(VARIANCE, input=JOINED.input)
    assert made(above_a_join, context(distinct_method="branches"))[0] == "BRANCHES"
    assert made(JOINED, context(distinct_method="branches"))[0] == "KEYED_BRANCHES"
