"""What aggregating sides of a join before it costs, in rows handled by the slowest task, all phases added.

The unit is that of `distinct/aggregate_cost.py`: a row sent, aggregated, or put out by the join costs 1. A side left as
it is is sent by the join's key; one that is aggregated is, in two phases, by its groups, and those then by the key,
where they are not it already. What the join puts out is aggregated once more. A hot key of both sides makes the join
put out their product on one task, and that is what aggregating first takes away.

Beside a broadcast side nothing is sent: Spark reads a row, looks its partners up and aggregates what comes out in one
loop, whose rows cost 1 each, read or put out, whichever are more. Aggregating first pays there where the join
multiplies, or where the query groups by texts, which that loop hashes and compares row by row, and the side by a few
numbers. What it costs there, in times as the query is written (20 M rows with SUM and COUNT, two cores, medians of
five interleaved runs, beside other load):

    keys of the side    grouped by 20 texts    by 10,000 texts    by 20 numbers
    1,000               0.44 - 0.49            0.48               0.95
    20,000              0.63                                      0.90
    100,000             1.08                   0.64
    1,000,000           1.34

which is a text at `TEXT` rows, and a row twice as dear where the keys are more than Spark's generated hash map takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from service.contract.query import JoinKind
from workers.engine.rules.distinct.aggregate_cost import Cost, hottest_task, two_phase
from workers.engine.statistics.cardinality import KeyProfile, joined_profile

CLEARLY = 0.7
"""Share of the cost as written that a rewrite must stay below: what a join and an aggregate cost a row varies."""

TEXT = 0.8
"""What grouping a row by texts costs on top, beside a broadcast side: 1.4 - 1.7 s in place of 0.8."""

FAST_KEYS = 1 << 16
"""Keys that Spark keeps in the hash map that it generates (`spark.sql.codegen.aggregate.fastHashMap.capacityBit`)."""

STAGE = 1_000_000
"""Rows that a task handles in the time that a further stage takes to start: about a tenth of a second."""


@dataclass(frozen=True)
class JoinInput:
    """One side of a join: its rows by the join's key, and by what it would be grouped by; `by_key` where the two are
    one, `by_text` where that has texts.
    """

    rows: KeyProfile
    groups: KeyProfile
    by_key: bool
    by_text: bool = False

    def aggregated(self) -> KeyProfile:
        """The groups by the join's key: one row a key, or, with other columns, each key's part of the groups."""
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
    """The cost with the left and the right side aggregated first, or not, as `eager` says. `broadcast`: one side is
    small enough to be sent whole, so that the rows of the other stay where they are. `by_text`: the query's own groups
    have texts.
    """
    profiles, slowest, shuffled = [], 0.0, 0.0
    for side, first in zip((left, right), eager, strict=True):
        profile = side.rows
        if first:
            # Measured as a whole, with tables of any size; which phases it has is decided afterwards.
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
    """What finding their groups costs a side's rows on top, in a loop that sends none of them."""
    more = TEXT * side.by_text + (1.0 if side.groups.distinct > FAST_KEYS else 0.0)
    return more * side.rows.rows / slots


def output_profile(left: KeyProfile, right: KeyProfile, kind: JoinKind) -> KeyProfile:
    """What the join puts out, by its key; of a semi or anti join all of its left rows at most."""
    if kind in {JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI}:
        return replace(left, hot_at_most=bool(left.hot))
    if kind is JoinKind.RIGHT:
        return joined_profile(right, left, inner=False)
    return joined_profile(left, right, inner=kind is JoinKind.INNER)
