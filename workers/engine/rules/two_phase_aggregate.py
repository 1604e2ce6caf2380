"""The rule `two_phase_aggregate`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from service.contract.options import AggPhase
from workers.engine.plan.aggregates import GROUPING_SETS, distinct_sets, refusal_of, spark_expands
from workers.engine.plan.nodes import Aggregate, AggregateRole, Exchange, Node, Phases
from workers.engine.rules.cost import (
    MIN_ROWS,
    Choice,
    hot_group,
    input_tasks,
    kept_by_local_phase,
    key_profile,
    one_phase,
    one_phase_obstacle,
    too_few_rows,
    two_phase,
)
from workers.engine.rules.distinct.branch_plans import keyed_branches, sent_by_value
from workers.engine.rules.distinct.cost import native_distinct
from workers.engine.rules.distinct.methods import BY_VALUE, GROUPS_PER_SLOT, MARGIN, method_costs, table_partitions
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.cardinality import KeyProfile, bytes_per_row
from workers.engine.statistics.partitioning import is_partitioned_by

ONE_PHASE = AggPhase.ONE_PHASE.value
TWO_PHASE = AggPhase.TWO_PHASE.value

_FORCED = {
    AggPhase.ONE_PHASE: "agg_phase is ONE_PHASE: the rows are shuffled before they are aggregated.",
    AggPhase.TWO_PHASE: "agg_phase is TWO_PHASE: the rows are aggregated before the shuffle and after it.",
}
"""The reasons when a setting decides."""


class TwoPhaseAggregate:
    """Decides whether rows are aggregated before and after the shuffle, or only after it.

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

    Spark's own plan has two phases: a local aggregate in every task, and a global one after the shuffle. The local
    phase pays off if it emits few rows. If nearly every row is its own group, it only costs time, and the rows should
    be shuffled without it. `rules/cost.py` has the formulas; without a hot group, one phase is cheaper if
    the local phase keeps more than a fifth of its rows with large hash tables, or most of them with small ones.

    If distinct values are deduplicated in one phase, the plan has two aggregates, by group and value and then by group:
    for a DISTINCT call Spark would run four after the exchange, a local and a global one for each. If there are few
    groups, or one is hot, the rows are shuffled by group and value (`ONE_PHASE_BY_VALUE`), and the remaining values are
    counted by group in two phases: this avoids the local phase for the many pairs in Spark's plan.

    Fires when:
        - `agg_phase` is ONE_PHASE or TWO_PHASE and none of the conditions below prevents it; or
        - it is AUTO, the input has at least 500,000 rows, one phase costs less than two, and no group is hot, by a
          sample of thousands of rows from all parts of the table; or
        - it is AUTO, no (group, value) is hot, and deduplicating one set of distinct values by (group, value) in one
          phase is clearly cheaper.

    Does not fire when:
        - an earlier rule created the aggregate and set its phases;
        - there are grouping sets;
        - there are no group keys: the result is one row, and only two phases use more than one task (values of one set
          may still be deduplicated in one phase first);
        - the rows are already partitioned by group keys: Spark aggregates them once, without a shuffle;
        - there are several sets of DISTINCT values, or one with a FILTER: Spark copies the rows for each and shuffles
          the copies;
        - it is AUTO and there are no statistics for the group keys, or few rows, or two phases cost less;
        - it is AUTO and a group key is a FLOAT or DOUBLE: Spark groups by a normalized key (0.0 for -0.0, one NaN for
          all), but the exchange is by the original key, so Spark runs both of its aggregates after the exchange.

    Why the result is the same:
        an exchange by exactly the group keys moves rows and does not change them. All rows of a group are in one task,
        where Spark aggregates them in one step, or where one row is left for each distinct value of the group and
        counted: all NULLs have equal hashes, as have -0.0 and 0.0, and all NaNs.

    Settings read:
        agg_phase, skew.factor, skew.threshold
    """

    name = "two_phase_aggregate"

    def match(self, node: Node, ctx: RuleContext) -> Match[Aggregate] | Skip | None:
        """Returns None for all nodes but final aggregates, and whole ones whose phases are not decided."""
        if not isinstance(node, Aggregate) or node.role is AggregateRole.PARTIAL:
            return None
        if node.role is AggregateRole.FINAL:
            return Skip("An earlier rule created this aggregate and set its phases.")
        if node.phases is not Phases.UNDECIDED:
            return None
        forced = ctx.settings.agg_phase
        obstacle = _obstacle(node, ctx)
        if obstacle is not None:
            return _match_without_keys(node, ctx) or Skip(obstacle)
        costs = _phase_costs(node, ctx)
        if forced is not AggPhase.AUTO:
            choice = Choice({}, TWO_PHASE) if isinstance(costs, Skip) else costs.choice
            return choice.match(node, forced.value, _FORCED[forced])
        return costs if isinstance(costs, Skip) else _choose_phases_by_cost(node, costs, ctx)

    def rewrite(self, match: Match[Aggregate], ctx: RuleContext, /) -> Node:
        """Returns the aggregate with its phases set, for one phase over an exchange by its keys. A set of distinct
        values gets an aggregate that deduplicates them, below the final one.
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
class _PhaseCosts:
    """The costs of one phase, of two phases, and of a shuffle by (group, value) if it is possible. `groups` is the
    distribution of the rows over the groups, `kept` the share of its rows that the local phase emits.
    """

    groups: KeyProfile
    kept: float
    choice: Choice


