"""`split_distinct_aggregate`: when it fires, and what it makes. Whole plans are in `tests/golden`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.contract.options import JobSettings
from service.contract.query import AggregateFunction as F
from service.contract.query import JoinKind
from service.contract.reports import HotKey
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, BOOLEAN, DOUBLE, STRING, Field, array, mapping, struct
from tests.support.applied_rules import applied, matched, skipped
from tests.support.plan_parts import USERS
from tests.support.scalars import scalar
from workers.engine.plan.explain import line_of
from workers.engine.plan.nodes import (
    Aggregate,
    AggregateRole,
    Call,
    Exchange,
    Expand,
    Join,
    Limit,
    Named,
    Node,
    Phases,
    Project,
    Scan,
    output_of,
)
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.distinct.split_distinct_aggregate import SplitDistinctAggregate
from workers.engine.rules.rule import RuleContext
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

RULE = SplitDistinctAggregate()
PLACE = struct([Field("x", DOUBLE), Field("name", STRING)])
ORDERS = Scan(
    "orders",
    "o",
    (
        (Field("o.uid", BIGINT), "uid"),
        (Field("o.category", STRING), "category"),
        (Field("o.price", DOUBLE), "price"),
        (Field("o.tags", array(STRING)), "tags"),
        (Field("o.counts", mapping(STRING, BIGINT)), "counts"),
        (Field("o.place", PLACE), "place"),
    ),
)
UID, CATEGORY, PRICE = column("o.uid", BIGINT), column("o.category", STRING), column("o.price", DOUBLE)
TAGS, COUNTS = column("o.tags", array(STRING)), column("o.counts", mapping(STRING, BIGINT))
KEYS = (Named(UID, "uid"),)
CATEGORIES = Call(F.COUNT, (CATEGORY,), Field("n", BIGINT), distinct=True)
PRICES = Call(F.SUM, (PRICE,), Field("s", DOUBLE), distinct=True)
FILTERED = replace(CATEGORIES, filter=scalar("`o.price` > 1", BOOLEAN))
ROWS = Call(F.COUNT, (), Field("rows", BIGINT))
WHOLE = Aggregate(ORDERS, KEYS, (CATEGORIES,))
JOINED = replace(WHOLE, input=Join(ORDERS, USERS, JoinKind.INNER, ((UID, column("u.uid", BIGINT)),)))


def context(share: float = 0.9, rows: int = 10_000_000, **settings: Any) -> RuleContext:
    hot = (HotKey(value="7", share=share, estimated_rows=round(share * rows)),)
    statistics = Statistics(
        tables={
            "o": TableSize("o", 8, rows * 100, rows, True),
            "u": TableSize("u", 1, 20_000_000, 1_000_000, True),
        },
        keys={
            ("o.uid",): KeySketch("o", ("o.uid",), 50_000, 1_000_000, 0.0, hot),
            ("u.uid",): KeySketch("u", ("u.uid",), 50_000, 1_000_000, 0.0, ()),
        },
        slots=16,
    )
    return RuleContext(JobSettings.model_validate(settings), statistics)


FORCED = context(distinct_split={"enabled": True, "bucket_num": 8})


def split(node: Aggregate, ctx: RuleContext = FORCED) -> Node:
    return applied(RULE, node, ctx)[1]


def lines(node: Node) -> list[str]:
    return [line_of(part) for part in walk_up(node) if isinstance(part, Aggregate | Expand | Exchange)]


@pytest.mark.parametrize(
    "node",
    [
        ORDERS,
        Limit(WHOLE, 1),
        replace(WHOLE, calls=(ROWS,)),
        replace(WHOLE, role=AggregateRole.PARTIAL),
        replace(WHOLE, phases=Phases.TWO_PHASE),
    ],
)
def test_it_is_about_undecided_whole_aggregates_with_distinct_calls(node: Node) -> None:
    assert RULE.match(node, FORCED) is None


def test_arrays_are_hashed_as_they_are() -> None:
    made = split(replace(WHOLE, calls=(replace(CATEGORIES, arguments=(TAGS,)),)))
    assert any("pmod(xxhash64(o.tags), 8) AS $bucket" in line for line in lines(made))


@pytest.mark.parametrize(
    ("node", "ctx", "words"),
    [
        (WHOLE, context(distinct_split={"enabled": False}), "distinct_split.enabled is false"),
        (replace(WHOLE, calls=(replace(CATEGORIES, function=F.MAX),)), FORCED, "MIN and MAX"),
        (
            replace(WHOLE, calls=(CATEGORIES, replace(PRICES, arguments=(CATEGORY,)))),
            FORCED,
            "SUM(DISTINCT o.category) cannot be split: SUM of STRING has no partial form.",
        ),
        (replace(WHOLE, calls=(replace(CATEGORIES, arguments=(COUNTS,)),)), FORCED, "equal values of o.counts"),
        (
            replace(WHOLE, calls=(replace(CATEGORIES, arguments=(column("o.place", PLACE),)),)),
            FORCED,
            "o.place contains fractions",
        ),
        (replace(WHOLE, calls=(replace(CATEGORIES, arguments=(UID,)),)), FORCED, "are group keys"),
        (WHOLE, context(), "already"),
        (replace(WHOLE, keys=()), context(agg_phase="ONE_PHASE"), "already"),
        (replace(WHOLE, calls=(CATEGORIES, PRICES)), context(agg_phase="ONE_PHASE"), "for several distinct arguments"),
        (replace(WHOLE, calls=(FILTERED,)), context(agg_phase="ONE_PHASE"), "or one with a FILTER"),
        (replace(JOINED, calls=(FILTERED,)), context(), "or one with a FILTER"),
        (WHOLE, context(share=0.1, agg_phase="ONE_PHASE"), "No group is hot"),
        (WHOLE, context(rows=1000, agg_phase="ONE_PHASE"), "No group is hot"),
        (
            replace(WHOLE, keys=(Named(CATEGORY, "c"),), calls=(PRICES,)),
            context(agg_phase="ONE_PHASE"),
            "no statistics",
        ),
        (
            WHOLE,
            context(agg_phase="ONE_PHASE", distinct_split={"bucket_num": 1}),
            "Group 7 has 90% of the rows, all on one task, but splitting it costs more.",
        ),
    ],
)
def test_it_leaves_the_plan_with_a_reason(node: Node, ctx: RuleContext, words: str) -> None:
    skip = skipped(RULE, node, ctx)
    assert words in skip.reason


@pytest.mark.parametrize(("node", "settings"), [(WHOLE, {"agg_phase": "ONE_PHASE"}), (JOINED, {})])
def test_auto_fires_if_a_hot_group_would_stay_on_one_task(node: Aggregate, settings: dict[str, Any]) -> None:
    match = matched(RULE, node, context(**settings))
    assert match.reason == "Group 7 has 90% of the rows, all on one task."
    native, chosen = match.alternatives
    assert (native.name, native.chosen, chosen.name, chosen.chosen) == ("NATIVE", False, "SPLIT", True)
    assert chosen.cost < native.cost
    assert chosen.rows_on_hottest_task < native.rows_on_hottest_task


def test_aggregates_that_spark_spreads_are_left_to_it_with_their_costs() -> None:
    skip = skipped(RULE, WHOLE, context())
    assert [(way.name, way.chosen) for way in skip.alternatives] == [("NATIVE", True), ("SPLIT", False)]


def test_other_calls_go_along_and_filters_stay_with_the_partial_ones() -> None:
    after = split(replace(WHOLE, calls=(ROWS, FILTERED)))
    assert lines(after) == [
        "Aggregate PARTIAL TWO_PHASE BY o.uid AS uid, pmod(xxhash64(o.category), 8) AS $bucket "
        "[COUNT(*) AS $p0, COUNT(DISTINCT o.category) FILTER (WHERE o.price > 1) AS $p1]",
        "Aggregate FINAL TWO_PHASE BY uid [SUM($p0) AS $f0, SUM($p1) AS $f1]",
    ]


def test_fractions_are_hashed_so_that_both_zeros_meet() -> None:
    after = split(replace(WHOLE, calls=(PRICES,)))
    assert "pmod(xxhash64(CAST(o.price AS DOUBLE) + 0.0D), 8) AS $bucket" in lines(after)[0]


def test_several_arguments_make_one_hash() -> None:
    after = split(replace(WHOLE, calls=(replace(CATEGORIES, arguments=(CATEGORY, PRICE)),)))
    assert "pmod(xxhash64(o.category, CAST(o.price AS DOUBLE) + 0.0D), 8) AS $bucket" in lines(after)[0]


def test_several_sets_get_a_branch_each() -> None:
    after = split(replace(WHOLE, calls=(CATEGORIES, PRICES, ROWS)))
    bucket = (
        "CASE $branch WHEN 1 THEN pmod(xxhash64(o.category), 8) "
        "WHEN 2 THEN pmod(xxhash64(CAST(o.price AS DOUBLE) + 0.0D), 8) END"
    )
    assert lines(after) == [
        "Expand 2 branches AS $branch",
        f"Exchange BY o.uid, {bucket}",
        f"Aggregate PARTIAL ONE_PHASE BY o.uid AS uid, {bucket} AS $bucket, $branch, CASE $branch WHEN 1 THEN "
        "o.category END AS $v0, CASE $branch WHEN 2 THEN o.price END AS $v1 "
        "[COUNT(*) FILTER (WHERE $branch = 1) AS $q0]",
        "Aggregate PARTIAL ONE_PHASE BY uid, $bucket [COUNT($v0) FILTER (WHERE $branch = 1) AS $p0, "
        "SUM($v1) FILTER (WHERE $branch = 2) AS $p1, SUM($q0) AS $p2]",
        "Aggregate FINAL TWO_PHASE BY uid [SUM($p0) AS $f0, SUM($p1) AS $f1, SUM($p2) AS $f2]",
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"distinct_method": "split"}, "distinct_method is split."),
        ({"distinct_method": "split", "distinct_split.enabled": "false"}, "distinct_method is split."),
    ],
)
def test_the_method_goes_before_the_toggle(settings: dict[str, Any], words: str) -> None:
    match = matched(RULE, WHOLE, context(**settings))
    assert match.reason == words
    skip = skipped(RULE, WHOLE, context(distinct_method="native", **{"distinct_split.enabled": True}))
    assert skip.reason == "distinct_method is native."


def test_a_global_aggregate_is_grouped_by_bucket_alone() -> None:
    after = split(replace(WHOLE, keys=()))
    assert lines(after) == [
        "Aggregate PARTIAL TWO_PHASE BY pmod(xxhash64(o.category), 8) AS $bucket [COUNT(DISTINCT o.category) AS $p0]",
        "Aggregate FINAL TWO_PHASE [SUM($p0) AS $f0]",
    ]
    assert line_of(after) == "Project coalesce($f0, 0L) AS n"


@pytest.mark.parametrize(
    ("node", "ctx", "final_phases"),
    [
        (WHOLE, context(agg_phase="ONE_PHASE"), Phases.ONE_PHASE),
        (JOINED, context(), Phases.TWO_PHASE),
        (
            replace(WHOLE, keys=()),
            context(agg_phase="ONE_PHASE", distinct_split={"enabled": True}),
            Phases.TWO_PHASE,
        ),
    ],
)
def test_rows_that_would_stay_by_group_are_sent_by_group_and_bucket(
    node: Aggregate, ctx: RuleContext, final_phases: Phases
) -> None:
    after = split(node, ctx)
    assert isinstance(after, Project)
    assert isinstance(after.input, Aggregate)
    assert after.input.phases is final_phases
    partial = next(part for part in walk_up(after) if isinstance(part, Aggregate))
    assert partial.phases is Phases.ONE_PHASE
    assert isinstance(partial.input, Exchange)
    assert partial.input.keys == tuple(key.expression for key in partial.keys)
    assert partial.input.keys[-1].sql == "pmod(xxhash64(`o.category`), 1024)"


def test_names_of_the_callers_columns_are_left_alone() -> None:
    calls = (replace(CATEGORIES, output=Field("$P0", BIGINT)), replace(ROWS, output=Field("$bucket", BIGINT)))
    after = split(replace(WHOLE, calls=calls))
    assert [field.name for field in output_of(after)] == ["uid", "$P0", "$bucket"]
    assert "AS $bucket_ [" in lines(after)[0]


def test_a_group_key_among_the_distinct_values_is_no_obstacle() -> None:
    pairs = replace(CATEGORIES, arguments=(UID, CATEGORY))
    assert "pmod(xxhash64(o.uid, o.category), 8) AS $bucket" in lines(split(replace(WHOLE, calls=(pairs,))))[0]
    keys = replace(pairs, arguments=(UID,))
    assert "are group keys" in skipped(RULE, replace(WHOLE, calls=(keys,)), context()).reason
