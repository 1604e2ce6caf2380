"""The plan that hashes and broadcasts no side of a join, and has no blocks of bitmaps: for a second run where memory
ran out in the first, and for an attempt after one that lost its worker or its Spark driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from service.contract.options import JobSettings, JoinLocal, JoinShip, JoinSkew
from service.contract.query import JoinKind
from service.contract.reports import RuleOutcome, RuleTrace
from workers.engine.budget import PlanningBudget
from workers.engine.plan.explain import line_of
from workers.engine.plan.nodes import Join, JoinStrategy, Node, inputs_of
from workers.engine.plan.traversal import walk_up, with_ids, with_inputs
from workers.engine.planner import Plan, apply_rules
from workers.engine.rules.rule import RuleContext
from workers.engine.statistics.model import Statistics

FALLBACK = "fallback"
"""Who tells in the trace that nothing is hashed or broadcast, and why."""

_COMPARES_ALL = frozenset({JoinKind.INNER, JoinKind.CROSS})
"""Kinds that Spark computes without an equality by comparing all pairs, part by part."""


def has_joins(plan: Node) -> bool:
    """Whether there is anything that could be hashed or broadcast."""
    return any(isinstance(node, Join) for node in walk_up(plan))


def cautious_plan(
    before: Node, statistics: Statistics, settings: JobSettings, why: str, budget: PlanningBudget | None = None
) -> Plan:
    """The plan of `before`, as the builder made it, whose joins with keys are all sorted and merged, whatever query and
    settings demand; hot keys are salted at most. Spark itself must be kept from broadcasts by its configuration.

    `why` is a sentence for the trace. Raises as `apply_rules` does.
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
    made = apply_rules(_unhinted(before), ctx)
    return Plan(before, made.after, (*_told(before, why), *made.trace), made.changed_by)


def after_crashes(crashes: int) -> str:
    """Why an attempt is planned with caution whose job has crashed so many times."""
    attempts = "An earlier attempt" if crashes == 1 else f"{crashes} earlier attempts"
    return f"{attempts} lost the worker or its Spark driver, as a lack of memory can make them."


def after_failure(failure: str, milliseconds: int, *, while_it_ran: bool = False) -> str:
    """Why an attempt runs its query a second time: so long after its begin, memory ran out, in Spark's words.

    `while_it_ran`: what may have taken the memory is nothing that was planned, but what Spark may have done on its own.
    """
    told = f"Fell back and ran again: after {milliseconds:,} ms memory did not suffice ({failure.rstrip('.')})."
    by_spark = " No side of a join was to be hashed or broadcast, but adaptive execution may have broadcast one."
    return told + by_spark if while_it_ran else told


def _salted(skew: JoinSkew) -> JoinSkew:
    # Hot keys that are joined apart are broadcast; where none may be, AUTO salts them or leaves them alone.
    return JoinSkew.AUTO if skew is JoinSkew.ISOLATE else skew


def _unhinted(node: Node) -> Node:
    """`node` without what the query itself demands of its joins."""
    moved = with_inputs(node, tuple(_unhinted(child) for child in inputs_of(node)))
    return (
        replace(moved, strategy=JoinStrategy(skew=_salted(moved.strategy.skew))) if isinstance(moved, Join) else moved
    )


def _told(before: Node, why: str) -> Iterator[RuleTrace]:
    told = (
        f"{why} Every join with equal keys is sorted and merged now, Spark broadcasts nothing by itself, "
        "and values are counted in no blocks of bitmaps."
    )
    yield RuleTrace(rule=FALLBACK, outcome=RuleOutcome.FIRED, node=line_of(before), node_id=before.id, reason=told)
    for node in walk_up(before):
        if isinstance(node, Join) and not node.keys and node.kind not in _COMPARES_ALL:
            reason = "It has no equality: Spark knows no other way for this kind of join than to broadcast a side."
            yield RuleTrace(
                rule=FALLBACK, outcome=RuleOutcome.SKIPPED, node=line_of(node), node_id=node.id, reason=reason
            )
