"""From a query to the plan that runs: build it, let every rule of the rulebook look at it, write down what they did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from service.spec.bound import BoundQuery
from service.spec.options import JobSettings
from service.spec.reports import RuleOutcome, RuleTrace
from workers.engine.plan.builder import build
from workers.engine.plan.explain import line_of
from workers.engine.plan.invariants import check
from workers.engine.plan.nodes import Node, inputs_of
from workers.engine.plan.schema import output_of
from workers.engine.plan.transform import walk_up, with_inputs
from workers.engine.rules.rule import N, Rule, RuleContext, Skip
from workers.engine.rules.rulebook import RULES
from workers.engine.stats.statistics import Statistics


@dataclass(frozen=True)
class Plan:
    """A query before and after the rules. `changed_by` names the rule that made a node of `after`."""

    before: Node
    after: Node
    trace: tuple[RuleTrace, ...]
    changed_by: Mapping[Node, str]


def plan_query(query: BoundQuery, statistics: Statistics, settings: JobSettings) -> Plan:
    """The plan of `query`, with every rule of the rulebook applied bottom-up, in order.

    Raises `InvalidPlanError` when the builder or a rule breaks an invariant.
    """
    before = build(query)
    check(before, "the builder")
    return apply_rules(before, RuleContext(settings, statistics))


def apply_rules(before: Node, ctx: RuleContext) -> Plan:
    """The rulebook applied to a plan that is already built. Raises as `plan_query` does."""
    after, rewriting = before, _Rewriting(ctx)
    for rule in RULES:
        after = rewriting.apply(rule, after)
        check(after, rule.name, output_of(before))
    alive = frozenset(walk_up(after))
    changed_by = {node: rule_name for node, rule_name in rewriting.changed_by.items() if node in alive}
    return Plan(before, after, tuple(rewriting.trace), MappingProxyType(changed_by))


@dataclass
class _Rewriting:
    """One run over the rulebook: collects the trace and who made which node."""

    ctx: RuleContext
    trace: list[RuleTrace] = field(default_factory=list)
    changed_by: dict[Node, str] = field(default_factory=dict)

    def apply(self, rule: Rule[N], node: Node) -> Node:
        """`rule` at every node of the tree, inputs first."""
        moved = with_inputs(node, tuple(self.apply(rule, child) for child in inputs_of(node)))
        if moved is not node and node in self.changed_by:
            self.changed_by[moved] = self.changed_by[node]
        match = rule.match(moved, self.ctx)
        if match is None:
            return moved
        outcome = RuleOutcome.SKIPPED if isinstance(match, Skip) else RuleOutcome.FIRED
        self.trace.append(
            RuleTrace(
                rule=rule.name,
                outcome=outcome,
                node=line_of(moved),
                reason=match.reason,
                alternatives=match.alternatives,
            )
        )
        return moved if isinstance(match, Skip) else self._rewritten(rule.name, moved, rule.rewrite(match, self.ctx))

    def _rewritten(self, rule_name: str, before: Node, after: Node) -> Node:
        known = frozenset(walk_up(before))
        self.changed_by.update({node: rule_name for node in walk_up(after) if node not in known})
        return after
