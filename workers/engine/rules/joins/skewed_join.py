"""The rule `skewed_join`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from service.contract.options import JoinLocal, JoinShip, JoinSkew
from service.contract.reports import Alternative
from workers.engine.plan.nodes import Join, Node, Union
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
from workers.engine.rules.joins.skew_cost import WAYS, Way, WayMaker, may_be_salted, plain_cost
from workers.engine.rules.joins.skew_rewrite import PROBES, HotPart, Side, can_pass_nulls, isolated, refusal_of
from workers.engine.rules.joins.strategy_cost import demand_of, demand_text, skew_of
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.partitioning import is_broadcast

NONE = JoinSkew.NONE.value
ISOLATE = JoinSkew.ISOLATE.value
SALT = JoinSkew.SALT.value

CLEAR_GAIN = 1.25
"""How many times as much the plain join must cost for AUTO to leave it: the estimates are no better."""


class SkewedJoin:
    """Joins hot keys apart from the rest, so that one key's rows are many tasks' work.

    >>> uid, item, owner = column("o.uid", BIGINT), column("o.item", STRING), column("u.uid", BIGINT)
    >>> orders = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"), (Field("o.item", STRING), "item")))
    >>> users = Scan("users", "u", ((Field("u.uid", BIGINT), "uid"),))
    >>> before = Join(orders, users, JoinKind.LEFT, ((uid, owner),))
    >>> print(text_of(before))
    Join LEFT ON o.uid = u.uid
      Scan orders AS o [o.uid, o.item]
      Scan users AS u [u.uid]
    >>> sizes = {"o": TableSize("o", 8, 1 << 30, 10_000_000, True), "u": TableSize("u", 8, 1 << 28, 5_000_000, True)}
    >>> hot = HotKey(value="7", share=0.9, estimated_rows=9_000_000)
    >>> literals = ((literal(7, BIGINT),),)
    >>> orders_by_uid = KeySketch("o", ("o.uid",), 60_000, 6_000, 1_000_000, 0.0, (hot,), literals=literals)
    >>> users_by_uid = KeySketch("u", ("u.uid",), 60_000, 60_000, 5_000_000, 0.0, ())
    >>> known = Statistics(sizes, {("o.uid",): orders_by_uid, ("u.uid",): users_by_uid}, slots=4)
    >>> print(text_of(SkewedJoin().rewrite(Match(before, ISOLATE, ""), RuleContext(JobSettings(), known))))
    Union 2 inputs
      Join LEFT NONE ON o.uid = u.uid
        Filter NOT o.uid <=> 7L
          Scan orders AS o [o.uid, o.item]
        Filter NOT u.uid <=> 7L
          Scan users AS u [u.uid]
      Join LEFT BROADCAST_RIGHT HASH_RIGHT NONE ON o.uid = u.uid
        Filter o.uid <=> 7L
          Scan orders AS o [o.uid, o.item]
        Filter u.uid <=> 7L
          Scan users AS u [u.uid]

    ISOLATE broadcasts the few rows of a hot key on one side, and the many of the other stay where they are read, or
    are sent to tasks in turn (`Exchange`) where much comes of each. SALT is for keys with too many rows on both sides:
    the many are parted by the key and a salt, a hash of the row's other columns, and the others are copied for each
    salt (`Expand`). Both send rows with a NULL key, which an outer or anti join keeps and nothing matches, past the
    join. Spark's adaptive execution coalesces no exchange of this rule: each has a number of partitions of its own. For
    a join above, a join in parts is still the one join that it was, which each part of the upper one computes.

    Fires when:
        - `join.skew` is ISOLATE or SALT, and keys stand out in the sample: they have more than an even task's share of
          a side's rows, or of the rows that are estimated to come out; or
        - it is AUTO, and a key is hot (more than `skew.factor` times what all others leave to a slot, and
          `skew.threshold` bytes, of a side's rows or of the rows that come out), and to join it apart, or to salt it,
          costs clearly less.

    Does not fire when:
        - `join.skew` is NONE;
        - it is AUTO and a condition is about the key: it may be what removes the hot values, or asks for one;
        - it is AUTO and a ship or local strategy is forced, and not just chosen by `join_strategy`: hot keys are not
          broadcast then (who forces ISOLATE too has asked for that), and salted only where sort-merge is not ruled out;
        - it is SALT and a hash table is forced for the join, by a hint of its own: what is salted is sorted and merged;
        - one side is broadcast: no row of the other is sent to a task for its key;
        - the keys are not columns of tables whose hot values are known, or their types are compared under a cast;
        - two joins below, one above the other, are in parts already: all parts would compute them, and parts multiply;
        - a side is an aggregate or has a LIMIT: it would be computed for every part, and a LIMIT might take other rows;
        - the hot rows are on a side that must not be parted: the right of a left, semi or anti join, the left of a
          right one, both of a full one;
        - the rows that would be broadcast are too many (ISOLATE), or a row has nothing but its key (SALT).

    Why the result is the same:
        equal keys are in the same part on both sides, whatever the sample said: the parts are told apart by `<=>`,
        which is never NULL. Rows of the side that is broadcast, or copied, are emitted only with a match, and each row
        of the other is in one task, with all rows of its key. A salt is the same each time a task is repeated. A NULL
        key matches nothing.

    Settings read:
        join.skew, join.ship, join.local, skew.factor, skew.threshold
    """

    name = "skewed_join"

    def __init__(self, ways: Mapping[JoinSkew, WayMaker] = WAYS) -> None:
        """One that knows no other `ways`."""
        self._ways = ways

    def way_of(self, node: Join, choice: JoinSkew, ctx: RuleContext) -> Way | None:
        """How `choice` deals with what stands out in a join; None where it does not."""
        found = _look(node, ctx, _wanted(node, ctx), self._ways)
        return None if isinstance(found, str) else found.ways.get(choice)

    def match(self, node: Node, ctx: RuleContext) -> Match[Join] | Skip | None:
        """As the class says; None for anything but an equi-join."""
        if not isinstance(node, Join) or not node.keys:
            return None
        wanted = _wanted(node, ctx)
        if wanted is JoinSkew.NONE:
            return Skip("join.skew is NONE.")
        found = _look(node, ctx, wanted, self._ways)
        if isinstance(found, str):
            return Skip(
                found if wanted is JoinSkew.AUTO else f"{found[:-1]}, so that join.skew {wanted} has no effect."
            )
        if wanted is JoinSkew.AUTO:
            return _decide_by_cost(node, found)
        return _decide_forced(node, wanted, found)

    def rewrite(self, match: Match[Join], ctx: RuleContext) -> Node:
        """The union of the parts, as the class shows."""
        node, choice = match.node, JoinSkew(match.choice)
        way = self.way_of(node, choice, ctx)
        if way is None:
            raise ValueError(f"this join has no way {choice.value}")
        return isolated(node, way.parts, way.nulls)


@dataclass(frozen=True)
class _Forced:
    """What is demanded of the join as a whole, which AUTO keeps to for its hot keys too. What `join_strategy` has
    chosen is no demand: a side that is too large to be sent may have few rows of a hot key.
    """

    ship: JoinShip = JoinShip.AUTO
    local: JoinLocal = JoinLocal.AUTO

    @property
    def may_broadcast(self) -> bool:
        """Whether hot keys may be isolated: a shuffle is forced where broadcasts have run out of memory."""
        return self.ship is JoinShip.AUTO and self.local is JoinLocal.AUTO

    @property
    def may_sort(self) -> bool:
        """Whether hot keys may be salted, also where that is forced: of the two, one has to give way."""
        return may_be_salted(self.local)

    @property
    def told(self) -> str:
        """For a sentence: `REPARTITION with SORT_MERGE`."""
        return demand_text(self.ship, self.local)


@dataclass(frozen=True)
class _Found:
    """What stands out in a join and the ways to deal with it."""

    profile: JoinProfile
    hot: tuple[Load, ...]
    nulls: tuple[Side, ...]
    ways: dict[JoinSkew, Way]
    forced: _Forced

    def alternatives(self, chosen: str) -> tuple[Alternative, ...]:
        """Every way with its cost."""
        plain = plain_cost(self.profile).alternative(NONE, chosen)
        return (plain, *(way.cost.alternative(name.value, chosen) for name, way in self.ways.items()))


def _wanted(node: Join, ctx: RuleContext) -> JoinSkew:
    return skew_of(node, ctx.settings.join.skew)


def _look(node: Join, ctx: RuleContext, wanted: JoinSkew, makers: Mapping[JoinSkew, WayMaker]) -> _Found | str:
    """What stands out; the reason where the join is not to be touched."""
    if is_broadcast(node, ctx.statistics):
        return "One side is broadcast: no row of the other is sent to a task for its key."
    refusal = refusal_of(node)
    if refusal is not None:
        return refusal
    profile = join_profile(node, ctx.statistics, ctx.above)
    if profile is None:
        if any(isinstance(side, Union) for side in (node.left, node.right)):
            return "A side is a union: which keys are hot in all of it is not known."
        return "There are no statistics for the keys of both sides: which are hot is not known."
    if wanted is JoinSkew.AUTO and filtered_by_key(node, ctx.statistics, ctx.above):
        return "A condition is about the key: it may keep the rows of a hot value, or none of them."
    forced, is_asked_for = _forced(node, ctx), wanted is not JoinSkew.AUTO
    if wanted is JoinSkew.AUTO:
        hot, nulls = hot_loads(profile, ctx.settings.skew), hot_nulls(profile, ctx.settings.skew)
    else:
        hot, nulls = standing_out(profile), kept_nulls(profile)
    eligible = {
        JoinSkew.ISOLATE: hot if is_asked_for or forced.may_broadcast else (),
        JoinSkew.SALT: hot if forced.may_sort else (),
    }
    ways = {name: make(node, profile, eligible[name], nulls) for name, make in makers.items()}
    return _Found(profile, hot, nulls, {name: way for name, way in ways.items() if way is not None}, forced)


def _forced(node: Join, ctx: RuleContext) -> _Forced:
    """By the settings, or by the query: what `join_strategy` has chosen beyond that forbids nothing."""
    return _Forced(*demand_of(node, ctx.settings.join.ship, ctx.settings.join.local))


def _decide_forced(node: Join, wanted: JoinSkew, found: _Found) -> Match[Join] | Skip:
    way = found.ways.get(wanted)
    if way is None:
        return Skip(f"join.skew is {wanted.value}, but {_hindrance(node, wanted, found)}.")
    return Match(node, wanted.value, f"join.skew is {wanted.value}: {_told(way)}.", found.alternatives(wanted))


def _decide_by_cost(node: Join, found: _Found) -> Match[Join] | Skip:
    if not found.hot and not found.nulls:
        return Skip("No key is hot: rows hashed by it are even enough.")
    if not found.ways:
        return Skip(f"{_finding(found)}, but {_hindrance(node, JoinSkew.AUTO, found)}.")
    name, way = min(found.ways.items(), key=lambda item: item[1].cost.slowest)
    if way.cost.slowest * CLEAR_GAIN > plain_cost(found.profile).slowest:
        return Skip(f"{_finding(found)}, but another way would not be clearly cheaper.", found.alternatives(NONE))
    return Match(node, name.value, f"{_finding(found)}: {_told(way)}.", found.alternatives(name))


def _hindrance(node: Join, wanted: JoinSkew, found: _Found) -> str:
    """Why there is no such way."""
    if wanted is JoinSkew.SALT and not found.forced.may_sort:
        return f"{found.forced.told} is forced for this join, and salted keys are sorted and merged"
    if wanted is JoinSkew.AUTO and found.hot and not found.forced.may_broadcast:
        return f"{found.forced.told} is forced for this join, which none that its hot keys could have keeps to"
    nulls_only = not found.hot
    if nulls_only and found.nulls and not any(can_pass_nulls(node, side) for side in found.nulls):
        return "the other side's columns have types of which there is no NULL to write"
    if nulls_only:
        return "no key of the sample is known as a literal"
    if not PROBES[node.kind]:
        return "no side of a full join may be parted: both keep their rows without a match"
    if all(load.literals is None for load in found.hot):
        return "the hot values have no exact literals"
    if len(PROBES[node.kind]) == 1 and all(_is_heavier(load, PROBES[node.kind][0].other) for load in found.hot):
        side = PROBES[node.kind][0].value.lower()
        return f"a {node.kind.value} join can part the rows of its {side} side alone"
    if wanted is JoinSkew.SALT:
        return "the rows have no column beside the key to make a salt of, or the copies would be too many"
    return "the rows to broadcast are too many"


def _is_heavier(load: Load, side: Side) -> bool:
    return load.rows(side) > load.rows(side.other)


def _finding(found: _Found) -> str:
    if not found.hot:
        side = found.nulls[0]
        share = found.profile.nulls[side] / found.profile.sides[side].rows
        return f"{share:.0%} of the rows of the {side.value.lower()} side have a NULL key, all for one task"
    hottest = max(found.hot, key=lambda load: load.left + load.right + found.profile.out(load))
    at_most = "up to " if any(side.hot_at_most for side in found.profile.sides.values()) else ""
    return (
        f"Key {hottest.value} has {at_most}{_count(hottest.left)} on the left and {_count(hottest.right)} on the "
        "right, all for one task"
    )


def _told(way: Way) -> str:
    told = [_told_of(part) for part in way.parts]
    told += [f"rows of the {side.value.lower()} side with a NULL key go past the join" for side in way.nulls]
    return ", ".join(told)


def _told_of(part: HotPart) -> str:
    keys = f"{len(part.keys)} hot key{'s' if len(part.keys) > 1 else ''}"
    side = part.probe.value.lower()
    if part.salts is not None:
        return f"{keys} salted {part.salts} ways on the {side} side"
    return f"{keys} joined apart, the {side} side {'parted over tasks' if part.tasks else 'where it is read'}"


def _count(rows: float) -> str:
    return "1 row" if round(rows) == 1 else f"{round(rows):,} rows"
