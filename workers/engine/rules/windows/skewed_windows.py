"""The rule `skewed_windows`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from service.contract.options import Toggle
from service.sql.expressions.scalar import Scalar
from workers.engine.plan.nodes import Filter, Limit, Named, Node, WindowFunctions
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.cost import MIN_ROWS, Choice, Cost, too_few_rows
from workers.engine.rules.distinct.branch_plans import is_deterministic
from workers.engine.rules.joins.hot_keys import origins_of
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.rules.windows.costs import PlannedGroup, planned_group
from workers.engine.rules.windows.rewrite import InRanges, JoinedBack, split_windows
from workers.engine.rules.windows.running import call_groups, over_of
from workers.engine.statistics.cardinality import estimate_rows

NATIVE = "NATIVE"
SPLIT = "SPLIT"

CLEAR_GAIN = 1.2
"""AUTO splits windows only if Spark's own plan costs so many times as much."""

_RANKINGS = frozenset({"row_number", "rank", "dense_rank"})


class SkewedWindows:
    """Computes calls with OVER of hot partitions in several tasks.

    >>> from service.sql.expressions.nodes import OrderKey, Over
    >>> key, time = column("k", BIGINT), column("t", INT)
    >>> events = Scan("events", "e", ((Field("k", BIGINT), "k"), (Field("t", INT), "t")))
    >>> number = Scalar(Over("row_number", (), (key.tree,), (OrderKey(time.tree),)), INT)
    >>> before = WindowFunctions(events, (Named(number, "n"),))
    >>> print(text_of(before))
    WindowFunctions row_number() OVER (PARTITION BY k ORDER BY t) AS n
      Scan events AS e [k, t]
    >>> sizes = {"e": TableSize("e", 8, 1 << 30, 10_000_000, True)}
    >>> hot = HotKey(value="7", share=0.9, estimated_rows=9_000_000)
    >>> sketch = KeySketch("e", ("k",), 60_000, 1_000_000, 0.0, (hot,), literals=((literal(7, BIGINT),),))
    >>> ranges = OrderedKey((literal(7, BIGINT),), (literal(9, INT),), 0.01)
    >>> known = Statistics(sizes, {("k",): sketch}, slots=4, orders={(("k",), "t"): (ranges,)})
    >>> after = SkewedWindows().rewrite(Match(before, SPLIT, ""), RuleContext(JobSettings(), known))
    >>> print(text_of(after))  # doctest: +NORMALIZE_WHITESPACE
    Project k, t, CAST($own0 + coalesce($carry0, 0L) AS INT) AS n
      Join LEFT BROADCAST_RIGHT HASH_RIGHT NONE ON $part0 = $range0
        WindowFunctions row_number() OVER (PARTITION BY k, $part0 ORDER BY t) AS $own0
          Exchange BY k, $part0 INTO 16
            Project k, t, if(k <=> 7L, if(t IS NULL, 0, if(t < 9, 1, 2)), CAST(NULL AS INT)) AS $part0
              Scan events AS e [k, t]
        Project $range0, CAST($before0 AS INT) AS $carry0
          WindowFunctions SUM($total0) OVER (PARTITION BY $range0 DIV 4 ORDER BY $range0
                                             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS $before0
            Aggregate TWO_PHASE BY $part0 AS $range0 [COUNT(*) AS $total0]
              Filter $part0 IS NOT NULL
                Project k, t, if(k <=> 7L, if(t IS NULL, 0, if(t < 9, 1, 2)), CAST(NULL AS INT)) AS $part0
                  Scan events AS e [k, t]

    A call with ORDER BY and a frame from the start of the partition to the current row is computed per range of the
    first order column. Quantiles of that column in the sampled rows of the hot partition are the boundaries. The totals
    of the ranges are a row for each range; their prefix sums, the carries, are broadcast and added. LAG and LEAD find
    the rows of other ranges in an array for each range. An aggregate over the whole partition, in any order, is
    computed by GROUP BY and joined back by the partition keys: for all partitions if they are few, otherwise for the
    hot ones, without sending or sorting their rows. `running.py` has the formulas, `neighbours.py` those of LAG and
    LEAD.

    Fires when:
        - `skewed_windows` is true and the sample has a frequent partition; or
        - it is auto, the input has at least 500,000 rows, a partition is hot (more rows than `skew.factor` times the
          other partitions' rows per slot, and at least `skew.threshold` bytes), and the parts cost clearly less.
          Without PARTITION BY, all rows are one partition.

    Does not fire when:
        - `skewed_windows` is false;
        - a key of PARTITION BY, or the first key of ORDER BY, is not a column of a table, or is a FLOAT or DOUBLE;
        - there is no statistic for the partition keys, or the hot partitions have too few values of the order column;
        - a call of the window has no parts: NTILE and other functions, LAG and LEAD with IGNORE NULLS or over more
          than 100 rows, frames that move, a running SUM or AVG of FLOAT or DOUBLE, whose last digits depend on the
          order of the additions, or one that could overflow in a range;
        - the input has another window or a LIMIT, or sums of fractions and similar aggregates: it would be computed
          twice, and might differ;
        - it is auto and a condition is on the partition key: it may remove the hot partitions, or select one of them;
        - it is auto and a condition above is on a rank: Spark keeps only the first rows of each partition.

    Why the result is the same:
        the number of a range depends on the first order key alone and ascends in the order of the window, NULL first or
        last, so rows with equal keys are in one range and all rows of earlier ranges are before them. The carry is the
        aggregate of exactly these rows, and all sums are exact. Each row finds at most one carry: `range` is unique.
        Partitions are compared by `<=>`, as PARTITION BY does. The boundaries affect only the sizes of the ranges.
        LAG and LEAD order rows with equal keys by the values that they read, which is one of Spark's possible orders,
        so a range and its neighbours are parts of one sequence of values.

    Settings read:
        skewed_windows, skew.factor, skew.threshold
    """

    name = "skewed_windows"

    def match(self, node: Node, ctx: RuleContext) -> Match[WindowFunctions] | Skip | None:
        """Returns None for all nodes but calls with OVER."""
        if not isinstance(node, WindowFunctions):
            return None
        setting = ctx.settings.skewed_windows
        if setting is Toggle.FALSE:
            return Skip("skewed_windows is false.")
        obstacle = refusal_of_input(node)
        if obstacle is not None:
            return Skip(obstacle)
        found = _analyze(node, ctx)
        if isinstance(found, str):
            return Skip(found)
        if setting is Toggle.TRUE:
            return found.choice.match(node, SPLIT, f"skewed_windows is true: {found.text}.")
        return _choose_by_cost(node, found, ctx)

    def rewrite(self, match: Match[WindowFunctions], ctx: RuleContext, /) -> Node:
        """Returns a Project with the columns of the node, over the parts and the calls that Spark computes."""
        found = _analyze(match.node, ctx)
        if isinstance(found, str):
            raise ValueError(found)
        return split_windows(match.node, tuple(each.plan for each in found.planned), found.others)


