"""The rule `two_phase_aggregate`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from service.contract.options import AggPhase
from service.contract.reports import Alternative
from workers.engine.plan.aggregates import GROUPING_SETS, distinct_sets, refusal_of, spark_expands
from workers.engine.plan.nodes import Aggregate, AggregateRole, Exchange, Node, Phases, columns_of
from workers.engine.rules.distinct.aggregate_cost import (
    MIN_ROWS,
    Cost,
    doubt_of,
    hot_group,
    input_tasks,
    kept_by_local_phase,
    native_distinct,
    one_phase,
    two_phase,
)
from workers.engine.rules.distinct.branch_plans import keyed_branches, sent_by_value
from workers.engine.rules.distinct.methods import BY_VALUE, GROUPS_PER_SLOT, MARGIN, table_partitions, weigh
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.cardinality import KeyProfile, bytes_per_row, profile_of
from workers.engine.statistics.partitioning import is_partitioned_by

ONE_PHASE = AggPhase.ONE_PHASE.value
TWO_PHASE = AggPhase.TWO_PHASE.value


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
    the rows go as they are. `distinct/aggregate_cost.py` has the formulas; without a hot group the turning point is a
    local phase that keeps a fifth of its rows where its hash tables are large, and most of them where they are small.

    Where distinct values are told apart in one phase, the plan says so in two aggregates, by group and value and then
    by group: for a DISTINCT call Spark would run four behind the exchange, a local and a global one for each. Where the
    groups are few, or one is hot, the rows are sent by group and value (`ONE_PHASE_BY_VALUE`), and the values that are
    left are counted by group in two phases: it spares the local phase of the many pairs, which Spark runs.

    Fires when:
        - `agg_phase` is ONE_PHASE or TWO_PHASE and nothing below stands against it, or
        - it is AUTO, at least 500,000 rows come in, one phase costs less than two, and no group is hot, all by a sample
          of thousands of rows from all over the table; or
        - it is AUTO, and distinct values of one set are told apart clearly cheaper by (group, value) in one phase, of
          which no pair is hot.

    Does not fire when:
        - the aggregate is what an earlier rule made, which settled its phases itself;
        - there are grouping sets;
        - there are no group keys: one row comes out, and only two phases use more than one task (values of one set may
          still be told apart in one phase first);
        - the rows are partitioned by group keys already: Spark aggregates them once, where they are;
        - several sets of values are told apart by DISTINCT, or one with a FILTER: Spark copies the rows for each and
          shuffles the copies;
        - it is AUTO and there are no statistics for the group keys, or few rows, or two phases cost less;
        - it is AUTO and a group key is a FLOAT or DOUBLE: Spark groups by 0.0 for -0.0 and one NaN for all, which is
          not what an exchange by the key itself parts the rows by, and keeps both of its aggregates behind one.

    Why the result is the same:
        an exchange by exactly the group keys moves rows and changes none; all rows of a group are on one task,
        where Spark aggregates them at once, and where a row is left for each distinct value of a group, to be counted
        there: NULLs hash alike, and so do -0.0 and 0.0, and all NaNs.

    Settings read:
        agg_phase, skew.factor, skew.threshold
    """

    name = "two_phase_aggregate"

    def match(self, node: Node, ctx: RuleContext) -> Match[Aggregate] | Skip | None:
        """As the class says; None for anything but a whole aggregate, undecided, or the last part of a split one."""
        if not isinstance(node, Aggregate) or node.role is AggregateRole.PARTIAL:
            return None
        if node.role is AggregateRole.FINAL:
            return Skip("An earlier rule made this aggregate, and settled its phases itself.")
        if node.phases is not Phases.UNDECIDED:
            return None
        forced = ctx.settings.agg_phase
        obstacle = _obstacle(node, ctx)
        if obstacle is not None:
            return _of_all_rows(node, ctx) or Skip(obstacle)
        weighed = _weigh(node, ctx)
        if forced is not AggPhase.AUTO:
            alternatives = () if isinstance(weighed, Skip) else weighed.alternatives(forced.value)
            return Match(node, forced.value, f"agg_phase is {forced.value}.", alternatives)
        return weighed if isinstance(weighed, Skip) else _decide_by_cost(node, weighed, ctx)

    def rewrite(self, match: Match[Aggregate], ctx: RuleContext, /) -> Node:
        """The aggregate with its phases decided, over an exchange by its keys where it has one; one with a set of
        distinct values as an aggregate that tells them apart, and one above it.
        """
        node = match.node
        if match.choice == TWO_PHASE:
            return replace(node, phases=Phases.TWO_PHASE)
        partitions = table_partitions(node, ctx.statistics)
        if match.choice == BY_VALUE:
            return sent_by_value(node, partitions)
        if distinct_sets(node) and all(refusal_of(call) is None for call in node.calls):
            return keyed_branches(node, partitions)
        exchange = Exchange(node.input, tuple(key.expression for key in node.keys), partitions)
        return replace(node, input=exchange, phases=Phases.ONE_PHASE)


