"""The rule `distinct_branches`."""

from __future__ import annotations

from service.contract.options import DistinctMethod, Toggle
from workers.engine.plan.aggregates import GROUPING_SETS, distinct_sets, is_undecided, refusal_of
from workers.engine.plan.nodes import Aggregate, Node
from workers.engine.rules.distinct.bitmaps import bitmap_aggregate, bitmap_obstacle, group_bitmap_aggregate
from workers.engine.rules.distinct.branch_plans import (
    branch_aggregates,
    is_cheap_to_repeat,
    is_deterministic,
    joined_branches,
    keyed_branches,
    sent_by_value,
)
from workers.engine.rules.distinct.methods import (
    BITMAP,
    BRANCHES,
    BY_VALUE,
    GROUP_BITMAPS,
    KEYED_BRANCHES,
    bitmap_width,
    method_costs,
    possible_bitmaps,
    table_partitions,
    unknown_reason,
    value_partitions,
    value_phases,
)
from workers.engine.rules.rule import Match, RuleContext, Skip

MAY_DIFFER = (
    "each branch would compute the input again, and its rows might differ each time: a LIMIT takes any rows, and sums "
    "of fractions and values chosen by an order depend on the order of the input rows"
)


class DistinctBranches:
    """Deduplicates several sets of distinct values separately, where Spark would copy and shuffle all rows for each
    set.

    >>> uid, item, shop = column("o.uid", BIGINT), column("o.item", STRING), column("o.shop", STRING)
    >>> fields = tuple((Field(f"o.{name}", STRING), name) for name in ("uid", "item", "shop"))
    >>> items = Call(AggregateFunction.COUNT, (item,), Field("items", BIGINT), distinct=True)
    >>> shops = Call(AggregateFunction.COUNT, (shop,), Field("shops", BIGINT), distinct=True)
    >>> before = Aggregate(Scan("orders", "o", fields), (Named(uid, "uid"),), (items, shops))
    >>> print(text_of(before))
    Aggregate BY o.uid AS uid [COUNT(DISTINCT o.item) AS items, COUNT(DISTINCT o.shop) AS shops]
      Scan orders AS o [o.uid, o.item, o.shop]
    >>> ctx = RuleContext(JobSettings(), Statistics({}, {}, slots=4))
    >>> print(text_of(DistinctBranches().rewrite(Match(before, BRANCHES, ""), ctx)))
    Project uid, items, shops
      Join INNER ON uid <=> $k1_0
        Aggregate BY o.uid AS uid [COUNT(DISTINCT o.item) AS items]
          Scan orders AS o [o.uid, o.item, o.shop]
        Aggregate BY o.uid AS $k1_0 [COUNT(DISTINCT o.shop) AS shops]
          Scan orders AS o [o.uid, o.item, o.shop]
    >>> print(text_of(DistinctBranches().rewrite(Match(before, KEYED_BRANCHES, ""), ctx)))
    Project uid, $r0 AS items, $r1 AS shops
      Aggregate FINAL ONE_PHASE BY uid [COUNT($v0) FILTER (WHERE $branch = 1) AS $r0, COUNT($v0) FILTER \
(WHERE $branch = 2) AS $r1]
        Aggregate PARTIAL ONE_PHASE BY o.uid AS uid, $branch, CASE $branch WHEN 1 THEN o.item WHEN 2 THEN o.shop END \
AS $v0 []
          Expand 2 branches AS $branch
            Exchange BY o.uid
              Scan orders AS o [o.uid, o.item, o.shop]

    BRANCHES is for few groups: an aggregate for each set, joined on the group keys. A branch uses bitmaps of values or
    of groups, or a shuffle by (group, value) in one phase, if that is cheaper. Each branch reads the rows.
    KEYED_BRANCHES is for many groups: the rows are shuffled by group once, and then copied and deduplicated in the task
    that has all rows of the group.

    Fires when:
        there are at least two sets of distinct values, and
        - `distinct_method` is branches, or it is bitmap and bitmaps can count one of the sets, or
        - it is auto, and one of the two is expected to cost clearly less than Spark's own plan.

    Does not fire when:
        - `distinct_method` is another one, or the split is forced;
        - there are grouping sets;
        - there is one set of distinct values;
        - branches or bitmaps are forced, the input has a LIMIT, sums of fractions, FIRST_VALUE or similar calls, and
          KEYED_BRANCHES is not possible: each branch might read other rows;
        - it is auto, and the numbers of groups and values are not known, or nothing is saved;
        - it is auto, and for BRANCHES: Spark's plan is the best for each set, or the input has more than scans, filters
          and projections, so reading it again is expensive;
        - it is auto, and for KEYED_BRANCHES: a call cannot be split, a group is hot, there are few groups, group keys
          are fractions, the sample is too weak, or `agg_phase` is TWO_PHASE.

    Why the result is the same:
        every branch reads the same rows, since branches are not used for inputs that may differ each time. So every
        branch has the same groups, each once, whichever rows its calls filter; `<=>` joins NULL with NULL, NaN with NaN
        and 0.0 with -0.0, as grouping does. After the exchange, all copies of a group are in one task, one row is left
        for each of its values, and the calls count those of their own branch; a FILTER is true for a value if it was
        true for one of its rows. Calls without DISTINCT are in one branch only.

    Settings read:
        distinct_method, distinct_split.enabled, agg_phase
    """

    name = "distinct_branches"

    def match(self, node: Node, ctx: RuleContext, /) -> Match[Aggregate] | Skip | None:
        """Returns None for all nodes but whole aggregates with DISTINCT values whose phases are not decided."""
        if not isinstance(node, Aggregate) or not is_undecided(node) or not distinct_sets(node):
            return None
        if node.grouping_sets:
            return Skip(GROUPING_SETS)
        method = ctx.settings.distinct_method
        if method in {DistinctMethod.NATIVE, DistinctMethod.SPLIT}:
            return Skip(f"distinct_method is {method.value}.")
        if len(distinct_sets(node)) == 1:
            return Skip("There is only one set of distinct values: it does not need a branch of its own.")
        if method is DistinctMethod.AUTO:
            return _choose_branches_by_cost(node, ctx)
        if method is DistinctMethod.BITMAP and all(
            possible_bitmaps(branch) is None for branch in branch_aggregates(node)
        ):
            return Skip("None of the sets of distinct values can be counted by bitmaps.")
        return _forced(node, ctx)

    def rewrite(self, match: Match[Aggregate], ctx: RuleContext, /) -> Node:
        """Returns the plan of the choice, as the example shows."""
        if match.choice == KEYED_BRANCHES:
            return keyed_branches(match.node, table_partitions(match.node, ctx.statistics))
        forced = ctx.settings.distinct_method is DistinctMethod.BITMAP
        # If bitmaps of values can count one of the sets, the other sets use the cheapest method.
        by_groups = all(bitmap_obstacle(branch) for branch in branch_aggregates(match.node))
        return joined_branches(match.node, lambda branch: _branch_plan(branch, forced, by_groups, ctx))


