"""Compares the methods to deduplicate an aggregate's DISTINCT values: their costs, and the one that AUTO chooses.

`cost.py` has the costs. Since all of them are estimates, AUTO chooses another method than Spark's own plan
only if it is expected to be clearly cheaper.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.contract.options import AggPhase, DistinctMethod, JobSettings, Toggle
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import NUMERIC, TEMPORAL, TypeName
from workers.engine.plan.aggregates import distinct_sets, is_distinct, refusal_of, spark_expands
from workers.engine.plan.nodes import Aggregate, Phases
from workers.engine.rules.cost import (
    MIN_ROWS,
    PARSED,
    Choice,
    Cost,
    hot_group,
    input_tasks,
    key_profile,
    one_phase,
    one_phase_obstacle,
    parses_text,
    partitions_of_tables,
)
from workers.engine.rules.distinct import cost as distinct_cost
from workers.engine.rules.distinct.bitmaps import (
    BLOCK,
    BLOCK_BYTES,
    GROUPS,
    LANE,
    LANES,
    bitmap_obstacle,
    group_bitmap_obstacle,
)
from workers.engine.rules.distinct.branch_plans import branch_aggregates, is_cheap_to_repeat
from workers.engine.statistics.cardinality import KeyProfile, bytes_per_row, estimate_rows
from workers.engine.statistics.model import Statistics, ValueRange, once_per_node
from workers.engine.statistics.partitioning import is_partitioned_by

NATIVE, ONE_PHASE, BITMAP, BRANCHES, KEYED_BRANCHES = "NATIVE", "ONE_PHASE", "BITMAP", "BRANCHES", "KEYED_BRANCHES"
BY_VALUE = "ONE_PHASE_BY_VALUE"
"""Rows are shuffled by (group, value) without a local phase."""
GROUP_BITMAPS = "BITMAPS_OF_GROUPS"
"""Rows are shuffled by value without a local phase; each value has its groups as bits."""

MARGIN = 1.25
"""AUTO chooses a rewrite only if Spark's own plan costs at least so many times as much."""

_COMPILED_COUNTS = 1
"""COUNTs of bitmaps of groups with sums in generated code: Spark interprets rows of more than 100 columns."""

_MEMORY_DIVISOR = 4
"""A task's bitmaps may use its memory divided by this number: Spark does not account for their memory."""

_SMALL = NUMERIC | TEMPORAL | {TypeName.BOOLEAN}

GROUPS_PER_SLOT = 8
"""The number of groups per slot from which rows shuffled by group are evenly distributed."""

_TYPE_RANGES = {
    TypeName.BOOLEAN: ValueRange(0, 1),
    TypeName.TINYINT: ValueRange(-(2**7), 2**7 - 1),
    TypeName.SMALLINT: ValueRange(-(2**15), 2**15 - 1),
}


@dataclass(frozen=True)
class MethodCosts(Choice):
    """The costs of the possible methods, by name; empty if `unknown` names missing statistics."""

    kept: str = NATIVE
    unknown: str | None = None

    @property
    def best(self) -> str:
        """The method that AUTO chooses: the cheapest, if it is clearly cheaper than Spark's own plan and `ONE_PHASE`.

        Bitmaps of groups shuffle all rows, as `ONE_PHASE` does, so they need not be clearly cheaper than that.
        """
        if not self.costs:
            return NATIVE
        rivals = {NATIVE} if self.cheapest == GROUP_BITMAPS else {NATIVE, ONE_PHASE}
        is_clear = all(self.is_clearly_cheaper(self.cheapest, rival, MARGIN) for rival in rivals & self.costs.keys())
        return self.cheapest if is_clear else NATIVE


def is_split_forced(settings: JobSettings) -> bool:
    """Whether the split is forced; `distinct_method` takes precedence over `distinct_split.enabled`."""
    method = settings.distinct_method
    return method is DistinctMethod.SPLIT or (
        method is DistinctMethod.AUTO and settings.distinct_split.enabled is Toggle.TRUE
    )


@once_per_node
def method_costs(node: Aggregate, settings: JobSettings, statistics: Statistics) -> MethodCosts:
    """Returns the costs of the methods for `node`, a whole aggregate with at least one set of distinct values."""
    groups, sets = _groups(node, statistics), _pairs(node, statistics)
    if groups is None:
        return MethodCosts({}, unknown="there are no statistics for the group keys")
    if sets is None:
        return MethodCosts({}, unknown="there are no statistics for the distinct values in a group")
    slots, tasks = statistics.slots, input_tasks(node.input, statistics)
    if len(sets) == 1:
        costs = {NATIVE: distinct_cost.native_distinct(groups, sets[0], slots, tasks)}
        if not spark_expands(node) and _may_be_keyed(node, groups, settings, statistics):
            costs[ONE_PHASE] = one_phase(groups, slots, sets[0])
        if not spark_expands(node) and _may_be_sent_by_value(node, sets[0], settings, statistics):
            costs[BY_VALUE] = distinct_cost.one_phase_by_value(groups, sets[0], slots)
        if bitmap_obstacle(node) is None:
            costs |= _bitmap(node, groups, sets[0], statistics)
        return MethodCosts(costs | _group_bitmaps(node, groups, sets[0], settings, statistics))
    return MethodCosts(_of_several(node, groups, sets, settings, statistics))


