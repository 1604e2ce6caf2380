"""When what a sample tells of an aggregate is not enough to give its local phase up.

What the ways of running an aggregate cost, in rows handled by the slowest task, all phases added.

Why rows. The ways of running one aggregate read the same input and send rows of about the same width: the group key,
beside values or beside what they were aggregated to. Bytes are then rows times a factor that is the same for all ways
of a comparison, and only the comparison matters: a cost says which way, not how long. Bytes decide by themselves where
a bound is in bytes: what counts as hot (`skew.threshold`), what Spark broadcasts, what a hash table may take.

Why the slowest task. A stage ends with it, whatever the others did; where keys are even it is any task. What all tasks
do together, and with it the load of the cluster and its network, is told beside it as rows shuffled.

Why the phases cost nearly the same. Aggregating a row is hashing its key and finding its place in a hash table, sending
one is hashing its key, writing it and reading it again: both are CPU, local disks being as fast as they are. But a hash
table beyond the processor's caches makes every row wait for memory. On 20 M rows and two cores, of which sending took
3.3 s, the local phase took 0.9 s for 30,000 groups, 2.4 s for 100,000, 5.2 s for 300,000 and 7.6 s for 2.5 M; behind
the shuffle, where there are more and smaller tables, aggregating took about what sending did. What is left out: a
network slower than the disks makes sending dearer, so the local phase is taken to cost less than was measured.

A phase is aggregating rows or sending them. So for n rows on s slots, of which g leave the local phase, at `a` a row:

    two phases   a n/s aggregated, g/s sent, g/s aggregated          even keys: one phase is cheaper
    one phase    n/s sent, hottest task aggregated (n/s when even)   when 2 g > (2 - a) n

With a = 1 that is Flink's threshold (`table.exec.local-hash-agg.adaptive.distinct-value-rate-threshold`, 0.5); with the
1.6 of a large table, one phase pays from a fifth of the rows on. A hot key adds to its task on top.
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
"""Rows below which nothing is decided; Flink looks at so many before it gives a local phase up."""

MIN_SAMPLED_ROWS = 4_000
"""Rows of a larger table that a sample must have for a local phase to be given up by it."""


def doubt_of(node: Aggregate, statistics: Statistics) -> str | None:
    """Why the local phase of `node` stays although it seems to be worth nothing, as the end of a sentence."""
    keys = tuple(key.expression for key in node.keys)
    for key in keys:
        if key.type is not None and key.type.is_fractional:
            return f"Spark would keep both phases behind an exchange by {key}, which is a {key.type}"
    for columns in filter(None, (columns_of((*keys, *values)) for values in ((), *distinct_sets(node)))):
        doubt = doubt_of_sample(columns, statistics)
        if doubt is not None:
            return doubt
    return None


def doubt_of_sample(columns: tuple[str, ...], statistics: Statistics) -> str | None:
    """Why what the sample tells of `columns` is not believed, as the end of a sentence; None for unknown columns."""
    sketch = statistics.keys.get(columns)
    if sketch is None:
        return None
    if not sketch.representative:
        return f"the files are sorted by {', '.join(columns)}, and the sample has only the heads of their row groups"
    rows = statistics.tables[sketch.alias].rows
    if sketch.sampled_rows < min(rows, MIN_SAMPLED_ROWS):
        return f"only {sketch.sampled_rows:,} of {rows:,} rows are known"
    return None


SPLIT_BYTES = 128 << 20
"""`spark.sql.files.maxPartitionBytes`: what one task reads of a table."""

PARSED = 3.0
"""What a row of a text file costs each time that it is read: its line is found, split and converted, where a Parquet
file has a few columns ready. A guess on the safe side: the more it is, the less is read again."""

READ_AGAIN = 0.2
"""What a row of a Parquet table costs that is read again: a few columns, ready in batches. Measured at half of that."""

_FEW_ENTRIES, _FEW_ENTRIES_ROW = 50_000, 0.3
"""Entries of a hash table that stay in the processor's caches, and in the small map that Spark's generated code asks
first (65,536); and what a row costs that is aggregated into one."""
_MANY_ENTRIES, _MANY_ENTRIES_ROW = 300_000, 1.6
"""Entries of one that does not, and what a row costs there; in between it rises evenly."""

_PARTITIONS_PER_SLOT, _MOST_PARTITIONS_PER_SLOT = 2, 16

_BIT_OF_MANY, _BIT_OF_BLOCK, _MORE_LANES = 1.5, 1.0, 0.1
_LANES_ROW, _BLOCK_ROW = 1.5, 40.0
"""What setting a bit costs in one of many bitmaps, in a block, and more with four lanes; what sending a bitmap does:
a row of four lanes has 60 bytes, a block is 4 KB to clear, compress, read and unite. Measured on 20 M rows, 20 groups,
two cores, where Spark's pairs took 13 to 16 s, four lanes 5.7 to 6.5 s and blocks 4.0 to 4.7 s. That of a sent block is
reasoned.
"""

_SUMMED_BITS = 8.0
"""What a row costs of which each of 64 bits is added to a sum of its own, or that has 64 sums: measured at 0.5 to 1 s
for 500,000 of them on two cores, 2 to 4 us each, where 20 M rows sent by value took 8 s, 0.4 us for each of two
handlings."""


@dataclass(frozen=True)
class Cost:
    """The cost of one way, before it is known which is chosen. Rows throughout."""

    slowest: float
    shuffled: float
    hottest_task: float

    def alternative(self, name: str, chosen: str) -> Alternative:
        """As the trace tells it."""
        return Alternative(
            name=name,
            cost=round(self.slowest, 1),
            rows_shuffled=round(self.shuffled),
            rows_on_hottest_task=round(self.hottest_task),
            chosen=name == chosen,
        )


@dataclass(frozen=True)
class HotGroup:
    """A key whose rows make one task slow. `at_most`: a filter below may have taken rows of it."""

    value: str
    rows: float
    share: float
    at_most: bool = False

    @property
    def told(self) -> str:
        """Its share for a sentence: `has 40%`."""
        return f"{'may have up to' if self.at_most else 'has'} {self.share:.0%}"


@once_per_node
def input_tasks(node: Node, statistics: Statistics) -> int:
    """Tasks that read the largest table below `node`, as Spark splits files; at least one a slot."""
    sizes = (statistics.tables.get(scan.alias) for scan in walk_up(node) if isinstance(scan, Scan))
    largest = max((size.bytes for size in sizes if size is not None), default=0)
    return max(statistics.slots, math.ceil(largest / SPLIT_BYTES), 1)


@once_per_node
def parses_text(node: Node, statistics: Statistics) -> bool:
    """Whether a table below `node` is of text files: to read it again is to parse every row again."""
    sizes = (statistics.tables.get(scan.alias) for scan in walk_up(node) if isinstance(scan, Scan))
    return any(size is not None and size.is_text for size in sizes)


def distinct_in_share(profile: KeyProfile, share: float) -> float:
    """Expected number of keys among a random `share` of the rows.

    A key of r rows is met with probability 1 - (1 - share)^r, so d keys of n rows in all give
    d * (1 - (1 - share)^(n/d)): Yao, "Approximating block accesses in database organizations", CACM 20(4), 1977, with
    replacement in place of his product. Hot keys count one by one. Never more than the rows themselves.
    """
    met = sum(_met(rows, share) for _, rows in profile.hot)
    even = profile.even_rows
    return min(met + (profile.other_values * _met(even, share) if even else 0.0), profile.rows * share)


def _met(rows: float, share: float) -> float:
    return 1.0 - math.pow(1.0 - share, rows)


def kept_by_local_phase(profile: KeyProfile, tasks: int) -> float:
    """Share of its rows that a local aggregate in each of `tasks` tasks passes on, 0 to 1."""
    return distinct_in_share(profile, 1 / tasks) * tasks / profile.rows if profile.rows else 0.0


def hottest_task(profile: KeyProfile, slots: int) -> float:
    """Rows of the busiest task when rows are hashed by the key: the most frequent key beside its part of the rest."""
    top = profile.hot[0][1] if profile.hot else 0.0
    return top + (profile.rows - top) / slots


def hot_group(profile: KeyProfile, skew: SkewSettings, slots: int, row_bytes: float) -> HotGroup | None:
    """The most frequent key if it is hot: more than `skew.factor` times what all other keys leave to a slot, and at
    least `skew.threshold` bytes.
    """
    if not profile.hot:
        return None
    value, rows = profile.hot[0]
    others = (profile.rows - rows) / slots
    if rows <= skew.factor * others or rows * row_bytes < skew.threshold:
        return None
    return HotGroup(value, rows, rows / profile.rows, profile.hot_at_most)


def one_phase(groups: KeyProfile, slots: int, pairs: KeyProfile | None = None) -> Cost:
    """Rows are sent by their group as they are. With `pairs`, (group, value), each task counts its own pairs too."""
    hottest = hottest_task(groups, slots)
    counted = 0.0 if pairs is None else pairs.distinct / slots
    return Cost(groups.rows / slots + hottest + counted, groups.rows, hottest)


def one_phase_by_value(groups: KeyProfile, pairs: KeyProfile, slots: int) -> Cost:
    """Rows are sent by (group, value) as they are and told apart there; values are counted by group in two phases."""
    hottest = hottest_task(pairs, slots)
    counts = min(pairs.distinct, groups.distinct * slots)
    return Cost(pairs.rows / slots + hottest + (pairs.distinct + 2 * counts) / slots, pairs.rows + counts, hottest)


def group_bitmaps(values: KeyProfile, entries: float, runs: float, calls: int, slots: int) -> Cost:
    """Rows are sent by value as they are, and make `entries`, the bitmaps of the values. The bits of these are summed
    for each of `calls` in two phases by `runs` of 64 groups, and each run is taken apart.
    """
    hottest = hottest_task(values, slots)
    sums = min(entries, runs * slots)
    counted = entries * (1.0 + calls * _SUMMED_BITS) + 2 * sums * calls * _SUMMED_BITS + GROUPS * runs
    return Cost(values.rows / slots + hottest + counted / slots, values.rows + sums, hottest)


def two_phase(groups: KeyProfile, slots: int, tasks: int, local: float | None = None) -> Cost:
    """Each task aggregates its rows, sends a row a group, and the groups are put together; no key is hot any more.
    `local` is what a row costs in the local phase; by default, what the size of its hash table makes it cost.
    """
    entries = distinct_in_share(groups, 1 / tasks)
    row = row_of_table(entries) if local is None else local
    merged = _put_together(entries, groups.rows, slots, tasks)
    return Cost(row * groups.rows / slots + merged.slowest, merged.shuffled, merged.hottest_task)


def row_of_table(entries: float) -> float:
    """What a row costs that is aggregated into a hash table of so many entries, in rows."""
    large = (entries - _FEW_ENTRIES) / (_MANY_ENTRIES - _FEW_ENTRIES)
    return _FEW_ENTRIES_ROW + (_MANY_ENTRIES_ROW - _FEW_ENTRIES_ROW) * min(max(large, 0.0), 1.0)


def partitions_of_tables(entries: float, slots: int) -> int | None:
    """How many partitions rows are best sent to that are aggregated into so many entries, one phase: each with a table
    that is not large. None where the number that workers set, two a slot, does as well.

    On 20 M rows and two cores, 5 M groups took 5.4 s behind the exchange in 4 partitions, 4.9 s in 16 and in 64, and
    9.6 s in 256, which have too many small blocks.
    """
    wanted = math.ceil(entries / _MANY_ENTRIES)
    return None if wanted <= _PARTITIONS_PER_SLOT * slots else min(wanted, _MOST_PARTITIONS_PER_SLOT * slots)


def _put_together(entries: float, rows: float, slots: int, tasks: int) -> Cost:
    """What `tasks` local phases left, `entries` each, is sent and aggregated."""
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
    """A distinct aggregate over rows partitioned by the group: nothing is sent, a hot group stays on its task."""
    hottest = hottest_task(groups, slots)
    return Cost(hottest + pairs.distinct / slots, 0.0, hottest)


def split_distinct(groups: KeyProfile, pairs: KeyProfile, slots: int, buckets: int) -> Cost:
    """Rows are sent by (group, bucket), pairs are told apart and counted there, and the buckets are summed."""
    top = groups.hot[0][1] if groups.hot else 0.0
    spread = max(groups.rows / slots, top / buckets + (groups.rows - top) / slots)
    parts = min(pairs.distinct, groups.distinct * buckets)
    sums = min(parts, groups.distinct * slots)
    slowest = groups.rows / slots + spread + (pairs.distinct + parts + 2 * sums) / slots
    return Cost(slowest, groups.rows + sums, spread)


def split_native(groups: KeyProfile, pairs: KeyProfile, slots: int, tasks: int, buckets: int) -> Cost:
    """A split without an exchange of its own: Spark's plan for the buckets, and the sums of these on top."""
    parts = min(pairs.distinct, groups.distinct * buckets)
    by_bucket = native_distinct(KeyProfile(groups.rows, parts, ()), pairs, slots, tasks)
    sums = min(parts, groups.distinct * slots)
    return Cost(by_bucket.slowest + (parts + 2 * sums) / slots, by_bucket.shuffled + sums, by_bucket.hottest_task)


