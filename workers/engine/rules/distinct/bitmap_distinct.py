"""The rule `bitmap_distinct`."""

from __future__ import annotations

from service.contract.options import AggPhase, DistinctMethod, Toggle
from workers.engine.plan.aggregates import GROUPING_SETS, distinct_sets, is_undecided
from workers.engine.plan.nodes import Aggregate, Node
from workers.engine.rules.cost import MIN_ROWS, too_few_rows
from workers.engine.rules.distinct.bitmaps import bitmap_aggregate, bitmap_obstacle, group_bitmap_aggregate
from workers.engine.rules.distinct.methods import (
    BITMAP,
    GROUP_BITMAPS,
    MethodCosts,
    bitmap_width,
    method_costs,
    possible_bitmaps,
    unknown_reason,
    value_partitions,
    value_phases,
)
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.cardinality import estimate_rows


class BitmapDistinct:
    """Counts distinct integers as bits of bitmaps, with one row for each run of neighbouring values.

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

    A bitmap covers 64 values, or 256 in four BIGINTs, or 32,768 in 4 KB, whichever is expected to cost least. If values
    are close together, the local phase emits far fewer rows than Spark's own, which emits every (group, value). If they
    are far apart, a bitmap of 64 holds one value and takes as much space as the value.

    Values of any type can be the rows, and their groups the bits (`BITMAPS_OF_GROUPS`): rows are shuffled by value, a
    value has one row in the hash table for each run of 64 groups, not one for each group, and each bit is summed.

    Fires when:
        all DISTINCT calls are COUNTs over one set of distinct values. Either the set is one value that is an integer, a
        DATE, a BOOLEAN or a DECIMAL of up to 18 digits, and all other calls can be split; or there are no other calls,
        and the only group key is an integer, a DATE or a BOOLEAN: then the groups are the bits. And
        - `distinct_method` is bitmap, or
        - it is auto, the range of the bits is known (from the footers of the files, or the type), and bitmaps are
          expected to cost clearly less than Spark's own plan; bitmaps of values also than one phase.

    Does not fire when:
        - `distinct_method` is another one, or the split is forced;
        - there are grouping sets;
        - there are several sets of distinct values (`distinct_branches` may count each in a branch with bitmaps),
          values and groups of other types, SUM or AVG of distinct values, or a call that cannot be split;
        - it is auto, and `agg_phase` is ONE_PHASE: bitmaps of values save rows in the local phase; or it is TWO_PHASE,
          and the bits would be groups, whose values are deduplicated in one phase;
        - it is auto, and the range or the numbers of values are not known, or nothing is saved.

    Why the result is the same:
        shifts give each value its own bit, also the smallest and the largest BIGINT, and each group has its own
        bitmaps: a bit is set if its value occurs. NULL has no bit, and rows that a FILTER excludes set none; a group of
        only such rows counts 0. Other calls are split into partial and final calls. If groups are the bits, a group key
        is computed again from the number of its run and the position of its bit. A group exists if a row of any value,
        also NULL, set its bit. The group NULL has its own run.

    Settings read:
        distinct_method, distinct_split.enabled, agg_phase
    """

    name = "bitmap_distinct"

    def match(self, node: Node, ctx: RuleContext, /) -> Match[Aggregate] | Skip | None:
        """Returns None for all nodes but whole aggregates with DISTINCT values whose phases are not decided."""
        if not isinstance(node, Aggregate) or not is_undecided(node) or not distinct_sets(node):
            return None
        if node.grouping_sets:
            return Skip(GROUPING_SETS)
        method = ctx.settings.distinct_method
        if method not in {DistinctMethod.AUTO, DistinctMethod.BITMAP}:
            return Skip(f"distinct_method is {method.value}.")
        possible = possible_bitmaps(node)
        if possible is None:
            return Skip(bitmap_obstacle(node) or "")
        if method is DistinctMethod.BITMAP:
            methods = method_costs(node, ctx.settings, ctx.statistics)
            return methods.match(node, possible, _why_forced(possible, methods))
        return _choose_bitmaps_by_cost(node, ctx)

    def rewrite(self, match: Match[Aggregate], ctx: RuleContext, /) -> Node:
        """Returns a Project over FINAL over PARTIAL, as the example shows."""
        if match.choice == GROUP_BITMAPS:
            partitions = value_partitions(match.node, ctx.statistics)
            phases = value_phases(match.node, ctx.settings, ctx.statistics)
            return group_bitmap_aggregate(match.node, partitions, ctx.settings.agg_phase, phases)
        return bitmap_aggregate(match.node, bitmap_width(match.node, ctx.statistics), ctx.settings.agg_phase)


def _why_forced(possible: str, methods: MethodCosts) -> str:
    if possible == GROUP_BITMAPS:
        return "distinct_method is bitmap: the values are not integers, but their groups are and become the bits."
    if BITMAP in methods.costs:
        return "distinct_method is bitmap."
    return (
        "distinct_method is bitmap: it is not known how close together the values are; in the worst case every bitmap "
        "holds one value and takes as much space as the value."
    )


def _choose_bitmaps_by_cost(node: Aggregate, ctx: RuleContext) -> Match[Aggregate] | Skip:
    if ctx.settings.distinct_split.enabled is Toggle.TRUE:
        return Skip("distinct_split.enabled is true.")
    methods = method_costs(node, ctx.settings, ctx.statistics)
    obstacle = bitmap_obstacle(node)
    if obstacle is not None and GROUP_BITMAPS not in methods.costs:
        return Skip(obstacle)
    if ctx.settings.agg_phase is AggPhase.ONE_PHASE:
        return Skip("agg_phase is ONE_PHASE: bitmaps save rows in the local phase.")
    if methods.unknown is not None:
        return Skip(unknown_reason(methods.unknown))
    if methods.best == GROUP_BITMAPS:
        reason = "Each value is in many groups whose keys are close together: a bitmap holds the groups of a value."
        return methods.match(node, GROUP_BITMAPS, reason)
    if obstacle is not None:
        reason = "Bitmaps of the groups are not expected to be clearly cheaper."
        return Skip(f"{obstacle} {reason}", methods.alternatives(methods.best))
    if BITMAP not in methods.costs:
        kept = ": Spark's own plan is kept"
        too_few = too_few_rows(estimate_rows(node.input, ctx.statistics) or 0, MIN_ROWS, kept)
        return Skip(too_few or f"The range of the values is not known{kept}.")
    if methods.best != BITMAP:
        return Skip("Bitmaps are not expected to be clearly cheaper.", methods.alternatives(methods.best))
    width = bitmap_width(node, ctx.statistics)
    return methods.match(node, BITMAP, f"The values are close together: a bitmap covers {width:,} neighbours.")