def _obstacle(node: Aggregate, ctx: RuleContext) -> str | None:
    """Returns the reason why the phases cannot be chosen; None if they can."""
    if node.grouping_sets:
        return GROUPING_SETS
    if not node.keys:
        return "There are no group keys: the result is one row, and only two phases use more than one task."
    if spark_expands(node):
        if ctx.settings.agg_phase is AggPhase.TWO_PHASE:
            return None
        return "Spark copies the rows for several distinct arguments, or one with a FILTER: one phase is not possible."
    if is_partitioned_by(node.input, (key.expression for key in node.keys), ctx.statistics):
        return "The input is already partitioned by group keys: Spark runs the aggregate in one phase."
    return None


def _phase_costs(node: Aggregate, ctx: RuleContext) -> _PhaseCosts | Skip:
    statistics, sets = ctx.statistics, distinct_sets(node)
    keys = tuple(key.expression for key in node.keys)
    groups = key_profile(node.input, keys, statistics)
    if groups is None:
        return Skip("There are no statistics for the group keys: Spark's two phases are kept.")
    slots, tasks = statistics.slots, input_tasks(node.input, statistics)
    if not sets:
        costs = {ONE_PHASE: one_phase(groups, slots), TWO_PHASE: two_phase(groups, slots, tasks)}
        return _PhaseCosts(groups, kept_by_local_phase(groups, tasks), Choice(costs, TWO_PHASE))
    pairs = key_profile(node.input, (*keys, *sets[0]), statistics)
    if spark_expands(node) or pairs is None:
        return Skip("There are no statistics for the distinct values in a group: Spark's own plan is kept.")
    costs = {
        ONE_PHASE: one_phase(groups, slots, pairs),
        TWO_PHASE: native_distinct(groups, pairs, slots, tasks),
    }
    by_value = method_costs(node, ctx.settings, statistics).costs.get(BY_VALUE)
    if by_value is not None:
        costs[BY_VALUE] = by_value
    return _PhaseCosts(groups, kept_by_local_phase(pairs, tasks), Choice(costs, TWO_PHASE))


def _choose_phases_by_cost(node: Aggregate, found: _PhaseCosts, ctx: RuleContext) -> Match[Aggregate] | Skip:
    too_few = too_few_rows(found.groups.rows, MIN_ROWS, ": Spark's two phases are kept")
    if too_few is not None:
        return Skip(too_few)
    choice, costs = found.choice, found.choice.costs
    share = f"{found.kept:.0%}" if found.kept >= 0.01 else "less than 1%"
    kept = f"The local phase keeps {share} of its rows"
    hot = hot_group(found.groups, ctx.settings.skew, ctx.statistics.slots, bytes_per_row(node.input, ctx.statistics))
    rivals = [TWO_PHASE]
    if hot is None and found.groups.distinct >= GROUPS_PER_SLOT * ctx.statistics.slots:
        rivals.append(ONE_PHASE)
    if BY_VALUE in costs and all(choice.is_clearly_cheaper(BY_VALUE, rival, MARGIN) for rival in rivals):
        reason = f"{kept}: shuffling the rows by group and value without it costs clearly less."
        return choice.match(node, BY_VALUE, reason)
    if hot is not None:
        return choice.skip(
            f"{kept}, but group {hot.value} {hot.share_text} of all rows: one phase would put them on one task."
        )
    if costs[ONE_PHASE].slowest >= costs[TWO_PHASE].slowest:
        return choice.skip(f"{kept}: Spark's two phases are kept.")
    obstacle = one_phase_obstacle(node, ctx.statistics)
    if obstacle is not None:
        return choice.skip(f"{kept}, but {obstacle}: Spark's two phases are kept.")
    return choice.match(node, ONE_PHASE, f"{kept}: it costs more than it saves.")


def _match_without_keys(node: Aggregate, ctx: RuleContext) -> Match[Aggregate] | None:
    """Returns a match for an aggregate without group keys if shuffling its rows by value is the cheapest method."""
    if node.keys or node.grouping_sets or len(distinct_sets(node)) != 1:
        return None
    methods = method_costs(node, ctx.settings, ctx.statistics)
    if methods.best != BY_VALUE:
        return None
    reason = (
        "There are no group keys: shuffling the rows by value costs clearly less than a local phase for the values."
    )
    return methods.match(node, BY_VALUE, reason)
