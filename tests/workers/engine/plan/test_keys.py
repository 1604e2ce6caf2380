"""The keys that need a sketch."""

from __future__ import annotations

from dataclasses import replace

from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, DOUBLE, INT, STRING, TINYINT, Field
from tests.support.scalars import scalar
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Join,
    Named,
    Project,
    Scan,
    Union,
    columns_below,
    columns_of,
    scanned_columns,
)
from workers.engine.rules.required_statistics import statistics_keys, summed_columns

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


def test_keys_of_several_tables_are_left_out_and_what_each_would_be_grouped_by_is_not() -> None:
    plan = Aggregate(JOIN, (Named(UID, "uid"), Named(CITY, "city")), (DISTINCT,))
    assert statistics_keys(plan) == {
        ("o.uid",),
        ("u.uid",),
        ("o.category",),
        ("o.uid", "o.category"),
        ("u.uid", "u.city"),
    }


def test_expressions_are_left_out() -> None:
    lower = scalar("lower(`o.category`)", STRING)
    assert statistics_keys(Aggregate(ORDERS, (Named(lower, "c"),), ())) == frozenset()
    assert columns_of((UID, lower)) is None


def test_a_column_named_twice_counts_once() -> None:
    assert columns_of((UID, CATEGORY, UID)) == ("o.uid", "o.category")


def test_a_global_aggregate_has_no_group_keys() -> None:
    assert statistics_keys(Aggregate(ORDERS, (), (DISTINCT,))) == {("o.category",)}


def test_a_renamed_column_counts_as_the_scans_column() -> None:
    renamed = Project(ORDERS, (Named(UID, "x.uid"), Named(scalar("1 + 1", BIGINT), "x.two")))
    uid, two = column("x.uid", BIGINT), column("x.two", BIGINT)
    assert statistics_keys(Aggregate(renamed, (Named(uid, "k"),), ())) == {("o.uid",)}
    assert statistics_keys(Aggregate(renamed, (Named(two, "k"),), ())) == frozenset()
    inner = Project(Aggregate(ORDERS, (Named(UID, "uid"),), ()), (Named(column("uid", BIGINT), "y.uid"),))
    joined = Join(inner, USERS, JoinKind.INNER, ((column("y.uid", BIGINT), column("u.uid", BIGINT)),))
    assert statistics_keys(joined) == {("o.uid",), ("u.uid",)}


def test_a_column_of_a_union_is_no_scans() -> None:
    union = Union((ORDERS, ORDERS))
    assert scanned_columns(union, ("o.uid",)) is None
    assert columns_below((Named(UID, "k"),), ("other",)) is None


def test_below_a_chain_of_joins_what_each_would_be_aggregated_by() -> None:
    shops = Scan("shops", "s", ((Field("s.category", STRING), "category"), (Field("s.city", STRING), "city")))
    chain = Join(JOIN, shops, JoinKind.INNER, ((CATEGORY, column("s.category", STRING)),))
    rows = Call(AggregateFunction.COUNT, (), Field("n", BIGINT))
    plan = Aggregate(chain, (Named(column("s.city", STRING), "city"),), (rows,))
    expected = {
        ("o.uid",),
        ("u.uid",),
        ("o.category",),
        ("s.category",),
        ("s.city",),
        ("s.category", "s.city"),
        ("o.uid", "o.category"),
    }
    assert statistics_keys(plan) == expected
    assert ("o.uid", "o.category") not in statistics_keys(replace(plan, input=replace(chain, kind=JoinKind.FULL)))
    text = Call(AggregateFunction.SUM, (CATEGORY,), Field("total", BIGINT))
    assert ("o.uid", "o.category") not in statistics_keys(replace(plan, calls=(text,)))


def test_integers_whose_sums_over_a_join_are_worth_a_range() -> None:
    fields = (("k", BIGINT), ("b", BIGINT), ("i", INT), ("t", TINYINT), ("x", DOUBLE))
    one, other = (
        Scan(name, name, tuple((Field(f"{name}.{column_}", type_), column_) for column_, type_ in fields))
        for name in ("l", "r")
    )
    joined = Join(one, other, JoinKind.INNER, ((column("l.k", BIGINT), column("r.k", BIGINT)),))
    sums = [
        Call(AggregateFunction.SUM, (column(f"{side}.{name}", type_),), Field(f"{side}{name}", BIGINT))
        for side, (name, type_) in zip("llrl", fields[1:], strict=True)
    ]
    assert summed_columns(Aggregate(joined, (), tuple(sums))) == {"l.b", "l.i", "r.t"}
    assert summed_columns(Aggregate(one, (), tuple(sums[:2]))) == frozenset()
