"""The rule `counted_percentiles`."""

from __future__ import annotations

from service.contract.options import DistinctMethod, Toggle
from service.contract.query import AggregateFunction
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, Field
from workers.engine.plan.aggregates import (
    GROUPING_SETS,
    final_of,
    is_undecided,
    key_columns,
    refusal_of,
    split_call,
)
from workers.engine.plan.explain import call_text
from workers.engine.plan.expressions import fresh_name
from workers.engine.plan.nodes import Aggregate, AggregateRole, Call, Named, Node, Phases, Project, names_of
from workers.engine.rules.cost import (
    MIN_ROWS,
    Choice,
    Cost,
    distinct_in_share,
    hot_group,
    input_tasks,
    key_profile,
    too_few_rows,
    two_phase,
)
from workers.engine.rules.distinct.deduplication import names
from workers.engine.rules.distinct.methods import MARGIN, is_split_forced, unknown_reason
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.cardinality import KeyProfile, bytes_per_row, estimate_rows
from workers.engine.statistics.groups import grouped
from workers.engine.statistics.model import Statistics

NATIVE = "NATIVE"
COUNTED = "COUNTED"

_MAP_ROW = 2.0
"""The cost of adding a row, or a value with its count, to the map of a group, which has an object for each value."""
_SORTED_ROW = 3.0
"""The additional cost of a row in a task with more than `_SORTED_GROUPS` groups: Spark sorts the rows by group."""
_SORTED_GROUPS = 128
"""`spark.sql.objectHashAggregate.sortBased.fallbackThreshold`"""


class CountedPercentiles:
    """Counts the rows of each value of a group before PERCENTILE, so that many tasks share a hot group.

    >>> uid, price = column("o.uid", BIGINT), column("o.price", INT)
    >>> orders = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"), (Field("o.price", INT), "price")))
    >>> half = compose("0.5", (), decimal(1, 1))
    >>> median = Call(AggregateFunction.PERCENTILE, (price, half), Field("m", DOUBLE))
    >>> before = Aggregate(orders, (Named(uid, "uid"),), (median,))
    >>> print(text_of(before))
    Aggregate BY o.uid AS uid [PERCENTILE(o.price, 0.5) AS m]
      Scan orders AS o [o.uid, o.price]
    >>> ctx = RuleContext(JobSettings(), Statistics({}, {}, slots=4))
    >>> print(text_of(CountedPercentiles().rewrite(Match(before, COUNTED, ""), ctx)))
    Project uid, $f0 AS m
      Aggregate FINAL TWO_PHASE BY uid [PERCENTILE($v0, 0.5, $n0) AS $f0]
        Aggregate PARTIAL TWO_PHASE BY o.uid AS uid, o.price AS $v0 [COUNT(*) AS $n0]
          Scan orders AS o [o.uid, o.price]

    Spark's own plan has a map from values to counts for each group in each task, sends the maps, and merges those of a
    group in one task. Here the counts are rows, in Spark's compact hash tables, distributed by group and value. Only
    different values, each with one count, become maps. MEDIAN and PERCENTILE_CONT are PERCENTILE.

    Fires when:
        all calls with PERCENTILE are over one number, the other calls can be split, and
        - `distinct_method` is split, or auto and `distinct_split.enabled` true, or
        - both are auto, a group is hot (more rows than `skew.factor` times the other groups' rows per slot, and at
          least `skew.threshold` bytes; without group keys all rows are one group), and counting is expected to cost
          clearly less.

    Does not fire when:
        - `distinct_method` is another one, or auto and `distinct_split.enabled` false;
        - there are grouping sets, or DISTINCT values, which other rules handle;
        - there are percentiles of several values, of a text, with frequencies, or of an expression with a FILTER;
        - another call cannot be split; PERCENTILE_DISC is one, since it takes no counts in Spark;
        - it is auto, and there are no statistics for groups and values, few rows, no hot group, or nothing is saved.

    Why the result is the same:
        PERCENTILE with frequencies is that of each value repeated as often. Values are grouped exactly; -0.0 becomes
        0.0, which is equal. A row whose FILTER is false counts as zero rows, and NULL is ignored in both plans, so
        that a group of such rows has NULL.

    Settings read:
        distinct_method, distinct_split.enabled, agg_phase, skew.factor, skew.threshold
    """

    name = "counted_percentiles"

    def match(self, node: Node, ctx: RuleContext) -> Match[Aggregate] | Skip | None:
        """Returns None for all nodes but whole aggregates with PERCENTILE whose phases are not decided."""
        if not isinstance(node, Aggregate) or not is_undecided(node) or not percentiles_of(node):
            return None
        method, split = ctx.settings.distinct_method, ctx.settings.distinct_split.enabled
        if method not in {DistinctMethod.AUTO, DistinctMethod.SPLIT}:
            return Skip(f"distinct_method is {method.value}.")
        if method is DistinctMethod.AUTO and split is Toggle.FALSE:
            return Skip("distinct_split.enabled is false.")
        obstacle = _obstacle(node)
        if obstacle is not None:
            return Skip(obstacle)
        costs = _costs(node, ctx.statistics)
        if is_split_forced(ctx.settings):
            choice = Choice({}, NATIVE) if isinstance(costs, str) else costs[1]
            setting = "distinct_method is split" if method is DistinctMethod.SPLIT else "distinct_split.enabled is true"
            return choice.match(node, COUNTED, f"{setting}.")
        if isinstance(costs, str):
            return Skip(unknown_reason(costs))
        return _choose_by_cost(node, *costs, ctx)

    def rewrite(self, match: Match[Aggregate], ctx: RuleContext, /) -> Node:
        """Returns a Project over FINAL over PARTIAL, as the example shows."""
        node = match.node
        taken = names_of(node) | names_of(node.input)
        value = percentiles_of(node)[0].arguments[0]
        counted = Named(value, fresh_name("$v0", taken))
        partial_names, count_names, final_names = names("$p", taken), names("$n", taken), names("$f", taken)
        counts: dict[str, Call] = {}
        parts, finals, results = list[Call](), list[Call](), list[Named]()
        for call in node.calls:
            if call.function is not AggregateFunction.PERCENTILE:
                split = split_call(call, partial_names, final_names)
                parts += split.partial
                finals += split.final
                results.append(split.result)
                continue
            condition = "" if call.filter is None else call.filter.sql
            if condition not in counts:
                output = Field(next(count_names), BIGINT)
                counts[condition] = Call(AggregateFunction.COUNT, (), output, filter=call.filter)
            arguments = (
                column(counted.name, value.type),
                call.arguments[1],
                column(counts[condition].output.name, BIGINT),
            )
            final = Call(call.function, arguments, Field(next(final_names), call.output.type))
            finals.append(final)
            results.append(Named(column(final.output.name, final.output.type), call.output.name))
        partial = Aggregate(
            node.input, (*node.keys, counted), (*parts, *counts.values()), AggregateRole.PARTIAL, Phases.TWO_PHASE
        )
        keys = key_columns(node)
        return Project(final_of(partial, keys, tuple(finals), ctx.settings.agg_phase), (*keys, *results))


