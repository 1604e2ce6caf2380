"""The rule `bitmap_distinct`."""

from __future__ import annotations

from service.contract.options import AggPhase, DistinctMethod, Toggle
from workers.engine.plan.aggregates import GROUPING_SETS, distinct_sets
from workers.engine.plan.nodes import Aggregate, AggregateRole, Node, Phases
from workers.engine.rules.distinct.aggregate_cost import MIN_ROWS
from workers.engine.rules.distinct.bitmaps import bitmap_aggregate, bitmap_obstacle, group_bitmap_aggregate
from workers.engine.rules.distinct.methods import (
    BITMAP,
    GROUP_BITMAPS,
    bitmap_width,
    bitmaps_of,
    told,
    value_partitions,
    value_phases,
    weigh,
)
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.cardinality import estimate_rows


class BitmapDistinct:
    """Counts distinct integers as bits of bitmaps: a row for each run of neighbours, not one for each value.

    >>> uid, item = column("o.uid", BIGINT), column("o.item", INT)
    >>> orders = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"), (Field("o.item", INT), "item")))
    >>> distinct = Call(AggregateFunction.COUNT, (item,), Field("n", BIGINT), distinct=True)
    >>> before = Aggregate(orders, (Named(uid, "uid"),), (distinct,))
    >>> print(text_of(before))
    Aggregate BY o.uid AS uid [COUNT(DISTINCT o.item) AS n]
      Scan orders AS o [o.uid, o.item]
    >>> ctx = RuleContext(JobSettings(), Statistics({}, {}, slots=4))
    >>> print(text_of(BitmapDistinct().rewrite(Match(before, BITMAP, ""), ctx)))
    Project uid, coalesce($f0, 0L) AS n
      Aggregate FINAL TWO_PHASE BY uid [SUM(bit_count($p0)) AS $f0]
        Aggregate PARTIAL TWO_PHASE BY o.uid AS uid, shiftright(CAST(o.item AS BIGINT), 6) AS $bitmap \
[BIT_OR(shiftleft(1L, CAST(CAST(o.item AS BIGINT) & 63L AS INT))) AS $p0]
          Scan orders AS o [o.uid, o.item]
    >>> names = Scan("orders", "o", ((Field("o.day", DATE), "day"), (Field("o.name", STRING), "name")))
    >>> distinct = Call(AggregateFunction.COUNT, (column("o.name", STRING),), Field("n", BIGINT), distinct=True)
    >>> before = Aggregate(names, (Named(column("o.day", DATE), "day"),), (distinct,))
    >>> text = text_of(BitmapDistinct().rewrite(Match(before, GROUP_BITMAPS, ""), ctx))
    >>> print(text[text.index("Aggregate PARTIAL") :])
    Aggregate PARTIAL ONE_PHASE BY o.name AS $v0, shiftright(CAST(unix_date(o.day) AS BIGINT), 6) AS $run \
[BIT_OR(shiftleft(1L, CAST(coalesce(CAST(unix_date(o.day) AS BIGINT) & 63L, 0L) AS INT))) AS $p0]
              Exchange BY o.name
                Scan orders AS o [o.day, o.name]

    A bitmap has 64 values, or 256 in four BIGINTs, or 32,768 in 4 KB, whichever is expected to cost least. Where values
    are close together, the local phase leaves a fraction of the rows that Spark's own would, which keeps every (group,
    value); where they are far apart, a bitmap of 64 has one value and takes as much.

    Values of any type can be the rows, and their groups the bits (`BITMAPS_OF_GROUPS`): rows are sent by value, each
    value is a row of a hash table for each run of 64 groups, not one for each group, and each bit is summed.

    Fires when:
        COUNT is the only DISTINCT call, and either over one value that is an integer, a DATE, a BOOLEAN or a DECIMAL of
        up to 18 digits, while all other calls can be split, or there is no other call, and the one group key is an
        integer, a DATE or a BOOLEAN (which are then the bits), and
        - `distinct_method` is bitmap, or
        - it is auto, the range of what the bits are is known (by the footers of the files, or its type), and bitmaps
          are expected to cost clearly less than Spark's own plan, those of values also than one phase.

    Does not fire when:
        - `distinct_method` is another one, or the split is forced;
        - there are grouping sets;
        - there are several sets of distinct values (`distinct_branches` may count those by bitmaps, each in a branch),
          values and groups of other types, SUM or AVG of distinct values, or a call that cannot be split;
        - it is auto, and `agg_phase` is ONE_PHASE: the local phase is what bitmaps of values save by; or it is
          TWO_PHASE, and the bits would be groups, whose values are told apart in one phase;
        - it is auto, and the range or the numbers of values are not known, or nothing is saved.

    Why the result is the same:
        shifts give each value a bit of its own, the smallest and the largest BIGINT too, and each group has its own
        bitmaps: bits that are set are values that are there. NULL has no bit, and rows that a FILTER leaves out set
        none; a group of only such rows counts 0. Other calls go along in the algebra's parts. Where groups are the
        bits, a run of 64 is put together again from what is left of the key and the place of the bit, a group is there
        where a row of any value, NULL too, has set its bit, and NULL is a run of its own.

    Settings read:
        distinct_method, distinct_split.enabled, agg_phase
    """

    name = "bitmap_distinct"

    def match(self, node: Node, ctx: RuleContext, /) -> Match[Aggregate] | Skip | None:
        """As the class says; None for anything but an undecided whole aggregate with a DISTINCT call that matters."""
        if not isinstance(node, Aggregate) or node.role is not AggregateRole.WHOLE:
            return None
        if node.phases is not Phases.UNDECIDED or not distinct_sets(node):
            return None
        if node.grouping_sets:
            return Skip(GROUPING_SETS)
        method = ctx.settings.distinct_method
        if method not in {DistinctMethod.AUTO, DistinctMethod.BITMAP}:
            return Skip(f"distinct_method is {method.value}.")
        possible = bitmaps_of(node)
        if possible is None:
            return Skip(bitmap_obstacle(node) or "")
        if method is DistinctMethod.BITMAP:
            alternatives = weigh(node, ctx.settings, ctx.statistics).alternatives(possible)
            return Match(node, possible, _why_forced(node, possible, ctx), alternatives)
        return _decide_by_cost(node, ctx)

    def rewrite(self, match: Match[Aggregate], ctx: RuleContext, /) -> Node:
        """Project over FINAL over PARTIAL, as the class shows."""
        if match.choice == GROUP_BITMAPS:
            partitions = value_partitions(match.node, ctx.statistics)
            phases = value_phases(match.node, ctx.settings, ctx.statistics)
            return group_bitmap_aggregate(match.node, partitions, ctx.settings.agg_phase, phases)
        return bitmap_aggregate(match.node, bitmap_width(match.node, ctx.statistics), ctx.settings.agg_phase)


