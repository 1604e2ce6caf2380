"""What joining the hot keys of a join apart, or salting them, costs.

In rows handled by the slowest task, all phases added, as in `workers.engine.rules.distinct.aggregate_cost`: a row that
is sent, read, sorted or emitted costs 1 each time. A key of l and r rows costs the task that it is hashed to l + r rows
read and sorted and, in an inner join, l * r emitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from service.contract.options import JoinLocal, JoinSkew, SkewSettings
from service.sql.expressions.scalar import Scalar
from service.sql.statements.join_hints import HASHED_SIDE
from workers.engine.plan.nodes import Join, Node, inputs_of
from workers.engine.rules.distinct.aggregate_cost import PARSED, Cost
from workers.engine.rules.joins.hot_keys import (
    JoinProfile,
    Load,
    filtered_by_key,
    hot_loads,
    hot_nulls,
    join_profile,
    kept_nulls,
    standing_out,
)
from workers.engine.rules.joins.skew_rewrite import (
    MOST_PARTED,
    PROBES,
    HotPart,
    Side,
    can_pass_nulls,
    refusal_of,
    salt_columns,
)
from workers.engine.rules.joins.strategy_cost import NOTHING, Demand, demand_of, skew_of
from workers.engine.statistics.cardinality import in_one_piece
from workers.engine.statistics.model import Statistics, once_per_node
from workers.engine.statistics.partitioning import is_broadcast

RESCAN = 0.1
"""What a row costs that a part of the join reads and drops at once: its key is decoded and compared. Of a
text file, all of it is parsed (`PARSED`)."""

AQE_SKEWED_BYTES = 256 << 20
"""`spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes`: AQE splits larger partitions by their map blocks."""

AQE_SPLIT_BYTES = 64 << 20
"""`spark.sql.adaptive.advisoryPartitionSizeInBytes`: into parts of this size."""

TASKS_PER_SLOT = 4
"""Tasks that a hot key is parted over: enough that the last of them are short."""

_SALTED_UNEVENLY = 2.0
"""Salts are hashed to as many tasks: where one is expected on each, some task has several and many have none."""


@dataclass(frozen=True)
class Way:
    """One way of running a join: its parts, the sides whose NULL keys go past it, and what it costs."""

    parts: tuple[HotPart, ...]
    nulls: tuple[Side, ...]
    cost: Cost


def isolate_way(join: Join, profile: JoinProfile, hot: Sequence[Load], nulls: Sequence[Side]) -> Way | None:
    """The keys of `hot` whose build rows may be broadcast, and `nulls`, apart; None where that is nothing."""
    chosen: dict[Side, list[Load]] = {side: [] for side in Side}
    room = dict.fromkeys(Side, profile.room)
    for load in sorted(hot, key=lambda load: -profile.handled(load)):
        # The side with more to send is the one that stays or is parted; where it must, the other.
        for probe in sorted(PROBES[join.kind], key=lambda side: -load.rows(side) * profile.row_bytes[side]):
            build = load.rows(probe.other) * profile.hashed_bytes[probe.other]
            if load.literals is not None and build <= room[probe]:
                chosen[probe].append(load)
                room[probe] -= build
                break
    parts = tuple(_broadcast_part(profile, probe, loads) for probe, loads in chosen.items() if loads)
    passing = tuple(side for side in nulls if can_pass_nulls(join, side))
    if not parts and not passing:
        return None
    apart = [load for loads in chosen.values() for load in loads]
    added = [_broadcast_cost(profile, part, chosen[part.probe]) for part in parts]
    return Way(parts, passing, _apart(profile, apart, passing, added))


def salt_way(join: Join, profile: JoinProfile, hot: Sequence[Load], nulls: Sequence[Side]) -> Way | None:
    """The keys of `hot` salted on the side with more rows, if it may be, or else on the other, where the copies are
    fewer than the rows that the key makes anyhow; None where that is none of them.
    """
    chosen: dict[Side, list[Load]] = {side: [] for side in Side}
    salts = _tasks(profile)
    for load in hot:
        for probe in sorted(PROBES[join.kind], key=lambda side: -load.rows(side)):
            bearable = load.rows(probe.other) * salts <= profile.handled(load)
            if load.literals is not None and bearable and salt_columns(join, probe):
                chosen[probe].append(load)
                break
    parts = tuple(_part(probe, loads, salts=salts) for probe, loads in chosen.items() if loads)
    if not parts:
        return None
    passing = tuple(side for side in nulls if can_pass_nulls(join, side))
    apart = [load for loads in chosen.values() for load in loads]
    added = [_salt_cost(profile, part, chosen[part.probe]) for part in parts]
    return Way(parts, passing, _apart(profile, apart, passing, added))


def salt_in_one_reading(
    probe: Side, join: Join, profile: JoinProfile, hot: Sequence[Load], nulls: Sequence[Side]
) -> Way | None:
    """The keys of `hot` salted on the side `probe`, whose rows with a NULL key are spread too, while they are read for
    the join as a whole (`workers.engine.rules.joins.skew_rewrite`); the other side is read twice. None where that is
    nothing.
    """
    if probe not in PROBES[join.kind] or not salt_columns(join, probe):
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
    return Way((part,) if chosen else (), spread, _apart(profile, chosen, spread, added, once=frozenset({probe})))


WayMaker = Callable[[Join, JoinProfile, Sequence[Load], Sequence[Side]], Way | None]
"""Parts a join by keys that are hot, and by sides that have NULL keys."""

WAYS: Mapping[JoinSkew, WayMaker] = {JoinSkew.ISOLATE: isolate_way, JoinSkew.SALT: salt_way}
"""How each strategy of the setting parts a join."""


def may_be_salted(local: JoinLocal) -> bool:
    """Whether `local`, which is demanded, allows salted keys: they are sorted and merged."""
    return local in {JoinLocal.AUTO, JoinLocal.SORT_MERGE}


def is_parted(
    join: Join, wanted: JoinSkew, demand: Demand, statistics: Statistics, above: tuple[Scalar, ...] = ()
) -> bool:
    """Whether `wanted` is forced, and will part `join`, of which `demand` is demanded beside: so long as no other rule
    sends a side whole, or aggregates it. Joins below count that it will part too, for which nothing else is demanded.
    """

    def parts(below: Join) -> bool:
        return _will_part(below, skew_of(below, wanted), demand_of(below, *NOTHING), statistics)

    return _will_part(join, wanted, demand, statistics, above) and _parted_below(join, parts, statistics) < MOST_PARTED


def _parted_below(join: Join, parts: Callable[[Join], bool], statistics: Statistics) -> int:
    """How many joins below one another it `parts` of those below `join`, at most `MOST_PARTED`: no more are parted."""

    def along(node: Node) -> int:
        below = max(map(along, inputs_of(node)), default=0)
        return below + (isinstance(node, Join) and below < MOST_PARTED and parts(node))

    return max(along(in_one_piece(side, statistics)) for side in (join.left, join.right))


@once_per_node
def _will_part(
    join: Join, wanted: JoinSkew, demand: Demand, statistics: Statistics, above: tuple[Scalar, ...] = ()
) -> bool:
    make, (ship, local) = WAYS.get(wanted), demand
    if make is None or ship in HASHED_SIDE or (demand == NOTHING and is_broadcast(join, statistics)):
        return False
    if wanted is JoinSkew.SALT and not may_be_salted(local):
        return False
    profile = None if refusal_of(join) else join_profile(join, statistics, above)
    if profile is None:
        return False
    return make(join, profile, standing_out(profile), kept_nulls(profile)) is not None


def cost_apart(join: Join, statistics: Statistics, skew: SkewSettings, above: tuple[Scalar, ...]) -> Cost | None:
    """What the join costs with its hot keys joined apart, or salted, the cheaper of the two; None where no key is hot,
    or nothing can be done about it, for one because joins below are likely to be parted.
    """

    def parts(below: Join) -> bool:
        return _cost_apart(below, statistics, skew) is not None

    found = _cost_apart(join, statistics, skew, above)
    return None if found is None or _parted_below(join, parts, statistics) >= MOST_PARTED else found


@once_per_node
def _cost_apart(join: Join, statistics: Statistics, skew: SkewSettings, above: tuple[Scalar, ...] = ()) -> Cost | None:
    profile = None if refusal_of(join) else join_profile(join, statistics, above)
    if profile is None or filtered_by_key(join, statistics, above):
        return None
    hot, nulls = hot_loads(profile, skew), hot_nulls(profile, skew)
    ways = (isolate_way(join, profile, hot, nulls), salt_way(join, profile, hot, nulls))
    return min((way.cost for way in ways if way is not None), key=lambda cost: cost.slowest, default=None)


def plain_cost(profile: JoinProfile) -> Cost:
    """Spark's own join of rows hashed by the key; AQE parts what it sees to be skewed."""
    return _ordinary(profile, profile.loads, tuple(Side), profile.rows)