@dataclass(frozen=True)
class _Analysis:
    """The groups that are computed in parts, and the calls that Spark computes."""

    planned: tuple[PlannedGroup, ...]
    others: tuple[Named, ...]

    @property
    def choice(self) -> Choice:
        """The costs of both alternatives, without the calls that Spark computes in each."""
        native, split = _sum(each.native for each in self.planned), _sum(each.cost for each in self.planned)
        return Choice({NATIVE: native, SPLIT: split}, NATIVE)

    @property
    def text(self) -> str:
        """What is done, as the end of a sentence."""
        return ", ".join(dict.fromkeys(_text(each) for each in self.planned))


def _sum(costs: Iterable[Cost]) -> Cost:
    found = list(costs)
    return Cost(
        sum(cost.slowest for cost in found),
        sum(cost.shuffled for cost in found),
        max(cost.hottest_task for cost in found),
    )


def _text(planned: PlannedGroup) -> str:
    plan = planned.plan
    if isinstance(plan, InRanges):
        count = len(plan.keys)
        ranges = max(len(key.boundaries) for key in plan.keys) + 1
        return f"{count} partition{'s' if count > 1 else ''} split into {ranges} ranges of {plan.group.order_column}"
    if plan.hot:
        return f"aggregates of {len(plan.hot)} hot partition{'s' if len(plan.hot) > 1 else ''} joined back"
    return "aggregates joined back"


