"""Which keys are worth a sketch."""

from __future__ import annotations

from service.spec.query import AggregateFunction, JoinKind
from service.spec.scalar import Scalar, column
from service.spec.types import BIGINT, STRING, Field
from workers.engine.plan.keys import columns_of, statistics_keys
from workers.engine.plan.nodes import Aggregate, Call, Join, Named, Scan

ORDERS = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"), (Field("o.category", STRING), "category")))
USERS = Scan("users", "u", ((Field("u.uid", BIGINT), "uid"), (Field("u.city", STRING), "city")))
UID, CATEGORY = column("o.uid", BIGINT), column("o.category", STRING)
CITY = column("u.city", STRING)
JOIN = Join(ORDERS, USERS, JoinKind.INNER, ((UID, column("u.uid", BIGINT)),))
DISTINCT = Call(AggregateFunction.COUNT, (CATEGORY,), Field("n", BIGINT), distinct=True)


def test_group_keys_distinct_values_and_both_together() -> None:
    plan = Aggregate(ORDERS, (Named(UID, "uid"),), (DISTINCT,))
    assert statistics_keys(plan) == {("o.uid",), ("o.category",), ("o.uid", "o.category")}


def test_join_keys_of_both_sides() -> None:
    assert statistics_keys(JOIN) == {("o.uid",), ("u.uid",)}


def test_keys_of_several_tables_are_left_out() -> None:
    plan = Aggregate(JOIN, (Named(UID, "uid"), Named(CITY, "city")), (DISTINCT,))
    assert statistics_keys(plan) == {("o.uid",), ("u.uid",), ("o.category",)}


def test_expressions_are_left_out() -> None:
    lower = Scalar("lower(`o.category`)", ("o.category",), STRING)
    assert statistics_keys(Aggregate(ORDERS, (Named(lower, "c"),), ())) == frozenset()
    assert columns_of((UID, lower)) is None


def test_a_column_named_twice_counts_once() -> None:
    assert columns_of((UID, CATEGORY, UID)) == ("o.uid", "o.category")


def test_a_global_aggregate_has_no_group_keys() -> None:
    assert statistics_keys(Aggregate(ORDERS, (), (DISTINCT,))) == {("o.category",)}