def _part(probe: Side, loads: Sequence[Load], tasks: int | None = None, salts: int | None = None) -> HotPart:
    return HotPart(tuple(load.literals for load in loads if load.literals is not None), probe, tasks, salts)


def _tasks(profile: JoinProfile) -> int:
    return max(16, TASKS_PER_SLOT * profile.slots)


def _ordinary(profile: JoinProfile, loads: Sequence[Load], nulls: Sequence[Side], sent: float) -> Cost:
    """A join by hash of rows of which `loads` are the hot ones, where the NULLs of the sides `nulls` take part."""
    of_keys = [_on_one_task(profile, load) for load in loads]
    of_nulls = [3 * profile.nulls[side] for side in nulls if profile.nulls[side]]
    total = 2 * profile.other_rows + profile.other_out + sum(profile.handled(load) for load in loads)
    total += sum(of_nulls)
    top = max([*of_keys, *of_nulls], default=0.0)
    hottest = top + (total - top) / profile.slots
    return Cost(sent / profile.slots + hottest, sent, hottest)


def _on_one_task(profile: JoinProfile, load: Load) -> float:
    """Rows of a key that one task handles: all, but for what AQE parts by map blocks, where there are many."""
    for probe in PROBES[profile.kind]:
        size = load.rows(probe) * profile.row_bytes[probe]
        if size >= AQE_SKEWED_BYTES and profile.even[probe]:
            split = math.ceil(size / AQE_SPLIT_BYTES)
            return 2 * load.rows(probe.other) + (2 * load.rows(probe) + profile.out(load)) / split
    return profile.handled(load)


