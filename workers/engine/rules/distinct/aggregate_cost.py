"""The costs of all methods to run an aggregate, in rows that the slowest task handles, all phases added.

For n rows on s slots, of which g leave the local phase, with a cost of `a` per row of that phase:

    two phases   a n/s aggregated, g/s sent, g/s aggregated          even keys: one phase is cheaper
    one phase    n/s sent, hottest task aggregated (n/s when even)   when 2 g > (2 - a) n

With a = 1 this is Flink's threshold (`table.exec.local-hash-agg.adaptive.distinct-value-rate-threshold`, 0.5). A hot
key adds to the cost of its task. `Cost` explains the unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from service.contract.options import SkewSettings
from service.contract.reports import Alternative
from workers.engine.plan.aggregates import distinct_sets
from workers.engine.plan.nodes import Aggregate, Node, Scan, columns_of
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.distinct.bitmaps import BLOCK, GROUPS, LANES
from workers.engine.statistics.cardinality import KeyProfile
from workers.engine.statistics.model import Statistics, once_per_node

MIN_ROWS = 500_000
"""Rows below which nothing is decided by cost; Flink samples so many before it skips a local phase."""

MIN_SAMPLED_ROWS = 4_000
"""Rows that the sample of a larger table must have for a decision to skip a local phase."""

SPLIT_BYTES = 128 << 20
"""`spark.sql.files.maxPartitionBytes`: the bytes of a table that one task reads."""

PARSED = 3.0
"""The cost of reading a row of a text file: its line is found, split and converted. A conservative guess: a higher cost
avoids reading a file again."""

READ_AGAIN = 0.2
"""The cost of reading a row of a Parquet table again: a few columns, decoded in batches. Measured: half of that."""

_FEW_ENTRIES, _FEW_ENTRIES_ROW = 50_000, 0.3
"""Entries of a hash table that fits in the processor's caches, and in the small map that Spark's generated code uses
first (65,536); and the cost of aggregating a row into such a table."""
_MANY_ENTRIES, _MANY_ENTRIES_ROW = 300_000, 1.6
"""Entries of a hash table that does not fit, and the cost of a row there; between the two, the cost is interpolated."""

_PARTITIONS_PER_SLOT, _MOST_PARTITIONS_PER_SLOT = 2, 16

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


@dataclass(frozen=True)
class Cost:
    """The cost of one method or plan, in rows.

    Why rows: all methods for an aggregate read the same input and send rows of about the same width, so bytes would be
    rows times the same factor, and only the comparison matters. Limits in bytes are checked separately: hot keys
    (`skew.threshold`), broadcasts, hash tables.

    Why the slowest task (`slowest`): a stage ends with it; with even keys it is any task. `shuffled` has the work of
    all tasks together, and so the load of the network.

    Why aggregating and sending a row cost about the same: both hash a key; then one finds a place in a hash table, the
    other writes and reads the row. But in a hash table larger than the processor's caches each row waits for memory. On
    20 M rows and two cores, sending took 3.3 s, and the local phase 0.9 s for 30,000 groups, 2.4 s for 100,000, 5.2 s
    for 300,000 and 7.6 s for 2.5 M. After the shuffle, with more and smaller tables, aggregating took about as long as
    sending. A network slower than the disks makes sending more expensive, so the local phase has a lower cost here than
    measured; with the 1.6 of a large table, one phase pays off if a fifth of the rows leave the local phase.
    """

    slowest: float
    shuffled: float
    hottest_task: float

    def alternative(self, name: str, chosen: str) -> Alternative:
        """Returns the cost as an alternative in the trace."""
        return Alternative(
            name=name,
            cost=round(self.slowest, 1),
            rows_shuffled=round(self.shuffled),
            rows_on_hottest_task=round(self.hottest_task),
            chosen=name == chosen,
        )


@dataclass(frozen=True)
class HotGroup:
    """A key whose rows make one task slow. `at_most`: a filter below may remove some of them."""

    value: str
    rows: float
    share: float
    at_most: bool = False

    @property
    def share_text(self) -> str:
        """Its share as a part of a sentence: `has 40%`."""
        return f"{'may have up to' if self.at_most else 'has'} {self.share:.0%}"


def one_phase_obstacle(node: Aggregate, statistics: Statistics) -> str | None:
    """Returns the reason why `node` must keep its local phase although one phase costs less, as the end of a sentence;
    None if there is none.
    """
    keys = tuple(key.expression for key in node.keys)
    for key in keys:
        if key.type is not None and key.type.is_fractional:
            return f"Spark would run both phases after an exchange by {key}, which is a {key.type}"
    for columns in filter(None, (columns_of((*keys, *values)) for values in ((), *distinct_sets(node)))):
        obstacle = sample_obstacle(columns, statistics)
        if obstacle is not None:
            return obstacle
    return None


def sample_obstacle(columns: tuple[str, ...], statistics: Statistics) -> str | None:
    """Returns the reason why the sample of `columns` is too weak for a decision, as the end of a sentence; None if it
    is not, and for columns without a sample.
    """
    sketch = statistics.keys.get(columns)
    if sketch is None:
        return None
    if not sketch.representative:
        return (
            f"the files are sorted by {', '.join(columns)}, and the sample has only the first rows of their row groups"
        )
    rows = statistics.tables[sketch.alias].rows
    if sketch.sampled_rows < min(rows, MIN_SAMPLED_ROWS):
        return f"only {sketch.sampled_rows:,} of {rows:,} rows were sampled"
    return None


@once_per_node
def input_tasks(node: Node, statistics: Statistics) -> int:
    """Returns the number of tasks that read the largest table below `node` in Spark; at least one per slot."""
    sizes = (statistics.tables.get(scan.alias) for scan in walk_up(node) if isinstance(scan, Scan))
    largest = max((size.bytes for size in sizes if size is not None), default=0)
    return max(statistics.slots, math.ceil(largest / SPLIT_BYTES), 1)


@once_per_node
def parses_text(node: Node, statistics: Statistics) -> bool:
    """Whether a table below `node` consists of text files: reading it again parses every row again."""
    sizes = (statistics.tables.get(scan.alias) for scan in walk_up(node) if isinstance(scan, Scan))
    return any(size is not None and size.is_text for size in sizes)


def distinct_in_share(profile: KeyProfile, share: float) -> float:
    """Returns the expected number of keys in a random `share` of the rows.

    A key of r rows occurs with probability 1 - (1 - share)^r, so d keys with n rows in total give
    d * (1 - (1 - share)^(n/d)): Yao, "Approximating block accesses in database organizations", CACM 20(4), 1977, with
    replacement instead of his product. Hot keys are counted one by one. Never more than the rows themselves.
    """
    found = sum(_probability_of(rows, share) for _, rows in profile.hot)
    even = profile.even_rows
    return min(found + (profile.other_values * _probability_of(even, share) if even else 0.0), profile.rows * share)


def _probability_of(rows: float, share: float) -> float:
    """Returns the probability that a random `share` has one of these rows."""
    return 1.0 - math.pow(1.0 - share, rows)


def kept_by_local_phase(profile: KeyProfile, tasks: int) -> float:
    """Returns the share of its rows that a local aggregate in each of `tasks` tasks emits, 0 to 1."""
    return distinct_in_share(profile, 1 / tasks) * tasks / profile.rows if profile.rows else 0.0


def hottest_task(profile: KeyProfile, slots: int) -> float:
    """Returns the rows of the busiest task after a shuffle by the key: the most frequent key and a part of the rest."""
    top = profile.hot[0][1] if profile.hot else 0.0
    return top + (profile.rows - top) / slots


def hot_group(profile: KeyProfile, skew: SkewSettings, slots: int, row_bytes: float) -> HotGroup | None:
    """Returns the most frequent key if it is hot: more rows than `skew.factor` times the other keys' rows per slot, and
    at least `skew.threshold` bytes.
    """
    if not profile.hot:
        return None
    value, rows = profile.hot[0]
    others = (profile.rows - rows) / slots
    if rows <= skew.factor * others or rows * row_bytes < skew.threshold:
        return None
    return HotGroup(value, rows, rows / profile.rows, profile.hot_at_most)


def one_phase(groups: KeyProfile, slots: int, pairs: KeyProfile | None = None) -> Cost:
    """Rows are shuffled by group without a local phase. With `pairs` (group, value), a task also counts its pairs."""
    hottest = hottest_task(groups, slots)
    counted = 0.0 if pairs is None else pairs.distinct / slots
    return Cost(groups.rows / slots + hottest + counted, groups.rows, hottest)


def one_phase_by_value(groups: KeyProfile, pairs: KeyProfile, slots: int) -> Cost:
    """Rows are shuffled by (group, value) and deduplicated there; values are counted by group in two phases."""
    hottest = hottest_task(pairs, slots)
    counts = min(pairs.distinct, groups.distinct * slots)
    return Cost(pairs.rows / slots + hottest + (pairs.distinct + 2 * counts) / slots, pairs.rows + counts, hottest)


def group_bitmaps(values: KeyProfile, entries: float, runs: float, calls: int, slots: int) -> Cost:
    """Rows are shuffled by value and aggregated to `entries`, the bitmaps of the values. Their bits are summed for each
    of `calls` in two phases by `runs` of 64 groups, and each run is expanded to its groups.
    """
    hottest = hottest_task(values, slots)
    sums = min(entries, runs * slots)
    counted = entries * (1.0 + calls * _SUMMED_BITS) + 2 * sums * calls * _SUMMED_BITS + GROUPS * runs
    return Cost(values.rows / slots + hottest + counted / slots, values.rows + sums, hottest)


def two_phase(groups: KeyProfile, slots: int, tasks: int, local: float | None = None) -> Cost:
    """Each task aggregates its rows and sends one row per group, and the groups are merged; no key is hot after that.
    `local` is the cost of a row in the local phase; by default it depends on the size of the hash table.
    """
    entries = distinct_in_share(groups, 1 / tasks)
    row = row_of_table(entries) if local is None else local
    merged = _merged(entries, groups.rows, slots, tasks)
    return Cost(row * groups.rows / slots + merged.slowest, merged.shuffled, merged.hottest_task)


def row_of_table(entries: float) -> float:
    """Returns the cost of aggregating a row into a hash table with so many entries."""
    large = (entries - _FEW_ENTRIES) / (_MANY_ENTRIES - _FEW_ENTRIES)
    return _FEW_ENTRIES_ROW + (_MANY_ENTRIES_ROW - _FEW_ENTRIES_ROW) * min(max(large, 0.0), 1.0)


def partitions_of_tables(entries: float, slots: int) -> int | None:
    """Returns the best number of partitions for an aggregate in one phase with so many entries, so that no partition
    has a large hash table. None if the number that workers set, two per slot, is enough.

    On 20 M rows and two cores, 5 M groups took 5.4 s after the exchange in 4 partitions, 4.9 s in 16 and in 64, and
    9.6 s in 256, which have too many small blocks.
    """
    partitions = math.ceil(entries / _MANY_ENTRIES)
    return None if partitions <= _PARTITIONS_PER_SLOT * slots else min(partitions, _MOST_PARTITIONS_PER_SLOT * slots)


def _merged(entries: float, rows: float, slots: int, tasks: int) -> Cost:
    """The results of `tasks` local phases, `entries` each, are shuffled and aggregated."""
    sent = entries * tasks
    hottest = max(sent / slots, min(float(tasks), rows))
    return Cost(sent / slots + hottest, sent, hottest)


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
    merged = _merged(entries, groups.rows, slots, tasks)
    counts = min(number, groups.distinct * slots)
    update, row = _bitmap_weights(width, number)
    slowest = update * groups.rows / slots + row * (merged.slowest + number / slots) + 2 * counts / slots
    return Cost(slowest, merged.shuffled + counts, merged.hottest_task)


def _bitmap_weights(width: int, number: float) -> tuple[float, float]:
    """Returns the cost of setting a bit, and of sending or merging a bitmap, in rows."""
    if width == BLOCK:
        return _BIT_OF_BLOCK, _BLOCK_ROW
    update = _FEW_ENTRIES_ROW if number <= _FEW_ENTRIES else _BIT_OF_MANY
    return (update + _MORE_LANES, _LANES_ROW) if width == LANES else (update, 1.0)


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
