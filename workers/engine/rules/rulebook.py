"""The table of contents: every rule, in the order in which they see a plan."""

from __future__ import annotations

from workers.engine.plan.nodes import Aggregate
from workers.engine.rules.rule import Rule
from workers.engine.rules.split_distinct_aggregate import SplitDistinctAggregate
from workers.engine.rules.two_phase_aggregate import TwoPhaseAggregate

RULES: tuple[Rule[Aggregate], ...] = (
    # Split distinct aggregates into buckets; before phases are decided, since it decides those of its parts itself.
    SplitDistinctAggregate(),
    # Skip the local phase of what is still whole where it does not reduce.
    TwoPhaseAggregate(),
)