def bitmaps(groups: KeyProfile, number: float, width: int, slots: int, tasks: int) -> Cost:
    """Distinct integers as `number` bitmaps of `width` values, in two phases by (group, bitmap), and their bits counted
    in two.
    """
    entries = distinct_in_share(KeyProfile(groups.rows, number, ()), 1 / tasks)
    merged = _put_together(entries, groups.rows, slots, tasks)
    counts = min(number, groups.distinct * slots)
    update, row = _bitmap_weights(width, number)
    slowest = update * groups.rows / slots + row * (merged.slowest + number / slots) + 2 * counts / slots
    return Cost(slowest, merged.shuffled + counts, merged.hottest_task)


def _bitmap_weights(width: int, number: float) -> tuple[float, float]:
    """What setting a bit, and what sending or uniting a bitmap costs, in rows."""
    if width == BLOCK:
        return _BIT_OF_BLOCK, _BLOCK_ROW
    update = _FEW_ENTRIES_ROW if number <= _FEW_ENTRIES else _BIT_OF_MANY
    return (update + _MORE_LANES, _LANES_ROW) if width == LANES else (update, 1.0)


def expanded_distinct(groups: KeyProfile, sets: Sequence[KeyProfile], plain: bool, slots: int, tasks: int) -> Cost:
    """Spark's own plan for several distinct arguments: a copy of every row for each, and one for all other calls where
    there are such (`plain`), in which they are aggregated by group.
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
    """An aggregate for each distinct argument, the rows read for each but the first again, at `reread` a row, joined
    by group.
    """
    again = (len(parts) - 1) * reread * groups.rows / slots
    joined = len(parts) * groups.distinct
    return Cost(
        again + joined / slots + sum(part.slowest for part in parts),
        joined + sum(part.shuffled for part in parts),
        max(part.hottest_task for part in parts),
    )


def keyed_branches(groups: KeyProfile, sets: Sequence[KeyProfile], slots: int) -> Cost:
    """Rows sent by their group once, each copied there for every distinct argument, told apart and counted in place."""
    hottest = hottest_task(groups, slots)
    counted = sum(pairs.distinct for pairs in sets) / slots
    # The copies of all arguments share one table.
    told_apart = len(sets) * hottest * max(1.0, row_of_table(counted))
    return Cost(groups.rows / slots + told_apart + counted, groups.rows, len(sets) * hottest)
