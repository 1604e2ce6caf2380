"""Makes a plan that needs little memory: no side of a join is hashed or broadcast, and no bitmaps have blocks.

It is for a second run after the first one ran out of memory, and for an attempt after one that lost its worker or its
Spark driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from service.contract.options import JobSettings, JoinLocal, JoinShip, JoinSkew
from service.contract.query import JoinKind
from service.contract.reports import RuleTrace
from workers.engine.budget import PlanningBudget
from workers.engine.plan.nodes import Join, JoinStrategy, Node, inputs_of
from workers.engine.plan.traversal import walk_up, with_ids, with_inputs
from workers.engine.planner import Plan, apply_rules, trace_of
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.model import Statistics

FALLBACK = "fallback"
"""The name in the trace that reports the low-memory plan and its reason."""

_COMPARES_ALL = frozenset({JoinKind.INNER, JoinKind.CROSS})
"""Kinds of joins without an equality that Spark can run without a broadcast, by comparing all pairs of partitions."""


def has_joins(plan: Node) -> bool:
    """Whether the plan has joins, whose sides could be hashed or broadcast."""
    return any(isinstance(node, Join) for node in walk_up(plan))


def low_memory_plan(
    before: Node, statistics: Statistics, settings: JobSettings, why: str, budget: PlanningBudget | None = None
) -> Plan:
    """Plans `before`, a plan of the builder, so that all joins with keys use sort-merge, even if query or settings
    force something else; hot keys may be salted, but not isolated. The caller must turn off Spark's automatic
    broadcasts.

    `why` is a sentence for the trace. Raises the errors of `apply_rules`.
    """
    join = settings.join.model_copy(
        update={"ship": JoinShip.REPARTITION, "local": JoinLocal.SORT_MERGE, "skew": _salted(settings.join.skew)}
    )
    ctx = RuleContext(
        settings.model_copy(update={"join": join}),
        replace(statistics, hashes_blocks=False),
        budget=budget or PlanningBudget(),
    )
    before = with_ids(before)
    made = apply_rules(_without_hints(before), ctx)
    return Plan(before, made.after, (*_traces(before, why), *made.trace), made.changed_by)


def crash_reason(crashes: int) -> str:
    """Returns the reason to plan an attempt with low memory after so many crashes of its job."""
    attempts = "An earlier attempt" if crashes == 1 else f"{crashes} earlier attempts"
    return f"{attempts} lost the worker or its Spark driver, which a lack of memory can cause."


def out_of_memory_reason(failure: str, milliseconds: int, *, while_it_ran: bool = False) -> str:
    """Returns the reason why an attempt runs its query again: memory ran out after so many milliseconds; `failure` is
    Spark's message.

    `while_it_ran`: the plan did not cause it, but Spark's adaptive execution may have.
    """
    reason = f"Fell back and ran again: after {milliseconds:,} ms the query ran out of memory ({failure.rstrip('.')})."
    by_spark = " The plan hashed and broadcast no side of a join, but adaptive execution may have broadcast one."
    return reason + by_spark if while_it_ran else reason


def _salted(skew: JoinSkew) -> JoinSkew:
    # Isolated hot keys are broadcast. Without broadcasts, AUTO salts hot keys or does nothing.
    return JoinSkew.AUTO if skew is JoinSkew.ISOLATE else skew


def _without_hints(node: Node) -> Node:
    """Returns `node` without the strategies that the query forces for its joins."""
    made = with_inputs(node, tuple(_without_hints(child) for child in inputs_of(node)))
    return replace(made, strategy=JoinStrategy(skew=_salted(made.strategy.skew))) if isinstance(made, Join) else made


def _traces(before: Node, why: str) -> Iterator[RuleTrace]:
    reason = (
        f"{why} Every equi-join now uses sort-merge, Spark broadcasts nothing automatically, "
        "and distinct values are not counted with blocks of bitmaps."
    )
    yield trace_of(FALLBACK, before, Match(before, FALLBACK, reason))
    for node in walk_up(before):
        if isinstance(node, Join) and not node.keys and node.kind not in _COMPARES_ALL:
            reason = "The join has no equality: Spark can run this kind of join only by broadcasting a side."
            yield trace_of(FALLBACK, node, Skip(reason))