def percentiles_of(node: Aggregate) -> tuple[Call, ...]:
    """Returns the calls of PERCENTILE without DISTINCT."""
    return tuple(call for call in node.calls if call.function is AggregateFunction.PERCENTILE and not call.distinct)


def _obstacle(node: Aggregate) -> str | None:
    calls = percentiles_of(node)
    value = calls[0].arguments[0]
    if node.grouping_sets:
        return GROUPING_SETS
    if any(call.distinct for call in node.calls):
        return "There are DISTINCT values, which other rules handle."
    if any(call.arguments[0] != value for call in calls):
        return "There are percentiles of several values: each would need counts of its own."
    if value.type is None or not value.type.is_numeric:
        return f"{value} is not known to be a number."
    if any(len(call.arguments) > 2 for call in calls):
        return "A percentile has frequencies of its own."
    if value.column is None and any(call.filter is not None for call in calls):
        return f"{value} would also be computed for rows for which FILTER is false."
    others = (call for call in node.calls if call.function is not AggregateFunction.PERCENTILE)
    found = next(((call, why) for call in others if (why := refusal_of(call)) is not None), None)
    return None if found is None else f"{call_text(found[0])} cannot be split: {found[1]}."


def _costs(node: Aggregate, statistics: Statistics) -> tuple[KeyProfile, Choice] | str:
    """Returns how the rows are distributed over the groups, and the costs of both plans; or which statistics are
    missing.

    In Spark's plan each task adds its rows to maps, and the maps of a group are merged by one task. In the other plan,
    the tasks add the different values of a group instead of its rows.
    """
    keys = tuple(key.expression for key in node.keys)
    pairs = key_profile(node.input, (*keys, percentiles_of(node)[0].arguments[0]), statistics)
    rows = estimate_rows(node.input, statistics)
    groups = None if rows is None else KeyProfile(float(rows), 1.0, (("", float(rows)),))
    if keys:
        groups = key_profile(node.input, keys, statistics)
    if groups is None:
        return "there are no statistics for the group keys"
    if pairs is None:
        return "there are no statistics for the values in a group"
    slots, tasks = max(1, statistics.slots), input_tasks(node.input, statistics)
    values = grouped(groups, pairs.distinct)
    row = _MAP_ROW + (_SORTED_ROW if distinct_in_share(groups, 1 / tasks) > _SORTED_GROUPS else 0.0)
    sent = distinct_in_share(pairs, 1 / tasks) * tasks
    hot_rows, hot_values = (profile.hot[0][1] if profile.hot else profile.even_rows for profile in (groups, values))
    merged = distinct_in_share(KeyProfile(hot_rows, hot_values, ()), 1 / tasks) * tasks
    native = Cost(row * groups.rows / slots + _merged(sent, merged, slots), sent, max(sent / slots, merged))
    counts = two_phase(pairs, slots, tasks)
    counted = Cost(
        counts.slowest + row * pairs.distinct / slots + _merged(pairs.distinct, hot_values, slots),
        counts.shuffled + pairs.distinct,
        max(counts.hottest_task, hot_values),
    )
    return groups, Choice({NATIVE: native, COUNTED: counted}, NATIVE)


def _merged(entries: float, hottest: float, slots: int) -> float:
    """Returns the cost of sending and merging the entries of maps, of which the largest group has `hottest`."""
    return entries / slots + _MAP_ROW * max(entries / slots, hottest)


def _choose_by_cost(node: Aggregate, groups: KeyProfile, choice: Choice, ctx: RuleContext) -> Match[Aggregate] | Skip:
    too_few = too_few_rows(groups.rows, MIN_ROWS, ": Spark's own plan is kept")
    if too_few is not None:
        return Skip(too_few)
    size = bytes_per_row(node.input, ctx.statistics)
    hot = hot_group(groups, ctx.settings.skew, ctx.statistics.slots, size)
    if node.keys and hot is None:
        return choice.skip("No group is hot: many tasks share the maps of the groups.")
    named = "All rows are one group"
    if node.keys and hot is not None:
        named = f"Group {hot.value} {hot.share_text} of all rows"
    if not choice.is_clearly_cheaper(COUNTED, NATIVE, MARGIN):
        return choice.skip(f"{named}, but counting the rows of each value would not be clearly cheaper.")
    return choice.match(node, COUNTED, f"{named}: the rows of each value are counted first.")
