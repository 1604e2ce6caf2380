"""Plans the joins of a stream with static tables, by those of the rules for batch joins that work on a stream.

Such a join has no state, so it may run differently each time the stream is started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from service.contract.options import JobSettings, JoinSkew
from service.sql.expressions.scalar import Scalar
from service.sql.joins import Side
from workers.engine.budget import PlanningBudget
from workers.engine.plan.nodes import Join, Node
from workers.engine.plan.traversal import walk_up
from workers.engine.planner import Plan, apply_some_rules
from workers.engine.rules.joins.join_strategy import JoinStrategy
from workers.engine.rules.joins.skew_cost import TASKS_PER_SLOT, salting_plan_in_one_read
from workers.engine.rules.joins.skew_rewrite import salted_in_one_read
from workers.engine.rules.joins.skewed_join import SkewedJoin
from workers.engine.rules.joins.strategy_cost import skew_of
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.model import Statistics
from workers.engine.streaming.stream_plan import is_streaming

_NO_ISOLATION = (
    "join.skew is ISOLATE, but isolated hot keys would need the stream to be read twice, and a checkpoint fixes how "
    "often a stream is read. SALT needs one read."
)


def static_joins(plan: Node, streams: frozenset[str]) -> Iterator[Join]:
    """Yields the joins with a static side; `streams` are the aliases of streams."""
    return (node for node in walk_up(plan) if isinstance(node, Join) and _has_static_side(node, streams))


def join_static_tables(
    plan: Node,
    streams: frozenset[str],
    statistics: Statistics,
    settings: JobSettings,
    changed_by: Mapping[int, str],
    budget: PlanningBudget | None = None,
) -> Plan:
    """Returns `plan`, which a mini-batch runs, after the rules have changed its joins with a static side.

    The `statistics` of a stream are those of a mini-batch. `changed_by` names the rule that made each added node of
    `plan`, by node id. Raises `InvalidPlanError` when a rule breaks an invariant, and what the check of `budget`
    raises.
    """
    rules = (_StaticJoinStrategy(streams), _SkewedStaticJoin(streams))
    ctx = RuleContext(settings, statistics, budget=budget or PlanningBudget())
    changed = apply_some_rules(plan, rules, ctx, changed_by)
    # A plan that reads a stream several times has the same join in each of its branches.
    traces = {trace.model_dump_json(exclude={"node_id"}): trace for trace in changed.trace}
    return replace(changed, trace=tuple(traces.values()))


class _StaticJoinStrategy:
    """`join_strategy` for joins with a static side."""

    name = JoinStrategy.name

    def __init__(self, streams: frozenset[str]) -> None:
        self._streams = streams
        self._rule = JoinStrategy()

    def match(self, node: Node, ctx: RuleContext, /) -> Match[Join] | Skip | None:
        """Returns what the rule returns; None for any other node."""
        if not _has_static_side(node, self._streams):
            return None
        if ctx.settings.join.skew is not JoinSkew.SALT:
            # Otherwise the rule would leave the join to isolation, which is not supported here.
            ctx = replace(ctx, settings=_with_skew(ctx.settings, JoinSkew.NONE))
        return self._rule.match(node, ctx)

    def rewrite(self, match: Match[Join], ctx: RuleContext, /) -> Node:
        """Returns what the rule returns."""
        return self._rule.rewrite(match, ctx)


class _SkewedStaticJoin:
    """`skewed_join` for joins of a stream with a static table: it salts hot keys, and reads the stream once. Spark
    records in the checkpoint how often a stream is read, and does not continue with another number.
    """

    name = SkewedJoin.name

    def __init__(self, streams: frozenset[str]) -> None:
        self._streams = streams
        self._rules = {side: SkewedJoin({JoinSkew.SALT: partial(salting_plan_in_one_read, side)}) for side in Side}

    def match(self, node: Node, ctx: RuleContext, /) -> Match[Join] | Skip | None:
        """Returns what the rule returns about salting; None for any other node."""
        if not isinstance(node, Join) or not _has_static_side(node, self._streams):
            return None
        probe = self._probe(node)
        if probe is None:
            return None
        if node.keys and skew_of(node, ctx.settings.join.skew) is JoinSkew.ISOLATE:
            return Skip(_NO_ISOLATION)
        found = self._rules[probe].match(node, ctx)
        if not isinstance(found, Match):
            return found
        hot, salts, nulls = self._salts(node, probe, ctx)
        changes = (
            [f"{len(hot)} hot key{'s' if len(hot) > 1 else ''} salted {salts} ways in every mini-batch"] if hot else []
        )
        changes += ["rows with a NULL key distributed by their other columns"] if nulls else []
        # The rule's reason is what it found, a colon, and how a batch would join the parts.
        return replace(found, reason=f"{found.reason.rpartition(': ')[0]}: {', '.join(changes)}.")

    def rewrite(self, match: Match[Join], ctx: RuleContext, /) -> Node:
        """Returns the join by its keys and a salt."""
        probe = self._probe(match.node)
        if probe is None:
            raise ValueError("no side of this join is a stream")
        hot, salts, nulls = self._salts(match.node, probe, ctx)
        return salted_in_one_read(match.node, probe, hot, nulls, salts)

    def _probe(self, join: Join) -> Side | None:
        """Returns the side that is a stream."""
        if is_streaming(join.left, self._streams):
            return Side.LEFT
        return Side.RIGHT if is_streaming(join.right, self._streams) else None

    def _salts(self, join: Join, probe: Side, ctx: RuleContext) -> tuple[tuple[tuple[Scalar, ...], ...], int, bool]:
        """Returns the hot keys, the number of salts, and whether rows with a NULL key are salted too."""
        plan = self._rules[probe].plan_of(join, JoinSkew.SALT, ctx)
        if plan is None:
            raise ValueError("this join has no hot key to salt")
        salts = max((part.salts or 1 for part in plan.parts), default=TASKS_PER_SLOT * ctx.statistics.slots)
        return tuple(key for part in plan.parts for key in part.keys), salts, bool(plan.nulls)


def _has_static_side(node: Node, streams: frozenset[str]) -> bool:
    return isinstance(node, Join) and not all(is_streaming(side, streams) for side in (node.left, node.right))


def _with_skew(settings: JobSettings, skew: JoinSkew) -> JobSettings:
    return settings.model_copy(update={"join": settings.join.model_copy(update={"skew": skew})})
