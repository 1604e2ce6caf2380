"""Plans and costs of a join that handles its hot keys separately: by isolation or by salting.

The unit of costs is that of `workers.engine.rules.cost`: a row costs 1 each time that it is sent, read, sorted or
emitted. For a key with l and r rows, one task reads and sorts l + r rows and, in an inner join, emits l * r.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from service.contract.options import JoinSettings, JoinSkew, SkewSettings
from service.sql.expressions.scalar import Scalar
from service.sql.joins import HASHED_SIDE, Side
from workers.engine.plan.nodes import Join, Node, inputs_of
from workers.engine.rules.cost import FEW_ENTRIES_ROW, PARSED, Cost
from workers.engine.rules.joins.hot_keys import (
    JoinProfile,
    KeyLoad,
    filtered_by_key,
    frequent_keys,
    hot_key_loads,
    join_profile,
    sides_keeping_nulls,
    sides_with_hot_nulls,
)
from workers.engine.rules.joins.skew_rewrite import (
    MAX_NESTED_SPLITS,
    PROBE_SIDES,
    HotPart,
    needs_keys_only,
    nulls_can_bypass,
    refusal_of,
    salt_columns,
)
from workers.engine.rules.joins.strategy_cost import NOT_FORCED, ForcedStrategy, forced_strategy, skew_of
from workers.engine.statistics.cardinality import original_of
from workers.engine.statistics.model import Statistics, once_per_node
from workers.engine.statistics.partitioning import is_broadcast

RESCAN = 0.1
"""The cost of a row that a part of the join reads and drops: its key is decoded and compared. A row of a text file is
parsed as a whole (`PARSED`)."""

AQE_SKEWED_BYTES = 256 << 20
"""`spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes`: AQE splits larger partitions at their map blocks."""

AQE_SPLIT_BYTES = 64 << 20
"""`spark.sql.adaptive.advisoryPartitionSizeInBytes`: AQE splits them into parts of this size."""

TASKS_PER_SLOT = 4
"""Tasks per slot for a hot key: so many that the last of them are short."""

MANY_ROWS = 1_000
"""Rows of a hot key on the right side of a semi or anti join above which its key is broadcast only once."""

_SALTED_UNEVENLY = 2.0
"""There are as many tasks as salts, and salts are hashed: some tasks get several salts, and many get none."""


@dataclass(frozen=True)
class SkewPlan:
    """A plan for the hot keys of a join: the parts, the sides whose NULL keys bypass the join, and the cost."""

    parts: tuple[HotPart, ...]
    nulls: tuple[Side, ...]
    cost: Cost


def isolation_plan(join: Join, profile: JoinProfile, hot: Sequence[KeyLoad], nulls: Sequence[Side]) -> SkewPlan | None:
    """Returns a plan that isolates the keys of `hot` whose build rows may be broadcast, and in which NULL keys of the
    sides `nulls` bypass the join; None if neither applies.
    """
    chosen: dict[Side, list[KeyLoad]] = {side: [] for side in Side}
    free = dict.fromkeys(Side, profile.broadcast_limit)
    for load in sorted(hot, key=lambda load: -profile.handled(load)):
        # The side with more bytes is the probe if the kind of join allows it, otherwise the other side.
        for probe in sorted(PROBE_SIDES[join.kind], key=lambda side: -load.rows(side) * profile.row_bytes[side]):
            build = _built(join, load, probe) * profile.hashed_bytes[probe.other]
            if load.literals is not None and build <= free[probe]:
                chosen[probe].append(load)
                free[probe] -= build
                break
    parts = tuple(_broadcast_part(join, profile, probe, loads) for probe, loads in chosen.items() if loads)
    bypassing = tuple(side for side in nulls if nulls_can_bypass(join, side))
    if not parts and not bypassing:
        return None
    handled = [load for loads in chosen.values() for load in loads]
    added = [_broadcast_cost(profile, part, chosen[part.probe]) for part in parts]
    return SkewPlan(parts, bypassing, _split_cost(profile, handled, bypassing, added))


def salting_plan(join: Join, profile: JoinProfile, hot: Sequence[KeyLoad], nulls: Sequence[Side]) -> SkewPlan | None:
    """Returns a plan that salts the keys of `hot` on the side with more rows, or on the other side if only that is
    possible. A key is salted if it makes fewer copies than it makes rows without a salt. None if no key is salted.
    """
    chosen: dict[Side, list[KeyLoad]] = {side: [] for side in Side}
    salts = _tasks(profile)
    for load in hot:
        for probe in sorted(PROBE_SIDES[join.kind], key=lambda side: -load.rows(side)):
            is_worthwhile = load.rows(probe.other) * salts <= profile.handled(load)
            if load.literals is not None and is_worthwhile and salt_columns(join, probe):
                chosen[probe].append(load)
                break
    parts = tuple(_part(probe, loads, salts=salts) for probe, loads in chosen.items() if loads)
    if not parts:
        return None
    bypassing = tuple(side for side in nulls if nulls_can_bypass(join, side))
    handled = [load for loads in chosen.values() for load in loads]
    added = [_salt_cost(profile, part, chosen[part.probe]) for part in parts]
    return SkewPlan(parts, bypassing, _split_cost(profile, handled, bypassing, added))


def salting_plan_in_one_read(
    probe: Side, join: Join, profile: JoinProfile, hot: Sequence[KeyLoad], nulls: Sequence[Side]
) -> SkewPlan | None:
    """Returns a plan that salts the keys of `hot` on the side `probe` and distributes its rows with a NULL key, while
    that side is read once for the whole join (`salted_in_one_read`); the other side is read twice. None if there is
    nothing to do.
    """
    if probe not in PROBE_SIDES[join.kind] or not salt_columns(join, probe):
        return None
    salts = _tasks(profile)
    chosen = [
        load for load in hot if load.literals is not None and load.rows(probe.other) * salts <= profile.handled(load)
    ]
    spread = tuple(side for side in nulls if side is probe and not join.null_safe)
    if not chosen and not spread:
        return None
    part = _part(probe, chosen, salts=salts)
    added = [_salt_cost(profile, part, chosen)] if chosen else []
    added += [_spread_cost(profile, side) for side in spread]
    return SkewPlan(
        (part,) if chosen else (), spread, _split_cost(profile, chosen, spread, added, once=frozenset({probe}))
    )


SkewPlanner = Callable[[Join, JoinProfile, Sequence[KeyLoad], Sequence[Side]], SkewPlan | None]
"""Returns a plan for hot keys and for sides with NULL keys; None if it does not apply."""

SKEW_PLANNERS: Mapping[JoinSkew, SkewPlanner] = {JoinSkew.ISOLATE: isolation_plan, JoinSkew.SALT: salting_plan}
"""The planner of each strategy of `join.skew`."""


def will_be_split(
    join: Join, skew: JoinSkew, forced: ForcedStrategy, statistics: Statistics, above: tuple[Scalar, ...] = ()
) -> bool:
    """Whether `skew`, if it is forced, will split `join`, for which `forced` is forced as well, unless another rule
    broadcasts or aggregates a side. Joins below that it will split too count if nothing else is forced for them.
    """

    def is_split(below: Join) -> bool:
        return _is_splittable(below, skew_of(below, skew), forced_strategy(below, JoinSettings()), statistics)

    return (
        _is_splittable(join, skew, forced, statistics, above)
        and _nested_splits(join, is_split, statistics) < MAX_NESTED_SPLITS
    )


def _nested_splits(join: Join, is_split: Callable[[Join], bool], statistics: Statistics) -> int:
    """Returns how many nested joins below `join` are split, at most `MAX_NESTED_SPLITS`."""

    def along(node: Node) -> int:
        below = max(map(along, inputs_of(node)), default=0)
        return below + (isinstance(node, Join) and below < MAX_NESTED_SPLITS and is_split(node))

    return max(along(original_of(side, statistics)) for side in (join.left, join.right))


@once_per_node
def _is_splittable(
    join: Join, skew: JoinSkew, forced: ForcedStrategy, statistics: Statistics, above: tuple[Scalar, ...] = ()
) -> bool:
    make = SKEW_PLANNERS.get(skew)
    if make is None or forced.ship in HASHED_SIDE or (forced == NOT_FORCED and is_broadcast(join, statistics)):
        return False
    if skew is JoinSkew.SALT and not forced.may_sort:
        return False
    profile = None if refusal_of(join) else join_profile(join, statistics, above)
    if profile is None:
        return False
    return make(join, profile, frequent_keys(profile), sides_keeping_nulls(profile)) is not None


def split_join_cost(join: Join, statistics: Statistics, skew: SkewSettings, above: tuple[Scalar, ...]) -> Cost | None:
    """Returns the cost of the join with its hot keys isolated or salted, the cheaper of the two; None if no key is hot,
    or the join cannot be split, for example because nested joins below are likely to be split.
    """

    def is_split(below: Join) -> bool:
        return _split_join_cost(below, statistics, skew) is not None

    found = _split_join_cost(join, statistics, skew, above)
    return None if found is None or _nested_splits(join, is_split, statistics) >= MAX_NESTED_SPLITS else found


@once_per_node
def _split_join_cost(
    join: Join, statistics: Statistics, skew: SkewSettings, above: tuple[Scalar, ...] = ()
) -> Cost | None:
    profile = None if refusal_of(join) else join_profile(join, statistics, above)
    if profile is None or filtered_by_key(join, statistics, above):
        return None
    hot, nulls = hot_key_loads(profile, skew), sides_with_hot_nulls(profile, skew)
    plans = (isolation_plan(join, profile, hot, nulls), salting_plan(join, profile, hot, nulls))
    return min((plan.cost for plan in plans if plan is not None), key=lambda cost: cost.slowest, default=None)


def plain_cost(profile: JoinProfile) -> Cost:
    """Returns the cost of Spark's own join of rows hashed by the key, with AQE's handling of skewed partitions."""
    return _ordinary(profile, profile.loads, tuple(Side), profile.rows)


def _part(probe: Side, loads: Sequence[KeyLoad], tasks: int | None = None, salts: int | None = None) -> HotPart:
    return HotPart(tuple(load.literals for load in loads if load.literals is not None), probe, tasks, salts)


def _tasks(profile: JoinProfile) -> int:
    return max(16, TASKS_PER_SLOT * profile.slots)


def _ordinary(profile: JoinProfile, loads: Sequence[KeyLoad], nulls: Sequence[Side], sent: float) -> Cost:
    """Returns the cost of a shuffled join with the hot keys `loads` and the NULL keys of the sides `nulls`."""
    of_keys = [_on_one_task(profile, load) for load in loads]
    of_nulls = [3 * profile.nulls[side] for side in nulls if profile.nulls[side]]
    total = 2 * profile.other_rows + profile.other_out + sum(profile.handled(load) for load in loads)
    total += sum(of_nulls)
    top = max([*of_keys, *of_nulls], default=0.0)
    hottest = top + (total - top) / profile.slots
    return Cost(sent / profile.slots + hottest, sent, hottest)


def _on_one_task(profile: JoinProfile, load: KeyLoad) -> float:
    """Returns the rows of a key that one task handles: all of them, unless AQE splits the partition at map blocks."""
    for probe in PROBE_SIDES[profile.kind]:
        size = load.rows(probe) * profile.row_bytes[probe]
        if size >= AQE_SKEWED_BYTES and profile.is_even[probe]:
            split = math.ceil(size / AQE_SPLIT_BYTES)
            return 2 * load.rows(probe.other) + (2 * load.rows(probe) + profile.out(load)) / split
    return profile.handled(load)


def _split_cost(
    profile: JoinProfile,
    handled: Sequence[KeyLoad],
    nulls: Sequence[Side],
    added: Sequence[Cost],
    once: frozenset[Side] = frozenset(),
) -> Cost:
    """Returns the cost of the ordinary join of the rest, plus the costs `added` by the parts, plus the cost of reading
    the sides again for each part, except the sides that are read `once`.
    """
    left = [load for load in profile.loads if load not in handled]
    moved = sum(load.left + load.right for load in handled) + sum(profile.nulls[side] for side in nulls)
    rest = _ordinary(
        replace(profile, nulls={side: 0.0 if side in nulls else rows for side, rows in profile.nulls.items()}),
        left,
        tuple(Side),
        profile.rows - moved,
    )
    read = {side: 0.0 if side in once else _reread(profile, side) for side in Side}
    reread = (sum(read.values()) * len(added) + sum(read[side] for side in nulls)) / profile.slots
    if not once:
        # A part's filter on the key does not reduce the other tables of a join below: they are shuffled and sorted
        # again.
        reread += 2 * profile.shuffled_below * (len(added) + len(nulls)) / profile.slots
    return Cost(
        rest.slowest + reread + sum(cost.slowest for cost in added),
        rest.shuffled + sum(cost.shuffled for cost in added),
        max([rest.hottest_task, *(cost.hottest_task for cost in added)]),
    )


def _reread(profile: JoinProfile, side: Side) -> float:
    """Returns the cost, of all tasks together, of reading a side once more for a part."""
    return profile.sides[side].rows * (PARSED if side in profile.text_sides else RESCAN)


def _built(join: Join, load: KeyLoad, probe: Side) -> float:
    """Returns the rows to broadcast for a key: one, if only the keys of many rows are needed."""
    rows = load.rows(probe.other)
    return 1.0 if rows > MANY_ROWS and needs_keys_only(join) else rows


def _broadcast_part(join: Join, profile: JoinProfile, probe: Side, loads: Sequence[KeyLoad]) -> HotPart:
    """Returns a part that distributes the probe's rows if that costs less than joining them in the tasks that read
    them, in the worst case only a few tasks.
    """
    in_place, distributed = _part(probe, loads), _part(probe, loads, tasks=_tasks(profile))
    if any(_built(join, load, probe) < load.rows(probe.other) for load in loads):
        in_place, distributed = replace(in_place, distinct=True), replace(distributed, distinct=True)
    costs = [_broadcast_cost(profile, part, loads).slowest for part in (in_place, distributed)]
    return in_place if costs[0] <= costs[1] else distributed


def _broadcast_cost(profile: JoinProfile, part: HotPart, loads: Sequence[KeyLoad]) -> Cost:
    rows = sum(load.rows(part.probe) for load in loads)
    build = sum(load.rows(part.probe.other) for load in loads)
    counted = FEW_ENTRIES_ROW * build / profile.slots if part.distinct else 0.0
    build = len(loads) if part.distinct else build
    handled = rows + sum(profile.out(load) for load in loads)
    if part.tasks is not None:
        # The rows are written, sorted (so that a repeated task sends them to the same tasks) and read.
        hottest = handled / max(min(profile.slots, rows), 1.0)
        return Cost(
            counted + 2 * build + 3 * rows / profile.slots + hottest,
            build + rows,
            handled / max(min(part.tasks, rows), 1.0),
        )
    busiest = min(rows, profile.sides[part.probe].rows / profile.tasks[part.probe])
    hottest = max(handled * busiest / rows if rows else 0.0, handled / max(min(profile.slots, rows), 1.0))
    return Cost(counted + 2 * build + hottest, build, hottest)


def _salt_cost(profile: JoinProfile, part: HotPart, loads: Sequence[KeyLoad]) -> Cost:
    salts = part.salts or 1
    rows = sum(load.rows(part.probe) for load in loads)
    copies = sum(load.rows(part.probe.other) for load in loads) * salts
    handled = 2 * (rows + copies) + sum(profile.out(load) for load in loads)
    hottest = _SALTED_UNEVENLY * handled / max(min(salts, rows), 1.0)
    slowest = (rows + copies) / profile.slots + max(hottest, handled / profile.slots)
    return Cost(slowest, rows + copies, hottest)


def _spread_cost(profile: JoinProfile, side: Side) -> Cost:
    """Returns the cost of rows with a NULL key that are sent, read and emitted like all others."""
    rows = profile.nulls[side]
    even = 3 * rows / profile.slots
    return Cost(even, rows, even)
