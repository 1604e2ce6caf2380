"""Every invariant, violated once."""

from __future__ import annotations

import pytest

from service.contract.query import AggregateFunction, GeneratorFunction, JoinKind
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, INT, STRING, Field
from tests.support.plan_parts import COUNT, ORDERS, USERS
from tests.support.scalars import scalar
from workers.engine.plan.nodes import (
    Aggregate,
    AggregateRole,
    Call,
    Deduplicate,
    Exchange,
    Expand,
    Filter,
    Generate,
    Join,
    Limit,
    MultisetOperation,
    Named,
    Node,
    Phases,
    Project,
    Union,
    Values,
    Watermark,
    WindowFunctions,
    Windows,
    output_of,
)
from workers.engine.plan.validation import InvalidPlanError, check

UID, USER, NOWHERE = column("o.uid", BIGINT), column("u.uid", BIGINT), column("o.nowhere", BIGINT)
KEYS = (Named(UID, "uid"),)
DISTINCT = Call(AggregateFunction.COUNT, (column("n", BIGINT),), Field("n", BIGINT), distinct=True)
PARTIAL = Aggregate(ORDERS, KEYS, (COUNT,), AggregateRole.PARTIAL)
FINAL_KEYS = (Named(column("uid", BIGINT), "uid"),)


@pytest.mark.parametrize(
    ("plan", "violation"),
    [
        (Filter(ORDERS, NOWHERE), "Filter o.nowhere: its input has no column o.nowhere"),
        (Project(ORDERS, (Named(NOWHERE, "x"),)), "its input has no column o.nowhere"),
        (Join(ORDERS, USERS, JoinKind.INNER, ((USER, UID),)), "its input has no column u.uid"),
        (Join(ORDERS, USERS, JoinKind.INNER, (), NOWHERE), "its input has no column o.nowhere"),
        (Join(ORDERS, ORDERS, JoinKind.CROSS, ()), "two columns have the name o.uid"),
        (Aggregate(ORDERS, KEYS, (Call(AggregateFunction.SUM, (NOWHERE,), Field("s", BIGINT)),)), "o.nowhere"),
        (Deduplicate(Join(ORDERS, ORDERS, JoinKind.CROSS, ())), "Deduplicate: two columns have the name o.uid"),
        (Filter(Deduplicate(ORDERS), NOWHERE), "its input has no column o.nowhere"),
        (Expand(ORDERS, 2, "O.UID"), "two columns have the name"),
        (Expand(ORDERS, 0, "b"), "an expansion needs at least one branch"),
        (WindowFunctions(ORDERS, (Named(scalar("rank() OVER (ORDER BY `o.z`)", INT), "r"),)), "has no column o.z"),
        (WindowFunctions(ORDERS, (Named(UID, "r"),)), "a call without OVER"),
        (Generate(ORDERS, GeneratorFunction.EXPLODE, (), ()), "a generator needs arguments and columns"),
        (Exchange(ORDERS, (), 0), "an exchange needs at least one partition"),
        (Watermark(ORDERS, NOWHERE, 0), "its input has no column o.nowhere"),
        (Watermark(ORDERS, UID, -1), "the delay is negative"),
        (Windows(ORDERS, scalar("`o.uid` + 1", BIGINT), 1, 1, "w"), "not an expression"),
        (Windows(ORDERS, UID, 1, 2, "w"), "the slide of a window must be at least a millisecond and at most its size"),
        (Windows(ORDERS, UID, 1, 1, "O.UID"), "two columns have the name"),
        (Union((ORDERS,)), "a union needs at least two inputs"),
        (Union((ORDERS, USERS)), "its inputs emit different columns: o.uid"),
        (MultisetOperation(ORDERS, USERS, "except_all"), "its inputs emit different columns: o.uid"),
        (Values(output_of(ORDERS), ((),)), "a row has another number of values"),
        (Limit(ORDERS, -1), "the limit is negative"),
        (Limit(ORDERS, None, -1), "the limit is negative"),
        (Aggregate(ORDERS, KEYS, (), phases=Phases.ONE_PHASE), "one phase needs an exchange"),
        (
            Aggregate(Exchange(ORDERS, (UID,)), (), (COUNT,), phases=Phases.ONE_PHASE),
            "one phase needs an exchange",
        ),
        (Aggregate(ORDERS, KEYS, (COUNT,), AggregateRole.FINAL), "a final aggregate needs a partial one below it"),
        (Aggregate(PARTIAL, FINAL_KEYS, (DISTINCT,), AggregateRole.FINAL), "a final aggregate cannot have DISTINCT"),
    ],
)
def test_a_broken_plan_is_refused_with_what_is_wrong(plan: Node, violation: str) -> None:
    with pytest.raises(InvalidPlanError) as caught:
        check(plan, "some_rule")
    assert caught.value.code == "invalid_plan"
    assert caught.value.made_by == "some_rule"
    assert violation in "; ".join(caught.value.violations)


def test_the_output_may_not_change() -> None:
    check(ORDERS, "some_rule", (Field("o.uid", BIGINT),))
    with pytest.raises(InvalidPlanError, match=r"it emits o\.uid BIGINT instead of o\.uid STRING"):
        check(ORDERS, "some_rule", (Field("o.uid", STRING),))


def test_a_final_aggregate_in_one_phase_is_over_an_exchange_over_the_partial_one() -> None:
    key = FINAL_KEYS[0].expression
    check(Aggregate(Exchange(PARTIAL, (key,)), FINAL_KEYS, (), AggregateRole.FINAL, Phases.ONE_PHASE), "some_rule")


def test_a_selection_may_name_two_columns_alike() -> None:
    check(Project(ORDERS, (Named(UID, "x"), Named(UID, "x"))), "some_rule")
