"""The known sizes of the sides of a join, and when a side is certain to fit in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.options import JoinLocal, JoinShip
from service.contract.query import JoinKind
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, BOOLEAN, DOUBLE, NULL, STRING, Field, decimal
from tests.support.scalars import scalar
from workers.engine.plan.nodes import (
    Aggregate,
    Expand,
    Filter,
    Join,
    Limit,
    MultisetOperation,
    Named,
    Node,
    Project,
    Scan,
    Union,
    Values,
)
from workers.engine.rules.joins.strategy_cost import (
    JoinAlgorithm,
    JoinSide,
    cost_of,
    hashed_bytes,
    join_sides,
    max_joined_rows,
    max_rows,
    possible_algorithms,
)
from workers.engine.statistics.model import Statistics, TableSize

A = Scan("a", "a", ((Field("a.k", BIGINT), "k"),))
B = Scan("b", "b", ((Field("b.k", BIGINT), "k"), (Field("b.s", STRING), "s")))
BY_K = (Named(column("a.k", BIGINT), "k"),)
UNKNOWN = Scan("c", "c", A.columns)
KEYS = ((column("a.k", BIGINT), column("b.k", BIGINT)),)
SIZES = {"a": TableSize("a", 1, 1 << 20, 1000, True), "b": TableSize("b", 1, 20_000, 1000, True)}
STATISTICS = Statistics(SIZES, {}, slots=4, task_memory=1 << 20)


def left_side(node: Node, statistics: Statistics = STATISTICS) -> JoinSide:
    sides = join_sides(Join(node, B, JoinKind.INNER, KEYS), statistics)
    assert sides is not None
    return sides[0]


@pytest.mark.parametrize(
    ("node", "most"),
    [
        (A, 1000),
        (Limit(A, 7), 7),
        (Expand(A, 3, "e"), 3000),
        (Union((A, A)), 2000),
        (Union((A, UNKNOWN)), None),
        (Values((), ((), ())), 2),
        (MultisetOperation(Limit(A, 7), A, "intersect_all"), 7),
        (Aggregate(A, (), ()), 1),
        (Aggregate(Limit(A, 9), BY_K, ()), 9),
        (Aggregate(Limit(A, 9), BY_K, (), grouping_sets=((0,), ())), 18),
        # The set without keys has a row even where none comes in.
        (Aggregate(Limit(A, 0), BY_K, (), grouping_sets=((0,), ())), 2),
        (Aggregate(UNKNOWN, BY_K, (), grouping_sets=((0,), ())), None),
    ],
)
def test_most_rows_are_those_that_nothing_can_exceed(node: Node, most: int | None) -> None:
    assert max_rows(node, STATISTICS) == most


def test_above_a_join_and_in_estimated_files_there_is_no_bound() -> None:
    assert left_side(Join(A, B, JoinKind.INNER, KEYS)).max_rows is None
    guessed = Statistics({"a": TableSize("a", 1, 9, 1000, False), "b": SIZES["b"]}, {}, slots=4)
    assert left_side(A, guessed).max_rows is None
    assert not left_side(A, guessed).fits_in_broadcast(guessed)


def test_a_join_emits_no_more_than_all_pairs_and_all_rows_alone() -> None:
    joined = Join(A, B, JoinKind.FULL, KEYS)
    assert max_joined_rows(Filter(joined, scalar("true", BOOLEAN)), STATISTICS) == 1001 * 1001
    assert max_joined_rows(Join(joined, B, JoinKind.INNER, KEYS), STATISTICS) == (1001 * 1001 + 1) * 1001
    assert max_joined_rows(Limit(A, 7), STATISTICS) == 7
    assert max_joined_rows(joined, Statistics({"a": SIZES["a"]}, {}, slots=4)) is None


def test_texts_have_no_bound_and_are_guessed_wide() -> None:
    sides = join_sides(Join(A, B, JoinKind.INNER, KEYS), STATISTICS)
    assert sides is not None
    assert [side.width for side in sides] == [48 + 8, 48 + 16 + 512 + 3 * 20]
    assert [side.max_rows for side in sides] == [1000, None]
    exact = Scan("a", "a", ((Field("a.m", decimal(38, 2)), "m"), (Field("a.x", DOUBLE), "x")))
    assert hashed_bytes(exact, STATISTICS) == 48 + 24 + 8
    nothing = Project(A, (Named(scalar("NULL", NULL), "n"), Named(scalar("true", BOOLEAN), "q")))
    assert hashed_bytes(nothing, STATISTICS) == 48 + 8 + 8


def test_measured_texts_are_as_wide_as_they_are_under_any_name() -> None:
    measured = replace(STATISTICS, widths={"b.s": 20.0})
    sides = join_sides(Join(A, B, JoinKind.INNER, KEYS), measured)
    assert sides is not None
    assert (sides[1].width, sides[1].min_width, sides[1].max_rows) == (48 + 16 + 28, 48 + 16 + 28, 1000)
    renamed = Project(B, (Named(column("b.k", BIGINT), "d.k"), Named(column("b.s", STRING), "d.s")))
    assert left_side(renamed, measured).max_rows == 1000
    computed = Project(B, (Named(scalar("upper(`b.s`)", STRING), "b.t"),))
    assert left_side(computed, measured).max_rows is None
    assert left_side(computed, measured).min_width == 48 + 8


def test_what_joins_below_broadcast_takes_room_too() -> None:
    # A quarter of the memory each, and half of it together; B is so small that Spark broadcasts it.
    tables = {"a": SIZES["a"], "b": TableSize("b", 1, 20_000, 300, True)}
    known = Statistics(tables, {}, slots=4, task_memory=4 * 1000 * 56, widths={"b.s": 100.0})
    sides = join_sides(Join(Join(A, B, JoinKind.LEFT_SEMI, KEYS), A, JoinKind.INNER, KEYS), known)
    assert sides is not None
    assert [side.other_broadcasts for side in sides] == [300 * (48 + 16 + 108)] * 2
    below = Join(A, B, JoinKind.LEFT_SEMI, KEYS)
    both = join_sides(Join(below, below, JoinKind.INNER, KEYS), known)
    assert both is not None
    assert [side.other_broadcasts for side in both] == [2 * 300 * (48 + 16 + 108)] * 2
    # How many groups a side has that is broadcast is not known.
    grouped = Join(A, Aggregate(B, (Named(KEYS[0][1], "b.k"),), ()), JoinKind.INNER, KEYS)
    assert left_side(Aggregate(grouped, (), ()), known).other_broadcasts == 0
    assert sides[1].fits_in_broadcast(known)
    assert not replace(sides[1], other_broadcasts=1000.0 * 56 + 1).fits_in_broadcast(known)
    assert not replace(sides[1], max_rows=1001.0, other_broadcasts=0.0).fits_in_broadcast(known)
    assert not sides[1].is_too_large(known)
    assert replace(sides[1], rows=4001.0).is_too_large(known)


def test_the_kind_and_forced_strategies_leave_some_algorithms() -> None:
    node = Join(A, B, JoinKind.LEFT_SEMI, KEYS)
    assert possible_algorithms(node, JoinShip.AUTO, JoinLocal.AUTO) == (
        JoinAlgorithm.SORT_MERGE,
        JoinAlgorithm.HASH_RIGHT,
        JoinAlgorithm.BROADCAST_RIGHT,
    )
    assert possible_algorithms(node, JoinShip.REPARTITION, JoinLocal.HASH_RIGHT) == (JoinAlgorithm.HASH_RIGHT,)
    assert possible_algorithms(Join(A, B, JoinKind.CROSS, ()), JoinShip.AUTO, JoinLocal.AUTO) == (
        JoinAlgorithm.BROADCAST_LEFT,
        JoinAlgorithm.BROADCAST_RIGHT,
    )


def test_a_broadcast_saves_the_shuffle_of_the_other_side() -> None:
    large, small = JoinSide(1e6, 1e6, 50, None, True), JoinSide(1e3, 1e3, 50, None, True)
    costs = {way: cost_of(way, large, small, 4) for way in JoinAlgorithm}
    assert min(costs, key=lambda way: costs[way].slowest) is JoinAlgorithm.BROADCAST_RIGHT
    assert costs[JoinAlgorithm.BROADCAST_RIGHT].shuffled == 4000
    assert costs[JoinAlgorithm.SORT_MERGE].shuffled == 1_001_000
    assert (
        costs[JoinAlgorithm.HASH_RIGHT].slowest
        < costs[JoinAlgorithm.HASH_LEFT].slowest
        < costs[JoinAlgorithm.SORT_MERGE].slowest
    )
