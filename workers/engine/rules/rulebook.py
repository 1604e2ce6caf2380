"""The ordered list of all rules. Each rule is applied to the whole plan before the next one."""

from __future__ import annotations

from typing import Any

from workers.engine.rules.distinct.bitmap_distinct import BitmapDistinct
from workers.engine.rules.distinct.counted_percentiles import CountedPercentiles
from workers.engine.rules.distinct.distinct_branches import DistinctBranches
from workers.engine.rules.distinct.incremental_aggregate import IncrementalAggregate
from workers.engine.rules.distinct.split_distinct_aggregate import SplitDistinctAggregate
from workers.engine.rules.eager.eager_aggregation import EagerAggregation
from workers.engine.rules.joins.join_order import JoinOrder
from workers.engine.rules.joins.join_strategy import JoinStrategy
from workers.engine.rules.joins.semi_join_reduction import SemiJoinReduction
from workers.engine.rules.joins.skewed_join import SkewedJoin
from workers.engine.rules.merge_aggregates import MergeAggregates
from workers.engine.rules.prune_union_branches import PruneUnionBranches
from workers.engine.rules.rule import Rule
from workers.engine.rules.two_phase_aggregate import TwoPhaseAggregate
from workers.engine.rules.windows.skewed_windows import SkewedWindows

RULES: tuple[Rule[Any], ...] = (
    # Drop branches of UNION that a condition excludes: first, so that the other rules handle only the remaining plan.
    PruneUnionBranches(),
    # Merge aggregates of the same tables: before the rules that change the inputs of aggregates.
    MergeAggregates(),
    # Change the order of inner joins: before the rules that choose how each of them runs.
    JoinOrder(),
    # Aggregate below joins: before the rules for joins, since it changes the inputs of joins.
    EagerAggregation(),
    # Decide how joins run: before the rule for hot keys, which are no problem if a side is broadcast.
    JoinStrategy(),
    # Filter tables by the keys of later joins: after the rule that decides which joins shuffle, and before the rules
    # for hot keys and aggregates, which then have fewer rows.
    SemiJoinReduction(),
    # Join hot keys separately: before the rules for aggregates, so that those above have their final input.
    SkewedJoin(),
    # Compute hot partitions of windows in parts: after the rules for joins, which change its input.
    SkewedWindows(),
    # Count distinct integers with bitmaps: before the split, which is for the aggregates that remain.
    BitmapDistinct(),
    # Deduplicate several sets of distinct values separately, also with bitmaps.
    DistinctBranches(),
    # Split distinct aggregates into buckets: before the rule for phases, since it sets the phases of its parts.
    SplitDistinctAggregate(),
    # Merge the two middle phases of split aggregates.
    IncrementalAggregate(),
    # Count the rows of each value before PERCENTILE: before the rule for phases, since it sets those of its parts.
    CountedPercentiles(),
    # Skip the local phase of the remaining aggregates if it does not reduce the rows.
    TwoPhaseAggregate(),
)
