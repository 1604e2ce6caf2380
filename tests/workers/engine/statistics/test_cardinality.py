"""Estimates of rows, and of their distribution over the values of a key."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.query import AggregateFunction, GeneratorFunction, JoinKind
from service.contract.reports import HotKey
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, BOOLEAN, INT, TIMESTAMP, Field
from tests.support.plan_parts import ORDERS, USERS
from tests.support.scalars import scalar
from workers.engine.plan.nodes import (
    Aggregate,
    AggregateRole,
    Call,
    Exchange,
    Expand,
    Filter,
    Generate,
    Join,
    Limit,
    MultisetOperation,
    Named,
    Node,
    Project,
    Scan,
    Union,
    Values,
    WindowFunctions,
    Windows,
)
from workers.engine.statistics.cardinality import (
    MOST_ROWS,
    KeyProfile,
    bytes_per_row,
    estimate_rows,
    original_of,
    profile_of,
)
from workers.engine.statistics.model import KeySketch, Statistics, TableSize


def sketch(alias: str, distinct: int, *hot: tuple[str, float]) -> KeySketch:
    keys = tuple(HotKey(value=value, share=share, estimated_rows=0) for value, share in hot)
    return KeySketch(alias, (f"{alias}.uid",), 1000, distinct, 0.0, keys)


def nulls_of(known: KeySketch) -> KeySketch:
    return replace(known, hot_keys=tuple(key.model_copy(update={"is_null": True}) for key in known.hot_keys))


def size(alias: str, rows: int, row_bytes: int = 10) -> TableSize:
    return TableSize(alias, 1, rows * row_bytes, rows, True)


OTHERS = Scan("others", "x", ((Field("x.uid", BIGINT), "uid"),))
UID, USER = column("o.uid", BIGINT), column("u.uid", BIGINT)
CONDITION = scalar("`o.uid` > 3", BOOLEAN)
KNOWN = Statistics(
    tables={"o": size("o", 3000), "u": size("u", 100, 20)},
    keys={("o.uid",): sketch("o", 101, ("7", 0.5)), ("u.uid",): sketch("u", 100)},
    slots=4,
)


def join(kind: JoinKind, right: Scan = USERS, residual: Scalar | None = None) -> Join:
    key = column(right.columns[0][0].name, BIGINT)
    return Join(ORDERS, right, kind, () if kind is JoinKind.CROSS else ((UID, key),), residual)


@pytest.mark.parametrize(
    ("node", "rows"),
    [
        (ORDERS, 3000),
        (OTHERS, None),
        (Filter(ORDERS, CONDITION), 1000),
        (Limit(ORDERS, 5), 5),
        (Limit(ORDERS, 5000), 3000),
        (Limit(ORDERS, None, 2000), 1000),
        (Limit(ORDERS, 9, 5000), 0),
        (MultisetOperation(Limit(ORDERS, 9), Limit(ORDERS, 5), "except_all"), 9),
        (MultisetOperation(Limit(ORDERS, 9), Limit(ORDERS, 5), "intersect_all"), 5),
        (Values((), ((), (), ())), 3),
        (Expand(ORDERS, 2, "b"), 6000),
        (Generate(ORDERS, GeneratorFunction.EXPLODE, (UID,), (Field("g.x", BIGINT),)), 12_000),
        (Generate(ORDERS, GeneratorFunction.STACK, (scalar("3", INT), UID), (Field("g.x", BIGINT),)), 9000),
        (WindowFunctions(ORDERS, ()), 3000),
        (Windows(ORDERS, column("o.at", TIMESTAMP), 60_000, 20_000, "w"), 9000),
        (Aggregate(ORDERS, (), ()), 1),
        (Aggregate(ORDERS, (Named(UID, "uid"),), ()), 101),
        (Aggregate(OTHERS, (Named(column("x.uid", BIGINT), "uid"),), ()), None),
        (join(JoinKind.CROSS), 300_000),
        (join(JoinKind.INNER, OTHERS), None),
        (join(JoinKind.LEFT), 3000),
        (join(JoinKind.LEFT_ANTI), 0),
        (join(JoinKind.LEFT, residual=CONDITION), 3000),
        (join(JoinKind.RIGHT, residual=CONDITION), 1000),
        (join(JoinKind.FULL, residual=CONDITION), 3000),
        (Join(USERS, ORDERS, JoinKind.FULL, ((USER, UID),), CONDITION), 3000),
    ],
)
def test_rows(node: Node, rows: int | None) -> None:
    assert estimate_rows(node, KNOWN) == rows


def test_an_inner_join_on_a_unique_key_keeps_the_rows_of_the_many() -> None:
    assert estimate_rows(join(JoinKind.INNER), KNOWN) == 3000
    assert estimate_rows(join(JoinKind.LEFT_SEMI), KNOWN) == 3000


def test_a_residual_condition_keeps_a_third() -> None:
    whole, residual = join(JoinKind.INNER), join(JoinKind.INNER, residual=CONDITION)
    assert estimate_rows(residual, KNOWN) == pytest.approx((estimate_rows(whole, KNOWN) or 0) / 3, abs=1)


def test_without_key_statistics_the_smaller_side_is_taken_as_unique() -> None:
    assert estimate_rows(join(JoinKind.INNER), Statistics(KNOWN.tables, {}, 4)) == 3000


def test_the_rows_of_a_key_hot_on_both_sides_are_multiplied() -> None:
    both = Statistics(KNOWN.tables, {**KNOWN.keys, ("u.uid",): sketch("u", 51, ("7", 0.5))}, 4)
    profile = profile_of(join(JoinKind.INNER), ("o.uid",), both)
    assert profile is not None
    assert profile.hot == (("7", 1500 * 50),)
    assert profile.rows == pytest.approx(1500 * 50 + 1500 * 50 / 100)


def test_an_inner_join_drops_a_hot_key_without_a_partner() -> None:
    one = Statistics(KNOWN.tables, {**KNOWN.keys, ("u.uid",): sketch("u", 1, ("9", 1.0))}, 4)
    profile = profile_of(join(JoinKind.INNER), ("o.uid",), one)
    assert profile is not None
    assert profile.hot == (("9", 15.0 * 100),)
    outer = profile_of(join(JoinKind.LEFT), ("o.uid",), one)
    assert outer is not None
    assert outer.hot == (("7", 1500.0), ("9", 15.0 * 100))


def test_the_other_sides_name_of_the_key_has_the_same_profile() -> None:
    plan = join(JoinKind.INNER)
    left, right = profile_of(plan, ("o.uid",), KNOWN), profile_of(plan, ("u.uid",), KNOWN)
    assert left is not None
    assert right is not None
    assert left.hot == right.hot == (("7", 1500.0),)


def test_a_null_key_has_no_partner_but_stays_in_an_outer_join() -> None:
    nulls = Statistics(KNOWN.tables, {**KNOWN.keys, ("o.uid",): nulls_of(sketch("o", 101, ("NULL", 0.5)))}, 4)
    inner = profile_of(join(JoinKind.INNER), ("o.uid",), nulls)
    outer = profile_of(join(JoinKind.LEFT), ("o.uid",), nulls)
    assert inner is not None
    assert outer is not None
    assert (inner.hot, inner.nulls) == ((), frozenset())
    assert (outer.hot, outer.nulls) == ((("NULL", 1500.0),), frozenset({"NULL"}))


def test_the_text_null_is_a_value_like_others() -> None:
    text = Statistics(KNOWN.tables, {**KNOWN.keys, ("o.uid",): sketch("o", 101, ("NULL", 0.5))}, 4)
    inner = profile_of(join(JoinKind.INNER), ("o.uid",), text)
    assert inner is not None
    assert inner.hot == (("'NULL'", 1500.0),)


def test_scaling_thins_every_key_and_loses_rare_ones() -> None:
    profile = KeyProfile(rows=200, distinct=101, hot=(("7", 100.0),)).scaled(0.5)
    assert profile == KeyProfile(100, 51, (("7", 50.0),))
    alone = KeyProfile(rows=100, distinct=1, hot=(("7", 100.0),))
    assert (alone.other_rows, alone.other_values, alone.even_rows) == (0, 0, 0)
    assert alone.scaled(0.5) == KeyProfile(50, 1, (("7", 50.0),))


def test_a_filter_may_be_for_the_hot_keys() -> None:
    profile = KeyProfile(rows=200, distinct=101, hot=(("7", 100.0),)).filtered(0.5)
    assert profile == KeyProfile(150, 51, (("7", 100.0),), hot_at_most=True)
    filtered = profile_of(Filter(ORDERS, CONDITION), ("o.uid",), KNOWN)
    assert filtered is not None
    assert filtered.hot == (("7", 1500.0),)
    assert filtered.rows == pytest.approx(2000)


def test_hot_keys_after_a_join_are_as_uncertain_as_below_it() -> None:
    whole = join(JoinKind.INNER)
    filtered = replace(whole, left=Filter(ORDERS, CONDITION))
    turned = Join(filtered.right, filtered.left, JoinKind.INNER, ((USER, UID),))
    for below, at_most in ((whole, False), (filtered, True), (turned, True)):
        for name in ("o.uid", "u.uid"):
            profile = profile_of(below, (name,), KNOWN)
            assert profile is not None
            assert (profile.hot, profile.hot_at_most) == ((("7", 1500.0),), at_most)


def test_the_groups_of_a_final_aggregate_are_those_without_buckets() -> None:
    bucket = Named(scalar("pmod(xxhash64(`o.uid`), 4)", BIGINT), "$bucket")
    partial = Aggregate(ORDERS, (Named(UID, "uid"), bucket), (), AggregateRole.PARTIAL)
    count = Call(AggregateFunction.SUM, (column("$p0", BIGINT),), Field("$f0", BIGINT))
    final = Aggregate(partial, (Named(column("uid", BIGINT), "uid"),), (count,), AggregateRole.FINAL)
    assert estimate_rows(final, KNOWN) == 101
    assert estimate_rows(replace(final, input=Exchange(partial, (column("uid", BIGINT),))), KNOWN) == 101
    assert estimate_rows(partial, KNOWN) is None


def test_a_rows_bytes_are_those_of_all_its_tables() -> None:
    assert bytes_per_row(join(JoinKind.INNER), KNOWN) == 30
    assert bytes_per_row(OTHERS, KNOWN) == 0
    assert bytes_per_row(ORDERS, replace(KNOWN, tables={"o": size("o", 0)})) == 0


def test_a_renamed_column_has_the_profile_of_the_tables_column() -> None:
    renamed = Project(ORDERS, (Named(UID, "x.uid"), Named(CONDITION, "x.c")))
    assert profile_of(renamed, ("x.uid",), KNOWN) == profile_of(ORDERS, ("o.uid",), KNOWN)
    assert profile_of(renamed, ("x.c",), KNOWN) is None
    outer = Aggregate(renamed, (Named(column("x.uid", BIGINT), "k"),), ())
    assert estimate_rows(outer, KNOWN) == 101


def test_a_group_by_all_keys_has_one_row() -> None:
    grouped = Aggregate(ORDERS, (Named(UID, "uid"),), ())
    assert profile_of(grouped, ("uid",), KNOWN) == KeyProfile(101.0, 101.0, ())
    assert profile_of(replace(grouped, keys=(*grouped.keys, Named(USER, "v"))), ("uid",), KNOWN) is None


def test_groups_of_grouping_sets_add_up() -> None:
    grouped = Aggregate(ORDERS, (Named(UID, "uid"),), (), grouping_sets=((0,), ()))
    assert estimate_rows(grouped, KNOWN) == 102
    assert profile_of(grouped, ("uid",), KNOWN) is None


def test_a_limit_thins_the_keys() -> None:
    profile = profile_of(Limit(ORDERS, 300), ("o.uid",), KNOWN)
    assert profile is not None
    assert (profile.rows, profile.hot) == (300.0, (("7", 150.0),))
    assert profile_of(Limit(ORDERS, 5000), ("o.uid",), KNOWN) == profile_of(ORDERS, ("o.uid",), KNOWN)


def test_copies_of_rows_have_their_keys() -> None:
    windows = Windows(ORDERS, column("o.at", TIMESTAMP), 60_000, 20_000, "w")
    for copied, times in ((Expand(ORDERS, 2, "b"), 2), (windows, 3)):
        assert profile_of(copied, ("o.uid",), KNOWN) == KeyProfile(3000.0 * times, 101.0, (("7", 1500.0 * times),))
        assert profile_of(replace(copied, input=OTHERS), ("x.uid",), KNOWN) is None


def many_joins(number: int) -> tuple[Join, Statistics]:
    """A chain of joins of tables of which all have the same hot key."""
    scans = [Scan(f"t{n}", f"t{n}", ((Field(f"t{n}.uid", BIGINT), "uid"),)) for n in range(number + 1)]
    known = Statistics(
        {scan.alias: size(scan.alias, 1_000_000) for scan in scans},
        {(f"{scan.alias}.uid",): sketch(scan.alias, 1000, ("7", 0.5)) for scan in scans},
        slots=4,
    )
    node: Node = scans[0]
    for scan in scans[1:]:
        node = Join(node, scan, JoinKind.INNER, ((column("t0.uid", BIGINT), column(f"{scan.alias}.uid", BIGINT)),))
    assert isinstance(node, Join)
    return node, known


def test_the_estimate_of_many_joins_is_finite() -> None:
    node, known = many_joins(100)
    assert estimate_rows(node, known) == MOST_ROWS
    profile = profile_of(node, ("t0.uid",), known)
    assert profile is not None
    assert profile.even_rows >= 0.0


def test_each_node_is_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each estimate recomputed those of its inputs: 30 joins took 2^30 steps."""
    node, known = many_joins(30)
    read = 0

    def share_of_hot(self: KeyProfile) -> float:
        nonlocal read
        read += 1
        return max(self.rows - sum(rows for _, rows in self.hot), 0.0)

    monkeypatch.setattr(KeyProfile, "other_rows", property(share_of_hot))
    estimate_rows(node, known)
    assert 0 < read < 30 * 100


def test_a_changed_copy_of_statistics_has_estimates_of_its_own() -> None:
    assert estimate_rows(ORDERS, KNOWN) == 3000
    assert estimate_rows(ORDERS, replace(KNOWN, tables={"o": size("o", 7)})) == 7


def test_a_replacement_has_the_estimate_of_the_node_it_replaces() -> None:
    inner = join(JoinKind.INNER)
    partitioned = Union((inner, inner), replaces=inner)
    above = Limit(Union((partitioned, partitioned), replaces=Limit(partitioned, 9)), 3)
    assert original_of(above, KNOWN) == Limit(Limit(inner, 9), 3)
    assert original_of(Union((ORDERS, ORDERS)), KNOWN) == Union((ORDERS, ORDERS))
