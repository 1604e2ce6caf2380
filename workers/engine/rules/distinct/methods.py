"""How an aggregate's DISTINCT values are best told apart: all ways with their costs, and the one that AUTO takes.

The costs are those of `distinct/aggregate_cost.py`. A way other than Spark's own is taken only where it is expected to
be clearly cheaper, since all of this is estimated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from service.contract.options import AggPhase, DistinctMethod, JobSettings, Toggle
from service.contract.reports import Alternative
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import NUMERIC, TEMPORAL, TypeName
from workers.engine.plan.aggregates import distinct_sets, is_distinct, refusal_of, spark_expands
from workers.engine.plan.nodes import Aggregate, Phases, columns_of
from workers.engine.rules.distinct import aggregate_cost
from workers.engine.rules.distinct.aggregate_cost import MIN_ROWS, Cost, doubt_of, hot_group, input_tasks
from workers.engine.rules.distinct.bitmaps import (
    BLOCK,
    BLOCK_BYTES,
    GROUPS,
    LANE,
    LANES,
    bitmap_obstacle,
    group_bitmap_obstacle,
)
from workers.engine.rules.distinct.branch_plans import branch_aggregates, repeats_cheaply
from workers.engine.statistics.cardinality import KeyProfile, bytes_per_row, estimate_rows, profile_of
from workers.engine.statistics.model import Statistics, ValueRange, once_per_node
from workers.engine.statistics.partitioning import is_partitioned_by

NATIVE, ONE_PHASE, BITMAP, BRANCHES, KEYED_BRANCHES = "NATIVE", "ONE_PHASE", "BITMAP", "BRANCHES", "KEYED_BRANCHES"
BY_VALUE = "ONE_PHASE_BY_VALUE"
"""Rows are sent by (group, value) without a local phase."""
GROUP_BITMAPS = "BITMAPS_OF_GROUPS"
"""Rows are sent by value without a local phase; each value has its groups as bits."""

MARGIN = 1.25
"""How many times the cost of a rewrite Spark's own plan must cost for AUTO to take the rewrite."""

_COMPILED_COUNTS = 1
"""COUNTs that bitmaps of groups have sums for in generated code: Spark interprets rows of more than 100 columns."""

_MEMORY_PARTS = 4
"""A task's bitmaps may take so small a part of its memory: Spark does not see how much they take."""

_SMALL = NUMERIC | TEMPORAL | {TypeName.BOOLEAN}

GROUPS_PER_SLOT = 8
"""Groups a slot must have at least for rows by group to be spread evenly."""

_TYPE_RANGES = {
    TypeName.BOOLEAN: ValueRange(0, 1),
    TypeName.TINYINT: ValueRange(-(2**7), 2**7 - 1),
    TypeName.SMALLINT: ValueRange(-(2**15), 2**15 - 1),
}


@dataclass(frozen=True)
class Methods:
    """The ways that can be had, by name, with what each costs; none where `unknown` says what is not known."""

    costs: Mapping[str, Cost]
    unknown: str | None = None

    @property
    def best(self) -> str:
        """The way that AUTO takes: the cheapest, if it is clearly cheaper than Spark alone.

        Bitmaps of groups send rows as they are, as `ONE_PHASE` does, which is taken else: they only have to be cheaper.
        """
        if not self.costs:
            return NATIVE
        name, cheapest = min(self.costs.items(), key=lambda way: way[1].slowest)
        rivals = (NATIVE,) if name == GROUP_BITMAPS else (NATIVE, ONE_PHASE)
        spark = min(self.costs[way].slowest for way in rivals if way in self.costs)
        return name if cheapest.slowest * MARGIN <= spark else NATIVE

    def alternatives(self, chosen: str) -> tuple[Alternative, ...]:
        """All of them for the trace."""
        return tuple(one.alternative(name, chosen) for name, one in self.costs.items())


def is_split_forced(settings: JobSettings) -> bool:
    """Whether the split is forced; `distinct_method` goes before `distinct_split.enabled`."""
    method = settings.distinct_method
    return method is DistinctMethod.SPLIT or (
        method is DistinctMethod.AUTO and settings.distinct_split.enabled is Toggle.TRUE
    )


