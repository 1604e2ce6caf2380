"""The plans for hot keys, and their costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.options import JobSettings, JoinLocal, JoinShip, JoinSkew
from service.contract.query import JoinKind
from service.contract.reports import HotKey
from service.sql.expressions.scalar import column
from service.sql.joins import Side
from service.sql.types.data_types import BIGINT, BOOLEAN, STRING, Field
from tests.support.scalars import scalar
from workers.engine.plan.nodes import Join, Limit, Scan
from workers.engine.rules.joins.hot_keys import JoinProfile, join_profile
from workers.engine.rules.joins.skew_cost import (
    RESCAN,
    SkewPlanner,
    isolation_plan,
    plain_cost,
    salting_plan,
    salting_plan_in_one_read,
    split_join_cost,
    will_be_split,
)
from workers.engine.rules.joins.strategy_cost import NOT_FORCED, ForcedStrategy
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

KEYS = ((column("l.k", BIGINT), column("r.k", BIGINT)),)
LEFT, RIGHT = (
    Scan(side, side, ((Field(f"{side}.k", BIGINT), "k"), (Field(f"{side}.v", STRING), "v"))) for side in "lr"
)
LEFT_KEY = replace(LEFT, columns=LEFT.columns[:1])
JOIN = Join(LEFT, RIGHT, JoinKind.INNER, KEYS)


def profile(
    left: float,
    right: float,
    *,
    join: Join = JOIN,
    rows: int = 10_000_000,
    row_bytes: int = 20,
    even: bool = True,
    parsed: bool = False,
) -> JoinProfile:
    """Key 7 with these shares; all others nearly unique."""
    sizes = {side: TableSize(side, 4, rows * row_bytes, rows, True, is_text=parsed) for side in "lr"}
    sketches: dict[tuple[str, ...], KeySketch] = {}
    for side, share in (("l", left), ("r", right)):
        hot = (HotKey(value="7", share=share, estimated_rows=0),) if share else ()
        literals = ((scalar("7L", BIGINT),),) if share else ()
        key = (f"{side}.k",)
        sketches[key] = KeySketch(side, key, 60_000, 9_000_000, 0.0, hot, representative=even, literals=literals)
    found = join_profile(join, Statistics(sizes, sketches, slots=8))
    assert found is not None
    return found


def test_rows_of_one_key_are_joined_where_they_are_read() -> None:
    known = profile(0.6, 0.0)
    way = isolation_plan(JOIN, known, known.loads, ())
    assert way is not None
    (part,) = way.parts
    assert (part.probe, part.tasks, part.salts) == (Side.LEFT, None, None)
    assert way.cost.slowest * 2 < plain_cost(known).slowest
    assert way.cost.hottest_task * 3 < plain_cost(known).hottest_task
    assert way.cost.shuffled < plain_cost(known).shuffled


def test_rows_with_many_matches_are_distributed_over_tasks() -> None:
    known = profile(0.0005, 0.001)
    way = isolation_plan(JOIN, known, known.loads, ())
    assert way is not None
    assert [(part.probe, part.tasks) for part in way.parts] == [(Side.RIGHT, 32)]
    assert way.cost.hottest_task * 3 < plain_cost(known).hottest_task


def test_rows_that_are_broadcast_fit_together() -> None:
    known = profile(0.6, 0.0)
    one = replace(known.loads[0], right=1000.0)
    two = replace(one, value="8", left=one.left / 2, literals=(scalar("8L", BIGINT),))
    for room, keys in ((2000.0, 2), (1999.0, 1)):
        held = replace(known, loads=(two, one), broadcast_limit=room * known.hashed_bytes[Side.RIGHT])
        way = isolation_plan(JOIN, held, held.loads, ())
        assert way is not None
        # The key with more rows goes first.
        assert [part.keys for part in way.parts] == [((one.literals or ()), (two.literals or ()))[:keys]]


def test_what_does_not_fit_is_salted_alone() -> None:
    known = profile(0.6, 0.1)
    assert isolation_plan(JOIN, known, known.loads, ()) is None
    way = salting_plan(JOIN, known, known.loads, ())
    assert way is not None
    assert [(part.probe, part.salts) for part in way.parts] == [(Side.LEFT, 32)]
    assert way.cost.slowest < plain_cost(known).slowest


@pytest.mark.parametrize("make", [isolation_plan, salting_plan])
def test_nulls_stay_in_the_join_where_they_cannot_go_past_it(make: SkewPlanner) -> None:
    left = replace(JOIN, kind=JoinKind.LEFT)
    known = replace(profile(0.6, 0.0, join=left), nulls={Side.LEFT: 1_000_000.0, Side.RIGHT: 0.0})
    for join, passing in ((left, (Side.LEFT,)), (replace(left, null_safe=True), ())):
        way = make(join, known, known.loads, (Side.LEFT,))
        assert way is not None
        assert way.nulls == passing


def test_salting_copies_no_more_than_the_key_makes_anyhow() -> None:
    left = replace(JOIN, kind=JoinKind.LEFT)
    known = profile(0.0, 0.6, join=left)
    assert salting_plan(left, known, known.loads, ()) is None
    bare = replace(JOIN, left=replace(LEFT, columns=LEFT.columns[:1]), right=replace(RIGHT, columns=RIGHT.columns[:1]))
    known = profile(0.6, 0.0, join=bare)
    assert salting_plan(bare, known, known.loads, ()) is None
    semi = replace(JOIN, kind=JoinKind.LEFT_SEMI)
    known = profile(0.6, 0.1, join=semi)
    assert salting_plan(semi, known, known.loads, ()) is None
    assert salting_plan_in_one_read(Side.LEFT, semi, known, known.loads, ()) is None


def test_adaptive_execution_parts_what_it_sees() -> None:
    """A partition of more than 256 MB that came from many map blocks; not one that may be a single block."""
    wide = profile(0.6, 0.0, row_bytes=100)
    assert plain_cost(wide).slowest < plain_cost(profile(0.6, 0.0, row_bytes=100, even=False)).slowest
    assert plain_cost(wide).slowest < plain_cost(profile(0.6, 0.0)).slowest


def test_a_split_join_costs_what_the_cheaper_plan_costs() -> None:
    sizes = {side: TableSize(side, 4, 1 << 30, 10_000_000, True) for side in "lr"}
    hot, literals = (HotKey(value="7", share=0.6, estimated_rows=0),), ((scalar("7L", BIGINT),),)
    left = KeySketch("l", ("l.k",), 60_000, 9_000_000, 0.0, hot, literals=literals)
    right = replace(left, alias="r", columns=("r.k",), hot_keys=(), literals=())
    statistics = Statistics(sizes, {("l.k",): left, ("r.k",): right}, slots=8)
    known = join_profile(JOIN, statistics)
    assert known is not None
    ways = [make(JOIN, known, known.loads, ()) for make in (isolation_plan, salting_plan)]
    costs = sorted(way.cost.slowest for way in ways if way is not None)
    apart = split_join_cost(JOIN, statistics, JobSettings().skew, ())
    assert apart is not None
    assert costs[0] == apart.slowest < costs[1]
    about_key = scalar("`l.k` <> 7", BOOLEAN)
    assert split_join_cost(JOIN, statistics, JobSettings().skew, (about_key,)) is None


def test_text_is_parsed_again_for_every_part() -> None:
    known, parsed = profile(0.6, 0.0), profile(0.6, 0.0, parsed=True)
    ways = [isolation_plan(JOIN, one, one.loads, ()) for one in (known, parsed)]
    costs = [way.cost.slowest for way in ways if way is not None]
    assert costs[1] - costs[0] > 2 * known.rows / known.slots
    assert plain_cost(parsed) == plain_cost(known)


def test_one_reading_spares_what_parts_read_again() -> None:
    known = profile(0.6, 0.0)
    parts, one = (
        salting_plan(JOIN, known, known.loads, ()),
        salting_plan_in_one_read(Side.LEFT, JOIN, known, known.loads, ()),
    )
    assert parts is not None
    assert one is not None
    assert one.parts == parts.parts
    assert one.cost.slowest < parts.cost.slowest < plain_cost(known).slowest
    (salted,) = one.parts
    assert salted.salts == 32
    # The rows of the key, sent with a copy of the one on the other side for each salt.
    assert one.cost.shuffled == known.rows + 31 * known.loads[0].right


def test_one_reading_salts_no_other_side() -> None:
    left = replace(JOIN, kind=JoinKind.LEFT)
    on_the_right = profile(0.0, 0.6)
    assert salting_plan_in_one_read(Side.RIGHT, JOIN, on_the_right, on_the_right.loads, ()) is not None
    assert salting_plan_in_one_read(Side.RIGHT, left, on_the_right, on_the_right.loads, ()) is None
    known = profile(0.6, 0.0)
    assert salting_plan_in_one_read(Side.LEFT, replace(JOIN, left=LEFT_KEY), known, known.loads, ()) is None
    assert salting_plan_in_one_read(Side.LEFT, JOIN, known, (), ()) is None


def test_rows_with_a_null_key_are_spread_in_one_reading() -> None:
    left = replace(JOIN, kind=JoinKind.LEFT)
    known = replace(profile(0.0, 0.0, join=left), nulls={Side.LEFT: 6_000_000.0, Side.RIGHT: 0.0})
    way = salting_plan_in_one_read(Side.LEFT, left, known, (), (Side.LEFT,))
    assert way is not None
    assert (way.parts, way.nulls) == ((), (Side.LEFT,))
    # They are sent, read and emitted by all slots, and the other side is read once more.
    rest = plain_cost(replace(known, nulls=dict.fromkeys(Side, 0.0)))
    spread, read = (3 - 1) * 6_000_000 / 8, RESCAN * 10_000_000 / 8
    assert way.cost.slowest == pytest.approx(rest.slowest + spread + read)
    assert way.cost.shuffled == known.rows
    assert way.cost.slowest < plain_cost(known).slowest
    assert salting_plan_in_one_read(Side.LEFT, replace(left, null_safe=True), known, (), (Side.LEFT,)) is None


def test_without_hot_keys_there_is_no_plan() -> None:
    known = profile(0.0, 0.0)
    assert isolation_plan(JOIN, known, known.loads, ()) is None
    assert salting_plan(JOIN, known, known.loads, ()) is None


def test_a_join_below_is_computed_again_for_every_part() -> None:
    known = profile(0.6, 0.0)
    way = isolation_plan(JOIN, known, known.loads, ())
    above_another = replace(known, shuffled_below=8_000_000)
    dearer = isolation_plan(JOIN, above_another, known.loads, ())
    assert way is not None
    assert dearer is not None
    assert dearer.cost.slowest == way.cost.slowest + 2 * 8_000_000 / 8


def test_what_is_forced_parts_a_join_where_it_can_be_had() -> None:
    sizes = {side: TableSize(side, 4, 1 << 30, 10_000_000, True) for side in "lr"}
    hot, literals = (HotKey(value="7", share=0.6, estimated_rows=0),), ((scalar("7L", BIGINT),),)
    left = KeySketch("l", ("l.k",), 60_000, 9_000_000, 0.0, hot, literals=literals)
    known = Statistics(
        sizes, {("l.k",): left, ("r.k",): replace(left, alias="r", columns=("r.k",), hot_keys=(), literals=())}, 8
    )
    hashed = ForcedStrategy(JoinShip.REPARTITION, JoinLocal.HASH_LEFT)
    sent = ForcedStrategy(JoinShip.BROADCAST_RIGHT)
    both = {JoinSkew.ISOLATE, JoinSkew.SALT}
    for demand, ways in ((NOT_FORCED, both), (hashed, {JoinSkew.ISOLATE}), (sent, set[JoinSkew]())):
        assert {wanted for wanted in JoinSkew if will_be_split(JOIN, wanted, demand, known)} == ways
    small = replace(known, tables={**sizes, "r": TableSize("r", 1, 1 << 20, 10_000, True)})
    assert not will_be_split(JOIN, JoinSkew.ISOLATE, NOT_FORCED, small)
    assert will_be_split(JOIN, JoinSkew.ISOLATE, ForcedStrategy(JoinShip.REPARTITION), small)
    assert not will_be_split(JOIN, JoinSkew.ISOLATE, NOT_FORCED, replace(known, keys={}))
    limited = replace(JOIN, left=Limit(LEFT, 9_000_000))
    assert not will_be_split(limited, JoinSkew.ISOLATE, NOT_FORCED, known)
    assert split_join_cost(limited, known, JobSettings().skew, ()) is None


@pytest.mark.parametrize(("hot_in", "parted"), [("l", [True, True, False]), ("y", [False, False, True])])
def test_two_nested_joins_are_split_at_most(hot_in: str, parted: list[bool]) -> None:
    sizes = {side: TableSize(side, 4, 200_000_000, 10_000_000, True) for side in "lrxy"}
    hot = (HotKey(value="7", share=0.6, estimated_rows=6_000_000),)
    literals = ((scalar("7L", BIGINT),),)
    sketches: dict[tuple[str, ...], KeySketch] = {
        (f"{side}.k",): KeySketch(
            side,
            (f"{side}.k",),
            60_000,
            9_000_000,
            0.0,
            hot if side == hot_in else (),
            literals=literals if side == hot_in else (),
        )
        for side in sizes
    }
    known = Statistics(sizes, sketches, slots=8)
    joins = [JOIN]
    for side in "xy":
        scan = Scan(side, side, ((Field(f"{side}.k", BIGINT), "k"), (Field(f"{side}.v", STRING), "v")))
        joins.append(Join(joins[-1], scan, JoinKind.INNER, ((column("l.k", BIGINT), column(f"{side}.k", BIGINT)),)))
    assert [will_be_split(join, JoinSkew.ISOLATE, NOT_FORCED, known) for join in joins] == parted
    skew = JobSettings().skew
    assert [split_join_cost(join, known, skew, ()) is not None for join in joins] == parted
