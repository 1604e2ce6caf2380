"""What each node emits."""

from __future__ import annotations

import pytest

from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, INT, STRING, Field
from tests.support.scalars import scalar
from workers.engine.plan.nodes import (
    UNKNOWN,
    Aggregate,
    Call,
    Deduplicate,
    Exchange,
    Expand,
    Filter,
    Join,
    Limit,
    MultisetOperation,
    Named,
    Project,
    Scan,
    Sort,
    WindowFunctions,
    names_of,
    output_of,
    scanned_columns,
)

UID, NAME = Field("o.uid", BIGINT), Field("u.name", STRING)
ORDERS = Scan("orders", "o", ((UID, "uid"),))
USERS = Scan("users", "u", ((NAME, "name"),))
KEY = column("o.uid", BIGINT)


def test_a_scan_emits_its_columns() -> None:
    assert output_of(ORDERS) == (UID,)


@pytest.mark.parametrize(
    "node",
    [
        Filter(ORDERS, scalar("`o.uid` > 1", None)),
        Exchange(ORDERS, (KEY,)),
        Sort(ORDERS, ()),
        Limit(ORDERS, 1),
    ],
)
def test_what_keeps_rows_or_moves_them_emits_its_input(node: Filter | Exchange | Sort | Limit) -> None:
    assert output_of(node) == (UID,)


@pytest.mark.parametrize("kind", list(JoinKind))
def test_a_join_emits_both_sides_unless_it_is_semi_or_anti(kind: JoinKind) -> None:
    one_sided = kind in {JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI}
    assert output_of(Join(ORDERS, USERS, kind, ())) == ((UID,) if one_sided else (UID, NAME))


def test_an_aggregate_emits_keys_then_calls() -> None:
    call = Call(AggregateFunction.COUNT, (), Field("n", BIGINT))
    assert output_of(Aggregate(ORDERS, (Named(KEY, "uid"),), (call,))) == (Field("uid", BIGINT), Field("n", BIGINT))


def test_a_multiset_operation_emits_its_left_input() -> None:
    both = MultisetOperation(ORDERS, ORDERS, "except_all")
    assert output_of(both) == (UID,)
    assert scanned_columns(both, ("o.uid",)) is None


def test_an_expansion_appends_the_branch() -> None:
    assert output_of(Deduplicate(ORDERS)) == output_of(ORDERS)
    assert output_of(Expand(ORDERS, 2, "$branch")) == (UID, Field("$branch", INT))


def test_calls_with_over_are_appended() -> None:
    ranked = WindowFunctions(ORDERS, (Named(scalar("rank() OVER (ORDER BY `o.uid`)", INT), "r"),))
    assert output_of(ranked) == (UID, Field("r", INT))
    assert scanned_columns(ranked, ("o.uid",)) == ("o.uid",)
    assert scanned_columns(ranked, ("r",)) is None


def test_an_expression_that_only_spark_can_type_has_type_other() -> None:
    project = Project(ORDERS, (Named(scalar("f(`o.uid`)", None), "x"),))
    assert output_of(project) == (Field("x", UNKNOWN),)
    assert names_of(project) == {"x"}
