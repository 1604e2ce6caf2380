"""The rule `two_phase_aggregate`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from service.spec.options import AggPhase
from service.spec.reports import Alternative
from workers.engine.plan.distinct import distinct_sets, spark_expands
from workers.engine.plan.keys import columns_of
from workers.engine.plan.nodes import Aggregate, AggregateRole, Exchange, Node, Phases
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.stats.cardinality import KeyProfile, bytes_per_row, profile_of
from workers.engine.stats.cost import (
    Cost,
    hot_group,
    input_tasks,
    kept_by_local_phase,
    native_distinct,
    one_phase,
    two_phase,
)
from workers.engine.stats.partitioning import is_partitioned_by

MIN_ROWS = 500_000
"""Rows below which nothing is decided; Flink looks at so many before it gives a local phase up."""

ONE_PHASE = AggPhase.ONE_PHASE.value
TWO_PHASE = AggPhase.TWO_PHASE.value

MIN_SAMPLED_ROWS = 4_000
"""Rows of a larger table that a sample must have for a local phase to be given up by it."""


class TwoPhaseAggregate:
    """Decides whether rows are aggregated before the shuffle as well as after it, or only after it.

    >>> uid, amount = column("o.uid", BIGINT), column("o.amount", BIGINT)
    >>> orders = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"), (Field("o.amount", BIGINT), "amount")))
    >>> total = Call(AggregateFunction.SUM, (amount,), Field("total", BIGINT))
    >>> before = Aggregate(orders, (Named(uid, "uid"),), (total,))
    >>> print(text_of(before))
    Aggregate BY o.uid AS uid [SUM(o.amount) AS total]
      Scan orders AS o [o.uid, o.amount]
    >>> ctx = RuleContext(JobSettings(), Statistics({}, {}, slots=4))
    >>> print(text_of(TwoPhaseAggregate().rewrite(Match(before, ONE_PHASE, ""), ctx)))
    Aggregate ONE_PHASE BY o.uid AS uid [SUM(o.amount) AS total]
      Exchange BY o.uid
        Scan orders AS o [o.uid, o.amount]

    Spark's own plan has two phases: a local aggregate in every task, and one over its rows behind the shuffle. The
    local one pays where it leaves few rows; where nearly every row is a group of its own it is work for nothing, and
    the rows go as they are. `stats/cost.py` has the formulas; without a hot group the turning point is a local phase
    that keeps half of its rows.

    Fires when:
        - `agg_phase` is ONE_PHASE or TWO_PHASE and nothing below stands against it, or
        - it is AUTO, at least 500,000 rows come in, one phase costs less than two, and no group is hot, all by a sample
          of thousands of rows from all over the table.

    Does not fire when:
        - the aggregate is what `split_distinct_aggregate` made: that rule reads `agg_phase` itself;
        - there are no group keys: one row comes out, and only two phases use more than one task;
        - the rows are partitioned by group keys already: Spark aggregates them once, where they are;
        - several sets of values are told apart by DISTINCT, or one with a FILTER: Spark copies the rows for each and
          shuffles the copies;
        - it is AUTO and there are no statistics for the group keys, or few rows, or two phases cost less;
        - it is AUTO and a group key is a FLOAT or DOUBLE: Spark groups by 0.0 for -0.0 and one NaN for all, which is
          not what an exchange by the key itself parts the rows by, and keeps both of its aggregates behind one.

    Why the result is the same:
        an exchange by exactly the group keys moves rows and changes none; all rows of a group are on one task,
        where Spark aggregates them at once: NULLs hash alike, and so do -0.0 and 0.0, and all NaNs.

    Settings read:
        agg_phase, skew.factor, skew.threshold
    """

    name = "two_phase_aggregate"

    def match(self, node: Node, ctx: RuleContext) -> Match[Aggregate] | Skip | None:
        """As the class says; None for anything but a whole aggregate, undecided, or the last part of a split one."""
        if not isinstance(node, Aggregate) or node.role is AggregateRole.PARTIAL:
            return None
        if node.role is AggregateRole.FINAL:
            return Skip("split_distinct_aggregate made this aggregate, and settled its phases itself, by agg_phase.")
        if node.phases is not Phases.UNDECIDED:
            return None
        forced = ctx.settings.agg_phase
        obstacle = _obstacle(node, ctx)
        if obstacle is not None:
            return Skip(obstacle)
        weighed = _weigh(node, ctx)
        if forced is not AggPhase.AUTO:
            alternatives = () if isinstance(weighed, Skip) else weighed.alternatives(forced.value)
            return Match(node, forced.value, f"agg_phase is {forced.value}.", alternatives)
        return weighed if isinstance(weighed, Skip) else _decide_by_cost(node, weighed, ctx)

    def rewrite(self, match: Match[Aggregate], _ctx: RuleContext, /) -> Node:
        """The aggregate with its phases decided, over an exchange by its keys where it has one."""
        node = match.node
        if match.choice == TWO_PHASE:
            return replace(node, phases=Phases.TWO_PHASE)
        exchange = Exchange(node.input, tuple(key.expression for key in node.keys))
        return replace(node, input=exchange, phases=Phases.ONE_PHASE)


@dataclass(frozen=True)
class _Weighed:
    """Both ways with their costs. `kept` is the share of its rows that the local phase passes on."""

    groups: KeyProfile
    one: Cost
    two: Cost
    kept: float

    def alternatives(self, chosen: str) -> tuple[Alternative, ...]:
        return (self.one.alternative(ONE_PHASE, chosen), self.two.alternative(TWO_PHASE, chosen))


def _obstacle(node: Aggregate, ctx: RuleContext) -> str | None:
    """Why there is nothing to decide."""
    if not node.keys:
        return "There are no group keys: one row comes out, and both phases are needed to use more than one task."
    if spark_expands(node):
        if ctx.settings.agg_phase is AggPhase.TWO_PHASE:
            return None
        return "Spark copies the rows for several distinct arguments, or one with a FILTER: one phase cannot be had."
    if is_partitioned_by(node.input, (key.expression for key in node.keys), ctx.statistics):
        return "The join below leaves the rows partitioned by group keys: Spark already runs it in one phase."
    return None


def _weigh(node: Aggregate, ctx: RuleContext) -> _Weighed | Skip:
    statistics, sets = ctx.statistics, distinct_sets(node)
    keys = tuple(key.expression for key in node.keys)
    groups = _profile(node, columns_of(keys), ctx)
    if groups is None:
        return Skip("There are no statistics for the group keys: Spark's two phases stay.")
    tasks = input_tasks(node.input, statistics)
    if not sets:
        one, two = one_phase(groups, statistics.slots), two_phase(groups, statistics.slots, tasks)
        return _Weighed(groups, one, two, kept_by_local_phase(groups, tasks))
    pairs = _profile(node, columns_of((*keys, *sets[0])), ctx)
    if spark_expands(node) or pairs is None:
        return Skip("There are no statistics for the distinct values in a group: Spark's own plan stays.")
    one, two = one_phase(groups, statistics.slots, pairs), native_distinct(groups, pairs, statistics.slots, tasks)
    return _Weighed(groups, one, two, kept_by_local_phase(pairs, tasks))


def _decide_by_cost(node: Aggregate, weighed: _Weighed, ctx: RuleContext) -> Match[Aggregate] | Skip:
    rows = round(weighed.groups.rows)
    if rows < MIN_ROWS:
        return Skip(f"{rows:,} rows are too few to decide anything on (below {MIN_ROWS:,}): Spark's two phases stay.")
    share = f"{weighed.kept:.0%}" if weighed.kept >= 0.01 else "less than 1%"
    kept = f"A local phase keeps {share} of its rows"
    hot = hot_group(weighed.groups, ctx.settings.skew, ctx.statistics.slots, bytes_per_row(node.input, ctx.statistics))
    if hot is not None:
        reason = f"{kept}, but group {hot.value} {hot.told} of all rows: one phase would put them on one task."
        return Skip(reason, weighed.alternatives(TWO_PHASE))
    if weighed.one.slowest >= weighed.two.slowest:
        return Skip(f"{kept}: Spark's two phases stay.", weighed.alternatives(TWO_PHASE))
    doubt = _doubt(node, ctx)
    if doubt is not None:
        return Skip(f"{kept}, but {doubt}: Spark's two phases stay.", weighed.alternatives(TWO_PHASE))
    return Match(node, ONE_PHASE, f"{kept}: not worth its work.", weighed.alternatives(ONE_PHASE))


def _doubt(node: Aggregate, ctx: RuleContext) -> str | None:
    """Why the local phase is not given up although it seems to be worth nothing."""
    keys = tuple(key.expression for key in node.keys)
    for key in keys:
        if key.type is not None and key.type.is_fractional:
            return f"Spark would keep both phases behind an exchange by {key}, which is a {key.type}"
    for columns in filter(None, (columns_of((*keys, *values)) for values in ((), *distinct_sets(node)))):
        sketch = ctx.statistics.keys.get(columns)
        if sketch is None:
            continue
        if not sketch.representative:
            return (
                f"the files are sorted by {', '.join(columns)}, and the sample has only the heads of their row groups"
            )
        rows = ctx.statistics.tables[sketch.alias].rows
        if sketch.sampled_rows < min(rows, MIN_SAMPLED_ROWS):
            return f"only {sketch.sampled_rows:,} of {rows:,} rows are known"
    return None


def _profile(node: Aggregate, columns: tuple[str, ...] | None, ctx: RuleContext) -> KeyProfile | None:
    return profile_of(node.input, columns, ctx.statistics) if columns else None
