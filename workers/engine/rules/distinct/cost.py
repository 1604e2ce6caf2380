"""The costs of all methods to run an aggregate with DISTINCT values, in the unit of `workers.engine.rules.cost`."""

from __future__ import annotations

from collections.abc import Sequence

from workers.engine.rules.cost import (
    FEW_ENTRIES,
    FEW_ENTRIES_ROW,
    Cost,
    distinct_in_share,
    hottest_task,
    merge_phase,
    row_of_table,
    two_phase,
)
from workers.engine.rules.distinct.bitmaps import BLOCK, GROUPS, LANES
from workers.engine.statistics.cardinality import KeyProfile

READ_AGAIN = 0.2
"""The cost of reading a row of a Parquet table again: a few columns, decoded in batches. Measured: half of that."""

_BIT_OF_MANY, _BIT_OF_BLOCK, _MORE_LANES = 1.5, 1.0, 0.1
_LANES_ROW, _BLOCK_ROW = 1.5, 40.0
"""The cost of setting a bit in one of many bitmaps, in a block, and the additional cost with four lanes; the cost of
sending a bitmap: a row of four lanes has 60 bytes, a block has 4 KB to clear, compress, read and merge. Measured on
20 M rows, 20 groups, two cores, where Spark's pairs took 13 to 16 s, four lanes 5.7 to 6.5 s and blocks 4.0 to 4.7 s.
The cost of sending a block was not measured, but derived.
"""

_SUMMED_BITS = 8.0
"""The cost of a row whose 64 bits are added to 64 sums, or that has 64 sums. Measured: 0.5 to 1 s for 500,000 such rows
on two cores, so 2 to 4 us each. 20 M rows sent by value took 8 s, so 0.4 us each time that a row is handled."""


def native_distinct(groups: KeyProfile, pairs: KeyProfile, slots: int, tasks: int) -> Cost:
    """Spark's own plan for one distinct argument: pairs in two phases, by (group, value), then counted in two."""
    by_pair = two_phase(pairs, slots, tasks)
    counts = min(pairs.distinct, groups.distinct * slots)
    slowest = by_pair.slowest + (pairs.distinct + 2 * counts) / slots
    return Cost(slowest, by_pair.shuffled + counts, by_pair.hottest_task)


def distinct_in_place(groups: KeyProfile, pairs: KeyProfile, slots: int) -> Cost:
    """A distinct aggregate over rows partitioned by the group: nothing is shuffled, a hot group stays on its task."""
    hottest = hottest_task(groups, slots)
    return Cost(hottest + pairs.distinct / slots, 0.0, hottest)


def one_phase_by_value(groups: KeyProfile, pairs: KeyProfile, slots: int) -> Cost:
    """Rows are shuffled by (group, value) and deduplicated there; values are counted by group in two phases."""
    hottest = hottest_task(pairs, slots)
    counts = min(pairs.distinct, groups.distinct * slots)
    return Cost(pairs.rows / slots + hottest + (pairs.distinct + 2 * counts) / slots, pairs.rows + counts, hottest)


def split_distinct(groups: KeyProfile, pairs: KeyProfile, slots: int, buckets: int) -> Cost:
    """Rows are shuffled by (group, bucket), pairs are deduplicated and counted there, and the buckets are summed."""
    top = groups.hot[0][1] if groups.hot else 0.0
    spread = max(groups.rows / slots, top / buckets + (groups.rows - top) / slots)
    parts = min(pairs.distinct, groups.distinct * buckets)
    sums = min(parts, groups.distinct * slots)
    slowest = groups.rows / slots + spread + (pairs.distinct + parts + 2 * sums) / slots
    return Cost(slowest, groups.rows + sums, spread)


