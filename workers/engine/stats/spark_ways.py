"""What the rules' choices cost in comparison with Spark's own plan, by the estimates that they were made by."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from service.spec.reports import Alternative, ChoiceOutcome, RuleTrace
from service.spec.savings import EstimatedSaving
from service.spec.strategies import JoinShip
from workers.engine.plan.nodes import Join, Node
from workers.engine.stats.actuals import choice_of
from workers.engine.stats.join_cost import Way
from workers.engine.stats.partitioning import broadcast_side
from workers.engine.stats.spots import numbered
from workers.engine.stats.statistics import Statistics

SPARKS_OWN = {
    "two_phase_aggregate": "TWO_PHASE",
    "split_distinct_aggregate": "NATIVE",
    "bitmap_distinct": "NATIVE",
    "distinct_branches": "NATIVE",
    "eager_aggregation": "NATIVE",
    "skewed_join": "NONE",
}
"""By rule, what it calls what Spark does without it. That of a join strategy depends on the sizes of the sides."""

_JOIN_STRATEGY = "join_strategy"
_SENT = {JoinShip.BROADCAST_LEFT: Way.BROADCAST_LEFT, JoinShip.BROADCAST_RIGHT: Way.BROADCAST_RIGHT}


def estimated_savings(
    rules: Sequence[RuleTrace], before: Node, statistics: Statistics, choices: Sequence[ChoiceOutcome] = ()
) -> tuple[EstimatedSaving, ...]:
    """A saving for each trace that chose one way, where Spark's own is among the alternatives; `before` is the plan
    without the rules, and `choices` are the outcomes of the same traces where they are known.
    """
    wrong = {(choice.rule, choice.node_id) for choice in choices if choice.is_wrong}
    return tuple(_savings(rules, before, statistics, wrong))


def _savings(
    rules: Sequence[RuleTrace], before: Node, statistics: Statistics, wrong: Collection[tuple[str, int | None]]
) -> Iterator[EstimatedSaving]:
    for trace in rules:
        chosen = choice_of(trace)
        own = _own(trace, before, statistics)
        if chosen is None or own is None:
            continue
        yield EstimatedSaving(
            rule=trace.rule,
            node=trace.node,
            node_id=trace.node_id,
            alternative=chosen.name,
            cost=chosen.cost,
            spark_alternative=own.name,
            spark_cost=own.cost,
            ratio=round(chosen.cost / own.cost, 4) if own.cost else None,
            is_wrong=(trace.rule, trace.node_id) in wrong,
        )


def _own(trace: RuleTrace, before: Node, statistics: Statistics) -> Alternative | None:
    name = SPARKS_OWN.get(trace.rule)
    if trace.rule == _JOIN_STRATEGY:
        name = _of_join(trace.node_id, before, statistics)
    return next((way for way in trace.alternatives if way.name == name), None)


def _of_join(node_id: int | None, before: Node, statistics: Statistics) -> str | None:
    """Spark broadcasts a side whose files are small, and else sorts and merges; None for a join that an earlier rule
    made, of which Spark without the rules knows nothing.
    """
    for each in numbered(before).walk():
        if each.id == node_id and isinstance(each.node, Join):
            ship = broadcast_side(each.node, statistics)
            return Way.SORT_MERGE.value if ship is None else _SENT[ship].value
    return None