def possible_bitmaps(node: Aggregate) -> str | None:
    """Returns the kind of bitmaps to use if they are forced; bitmaps of values take precedence. None if none is
    possible.
    """
    if bitmap_obstacle(node) is None:
        return BITMAP
    return GROUP_BITMAPS if group_bitmap_obstacle(node) is None else None


@once_per_node
def bitmap_width(node: Aggregate, statistics: Statistics) -> int:
    """Returns the number of values per bitmap for `node`, with one set of values: the cheapest width; without
    statistics one lane, which is never large.
    """
    groups, sets = _groups(node, statistics), _pairs(node, statistics)
    if groups is None or sets is None:
        return LANE
    costs = _costs_by_width(node, groups, sets[0], statistics)
    return min(costs, key=lambda width: costs[width].slowest, default=LANE)


def table_partitions(node: Aggregate, statistics: Statistics) -> int | None:
    """Returns the best number of partitions to aggregate or deduplicate the rows of `node` in one phase; None for
    Spark's default.
    """
    tables = _pairs(node, statistics) if distinct_sets(node) else [_groups(node, statistics)]
    entries = sum(table.distinct for table in tables or () if table is not None)
    return partitions_of_tables(entries, statistics.slots)


def value_partitions(node: Aggregate, statistics: Statistics) -> int | None:
    """Returns the best number of partitions to shuffle the rows of `node`, with one set of distinct values, by value;
    None for Spark's default.
    """
    values = values_profile(node, statistics)
    return None if values is None else partitions_of_tables(values.distinct, statistics.slots)


def value_phases(node: Aggregate, settings: JobSettings, statistics: Statistics) -> Phases:
    """Returns the phases to deduplicate the values of `node` if their groups are the bits: two if that is forced, or if
    one phase would put the rows of a hot value on one task.
    """
    values = values_profile(node, statistics)
    size = bytes_per_row(node.input, statistics)
    hot = values is not None and hot_group(values, settings.skew, statistics.slots, size) is not None
    return Phases.TWO_PHASE if hot or settings.agg_phase is AggPhase.TWO_PHASE else Phases.ONE_PHASE


def values_profile(node: Aggregate, statistics: Statistics) -> KeyProfile | None:
    """Returns how the rows are distributed over the values of the only set of `node`, in all groups together."""
    return key_profile(node.input, distinct_sets(node)[0], statistics)


def unknown_reason(unknown: str) -> str:
    """Returns the reason of a skip because of missing statistics."""
    return f"{unknown[:1].upper()}{unknown[1:]}: Spark's own plan is kept."


def _of_several(
    node: Aggregate, groups: KeyProfile, sets: list[KeyProfile], settings: JobSettings, statistics: Statistics
) -> dict[str, Cost]:
    slots, tasks = statistics.slots, input_tasks(node.input, statistics)
    plain = any(not is_distinct(call) for call in node.calls)
    costs = {NATIVE: distinct_cost.expanded_distinct(groups, sets, plain, slots, tasks)}
    parts = [method_costs(branch, settings, statistics) for branch in branch_aggregates(node)]
    # Otherwise the branches do the same work as Spark with its copies, and read the rows again in addition.
    if is_cheap_to_repeat(node.input) and any(part.best != NATIVE for part in parts):
        best = [part.costs[part.best] for part in parts]
        reread = PARSED if parses_text(node.input, statistics) else distinct_cost.READ_AGAIN
        costs[BRANCHES] = distinct_cost.branches(best, groups, slots, reread)
    splittable = all(refusal_of(call) is None for call in node.calls)
    if splittable and _may_be_keyed(node, groups, settings, statistics):
        costs[KEYED_BRANCHES] = distinct_cost.keyed_branches(groups, sets, slots)
    return costs


def _may_be_keyed(node: Aggregate, groups: KeyProfile, settings: JobSettings, statistics: Statistics) -> bool:
    """Whether rows may be shuffled by group without a local phase: reliable statistics say that groups are even."""
    return settings.agg_phase is not AggPhase.TWO_PHASE and _is_even(node, groups, settings, statistics)


def _is_even(node: Aggregate, sent: KeyProfile, settings: JobSettings, statistics: Statistics) -> bool:
    """Whether reliable statistics say that rows are even if they are shuffled by a key with the distribution `sent`."""
    keys = tuple(key.expression for key in node.keys)
    return (
        sent.rows >= MIN_ROWS
        and sent.distinct >= GROUPS_PER_SLOT * statistics.slots
        and not is_partitioned_by(node.input, keys, statistics)
        and hot_group(sent, settings.skew, statistics.slots, bytes_per_row(node.input, statistics)) is None
        and one_phase_obstacle(node, statistics) is None
    )


