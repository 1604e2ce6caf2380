"""The rule `skewed_join`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from service.contract.options import JoinSkew
from service.sql.joins import Side
from workers.engine.plan.nodes import Join, Node, Union
from workers.engine.rules.cost import Choice
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
from workers.engine.rules.joins.skew_cost import SKEW_PLANNERS, SkewPlan, SkewPlanner, plain_cost
from workers.engine.rules.joins.skew_rewrite import PROBE_SIDES, HotPart, nulls_can_bypass, refusal_of, split_join
from workers.engine.rules.joins.strategy_cost import (
    EXPECTED_BROADCAST,
    NOT_FORCED,
    ForcedStrategy,
    adaptive_broadcast,
    forced_strategy,
    join_sides,
    skew_of,
)
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.partitioning import is_broadcast

NONE = JoinSkew.NONE.value
ISOLATE = JoinSkew.ISOLATE.value
SALT = JoinSkew.SALT.value

CLEAR_GAIN = 1.25
"""AUTO splits a join only if the plain join costs so many times as much: the estimates are not more accurate."""


class SkewedJoin:
    """Joins hot keys separately from the rest, so that many tasks share the rows of one key.

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
    >>> orders_by_uid = KeySketch("o", ("o.uid",), 60_000, 1_000_000, 0.0, (hot,), literals=literals)
    >>> users_by_uid = KeySketch("u", ("u.uid",), 60_000, 5_000_000, 0.0, ())
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

    ISOLATE broadcasts the few rows that a hot key has on one side. The many rows of the other side stay in the tasks
    that read them, or are distributed round-robin (`Exchange`) if each has many matches. SALT is for keys with too many
    rows on both sides: the side with more rows is shuffled by the key and a salt, a hash of the row's other columns,
    and the other side's rows are copied for each salt (`Expand`). With both, rows with a NULL key bypass the join: an
    outer or anti join keeps them, and they match nothing. Spark's adaptive execution does not coalesce the exchanges of
    this rule, since each has an explicit number of partitions. For a semi or anti join without another condition, only
    the hot keys of the right side are broadcast, each once, however many rows they have. A join above treats a split
    join as the original join; each part of the upper join computes it.

    Fires when:
        - `join.skew` is ISOLATE or SALT, and the sample has frequent keys: they have more rows of a side, or of the
          estimated output, than a task has on average; or
        - it is AUTO, a key is hot (more rows than `skew.factor` times the other keys' rows per slot, and at least
          `skew.threshold` bytes, on one side or in the output), and isolating or salting it costs clearly less.

    Does not fire when:
        - `join.skew` is NONE;
        - it is AUTO and a condition is on the key: it may remove the hot keys, or select one of them;
        - it is AUTO and a ship or local strategy is forced, not just chosen by `join_strategy`: then hot keys are not
          broadcast (a forced ISOLATE still broadcasts them), and salted only if sort-merge is possible;
        - it is SALT and a hint forces a hash table for the join: salted keys require sort-merge;
        - it is AUTO and adaptive execution is expected to broadcast a side, because conditions leave few of its rows;
        - one side is broadcast: the rows of the other side are not shuffled by key;
        - the keys are not table columns with known hot values, or their types are compared under a cast;
        - two nested joins below are already split: every part would compute them, and the parts multiply;
        - a side is an aggregate or has a LIMIT: every part would compute it, and a LIMIT might take other rows;
        - the hot rows are on a side that cannot be distributed: the right side of a left join, and of a semi or anti
          join with another condition, the left side of a right join, both sides of a full join;
        - there are too many rows to broadcast (ISOLATE), or the rows have no column but the key (SALT).

    Why the result is the same:
        equal keys are in the same part on both sides, whatever the sample contains: `<=>`, which is never NULL, selects
        the parts. Rows of the broadcast or copied side are emitted only with a match, and each row of the other side is
        in one task, together with all rows of its key. A repeated task computes the same salts. A NULL key matches
        nothing.

    Settings read:
        join.skew, join.ship, join.local, skew.factor, skew.threshold
    """

    name = "skewed_join"

    def __init__(self, planners: Mapping[JoinSkew, SkewPlanner] = SKEW_PLANNERS) -> None:
        """A rule that is limited to these planners."""
        self._planners = planners

    def plan_of(self, node: Join, choice: JoinSkew, ctx: RuleContext) -> SkewPlan | None:
        """Returns the plan of `choice` for a join; None if it does not apply."""
        found = _analyze(node, ctx, _skew_setting(node, ctx), self._planners)
        return None if isinstance(found, str) else found.plans.get(choice)

    def match(self, node: Node, ctx: RuleContext) -> Match[Join] | Skip | None:
        """Returns None for nodes that are not equi-joins."""
        if not isinstance(node, Join) or not node.keys:
            return None
        skew = _skew_setting(node, ctx)
        if skew is JoinSkew.NONE:
            return Skip("join.skew is NONE.")
        found = _analyze(node, ctx, skew, self._planners)
        if isinstance(found, str):
            return Skip(found if skew is JoinSkew.AUTO else f"{found[:-1]}, so join.skew {skew} has no effect.")
        if skew is JoinSkew.AUTO:
            return _choose_skew_plan_by_cost(node, found)
        return _decide_forced(node, skew, found)

    def rewrite(self, match: Match[Join], ctx: RuleContext) -> Node:
        """Returns the union of the parts, as the example shows."""
        node, choice = match.node, JoinSkew(match.choice)
        plan = self.plan_of(node, choice, ctx)
        if plan is None:
            raise ValueError(f"{choice.value} is not possible for this join")
        return split_join(node, plan.parts, plan.nulls)


@dataclass(frozen=True)
class _Analysis:
    """The hot keys of a join, the sides with hot NULL keys, and the plans that handle them."""

    profile: JoinProfile
    hot: tuple[KeyLoad, ...]
    nulls: tuple[Side, ...]
    plans: dict[JoinSkew, SkewPlan]
    forced: ForcedStrategy

    @property
    def choice(self) -> Choice:
        """The costs of the plain join and of every plan."""
        costs = {name.value: plan.cost for name, plan in self.plans.items()}
        return Choice({NONE: plain_cost(self.profile), **costs}, NONE)


def _skew_setting(node: Join, ctx: RuleContext) -> JoinSkew:
    return skew_of(node, ctx.settings.join.skew)


def _analyze(node: Join, ctx: RuleContext, skew: JoinSkew, planners: Mapping[JoinSkew, SkewPlanner]) -> _Analysis | str:
    """Returns the hot keys and plans of a join, or the reason why the rule leaves the join unchanged."""
    if is_broadcast(node, ctx.statistics):
        return "One side is broadcast: the rows of the other side are not shuffled by key."
    refusal = refusal_of(node)
    if refusal is not None:
        return refusal
    profile = join_profile(node, ctx.statistics, ctx.above)
    if profile is None:
        if any(isinstance(side, Union) for side in (node.left, node.right)):
            return "A side is a union: it is not known which of its keys are hot."
        return "There are no statistics for the keys of both sides: it is not known which keys are hot."
    if skew is JoinSkew.AUTO and filtered_by_key(node, ctx.statistics, ctx.above):
        return "A condition is on the key: it may keep all rows of a hot key or none."
    forced, is_skew_forced = forced_strategy(node, ctx.settings.join), skew is not JoinSkew.AUTO
    sides = None if is_skew_forced or forced != NOT_FORCED else join_sides(node, ctx.statistics, ctx.above)
    if sides is not None and adaptive_broadcast(node, sides, ctx.statistics) is not None:
        return f"{EXPECTED_BROADCAST}: then no task has all rows of a key."
    if skew is JoinSkew.AUTO:
        hot, nulls = hot_key_loads(profile, ctx.settings.skew), sides_with_hot_nulls(profile, ctx.settings.skew)
    else:
        hot, nulls = frequent_keys(profile), sides_keeping_nulls(profile)
    eligible = {
        JoinSkew.ISOLATE: hot if is_skew_forced or forced.may_broadcast else (),
        JoinSkew.SALT: hot if forced.may_sort else (),
    }
    plans = {name: planner(node, profile, eligible[name], nulls) for name, planner in planners.items()}
    return _Analysis(profile, hot, nulls, {name: plan for name, plan in plans.items() if plan is not None}, forced)


def _decide_forced(node: Join, skew: JoinSkew, found: _Analysis) -> Match[Join] | Skip:
    plan = found.plans.get(skew)
    if plan is None:
        return Skip(f"join.skew is {skew.value}, but {_why_no_plan(node, skew, found)}.")
    return found.choice.match(node, skew.value, f"join.skew is {skew.value}: {_plan_text(plan)}.")


def _choose_skew_plan_by_cost(node: Join, found: _Analysis) -> Match[Join] | Skip:
    if not found.hot and not found.nulls:
        return Skip("No key is hot: the rows are evenly distributed by key.")
    if not found.plans:
        return Skip(f"{_hottest_key_text(found)}, but {_why_no_plan(node, JoinSkew.AUTO, found)}.")
    choice = found.choice
    best = min(found.plans, key=lambda name: choice.costs[name].slowest)
    if not choice.is_clearly_cheaper(best, NONE, CLEAR_GAIN):
        return choice.skip(
            f"{_hottest_key_text(found)}, but handling hot keys separately would not be clearly cheaper."
        )
    return choice.match(node, best.value, f"{_hottest_key_text(found)}: {_plan_text(found.plans[best])}.")


def _why_no_plan(node: Join, skew: JoinSkew, found: _Analysis) -> str:
    """Returns the reason why there is no plan of this kind, as the end of a sentence."""
    if skew is JoinSkew.SALT and not found.forced.may_sort:
        return f"{found.forced.text} is forced for this join, and salted keys require sort-merge"
    if skew is JoinSkew.AUTO and found.hot and not found.forced.may_broadcast:
        return f"{found.forced.text} is forced for this join, and hot keys cannot be handled separately with it"
    nulls_only = not found.hot
    if nulls_only and found.nulls and not any(nulls_can_bypass(node, side) for side in found.nulls):
        return "a column of the other side has a type to which NULL cannot be cast"
    if nulls_only:
        return "no key in the sample can be written as a literal"
    if not PROBE_SIDES[node.kind]:
        return "a full join keeps the unmatched rows of both sides, so neither side can be split"
    if all(load.literals is None for load in found.hot):
        return "the hot values cannot be written as exact literals"
    if len(PROBE_SIDES[node.kind]) == 1 and all(
        _is_heavier(load, PROBE_SIDES[node.kind][0].other) for load in found.hot
    ):
        side = PROBE_SIDES[node.kind][0].value.lower()
        return f"a {node.kind.value} join can split only the rows of its {side} side"
    if skew is JoinSkew.SALT:
        return "the rows have no column other than the key to compute a salt from, or there would be too many copies"
    return "there are too many rows to broadcast"


def _is_heavier(load: KeyLoad, side: Side) -> bool:
    return load.rows(side) > load.rows(side.other)


def _hottest_key_text(found: _Analysis) -> str:
    if not found.hot:
        side = found.nulls[0]
        share = found.profile.nulls[side] / found.profile.sides[side].rows
        return f"{share:.0%} of the rows of the {side.value.lower()} side have a NULL key, all on one task"
    hottest = max(found.hot, key=lambda load: load.left + load.right + found.profile.out(load))
    at_most = "up to " if any(side.hot_at_most for side in found.profile.sides.values()) else ""
    return (
        f"Key {hottest.value} has {at_most}{_count(hottest.left)} on the left and {_count(hottest.right)} on the "
        "right, all on one task"
    )


def _plan_text(plan: SkewPlan) -> str:
    texts = [_part_text(part) for part in plan.parts]
    texts += [f"rows of the {side.value.lower()} side with a NULL key bypass the join" for side in plan.nulls]
    return ", ".join(texts)


def _part_text(part: HotPart) -> str:
    keys = f"{len(part.keys)} hot key{'s' if len(part.keys) > 1 else ''}"
    side = part.probe.value.lower()
    if part.salts is not None:
        return f"{keys} salted with {part.salts} salts on the {side} side"
    moved = f"with the {side} side distributed over tasks" if part.tasks else f"without shuffling the {side} side"
    return f"{keys} joined separately {moved}"


def _count(rows: float) -> str:
    return "1 row" if round(rows) == 1 else f"{round(rows):,} rows"