@once_per_node
def weigh(node: Aggregate, settings: JobSettings, statistics: Statistics) -> Methods:
    """The ways for `node`, a whole aggregate with at least one set of distinct values."""
    groups, sets = _groups(node, statistics), _pairs(node, statistics)
    if groups is None:
        return Methods({}, "there are no statistics for the group keys")
    if sets is None:
        return Methods({}, "there are no statistics for the distinct values in a group")
    slots, tasks = statistics.slots, input_tasks(node.input, statistics)
    if len(sets) == 1:
        costs = {NATIVE: aggregate_cost.native_distinct(groups, sets[0], slots, tasks)}
        if not spark_expands(node) and _may_be_keyed(node, groups, settings, statistics):
            costs[ONE_PHASE] = aggregate_cost.one_phase(groups, slots, sets[0])
        if not spark_expands(node) and _may_be_sent_by_value(node, sets[0], settings, statistics):
            costs[BY_VALUE] = aggregate_cost.one_phase_by_value(groups, sets[0], slots)
        if bitmap_obstacle(node) is None:
            costs |= _bitmap(node, groups, sets[0], statistics)
        return Methods(costs | _group_bitmaps(node, groups, sets[0], settings, statistics))
    return Methods(_of_several(node, groups, sets, settings, statistics))


def bitmaps_of(node: Aggregate) -> str | None:
    """Which bitmaps can be had where they are forced: those of values go before those of groups."""
    if bitmap_obstacle(node) is None:
        return BITMAP
    return GROUP_BITMAPS if group_bitmap_obstacle(node) is None else None


@once_per_node
def bitmap_width(node: Aggregate, statistics: Statistics) -> int:
    """How many values a bitmap of `node`, of one set of values, should have: the cheapest width, and one lane, which is
    never large, where nothing is known of them.
    """
    groups, sets = _groups(node, statistics), _pairs(node, statistics)
    if groups is None or sets is None:
        return LANE
    ways = _widths(node, groups, sets[0], statistics)
    return min(ways, key=lambda width: ways[width].slowest, default=LANE)


def table_partitions(node: Aggregate, statistics: Statistics) -> int | None:
    """How many partitions the rows of `node` are best sent to where they are aggregated, or told apart, in one phase;
    None for what Spark is set to.
    """
    tables = _pairs(node, statistics) if distinct_sets(node) else [_groups(node, statistics)]
    entries = sum(table.distinct for table in tables or () if table is not None)
    return aggregate_cost.partitions_of_tables(entries, statistics.slots)


def value_partitions(node: Aggregate, statistics: Statistics) -> int | None:
    """How many partitions the rows of `node`, of one set of distinct values, are best sent to by value alone; None for
    what Spark is set to.
    """
    values = values_profile(node, statistics)
    return None if values is None else aggregate_cost.partitions_of_tables(values.distinct, statistics.slots)


def value_phases(node: Aggregate, settings: JobSettings, statistics: Statistics) -> Phases:
    """In how many phases the values of `node` are told apart where their groups are the bits: two where they are
    demanded, or where one phase would put the rows of a hot value on one task.
    """
    values = values_profile(node, statistics)
    size = bytes_per_row(node.input, statistics)
    hot = values is not None and hot_group(values, settings.skew, statistics.slots, size) is not None
    return Phases.TWO_PHASE if hot or settings.agg_phase is AggPhase.TWO_PHASE else Phases.ONE_PHASE


def values_profile(node: Aggregate, statistics: Statistics) -> KeyProfile | None:
    """How the rows spread over the values of the one set of `node`, whatever their groups."""
    columns = columns_of(distinct_sets(node)[0])
    return profile_of(node.input, columns, statistics) if columns else None


def told(obstacle: str) -> str:
    """What is not known, as the reason of a Skip."""
    return f"{obstacle[:1].upper()}{obstacle[1:]}: Spark's own plan stays."


def _of_several(
    node: Aggregate, groups: KeyProfile, sets: list[KeyProfile], settings: JobSettings, statistics: Statistics
) -> dict[str, Cost]:
    slots, tasks = statistics.slots, input_tasks(node.input, statistics)
    plain = any(not is_distinct(call) for call in node.calls)
    costs = {NATIVE: aggregate_cost.expanded_distinct(groups, sets, plain, slots, tasks)}
    parts = [weigh(branch, settings, statistics) for branch in branch_aggregates(node)]
    # Else the branches do what Spark does with its copies, and read the rows again for it.
    if repeats_cheaply(node.input) and any(part.best != NATIVE for part in parts):
        best = [part.costs[part.best] for part in parts]
        reread = (
            aggregate_cost.PARSED if aggregate_cost.parses_text(node.input, statistics) else aggregate_cost.READ_AGAIN
        )
        costs[BRANCHES] = aggregate_cost.branches(best, groups, slots, reread)
    splittable = all(refusal_of(call) is None for call in node.calls)
    if splittable and _may_be_keyed(node, groups, settings, statistics):
        costs[KEYED_BRANCHES] = aggregate_cost.keyed_branches(groups, sets, slots)
    return costs