def _apart(
    profile: JoinProfile,
    apart: Sequence[Load],
    nulls: Sequence[Side],
    added: Sequence[Cost],
    once: frozenset[Side] = frozenset(),
) -> Cost:
    """The ordinary join of the rest, beside what the parts add, and every part's own reading of the tables, but of
    those that are read `once`.
    """
    left = [load for load in profile.loads if load not in apart]
    moved = sum(load.left + load.right for load in apart) + sum(profile.nulls[side] for side in nulls)
    rest = _ordinary(
        replace(profile, nulls={side: 0.0 if side in nulls else rows for side, rows in profile.nulls.items()}),
        left,
        tuple(Side),
        profile.rows - moved,
    )
    read = {side: 0.0 if side in once else _reread(profile, side) for side in Side}
    reread = (sum(read.values()) * len(added) + sum(read[side] for side in nulls)) / profile.slots
    if not once:
        # A part's filter on the key leaves the other tables of a join below as they are: they are sent and sorted
        # again.
        reread += 2 * profile.sent_below * (len(added) + len(nulls)) / profile.slots
    return Cost(
        rest.slowest + reread + sum(cost.slowest for cost in added),
        rest.shuffled + sum(cost.shuffled for cost in added),
        max([rest.hottest_task, *(cost.hottest_task for cost in added)]),
    )


def _reread(profile: JoinProfile, side: Side) -> float:
    """What it costs all tasks together to read a side once more, for the rows of a part."""
    return profile.sides[side].rows * (PARSED if side in profile.parsed else RESCAN)


def _broadcast_part(profile: JoinProfile, probe: Side, loads: Sequence[Load]) -> HotPart:
    """Parts the probe's rows where it costs less than to join them where they are read, at worst all in few tasks."""
    in_place, parted = _part(probe, loads), _part(probe, loads, tasks=_tasks(profile))
    costs = [_broadcast_cost(profile, part, loads).slowest for part in (in_place, parted)]
    return in_place if costs[0] <= costs[1] else parted


def _broadcast_cost(profile: JoinProfile, part: HotPart, loads: Sequence[Load]) -> Cost:
    rows = sum(load.rows(part.probe) for load in loads)
    build = sum(load.rows(part.probe.other) for load in loads)
    handled = rows + sum(profile.out(load) for load in loads)
    if part.tasks is not None:
        # Written, sorted (so that a repeated task sends them alike) and read.
        hottest = handled / max(min(profile.slots, rows), 1.0)
        return Cost(
            2 * build + 3 * rows / profile.slots + hottest, build + rows, handled / max(min(part.tasks, rows), 1.0)
        )
    busiest = min(rows, profile.sides[part.probe].rows / profile.tasks[part.probe])
    hottest = max(handled * busiest / rows if rows else 0.0, handled / max(min(profile.slots, rows), 1.0))
    return Cost(2 * build + hottest, build, hottest)


def _salt_cost(profile: JoinProfile, part: HotPart, loads: Sequence[Load]) -> Cost:
    salts = part.salts or 1
    rows = sum(load.rows(part.probe) for load in loads)
    copies = sum(load.rows(part.probe.other) for load in loads) * salts
    handled = 2 * (rows + copies) + sum(profile.out(load) for load in loads)
    hottest = _SALTED_UNEVENLY * handled / max(min(salts, rows), 1.0)
    slowest = (rows + copies) / profile.slots + max(hottest, handled / profile.slots)
    return Cost(slowest, rows + copies, hottest)


def _spread_cost(profile: JoinProfile, side: Side) -> Cost:
    """Of rows with a NULL key that are sent, read and emitted as all others are."""
    rows = profile.nulls[side]
    even = 3 * rows / profile.slots
    return Cost(even, rows, even)
