"""How mini-batches are joined with static tables: by the rules for joins of a batch, where a stream can follow them.

Such a join keeps no state, so that it may run in another way each time that the stream is started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from service.contract.options import JobSettings, JoinSkew
from service.sql.expressions.scalar import Scalar
from service.sql.statements.join_hints import Side
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


def static_joins(plan: Node, streams: frozenset[str]) -> Iterator[Join]:
    """The joins of which a side is static; `streams` are the aliases that are none."""
    return (node for node in walk_up(plan) if isinstance(node, Join) and _has_static_side(node, streams))


def join_static_tables(
    plan: Node,
    streams: frozenset[str],
    statistics: Statistics,
    settings: JobSettings,
    changed_by: Mapping[int, str],
    budget: PlanningBudget | None = None,
) -> Plan:
    """`plan`, what a mini-batch runs, with the joins that have a static side as the rules want them. What `statistics`
    know of a stream is about a mini-batch; `changed_by` names what made nodes of `plan`, by their ids.

    Raises `InvalidPlanError` when a rule breaks an invariant, and what the check of `budget` raises.
    """
    rules = (_StrategyBesideStream(streams), _SkewBesideStream(streams))
    ctx = RuleContext(settings, statistics, budget=budget or PlanningBudget())
    found = apply_some_rules(plan, rules, ctx, changed_by)
    # A plan that reads a stream several times has the same join in each of its branches.
    told = {trace.model_dump_json(exclude={"node_id"}): trace for trace in found.trace}
    return replace(found, trace=tuple(told.values()))


class _StrategyBesideStream:
    """`join_strategy` for joins with a static side."""

    name = JoinStrategy.name

    def __init__(self, streams: frozenset[str]) -> None:
        self._streams = streams
        self._rule = JoinStrategy()

    def match(self, node: Node, ctx: RuleContext, /) -> Match[Join] | Skip | None:
        """As the rule says; None for any other node."""
        if not _has_static_side(node, self._streams):
            return None
        if ctx.settings.join.skew is not JoinSkew.SALT:
            # It would wait for hot keys to be joined apart, which they are not.
            ctx = replace(ctx, settings=_with_skew(ctx.settings, JoinSkew.NONE))
        return self._rule.match(node, ctx)

    def rewrite(self, match: Match[Join], ctx: RuleContext, /) -> Node:
        """As the rule does."""
        return self._rule.rewrite(match, ctx)


class _SkewBesideStream:
    """`skewed_join` for joins of a stream with a static table: salted, and in one reading of the stream. Spark notes in
    the checkpoint how often a stream is read, and goes on with no other number.
    """

    name = SkewedJoin.name

    def __init__(self, streams: frozenset[str]) -> None:
        self._streams = streams
        self._rules = {side: SkewedJoin({JoinSkew.SALT: partial(salting_plan_in_one_read, side)}) for side in Side}

    def match(self, node: Node, ctx: RuleContext, /) -> Match[Join] | Skip | None:
        """As the rule says of salts; None for any other node."""
        if not isinstance(node, Join) or not _has_static_side(node, self._streams):
            return None
        probe = self._probe(node)
        if probe is None:
            return None
        if node.keys and skew_of(node, ctx.settings.join.skew) is JoinSkew.ISOLATE:
            return Skip(_NOT_APART)
        found = self._rules[probe].match(node, ctx)
        if not isinstance(found, Match):
            return found
        hot, salts, nulls = self._salts(node, probe, ctx)
        told = (
            [f"{len(hot)} hot key{'s' if len(hot) > 1 else ''} salted {salts} ways in every mini-batch"] if hot else []
        )
        told += ["rows with a NULL key spread by their other columns"] if nulls else []
        # Before the last colon stands what was found, or is forced; behind it how parts would be joined.
        return replace(found, reason=f"{found.reason.rpartition(': ')[0]}: {', '.join(told)}.")

    def rewrite(self, match: Match[Join], ctx: RuleContext, /) -> Node:
        """The join by its keys and a salt."""
        probe = self._probe(match.node)
        if probe is None:
            raise ValueError("no side of this join is a stream")
        hot, salts, nulls = self._salts(match.node, probe, ctx)
        return salted_in_one_read(match.node, probe, hot, nulls, salts)

    def _probe(self, join: Join) -> Side | None:
        """The side that is a stream."""
        if is_streaming(join.left, self._streams):
            return Side.LEFT
        return Side.RIGHT if is_streaming(join.right, self._streams) else None

    def _salts(self, join: Join, probe: Side, ctx: RuleContext) -> tuple[tuple[tuple[Scalar, ...], ...], int, bool]:
        """The hot keys, the number of salts, and whether rows with a NULL key are salted too."""
        way = self._rules[probe].plan_of(join, JoinSkew.SALT, ctx)
        if way is None:
            raise ValueError("this join has nothing to salt")
        salts = max((part.salts or 1 for part in way.parts), default=TASKS_PER_SLOT * ctx.statistics.slots)
        return tuple(key for part in way.parts for key in part.keys), salts, bool(way.nulls)


_NOT_APART = (
    "join.skew is ISOLATE, but to join hot keys apart is to read the stream once more, and Spark goes on from a "
    "checkpoint with as many readings as before alone. SALT spreads them in one."
)


def _has_static_side(node: Node, streams: frozenset[str]) -> bool:
    return isinstance(node, Join) and not all(is_streaming(side, streams) for side in (node.left, node.right))


def _with_skew(settings: JobSettings, skew: JoinSkew) -> JobSettings:
    return settings.model_copy(update={"join": settings.join.model_copy(update={"skew": skew})})
