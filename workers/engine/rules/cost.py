"""The cost model that rules share: costs in rows that the slowest task handles, all phases added.

For n rows on s slots, of which g leave the local phase, with a cost of `a` per row of that phase:

    two phases   a n/s aggregated, g/s sent, g/s aggregated          even keys: one phase is cheaper
    one phase    n/s sent, hottest task aggregated (n/s when even)   when 2 g > (2 - a) n

With a = 1 this is Flink's threshold (`table.exec.local-hash-agg.adaptive.distinct-value-rate-threshold`, 0.5). A hot
key adds to the cost of its task. `Cost` explains the unit. `Choice` compares the costs of a rule's alternatives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from service.contract.options import SkewSettings
from service.contract.reports import Alternative
from service.sql.expressions.scalar import Scalar
from workers.engine.plan.aggregates import distinct_sets
from workers.engine.plan.nodes import Aggregate, Node, Scan, columns_of
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.rule import Match, N, Skip
from workers.engine.statistics.cardinality import KeyProfile, profile_of
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

FEW_ENTRIES, FEW_ENTRIES_ROW = 50_000, 0.3
"""Entries of a hash table that fits in the processor's caches, and in the small map that Spark's generated code uses
first (65,536); and the cost of aggregating a row into such a table."""
_MANY_ENTRIES, _MANY_ENTRIES_ROW = 300_000, 1.6
"""Entries of a hash table that does not fit, and the cost of a row there; between the two, the cost is interpolated."""

_PARTITIONS_PER_SLOT, _MOST_PARTITIONS_PER_SLOT = 2, 16


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


@dataclass(frozen=True)
class Choice:
    """A choice by cost. `costs` has the possible alternatives by name; `kept` is the one that a skip leaves in place,
    empty if that is none of them.
    """

    costs: Mapping[str, Cost]
    kept: str

    @property
    def cheapest(self) -> str:
        """The name of the cheapest alternative; of two with the same cost, the first one."""
        return min(self.costs, key=lambda name: self.costs[name].slowest)

    def is_clearly_cheaper(self, name: str, than: str, gain: float) -> bool:
        """Whether the alternative `than` costs at least `gain` times as much as `name`."""
        return self.costs[name].slowest * gain <= self.costs[than].slowest

    def match(self, node: N, name: str, reason: str) -> Match[N]:
        """Returns the match that chooses the alternative `name`."""
        return Match(node, name, reason, self.alternatives(name))

    def skip(self, reason: str) -> Skip:
        """Returns the skip that leaves `kept` in place."""
        return Skip(reason, self.alternatives(self.kept))

    def alternatives(self, chosen: str) -> tuple[Alternative, ...]:
        """Returns all alternatives for the trace."""
        return tuple(
            Alternative(
                name=name,
                cost=round(cost.slowest, 1),
                rows_shuffled=round(cost.shuffled),
                rows_on_hottest_task=round(cost.hottest_task),
                chosen=name == chosen,
            )
            for name, cost in self.costs.items()
        )


def too_few_rows(rows: float, least: int, kept: str) -> str | None:
    """Returns the reason of a skip if there are fewer than `least` rows, otherwise None. `kept` says what happens."""
    if round(rows) >= least:
        return None
    return f"{round(rows):,} rows are too few for a decision by cost (below {least:,}){kept}."


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


def key_profile(node: Node, key: Iterable[Scalar], statistics: Statistics) -> KeyProfile | None:
    """Returns how the rows of `node` are distributed over the values of `key`; None for an empty key, for one that has
    an expression, and without statistics.
    """
    columns = columns_of(key)
    return profile_of(node, columns, statistics) if columns else None


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


def one_phase(groups: KeyProfile, slots: int, pairs: KeyProfile | None = None) -> Cost:
    """Rows are shuffled by group without a local phase. With `pairs` (group, value), a task also counts its pairs."""
    hottest = hottest_task(groups, slots)
    counted = 0.0 if pairs is None else pairs.distinct / slots
    return Cost(groups.rows / slots + hottest + counted, groups.rows, hottest)


def two_phase(groups: KeyProfile, slots: int, tasks: int, local: float | None = None) -> Cost:
    """Each task aggregates its rows and sends one row per group, and the groups are merged; no key is hot after that.
    `local` is the cost of a row in the local phase; by default it depends on the size of the hash table.
    """
    entries = distinct_in_share(groups, 1 / tasks)
    row = row_of_table(entries) if local is None else local
    merged = merge_phase(entries, groups.rows, slots, tasks)
    return Cost(row * groups.rows / slots + merged.slowest, merged.shuffled, merged.hottest_task)


def merge_phase(entries: float, rows: float, slots: int, tasks: int) -> Cost:
    """Returns the cost of the second phase: `tasks` local phases sent `entries` rows each, which are aggregated."""
    sent = entries * tasks
    hottest = max(sent / slots, min(float(tasks), rows))
    return Cost(sent / slots + hottest, sent, hottest)


def row_of_table(entries: float) -> float:
    """Returns the cost of aggregating a row into a hash table with so many entries."""
    large = (entries - FEW_ENTRIES) / (_MANY_ENTRIES - FEW_ENTRIES)
    return FEW_ENTRIES_ROW + (_MANY_ENTRIES_ROW - FEW_ENTRIES_ROW) * min(max(large, 0.0), 1.0)


def partitions_of_tables(entries: float, slots: int) -> int | None:
    """Returns the best number of partitions for an aggregate in one phase with so many entries, so that no partition
    has a large hash table. None if the number that workers set, two per slot, is enough.

    On 20 M rows and two cores, 5 M groups took 5.4 s after the exchange in 4 partitions, 4.9 s in 16 and in 64, and
    9.6 s in 256, which have too many small blocks.
    """
    partitions = math.ceil(entries / _MANY_ENTRIES)
    return None if partitions <= _PARTITIONS_PER_SLOT * slots else min(partitions, _MOST_PARTITIONS_PER_SLOT * slots)