def _branch_plan(branch: Aggregate, forced: bool, by_groups: bool, ctx: RuleContext) -> Node:
    best = method_costs(branch, ctx.settings, ctx.statistics).best
    if forced and (by_groups or bitmap_obstacle(branch) is None):
        best = possible_bitmaps(branch) or best
    if best == BITMAP:
        return bitmap_aggregate(branch, bitmap_width(branch, ctx.statistics), ctx.settings.agg_phase)
    if best == GROUP_BITMAPS:
        partitions = value_partitions(branch, ctx.statistics)
        phases = value_phases(branch, ctx.settings, ctx.statistics)
        return group_bitmap_aggregate(branch, partitions, ctx.settings.agg_phase, phases)
    return sent_by_value(branch, table_partitions(branch, ctx.statistics)) if best == BY_VALUE else branch


def _forced(node: Aggregate, ctx: RuleContext) -> Match[Aggregate] | Skip:
    methods, method = method_costs(node, ctx.settings, ctx.statistics), ctx.settings.distinct_method
    reason = f"distinct_method is {method.value}"
    choice = BRANCHES
    if method is DistinctMethod.BRANCHES:
        costs = {name: cost for name, cost in methods.costs.items() if name in {BRANCHES, KEYED_BRANCHES}}
        if costs:
            choice = min(costs, key=lambda name: costs[name].slowest)
        elif _can_be_keyed(node) and not is_cheap_to_repeat(node.input):
            choice = KEYED_BRANCHES
    if choice == BRANCHES and not is_deterministic(node.input):
        if method is not DistinctMethod.BRANCHES or not _can_be_keyed(node):
            return methods.skip(f"{reason}, but {MAY_DIFFER}.")
        choice = KEYED_BRANCHES
    if choice == BRANCHES and not is_cheap_to_repeat(node.input):
        reason += ": the input is more than a table and is computed once for each branch"
    return methods.match(node, choice, f"{reason}.")


def _can_be_keyed(node: Aggregate) -> bool:
    return bool(node.keys) and all(refusal_of(call) is None for call in node.calls)


def _choose_branches_by_cost(node: Aggregate, ctx: RuleContext) -> Match[Aggregate] | Skip:
    if ctx.settings.distinct_split.enabled is Toggle.TRUE:
        return Skip("distinct_split.enabled is true.")
    methods = method_costs(node, ctx.settings, ctx.statistics)
    if methods.unknown is not None:
        return Skip(unknown_reason(methods.unknown))
    if methods.best == BRANCHES:
        reason = "Reading the rows once for each set of distinct values costs less than copying and shuffling them."
        return methods.match(node, BRANCHES, reason)
    if methods.best == KEYED_BRANCHES:
        reason = "Shuffling the rows by group once costs less than shuffling a copy by (group, value) for each set."
        return methods.match(node, KEYED_BRANCHES, reason)
    return methods.skip("Branches are not expected to be clearly cheaper than copying the rows, as Spark does.")