def _may_be_sent_by_value(node: Aggregate, pairs: KeyProfile, settings: JobSettings, statistics: Statistics) -> bool:
    """Whether rows may be shuffled by group and value without a local phase."""
    return all(refusal_of(call) is None for call in node.calls) and _may_be_sent_by(node, pairs, settings, statistics)


def _may_be_sent_by(node: Aggregate, sent: KeyProfile, settings: JobSettings, statistics: Statistics) -> bool:
    """Whether rows may be shuffled, without a local phase, by the key whose distribution is `sent` (the values, with or
    without their group): reliable statistics say that it is even.
    """
    types = [value.type for value in distinct_sets(node)[0]]
    return (
        settings.distinct_method is not DistinctMethod.NATIVE
        # The values are deduplicated in one phase, and counted in two.
        and settings.agg_phase is AggPhase.AUTO
        # Spark groups by a normalized form of a fraction, so it would shuffle the rows again.
        and all(type_ is not None and type_.is_atomic and not type_.is_fractional for type_ in types)
        and _is_even(node, sent, settings, statistics)
    )


def _group_bitmaps(
    node: Aggregate, groups: KeyProfile, pairs: KeyProfile, settings: JobSettings, statistics: Statistics
) -> dict[str, Cost]:
    """Returns the cost of bitmaps of groups; empty if rows may not be shuffled by value without a local phase, or the
    range of the groups is not known.
    """
    values = values_profile(node, statistics)
    known = None if group_bitmap_obstacle(node) else _range_of(node.keys[0].expression, statistics)
    if values is None or known is None or len(node.calls) > _COMPILED_COUNTS:
        return {}
    if not _may_be_sent_by(node, values, settings, statistics):
        return {}
    runs = min(float(known.high // GROUPS - known.low // GROUPS + 1), groups.distinct)
    # There are never more bitmaps than pairs of a group and a value.
    entries = min(values.distinct * runs, pairs.distinct)
    return {GROUP_BITMAPS: distinct_cost.group_bitmaps(values, entries, runs, len(node.calls), statistics.slots)}


def _bitmap(node: Aggregate, groups: KeyProfile, pairs: KeyProfile, statistics: Statistics) -> dict[str, Cost]:
    costs = _costs_by_width(node, groups, pairs, statistics)
    if not costs or groups.rows < MIN_ROWS:
        return {}
    return {BITMAP: min(costs.values(), key=lambda cost: cost.slowest)}


def _costs_by_width(node: Aggregate, groups: KeyProfile, pairs: KeyProfile, statistics: Statistics) -> dict[int, Cost]:
    """Returns the cost of bitmaps by width; blocks only if they fit in memory; empty if the range is not known."""
    known = _range_of(distinct_sets(node)[0][0], statistics)
    if known is None:
        return {}
    slots, tasks = statistics.slots, input_tasks(node.input, statistics)
    costs, memory_limit = {}, statistics.task_memory / _MEMORY_DIVISOR
    for width in (LANE, LANES, BLOCK):
        # All bitmaps of the range in every group, but never more than there are values.
        bitmaps = min(pairs.distinct, groups.distinct * (known.high // width - known.low // width + 1))
        if width != BLOCK or (_may_be_blocks(node, statistics) and bitmaps * BLOCK_BYTES <= memory_limit):
            costs[width] = distinct_cost.bitmaps(groups, bitmaps, width, slots, tasks)
    return costs


def _may_be_blocks(node: Aggregate, statistics: Statistics) -> bool:
    """Whether the hash table's entries are known to be small compared with the blocks: they have no strings, which
    Spark would keep in memory that it does not manage.
    """
    types = [*(key.expression.type for key in node.keys), *(call.output.type for call in node.calls)]
    return statistics.hashes_blocks and all(type_ is not None and type_.name in _SMALL for type_ in types)


def _range_of(value: Scalar, statistics: Statistics) -> ValueRange | None:
    known = statistics.ranges.get(value.column) if value.column is not None else None
    by_type = _TYPE_RANGES.get(value.type.name) if value.type is not None else None
    return known or by_type


def _groups(node: Aggregate, statistics: Statistics) -> KeyProfile | None:
    if not node.keys:
        rows = estimate_rows(node.input, statistics)
        return None if rows is None else KeyProfile(float(rows), 1.0, ())
    return key_profile(node.input, (key.expression for key in node.keys), statistics)


def _pairs(node: Aggregate, statistics: Statistics) -> list[KeyProfile] | None:
    """Returns for each set how the rows are distributed over (group, value)."""
    keys = tuple(key.expression for key in node.keys)
    found = [key_profile(node.input, (*keys, *values), statistics) for values in distinct_sets(node)]
    known = [pairs for pairs in found if pairs is not None]
    return known if len(known) == len(found) else None