def refusal_of_input(node: WindowFunctions) -> str | None:
    """Returns a sentence that says why the input of `node` cannot be read twice; None if it can be."""
    if any(isinstance(part, Limit | WindowFunctions) for part in walk_up(node.input)):
        return "The input has another window or a LIMIT: it would be computed twice."
    if not is_deterministic(node.input):
        return "The input has sums of fractions, or values that depend on an order: computed twice, they may differ."
    return None


def _analyze(node: WindowFunctions, ctx: RuleContext) -> _Analysis | str:
    """Returns the groups to compute in parts, or the reason why there are none."""
    planned: list[PlannedGroup] = []
    others: list[Named] = []
    reasons: list[str] = []
    for group in call_groups(node, ctx.statistics):
        made = group.refusal or planned_group(node, group, ctx.statistics, ctx.settings.skew)
        if isinstance(made, str):
            reasons.append(made)
        elif ctx.settings.skewed_windows is Toggle.AUTO and not made.is_hot:
            reasons.append("No partition is hot: the rows are evenly distributed by partition.")
        elif ctx.settings.skewed_windows is Toggle.AUTO and _is_filtered_by_key(node, group.partition_by, ctx):
            reasons.append("A condition is on the partition key: it may keep all rows of a hot partition or none.")
        elif _reads_twice(made) and any(map(_reads_twice, planned)):
            reasons.append("The aggregates of another window are joined back for its hot partitions.")
        else:
            planned.append(made)
            continue
        others += group.calls
    return _Analysis(tuple(planned), tuple(others)) if planned else reasons[0]


def _is_filtered_by_key(node: WindowFunctions, keys: tuple[Scalar, ...], ctx: RuleContext) -> bool:
    """Whether a condition below or above is on a partition key, and so may remove a hot partition."""
    origins = origins_of(node.input, (name for key in keys for name in key.columns))
    below = (origins_of(one.input, one.condition.columns) for one in walk_up(node.input) if isinstance(one, Filter))
    above = (frozenset(condition.columns) for condition in ctx.conditions)
    return any(not origins.isdisjoint(names) for names in (*below, *above))


def _reads_twice(planned: PlannedGroup) -> bool:
    return isinstance(planned.plan, JoinedBack) and bool(planned.plan.hot)


def _choose_by_cost(node: WindowFunctions, found: _Analysis, ctx: RuleContext) -> Match[WindowFunctions] | Skip:
    too_few = too_few_rows(estimate_rows(node, ctx.statistics) or 0, MIN_ROWS, "")
    if too_few is not None:
        return Skip(too_few)
    if _is_limited(node, ctx.conditions):
        return Skip("A condition above is on a rank: Spark keeps only the first rows of each partition.")
    top = max(found.planned, key=lambda each: each.hot_share)
    named = "All rows are one partition"
    if top.hottest:
        named = f"Partition {top.hottest} has {top.hot_share:.0%} of all rows"
    choice = found.choice
    if not choice.is_clearly_cheaper(SPLIT, NATIVE, CLEAR_GAIN):
        return choice.skip(f"{named}, but computing it in parts would not be clearly cheaper.")
    return choice.match(node, SPLIT, f"{named}: {found.text}.")


def _is_limited(node: WindowFunctions, conditions: tuple[Scalar, ...]) -> bool:
    """Whether a condition above is on a ranking call, for which Spark has `WindowGroupLimit`."""
    ranks = {call.name for call in node.calls if over_of(call).function in _RANKINGS}
    return any(not ranks.isdisjoint(condition.columns) for condition in conditions)
