"""The cost of aggregating sides of a join before the join, in rows that the slowest task handles, all phases added.

The unit is that of `workers.engine.rules.cost`: a row that is shuffled, aggregated or emitted by the join costs 1. A
side that is not aggregated is shuffled by the join's key. An aggregated side is shuffled by its groups, in two phases,
and its groups are shuffled by the key, unless they are the key. The join's output is aggregated again. For a key that
is hot on both sides, the join would emit the product of its rows on one task; aggregating first avoids this.

With a broadcast side nothing is shuffled. In one loop, Spark reads a row, looks up its partners and aggregates the
output; the cost is the larger of the rows read and the rows emitted. Aggregating first pays off if the join multiplies
rows, or if the query groups by strings, which this loop hashes and compares row by row, and the side is grouped by a
few numbers. Its time relative to the query as written (20 M rows with SUM and COUNT, two cores, medians of five
interleaved runs, with other load on the machine):

    keys of the side    grouped by 20 strings  by 10,000 strings  by 20 numbers
    1,000               0.44 - 0.49            0.48               0.95
    20,000              0.63                                      0.90
    100,000             1.08                   0.64
    1,000,000           1.34

So a string costs `TEXT` rows, and a row costs twice as much if Spark's generated hash map cannot hold all keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from service.contract.query import JoinKind
from workers.engine.rules.cost import Cost, hottest_task, two_phase
from workers.engine.statistics.cardinality import KeyProfile, joined_profile

CLEAR_GAIN = 1 / 0.7
"""AUTO rewrites only if the query as written costs so many times as much: the cost per row of joins and aggregates
varies."""

TEXT = 0.8
"""The additional cost of grouping a row by strings with a broadcast side: 1.4 - 1.7 s instead of 0.8."""

FAST_KEYS = 1 << 16
"""Keys that fit in the hash map that Spark generates (`spark.sql.codegen.aggregate.fastHashMap.capacityBit`)."""

STAGE = 1_000_000
"""Rows that a task handles while another stage starts: about a tenth of a second."""


@dataclass(frozen=True)
class JoinInput:
    """One side of a join: the distribution of its rows over the join's key, and over the columns that it would be
    grouped by. `by_key`: the two are the same. `by_text`: the columns to group by include strings.
    """

    rows: KeyProfile
    groups: KeyProfile
    by_key: bool
    by_text: bool = False

    def aggregated(self) -> KeyProfile:
        """Returns the distribution of the groups over the join's key: one row per key if it is grouped by the key."""
        if self.by_key:
            return KeyProfile(self.rows.distinct, self.rows.distinct, ())
        share = self.groups.distinct / self.rows.rows if self.rows.rows else 0.0
        return self.rows.scaled(min(share, 1.0))


def join_then_aggregate(
    left: JoinInput,
    right: JoinInput,
    kind: JoinKind,
    eager: tuple[bool, bool],
    slots: int,
    tasks: int,
    broadcast: bool,
    by_text: bool = False,
) -> Cost:
    """Returns the cost; `eager` states for the left and the right side whether it is aggregated first. `broadcast`: one
    side is broadcast, so the rows of the other side are not shuffled. `by_text`: the query groups by strings.
    """
    profiles, slowest, shuffled = [], 0.0, 0.0
    for side, first in zip((left, right), eager, strict=True):
        profile = side.rows
        if first:
            # Measured as a whole, for tables of any size; a later rule decides about the phases.
            below = two_phase(side.groups, slots, tasks, local=1.0)
            slowest, shuffled = slowest + below.slowest, shuffled + below.shuffled
            if broadcast:
                slowest += _looked_up(side, slots) + STAGE
            profile = side.aggregated()
        profiles.append(profile)
        if not broadcast and not (first and side.by_key):
            slowest += profile.rows / slots + hottest_task(profile, slots)
            shuffled += profile.rows
    joined = output_profile(profiles[0], profiles[1], kind)
    if broadcast:
        streamed = max(joined.rows, *(profile.rows for profile in profiles)) / slots * (1 + TEXT * by_text)
        return Cost(slowest + streamed, shuffled, joined.rows / slots)
    hottest = hottest_task(joined, slots)
    return Cost(slowest + hottest + joined.rows / slots, shuffled, hottest)


def _looked_up(side: JoinInput, slots: int) -> float:
    """Returns the additional cost of finding the groups of a side's rows in a loop that shuffles nothing."""
    more = TEXT * side.by_text + (1.0 if side.groups.distinct > FAST_KEYS else 0.0)
    return more * side.rows.rows / slots


def output_profile(left: KeyProfile, right: KeyProfile, kind: JoinKind) -> KeyProfile:
    """Returns the distribution of the join's output over its key; for a semi or anti join, at most all left rows."""
    if kind in {JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI}:
        return replace(left, hot_at_most=bool(left.hot))
    if kind is JoinKind.RIGHT:
        return joined_profile(right, left, inner=False)
    return joined_profile(left, right, inner=kind is JoinKind.INNER)
