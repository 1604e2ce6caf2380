"""Every invariant, broken once."""

from __future__ import annotations

import pytest

from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, STRING, Field
from tests.support.plan_parts import COUNT, ORDERS, USERS
from tests.support.scalars import scalar
from workers.engine.errors import InvalidPlanError
from workers.engine.plan.nodes import (
    Aggregate,
    AggregateRole,
    Call,
    Deduplicate,
    Exchange,
    Expand,
    Filter,
    Join,
    Limit,
    Named,
    Node,
    Phases,
    Project,
    Union,
    Watermark,
    Windows,
)
from workers.engine.plan.validation import check

UID, USER, NOWHERE = column("o.uid", BIGINT), column("u.uid", BIGINT), column("o.nowhere", BIGINT)
KEYS = (Named(UID, "uid"),)
DISTINCT = Call(AggregateFunction.COUNT, (column("n", BIGINT),), Field("n", BIGINT), distinct=True)
PARTIAL = Aggregate(ORDERS, KEYS, (COUNT,), AggregateRole.PARTIAL)
FINAL_KEYS = (Named(column("uid", BIGINT), "uid"),)


@pytest.mark.parametrize(
    ("plan", "violation"),
    [
        (Filter(ORDERS, NOWHERE), "Filter o.nowhere: column o.nowhere is not below it"),
        (Project(ORDERS, (Named(NOWHERE, "x"),)), "column o.nowhere is not below it"),
        (Join(ORDERS, USERS, JoinKind.INNER, ((USER, UID),)), "column u.uid is not below it"),
        (Join(ORDERS, USERS, JoinKind.INNER, (), NOWHERE), "column o.nowhere is not below it"),
        (Join(ORDERS, ORDERS, JoinKind.CROSS, ()), "two columns are called o.uid"),
        (Aggregate(ORDERS, KEYS, (Call(AggregateFunction.SUM, (NOWHERE,), Field("s", BIGINT)),)), "o.nowhere"),
        (Deduplicate(Join(ORDERS, ORDERS, JoinKind.CROSS, ())), "Deduplicate: two columns are called o.uid"),
        (Filter(Deduplicate(ORDERS), NOWHERE), "column o.nowhere is not below it"),
        (Expand(ORDERS, 2, "O.UID"), "two columns are called"),
        (Expand(ORDERS, 0, "b"), "an expansion needs a branch"),
        (Exchange(ORDERS, (), 0), "an exchange needs a task"),
        (Watermark(ORDERS, NOWHERE, 0), "column o.nowhere is not below it"),
        (Watermark(ORDERS, UID, -1), "a delay is not negative"),
        (Windows(ORDERS, scalar("`o.uid` + 1", BIGINT), 1, 1, "w"), "not over an expression"),
        (Windows(ORDERS, UID, 1, 2, "w"), "a window slides by a millisecond at least, and by its size at most"),
        (Windows(ORDERS, UID, 1, 1, "O.UID"), "two columns are called"),
        (Union((ORDERS,)), "a union needs two inputs"),
        (Union((ORDERS, USERS)), "its inputs emit different columns: o.uid"),
        (Limit(ORDERS, -1), "a limit is not negative"),
        (Aggregate(ORDERS, KEYS, (), phases=Phases.ONE_PHASE), "one phase needs an exchange by its keys"),
        (
            Aggregate(Exchange(ORDERS, (UID,)), (), (COUNT,), phases=Phases.ONE_PHASE),
            "one phase needs an exchange by its keys",
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
    with pytest.raises(InvalidPlanError, match=r"it emits o\.uid BIGINT in place of o\.uid STRING"):
        check(ORDERS, "some_rule", (Field("o.uid", STRING),))


def test_a_final_aggregate_in_one_phase_stands_on_an_exchange_over_the_partial_one() -> None:
    key = FINAL_KEYS[0].expression
    check(Aggregate(Exchange(PARTIAL, (key,)), FINAL_KEYS, (), AggregateRole.FINAL, Phases.ONE_PHASE), "some_rule")


def test_a_selection_may_name_two_columns_alike() -> None:
    check(Project(ORDERS, (Named(UID, "x"), Named(UID, "x"))), "some_rule")
