"""What the ways of running an aggregate cost, in rows handled by the slowest task, all phases added.

A phase is aggregating rows or sending them, and a row costs 1 in each. So for n rows on s slots, of which g leave the
local phase:

    two phases   n/s aggregated, g/s sent, g/s aggregated            even keys: one phase is cheaper
    one phase    n/s sent, hottest task aggregated (n/s when even)   exactly when g > n/2

which is Flink's threshold (`table.exec.local-hash-agg.adaptive.distinct-value-rate-threshold`, 0.5), with what a hot
key adds to its task on top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from service.spec.options import SkewSettings
from service.spec.reports import Alternative
from workers.engine.plan.nodes import Node, Scan
from workers.engine.plan.transform import walk_up
from workers.engine.stats.cardinality import KeyProfile
from workers.engine.stats.statistics import Statistics

SPLIT_BYTES = 128 << 20
"""`spark.sql.files.maxPartitionBytes`: what one task reads of a table."""


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


def input_tasks(node: Node, statistics: Statistics) -> int:
    """Tasks that read the largest table below `node`, as Spark splits files; at least one a slot."""
    sizes = (statistics.tables.get(scan.alias) for scan in walk_up(node) if isinstance(scan, Scan))
    largest = max((size.bytes for size in sizes if size is not None), default=0)
    return max(statistics.slots, math.ceil(largest / SPLIT_BYTES), 1)


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
    return 1.0 if share >= 1.0 else 1.0 - math.pow(1.0 - share, rows)


def kept_by_local_phase(profile: KeyProfile, tasks: int) -> float:
    """Share of its rows that a local aggregate in each of `tasks` tasks passes on, 0 to 1."""
    return distinct_in_share(profile, 1 / tasks) * tasks / profile.rows if profile.rows else 0.0


def hottest_task(profile: KeyProfile, slots: int) -> float:
    """Rows of the busiest task when rows are hashed by the key: the most frequent key beside its part of the rest."""
    top = profile.hot[0][1] if profile.hot else 0.0
    return max(top + (profile.rows - top) / slots, profile.rows / slots)


def hot_group(profile: KeyProfile, skew: SkewSettings, slots: int, row_bytes: float) -> HotGroup | None:
    """The most frequent key if it is hot: more than `skew.factor` times what all other keys leave to a slot, and at
    least `skew.threshold` bytes.
    """
    if not profile.hot or not profile.rows:
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


def two_phase(groups: KeyProfile, slots: int, tasks: int) -> Cost:
    """Each task aggregates its rows, sends a row a group, and the groups are put together; no key is hot any more."""
    sent = distinct_in_share(groups, 1 / tasks) * tasks
    hottest = max(sent / slots, min(float(tasks), groups.rows))
    return Cost(groups.rows / slots + sent / slots + hottest, sent, hottest)


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