def _may_be_keyed(node: Aggregate, groups: KeyProfile, settings: JobSettings, statistics: Statistics) -> bool:
    """Whether rows may be sent by their group as they are: evenly, by statistics that are good enough to say so."""
    keys = tuple(key.expression for key in node.keys)
    return (
        settings.agg_phase is not AggPhase.TWO_PHASE
        and groups.rows >= MIN_ROWS
        and groups.distinct >= GROUPS_PER_SLOT * statistics.slots
        and not is_partitioned_by(node.input, keys, statistics)
        and hot_group(groups, settings.skew, statistics.slots, bytes_per_row(node.input, statistics)) is None
        and doubt_of(node, statistics) is None
    )


def _may_be_sent_by_value(node: Aggregate, pairs: KeyProfile, settings: JobSettings, statistics: Statistics) -> bool:
    """Whether rows may be sent by group and value as they are."""
    return all(refusal_of(call) is None for call in node.calls) and _may_be_sent_by(node, pairs, settings, statistics)


def _may_be_sent_by(node: Aggregate, sent: KeyProfile, settings: JobSettings, statistics: Statistics) -> bool:
    """Whether rows may be sent as they are by what `sent` tells of, the values alone or with their group: evenly, by
    statistics that are good enough to say so.
    """
    keys = tuple(key.expression for key in node.keys)
    types = [value.type for value in distinct_sets(node)[0]]
    return (
        settings.distinct_method is not DistinctMethod.NATIVE
        # The values are told apart in one phase, and counted in two.
        and settings.agg_phase is AggPhase.AUTO
        # Spark groups by another form of a fraction than the one that it would be sent by, and would send it again.
        and all(type_ is not None and type_.name is not TypeName.OTHER and not type_.is_fractional for type_ in types)
        and sent.rows >= MIN_ROWS
        and sent.distinct >= GROUPS_PER_SLOT * statistics.slots
        and not is_partitioned_by(node.input, keys, statistics)
        and hot_group(sent, settings.skew, statistics.slots, bytes_per_row(node.input, statistics)) is None
        and doubt_of(node, statistics) is None
    )


def _group_bitmaps(
    node: Aggregate, groups: KeyProfile, pairs: KeyProfile, settings: JobSettings, statistics: Statistics
) -> dict[str, Cost]:
    """What bitmaps of groups cost where rows may be sent by value as they are, and it is known how close groups are."""
    values = values_profile(node, statistics)
    known = None if group_bitmap_obstacle(node) else _range_of(node.keys[0].expression, statistics)
    if values is None or known is None or len(node.calls) > _COMPILED_COUNTS:
        return {}
    if not _may_be_sent_by(node, values, settings, statistics):
        return {}
    runs = min(float(known.high // GROUPS - known.low // GROUPS + 1), groups.distinct)
    # Never more bitmaps than there are pairs of a group and a value.
    entries = min(values.distinct * runs, pairs.distinct)
    return {GROUP_BITMAPS: aggregate_cost.group_bitmaps(values, entries, runs, len(node.calls), statistics.slots)}


def _bitmap(node: Aggregate, groups: KeyProfile, pairs: KeyProfile, statistics: Statistics) -> dict[str, Cost]:
    ways = _widths(node, groups, pairs, statistics)
    if not ways or groups.rows < MIN_ROWS:
        return {}
    return {BITMAP: min(ways.values(), key=lambda way: way.slowest)}


def _widths(node: Aggregate, groups: KeyProfile, pairs: KeyProfile, statistics: Statistics) -> dict[int, Cost]:
    """What bitmaps cost by their width; blocks alone of those that fit, none where the range is not known."""
    known = _range_of(distinct_sets(node)[0][0], statistics)
    if known is None:
        return {}
    slots, tasks = statistics.slots, input_tasks(node.input, statistics)
    ways, room = {}, statistics.task_memory / _MEMORY_PARTS
    for width in (LANE, LANES, BLOCK):
        # Those of the range in every group, and never more than there are values.
        bitmaps = min(pairs.distinct, groups.distinct * (known.high // width - known.low // width + 1))
        if width != BLOCK or (_may_be_blocks(node, statistics) and bitmaps * BLOCK_BYTES <= room):
            ways[width] = aggregate_cost.bitmaps(groups, bitmaps, width, slots, tasks)
    return ways


def _may_be_blocks(node: Aggregate, statistics: Statistics) -> bool:
    """Whether the entries of the table are known to be small beside the blocks: no texts in them, which Spark would
    keep in memory that it does not manage.
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
    columns = columns_of(key.expression for key in node.keys)
    return profile_of(node.input, columns, statistics) if columns else None


def _pairs(node: Aggregate, statistics: Statistics) -> list[KeyProfile] | None:
    """For each set, how the rows spread over (group, value)."""
    found: list[KeyProfile] = []
    for values in distinct_sets(node):
        columns = columns_of((*(key.expression for key in node.keys), *values))
        pairs = profile_of(node.input, columns, statistics) if columns else None
        if pairs is None:
            return None
        found.append(pairs)
    return found
