"""`eager_aggregation`: when it fires, and what it makes. Whole plans are in `tests/golden`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.contract.options import JobSettings, JoinShip
from service.contract.query import JoinKind
from service.contract.reports import HotKey, RuleOutcome, RuleTrace
from service.sql.expressions.scalar import column
from service.sql.types.data_types import INT, Field
from tests.support.applied_rules import applied, matched, skipped
from tests.support.joined import call, col, joined, scan, text
from workers.engine.plan.explain import call_text
from workers.engine.plan.nodes import (
    Aggregate,
    AggregateRole,
    Call,
    Join,
    Limit,
    Named,
    Node,
    Phases,
    Project,
    output_of,
)
from workers.engine.plan.traversal import walk_up
from workers.engine.plan.validation import check
from workers.engine.planner import apply_rules
from workers.engine.rules.eager.eager_aggregation import EagerAggregation
from workers.engine.rules.joins.strategy_cost import NOT_FORCED
from workers.engine.rules.rule import Match, RuleContext
from workers.engine.statistics.model import KeySketch, Statistics, TableSize, ValueRange
from workers.engine.statistics.partitioning import BROADCAST_BYTES

RULE = EagerAggregation()
COUNTED = joined(call("COUNT"), by=("l.k",))


def sketch(columns: tuple[str, ...], distinct: int, hot: float = 0.0) -> KeySketch:
    keys = (HotKey(value="7", share=hot, estimated_rows=0),) if hot else ()
    return KeySketch(columns[0][0], columns, 60_000, distinct, 0.0, keys)


def context(
    *,
    rows: int = 10_000_000,
    distinct: int = 500_000,
    hot: float = 0.0,
    others: tuple[KeySketch, ...] = (),
    **settings: Any,
) -> RuleContext:
    known = (sketch(("l.k",), distinct, hot), sketch(("r.k",), min(rows, 1_000_000), hot), *others)
    statistics = Statistics(
        tables={
            "l": TableSize("l", 8, rows * 100, rows, True),
            "r": TableSize("r", 8, 10**9, min(rows, 1_000_000), True),
        },
        keys={one.columns: one for one in known},
        slots=4,
    )
    return RuleContext(JobSettings.model_validate(settings), statistics)


def with_right_side(ctx: RuleContext, size: int, rows: int, is_exact: bool = True) -> RuleContext:
    tables = {**ctx.statistics.tables, "r": TableSize("r", 1, size, rows, is_exact)}
    return replace(ctx, statistics=replace(ctx.statistics, tables=tables))


UNKNOWN = RuleContext(JobSettings.model_validate({"eager_aggregation": True}), Statistics({}, {}, slots=4))


@pytest.mark.parametrize(
    "node",
    [
        scan("l"),
        Limit(COUNTED, 1),
        replace(COUNTED, input=scan("l")),
        replace(COUNTED, role=AggregateRole.PARTIAL),
        replace(COUNTED, phases=Phases.TWO_PHASE),
    ],
)
def test_it_is_about_undecided_whole_aggregates_over_joins(node: Node) -> None:
    assert RULE.match(node, UNKNOWN) is None


@pytest.mark.parametrize(
    ("node", "ctx", "words"),
    [
        (COUNTED, context(eager_aggregation=False), "eager_aggregation is false."),
        (joined(call("COUNT"), kind=JoinKind.FULL), UNKNOWN, "below a full join"),
        (joined(call("COUNT"), kind=JoinKind.CROSS, on=()), UNKNOWN, "below a cross join"),
        (joined(call("COUNT"), on=()), UNKNOWN, "no equality"),
        (replace(COUNTED, grouping_sets=((0,), ())), UNKNOWN, "grouping sets"),
        (
            joined(call("COUNT"), by=("l.k", "l.d")),
            context(others=(replace(sketch(("l.k", "l.d"), 600_000), representative=False),)),
            "but the files are sorted by l.k, l.d",
        ),
        (joined(call("SUM", col("l.y")), call("SUM", col("r.y"))), UNKNOWN, "would lose digits"),
        (
            replace(COUNTED, input=Project(COUNTED.input, (Named(text("bitmap_count(l.k)", "l.k"), "l.k"),))),
            UNKNOWN,
            "cannot be rewritten in terms of the join's columns",
        ),
        (COUNTED, RuleContext(JobSettings(), Statistics({}, {}, slots=4)), "no statistics"),
        (joined(call("COUNT"), by=("l.t", "r.t")), context(), "no statistics"),
        (COUNTED, context(rows=10_000, distinct=10_000), "too few for a decision by cost"),
        (COUNTED, context(distinct=9_900_000), "does not cost clearly less"),
        (
            COUNTED,
            context(others=(replace(sketch(("l.k",), 500_000), representative=False),)),
            "but the files are sorted by l.k",
        ),
        (
            COUNTED,
            context(others=(replace(sketch(("r.k",), 500_000), sampled_rows=1000),)),
            "but only 1,000 of 1,000,000 rows were sampled.",
        ),
    ],
)
def test_it_leaves_the_plan_with_a_reason(node: Node, ctx: RuleContext, words: str) -> None:
    skip = skipped(RULE, node, ctx)
    assert words in skip.reason


@pytest.mark.parametrize(
    ("node", "ctx", "choice"),
    [
        (COUNTED, context(), "LEFT"),
        (COUNTED, context(hot=0.3), "BOTH"),
        # How the rows of the other side spread decides little.
        (COUNTED, context(others=(replace(sketch(("r.k",), 1_000_000), representative=False),)), "LEFT"),
        (joined(call("COUNT"), by=("r.t",)), context(others=(sketch(("r.k", "r.t"), 900_000),)), "LEFT"),
        (joined(call("SUM", col("l.m"))), context(others=(sketch(("l.k", "l.t"), 600_000),)), "LEFT"),
    ],
)
def test_it_fires_by_itself_where_it_costs_clearly_less(node: Aggregate, ctx: RuleContext, choice: str) -> None:
    match = matched(RULE, node, ctx)
    assert match.choice == choice
    costs = {way.name: way.cost for way in match.alternatives}
    assert min(costs, key=lambda name: costs[name]) == choice
    assert [way.name for way in match.alternatives if way.chosen] == [choice]
    assert "rows become" in match.reason
    check(RULE.rewrite(match, ctx), RULE.name, output_of(node))


def test_the_trace_has_the_costs_of_a_skip() -> None:
    skip = skipped(RULE, COUNTED, context(distinct=9_900_000))
    assert [way.name for way in skip.alternatives if way.chosen] == ["NATIVE"]


@pytest.mark.parametrize(
    ("node", "ctx", "choice"),
    [
        (COUNTED, UNKNOWN, "BOTH"),
        (COUNTED, context(eager_aggregation=True, distinct=9_900_000), "RIGHT"),
        (joined(call("SUM", col("l.w"))), UNKNOWN, "LEFT"),
        (joined(call("COUNT"), kind=JoinKind.LEFT_SEMI), UNKNOWN, "BOTH"),
    ],
)
def test_it_fires_if_it_is_forced(node: Aggregate, ctx: RuleContext, choice: str) -> None:
    if node.calls[0].arguments:
        # More digits than a product may have, and no more than a sum may.
        of = replace(col("l.w"), type=replace(col("l.w").type, precision=25))  # type: ignore[type-var]
        node = replace(node, calls=(replace(node.calls[0], arguments=(of,)),))
    match = matched(RULE, node, ctx)
    assert (match.choice, match.reason) == (choice, "eager_aggregation is true.")


def chain(*calls: Call, by: tuple[str, ...] = ("v.t",)) -> Aggregate:
    """`calls` over `l` joined with `r` by `k`, and both with `v` by `l.i`."""
    lower = joined(*calls).input
    join = Join(lower, scan("v"), JoinKind.INNER, ((col("l.i"), col("v.i")),))
    return Aggregate(join, tuple(Named(col(name), name) for name in by), calls)


def test_the_rule_applies_to_aggregates_that_it_pushed_over_the_next_join() -> None:
    node = chain(call("SUM", col("l.b")))
    match = matched(RULE, node, UNKNOWN)
    made = RULE.rewrite(match, UNKNOWN)
    (part,) = RULE.parts_of(match, made)
    assert isinstance(part, Aggregate)
    assert (part.input, part.role, part.phases) == (
        joined(call("COUNT")).input,
        AggregateRole.WHOLE,
        Phases.UNDECIDED,
    )
    below, after = applied(RULE, part, UNKNOWN)
    # Over a join the parts are DECIMALs, and so they are below it, however long the chain.
    lowest = [one for one in walk_up(after) if isinstance(one, Aggregate) and one.input == scan("l")]
    assert [call_text(call) for call in part.calls] == ["SUM(CAST(l.b AS DECIMAL(20,0)))"]
    assert [call_text(call) for call in lowest[0].calls] == ["SUM(CAST(l.b AS DECIMAL(20,0)))"]
    assert RULE.parts_of(below, after) == ()


@pytest.mark.parametrize(
    ("high", "rows", "summed"),
    [
        # At most rows * rows sums of the highest value each.
        (1_000, 1_000_000, "SUM(l.i)"),
        (2_000_000_000, 1_000_000, "SUM(CAST(l.i AS DECIMAL(20,0)))"),
        (1_000, None, "SUM(CAST(l.i AS DECIMAL(20,0)))"),
    ],
)
def test_what_is_pushed_over_a_join_is_a_bigint_where_so_many_rows_cannot_overflow(
    high: int, rows: int | None, summed: str
) -> None:
    sizes = {} if rows is None else {name: TableSize(name, 1, 1, rows, True) for name in ("l", "r", "v")}
    known = Statistics(sizes, {}, slots=4, ranges={"l.i": ValueRange(0, high, True)})
    node, ctx = chain(call("SUM", col("l.i"))), replace(UNKNOWN, statistics=known)
    match = Match(node, "LEFT", "")
    (part,) = RULE.parts_of(match, RULE.rewrite(match, ctx))
    assert isinstance(part, Aggregate)
    assert [call_text(call) for call in part.calls] == [summed]


def test_the_rule_does_not_apply_twice_to_sides_that_were_over_joins_before() -> None:
    derived = joined(call("COUNT"))
    key = (Named(col("l.k"), "d.k"),)
    side = replace(derived, keys=key, calls=(replace(derived.calls[0], output=Field("d.n", INT)),))
    join = Join(side, scan("v"), JoinKind.INNER, ((column("d.k", col("l.k").type), col("v.k")),))
    node = Aggregate(join, (Named(col("v.t"), "t"),), (call("COUNT"),))
    for way in ("LEFT", "RIGHT", "BOTH"):
        match = Match(node, way, "")
        assert RULE.parts_of(match, RULE.rewrite(match, UNKNOWN)) == ()


def test_a_chain_is_decided_join_by_join() -> None:
    node = chain(call("SUM", col("l.i")))
    known = context(others=(sketch(("l.i",), 1_000), sketch(("v.i",), 1_000_000), sketch(("l.k", "l.i"), 600_000)))
    sizes = {**known.statistics.tables, "v": TableSize("v", 8, 10**9, 1_000_000, True)}
    ctx = replace(known, statistics=replace(known.statistics, tables=sizes))
    match = matched(RULE, node, ctx)
    assert match.choice == "LEFT"
    (part,) = RULE.parts_of(match, RULE.rewrite(match, ctx))
    below = matched(RULE, part, ctx)
    assert (below.choice, [way.name for way in below.alternatives]) == ("LEFT", ["NATIVE", "BOTH", "LEFT", "RIGHT"])
    nearly_unique = replace(sketch(("l.k", "l.i"), 9_900_000))
    keys = {**ctx.statistics.keys, nearly_unique.columns: nearly_unique}
    skip = skipped(RULE, part, replace(ctx, statistics=replace(ctx.statistics, keys=keys)))
    assert "does not cost clearly less" in skip.reason


@pytest.mark.parametrize(
    ("way", "settings", "ship"),
    [
        ("RIGHT", {}, JoinShip.BROADCAST_RIGHT),
        ("BOTH", {}, JoinShip.BROADCAST_RIGHT),
        ("LEFT", {}, JoinShip.AUTO),
        ("BOTH", {"join": {"ship": "REPARTITION"}}, JoinShip.AUTO),
        ("BOTH", {"join": {"local": "SORT_MERGE"}}, JoinShip.AUTO),
    ],
)
def test_a_side_that_spark_broadcasts_is_broadcast_when_its_groups_are_wider(
    way: str, settings: Any, ship: JoinShip
) -> None:
    ctx = context(**settings)
    known = with_right_side(ctx, BROADCAST_BYTES, 100_000)
    after = RULE.rewrite(Match(COUNTED, way, ""), known)
    assert [part.strategy.ship for part in walk_up(after) if isinstance(part, Join)] == [ship]
    large = RULE.rewrite(Match(COUNTED, way, ""), ctx)
    assert [part.strategy.ship for part in walk_up(large) if isinstance(part, Join)] == [JoinShip.AUTO]


@pytest.mark.parametrize("settings", [{}, {"eager_aggregation": True}])
@pytest.mark.parametrize("way", ["RIGHT", "BOTH"])
@pytest.mark.parametrize(
    ("rows", "is_exact", "ship"),
    [
        (100_000, True, JoinShip.BROADCAST_RIGHT),
        # 64 bytes each are more than a quarter of a task's memory.
        (30_000_000, True, JoinShip.AUTO),
        (100_000, False, JoinShip.AUTO),
    ],
)
def test_no_broadcast_is_kept_that_may_not_fit(
    rows: int, is_exact: bool, ship: JoinShip, way: str, settings: Any
) -> None:
    """A hint is followed whatever the side holds, and few bytes of a file can be any number of rows."""
    ctx = with_right_side(context(**settings), BROADCAST_BYTES, rows, is_exact)
    (join,) = (part for part in walk_up(RULE.rewrite(Match(COUNTED, way, ""), ctx)) if isinstance(part, Join))
    assert join.strategy.ship is ship


def test_no_broadcast_is_kept_of_texts_that_nothing_bounds() -> None:
    ctx = with_right_side(
        context(others=(sketch(("r.k", "r.t"), 90_000), sketch(("l.k",), 500_000))), BROADCAST_BYTES, 100_000
    )
    by_texts = Match(joined(call("COUNT"), by=("r.t",)), "RIGHT", "")

    def ships(known: Statistics) -> list[JoinShip]:
        after = RULE.rewrite(by_texts, replace(ctx, statistics=known))
        return [part.strategy.ship for part in walk_up(after) if isinstance(part, Join)]

    assert ships(ctx.statistics) == [JoinShip.AUTO]
    assert ships(replace(ctx.statistics, widths={"r.t": 16.0})) == [JoinShip.BROADCAST_RIGHT]


def test_what_a_rule_keeps_is_no_demand_of_the_query() -> None:
    ctx = with_right_side(context(), BROADCAST_BYTES, 100_000)
    (join,) = (part for part in walk_up(RULE.rewrite(Match(COUNTED, "RIGHT", ""), ctx)) if isinstance(part, Join))
    assert join.strategy.forced == NOT_FORCED


@pytest.mark.parametrize("rows", [100_000, 30_000_000])
def test_a_broadcast_that_does_not_fit_saves_nothing(rows: int) -> None:
    """The ways of a small file with too many rows are weighed as those of a large one, which is sent by its key."""

    def costs(size: int) -> dict[str, float]:
        match = RULE.match(joined(call("COUNT"), by=("l.k",)), with_right_side(context(), size, rows))
        assert match is not None
        return {way.name: way.cost for way in match.alternatives}

    small, large = costs(BROADCAST_BYTES), costs(BROADCAST_BYTES + 1)
    fits = rows == 100_000
    assert {name for name in small if small[name] != large[name]} == (set(small) if fits else set())


def test_only_what_it_matched_can_be_rewritten() -> None:
    with pytest.raises(ValueError, match="over a join"):
        RULE.rewrite(Match(replace(COUNTED, input=scan("l")), "BOTH", ""), UNKNOWN)


@pytest.mark.parametrize("skew", ["ISOLATE", "SALT"])
def test_auto_does_not_aggregate_below_a_join_that_join_skew_splits(skew: str) -> None:
    node, literals = joined(call("COUNT"), by=("l.k",)), ((text("7L"),),)
    named = replace(sketch(("l.k",), 500_000, 0.3), literals=literals)
    auto, given = context(others=(named,)), {"join": {"skew": skew}}
    ctx = replace(auto, settings=JobSettings.model_validate(given))
    assert isinstance(RULE.match(node, auto), Match)
    skip = skipped(RULE, node, ctx)
    assert skip.reason.endswith(f"but join.skew is {skew}: hot keys are not joined separately above an aggregate.")
    assert [way.name for way in skip.alternatives if way.chosen] == ["NATIVE"]

    def parted(context_: RuleContext) -> RuleTrace:
        traces = apply_rules(node, context_).trace
        return next(trace for trace in traces if trace.rule == "skewed_join")

    assert parted(ctx).outcome is RuleOutcome.FIRED
    # Where both are forced, the trace tells which has no effect.
    both = replace(ctx, settings=JobSettings.model_validate({**given, "eager_aggregation": True}))
    told = parted(both)
    assert told.outcome is RuleOutcome.SKIPPED
    assert told.reason.startswith("A side is an aggregate")
    assert told.reason.endswith(f"join.skew {skew} has no effect.")
    # A key that cannot be named is not parted.
    assert isinstance(RULE.match(node, replace(context(hot=0.3), settings=ctx.settings)), Match)