def split_native(groups: KeyProfile, pairs: KeyProfile, slots: int, tasks: int, buckets: int) -> Cost:
    """A split without its own exchange: Spark's plan for the buckets, and then their sums."""
    parts = min(pairs.distinct, groups.distinct * buckets)
    by_bucket = native_distinct(KeyProfile(groups.rows, parts, ()), pairs, slots, tasks)
    sums = min(parts, groups.distinct * slots)
    return Cost(by_bucket.slowest + (parts + 2 * sums) / slots, by_bucket.shuffled + sums, by_bucket.hottest_task)


def bitmaps(groups: KeyProfile, number: float, width: int, slots: int, tasks: int) -> Cost:
    """Distinct integers as `number` bitmaps of `width` values, built in two phases by (group, bitmap); their bits are
    counted in two phases.
    """
    entries = distinct_in_share(KeyProfile(groups.rows, number, ()), 1 / tasks)
    merged = merge_phase(entries, groups.rows, slots, tasks)
    counts = min(number, groups.distinct * slots)
    update, row = _bitmap_weights(width, number)
    slowest = update * groups.rows / slots + row * (merged.slowest + number / slots) + 2 * counts / slots
    return Cost(slowest, merged.shuffled + counts, merged.hottest_task)


def _bitmap_weights(width: int, number: float) -> tuple[float, float]:
    """Returns the cost of setting a bit, and of sending or merging a bitmap, in rows."""
    if width == BLOCK:
        return _BIT_OF_BLOCK, _BLOCK_ROW
    update = FEW_ENTRIES_ROW if number <= FEW_ENTRIES else _BIT_OF_MANY
    return (update + _MORE_LANES, _LANES_ROW) if width == LANES else (update, 1.0)


def group_bitmaps(values: KeyProfile, entries: float, runs: float, calls: int, slots: int) -> Cost:
    """Rows are shuffled by value and aggregated to `entries`, the bitmaps of the values. Their bits are summed for each
    of `calls` in two phases by `runs` of 64 groups, and each run is expanded to its groups.
    """
    hottest = hottest_task(values, slots)
    sums = min(entries, runs * slots)
    counted = entries * (1.0 + calls * _SUMMED_BITS) + 2 * sums * calls * _SUMMED_BITS + GROUPS * runs
    return Cost(values.rows / slots + hottest + counted / slots, values.rows + sums, hottest)


def expanded_distinct(groups: KeyProfile, sets: Sequence[KeyProfile], plain: bool, slots: int, tasks: int) -> Cost:
    """Spark's own plan for several distinct arguments: a copy of every row for each, and with `plain` one more for the
    calls without DISTINCT, which are aggregated by group.
    """
    parts = [native_distinct(groups, pairs, slots, tasks) for pairs in sets]
    parts += [two_phase(groups, slots, tasks)] if plain else []
    copied = len(parts) * groups.rows / slots
    return Cost(
        copied + sum(part.slowest for part in parts),
        sum(part.shuffled for part in parts),
        max(part.hottest_task for part in parts),
    )


def branches(parts: Sequence[Cost], groups: KeyProfile, slots: int, reread: float = 1.0) -> Cost:
    """An aggregate for each distinct argument, joined by group. All but the first read the rows again, at a cost of
    `reread` per row.
    """
    again = (len(parts) - 1) * reread * groups.rows / slots
    joined = len(parts) * groups.distinct
    return Cost(
        again + joined / slots + sum(part.slowest for part in parts),
        joined + sum(part.shuffled for part in parts),
        max(part.hottest_task for part in parts),
    )


def keyed_branches(groups: KeyProfile, sets: Sequence[KeyProfile], slots: int) -> Cost:
    """Rows are shuffled by group once and copied there for each distinct argument; copies are deduplicated there."""
    hottest = hottest_task(groups, slots)
    counted = sum(pairs.distinct for pairs in sets) / slots
    # The copies of all arguments share one table.
    deduplicated = len(sets) * hottest * max(1.0, row_of_table(counted))
    return Cost(groups.rows / slots + deduplicated + counted, groups.rows, len(sets) * hottest)
