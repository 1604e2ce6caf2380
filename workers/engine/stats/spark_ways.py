"""What the rules' choices cost beside Spark's own plan, by the estimates that they were made by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from service.spec.reports import Alternative, RuleTrace
from service.spec.savings import EstimatedSaving
from service.spec.strategies import JoinShip
from workers.engine.plan.explain import line_of
from workers.engine.plan.nodes import Join, Node
from workers.engine.plan.transform import walk_up
from workers.engine.stats.join_cost import Way
from workers.engine.stats.partitioning import broadcast_side
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


def estimated_savings(rules: Sequence[RuleTrace], before: Node, statistics: Statistics) -> tuple[EstimatedSaving, ...]:
    """A saving for each trace that chose one way, where Spark's own is told among the alternatives; `before` is the
    plan without the rules.
    """
    return tuple(_savings(rules, before, statistics))


def _savings(rules: Sequence[RuleTrace], before: Node, statistics: Statistics) -> Iterator[EstimatedSaving]:
    for trace in rules:
        chosen = next((way for way in trace.alternatives if way.chosen), None)
        own = _own(trace, before, statistics)
        if chosen is None or own is None:
            continue
        yield EstimatedSaving(
            rule=trace.rule,
            node=trace.node,
            alternative=chosen.name,
            cost=chosen.cost,
            spark_alternative=own.name,
            spark_cost=own.cost,
            ratio=round(chosen.cost / own.cost, 4) if own.cost else None,
        )


def _own(trace: RuleTrace, before: Node, statistics: Statistics) -> Alternative | None:
    name = SPARKS_OWN.get(trace.rule)
    if trace.rule == _JOIN_STRATEGY:
        name = _of_join(trace.node, before, statistics)
    return next((way for way in trace.alternatives if way.name == name), None)


def _of_join(line: str, before: Node, statistics: Statistics) -> str | None:
    """Spark broadcasts a side whose files are small, and else sorts and merges; None where that cannot be told: where
    an earlier rule has made the join, or several read alike of which Spark would not run all by the same way.
    """
    joins = [node for node in walk_up(before) if isinstance(node, Join) and line_of(node) == line]
    ships = {broadcast_side(node, statistics) for node in joins}
    if len(ships) != 1:
        return None
    ship = ships.pop()
    return Way.SORT_MERGE.value if ship is None else _SENT[ship].value
