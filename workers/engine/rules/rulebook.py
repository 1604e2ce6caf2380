"""The table of contents: every rule, in the order in which they see a plan."""

from __future__ import annotations

from typing import Any

from workers.engine.rules.distinct.bitmap_distinct import BitmapDistinct
from workers.engine.rules.distinct.distinct_branches import DistinctBranches
from workers.engine.rules.distinct.incremental_aggregate import IncrementalAggregate
from workers.engine.rules.distinct.split_distinct_aggregate import SplitDistinctAggregate
from workers.engine.rules.eager.eager_aggregation import EagerAggregation
from workers.engine.rules.joins.join_strategy import JoinStrategy
from workers.engine.rules.joins.skewed_join import SkewedJoin
from workers.engine.rules.prune_union_branches import PruneUnionBranches
from workers.engine.rules.rule import Rule
from workers.engine.rules.two_phase_aggregate import TwoPhaseAggregate

RULES: tuple[Rule[Any], ...] = (
    # Drop branches of UNION that a condition excludes; first, since the other rules then see the plan that is left.
    PruneUnionBranches(),
    # Aggregate below joins; before joins are looked at, since what is aggregated is another join's input.
    EagerAggregation(),
    # Decide how joins run; before hot keys are looked for, since a broadcast side has none.
    JoinStrategy(),
    # Join hot keys apart; before the aggregates, since those above then see what they really aggregate.
    SkewedJoin(),
    # Count distinct integers by bitmaps; before the split, which is for what neither this nor branches take.
    BitmapDistinct(),
    # Tell several sets of distinct values apart each by itself, by bitmaps too.
    DistinctBranches(),
    # Split distinct aggregates into buckets; before phases are decided, since it decides those of its parts itself.
    SplitDistinctAggregate(),
    # Merge the middle two phases of what has been split.
    IncrementalAggregate(),
    # Skip the local phase of what is still whole where it does not reduce.
    TwoPhaseAggregate(),
)