def _why_forced(node: Aggregate, possible: str, ctx: RuleContext) -> str:
    if possible == GROUP_BITMAPS:
        return "distinct_method is bitmap: the values are no integers, but their groups are, and have the bits."
    if BITMAP in weigh(node, ctx.settings, ctx.statistics).costs:
        return "distinct_method is bitmap."
    return (
        "distinct_method is bitmap: how close the values are is not known; at worst every bitmap has one of them, and "
        "takes as much as the value does."
    )


def _decide_by_cost(node: Aggregate, ctx: RuleContext) -> Match[Aggregate] | Skip:
    if ctx.settings.distinct_split.enabled is Toggle.TRUE:
        return Skip("distinct_split.enabled is true.")
    methods = weigh(node, ctx.settings, ctx.statistics)
    obstacle = bitmap_obstacle(node)
    if obstacle is not None and GROUP_BITMAPS not in methods.costs:
        return Skip(obstacle)
    if ctx.settings.agg_phase is AggPhase.ONE_PHASE:
        return Skip("agg_phase is ONE_PHASE: bitmaps save by their local phase.")
    if methods.unknown is not None:
        return Skip(told(methods.unknown))
    if methods.best == GROUP_BITMAPS:
        reason = "A value is in many groups, which are close: a value has them as bits."
        return Match(node, GROUP_BITMAPS, reason, methods.alternatives(GROUP_BITMAPS))
    if obstacle is not None:
        reason = "Bitmaps of the groups are not expected to be clearly cheaper."
        return Skip(f"{obstacle} {reason}", methods.alternatives(methods.best))
    if BITMAP not in methods.costs:
        rows = estimate_rows(node.input, ctx.statistics) or 0
        few = f"{rows:,} rows are too few to decide anything on (below {MIN_ROWS:,})"
        return Skip(f"{few if rows < MIN_ROWS else 'The range of the values is not known'}: Spark's own plan stays.")
    if methods.best != BITMAP:
        return Skip("Bitmaps are not expected to be clearly cheaper.", methods.alternatives(methods.best))
    width = bitmap_width(node, ctx.statistics)
    return Match(
        node, BITMAP, f"The values are close: a bitmap has {width:,} neighbours.", methods.alternatives(BITMAP)
    )