@dataclass(frozen=True)
class _Weighed:
    """All ways with their costs. `kept` is the share of its rows that the local phase passes on."""

    groups: KeyProfile
    one: Cost
    two: Cost
    kept: float
    by_value: Cost | None = None

    def alternatives(self, chosen: str) -> tuple[Alternative, ...]:
        ways = {ONE_PHASE: self.one, TWO_PHASE: self.two, BY_VALUE: self.by_value}
        return tuple(way.alternative(name, chosen) for name, way in ways.items() if way is not None)


def _obstacle(node: Aggregate, ctx: RuleContext) -> str | None:
    """Why there is nothing to decide."""
    if node.grouping_sets:
        return GROUPING_SETS
    if not node.keys:
        return "There are no group keys: one row comes out, and both phases are needed to use more than one task."
    if spark_expands(node):
        if ctx.settings.agg_phase is AggPhase.TWO_PHASE:
            return None
        return "Spark copies the rows for several distinct arguments, or one with a FILTER: one phase cannot be had."
    if is_partitioned_by(node.input, (key.expression for key in node.keys), ctx.statistics):
        return "What is below leaves the rows partitioned by group keys: Spark already runs it in one phase."
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
    by_value = weigh(node, ctx.settings, statistics).costs.get(BY_VALUE)
    return _Weighed(groups, one, two, kept_by_local_phase(pairs, tasks), by_value)


def _decide_by_cost(node: Aggregate, weighed: _Weighed, ctx: RuleContext) -> Match[Aggregate] | Skip:
    rows = round(weighed.groups.rows)
    if rows < MIN_ROWS:
        return Skip(f"{rows:,} rows are too few to decide anything on (below {MIN_ROWS:,}): Spark's two phases stay.")
    share = f"{weighed.kept:.0%}" if weighed.kept >= 0.01 else "less than 1%"
    kept = f"A local phase keeps {share} of its rows"
    hot = hot_group(weighed.groups, ctx.settings.skew, ctx.statistics.slots, bytes_per_row(node.input, ctx.statistics))
    by_value, rivals = weighed.by_value, [weighed.two.slowest]
    if hot is None and weighed.groups.distinct >= GROUPS_PER_SLOT * ctx.statistics.slots:
        rivals.append(weighed.one.slowest)
    if by_value is not None and by_value.slowest * MARGIN <= min(rivals):
        reason = f"{kept}: rows sent by group and value at once cost clearly less."
        return Match(node, BY_VALUE, reason, weighed.alternatives(BY_VALUE))
    if hot is not None:
        reason = f"{kept}, but group {hot.value} {hot.told} of all rows: one phase would put them on one task."
        return Skip(reason, weighed.alternatives(TWO_PHASE))
    if weighed.one.slowest >= weighed.two.slowest:
        return Skip(f"{kept}: Spark's two phases stay.", weighed.alternatives(TWO_PHASE))
    doubt = doubt_of(node, ctx.statistics)
    if doubt is not None:
        return Skip(f"{kept}, but {doubt}: Spark's two phases stay.", weighed.alternatives(TWO_PHASE))
    return Match(node, ONE_PHASE, f"{kept}: not worth its work.", weighed.alternatives(ONE_PHASE))


def _of_all_rows(node: Aggregate, ctx: RuleContext) -> Match[Aggregate] | None:
    """Without group keys nothing can be sent by group, but values can be told apart behind an exchange by them."""
    if node.keys or node.grouping_sets or len(distinct_sets(node)) != 1:
        return None
    methods = weigh(node, ctx.settings, ctx.statistics)
    if methods.best != BY_VALUE:
        return None
    reason = "There are no group keys: rows sent by value at once cost clearly less than a local phase of values."
    return Match(node, BY_VALUE, reason, methods.alternatives(BY_VALUE))


def _profile(node: Aggregate, columns: tuple[str, ...] | None, ctx: RuleContext) -> KeyProfile | None:
    return profile_of(node.input, columns, ctx.statistics) if columns else None
