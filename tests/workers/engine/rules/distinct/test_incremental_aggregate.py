"""`incremental_aggregate`: when it fires, and what it makes. Whole plans are in `tests/golden`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.contract.options import JobSettings
from service.contract.query import AggregateFunction as F
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, STRING, Field, decimal
from tests.support.applied_rules import applied, skipped
from workers.engine.plan.explain import line_of
from workers.engine.plan.nodes import Aggregate, Call, Named, Node, Project, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.distinct.bitmap_distinct import BitmapDistinct
from workers.engine.rules.distinct.incremental_aggregate import IncrementalAggregate
from workers.engine.rules.distinct.split_distinct_aggregate import SplitDistinctAggregate
from workers.engine.rules.rule import Match, RuleContext
from workers.engine.statistics.model import Statistics

RULE = IncrementalAggregate()
TYPES = {"uid": BIGINT, "item": BIGINT, "shop": STRING, "price": decimal(10, 2)}
UID, ITEM, SHOP, PRICE = (column(f"o.{name}", type_) for name, type_ in TYPES.items())
ORDERS = Scan("orders", "o", tuple((Field(f"o.{name}", type_), name) for name, type_ in TYPES.items()))
ITEMS = Call(F.COUNT, (ITEM,), Field("items", BIGINT), distinct=True)
SHOPS = Call(F.COUNT, (SHOP,), Field("shops", BIGINT), distinct=True)
PRICES = Call(F.SUM, (PRICE,), Field("prices", decimal(20, 2)), distinct=True)
LAST = Call(F.LAST_VALUE, (SHOP,), Field("last", STRING), order_by=ITEM)
WHOLE = Aggregate(ORDERS, (Named(UID, "uid"),), (ITEMS, LAST))


def context(**settings: Any) -> RuleContext:
    return RuleContext(
        JobSettings.model_validate({"distinct_method": "split", **settings}), Statistics({}, {}, slots=2)
    )


def final_of_split(node: Aggregate, ctx: RuleContext) -> Aggregate:
    found = SplitDistinctAggregate().rewrite(Match(node, "SPLIT", ""), ctx)
    while isinstance(found, Project):
        found = found.input
    assert isinstance(found, Aggregate)
    return found


@pytest.mark.parametrize("node", [ORDERS, WHOLE, final_of_split(WHOLE, context()).input])
def test_it_is_about_final_aggregates(node: Node) -> None:
    assert RULE.match(node, context()) is None


@pytest.mark.parametrize(
    ("node", "ctx", "words"),
    [
        (final_of_split(WHOLE, context()), context(incremental_agg=False), "incremental_agg is false."),
        (
            final_of_split(WHOLE, context(agg_phase="ONE_PHASE")),
            context(agg_phase="ONE_PHASE"),
            "the final aggregate has no local phase",
        ),
        (
            final_of_split(replace(WHOLE, keys=()), context(agg_phase="ONE_PHASE")),
            context(agg_phase="ONE_PHASE"),
            "the final aggregate has no local phase",
        ),
        (
            final_of_split(replace(WHOLE, calls=(ITEMS, replace(ITEMS, function=F.AVG))), context()),
            context(),
            "several sets of distinct values",
        ),
    ],
)
def test_it_leaves_the_plan_with_a_reason(node: Node, ctx: RuleContext, words: str) -> None:
    skip = skipped(RULE, node, ctx)
    assert words in skip.reason


def test_bitmaps_have_their_middle_phases_in_one_stage() -> None:
    made = BitmapDistinct().rewrite(Match(replace(WHOLE, calls=(ITEMS,)), "BITMAP", ""), context())
    assert isinstance(made, Project)
    skip = skipped(RULE, made.input, context())
    assert "in one stage" in skip.reason


@pytest.mark.parametrize("calls", [(ITEMS, LAST), (PRICES, LAST), (ITEMS, SHOPS, PRICES, LAST)])
def test_the_bucket_is_no_group_any_more(calls: tuple[Call, ...]) -> None:
    node = final_of_split(replace(WHOLE, calls=calls), context())
    _, after = applied(RULE, node, context())
    aggregates = [part for part in walk_up(after) if isinstance(part, Aggregate)]
    assert len(aggregates) == 2
    assert "$v0" in {key.name for key in aggregates[0].keys}
    assert "MAX_BY(" in line_of(aggregates[1])
    assert not any(call.distinct for part in aggregates for call in part.calls)


def test_names_of_the_query_are_left_alone() -> None:
    node = final_of_split(replace(WHOLE, keys=(Named(UID, "$v0"),)), context())
    _, after = applied(RULE, node, context())
    assert isinstance(after, Aggregate)
    assert isinstance(after.input, Aggregate)
    assert [key.name for key in after.input.keys] == ["$v0", "$bucket", "$v0_"]


def test_an_aggregate_of_the_query_below_a_split_one_stays() -> None:
    below = Aggregate(ORDERS, tuple(Named(one, one.columns[0]) for one in (UID, ITEM, SHOP, PRICE)), ())
    _, after = applied(RULE, final_of_split(replace(WHOLE, input=below), context()), context())
    _, same = applied(RULE, final_of_split(WHOLE, context()), context())
    assert below in set(walk_up(after))
    assert [line_of(part) for part in walk_up(after) if part not in walk_up(below)] == [
        line_of(part) for part in walk_up(same) if part is not ORDERS
    ]
