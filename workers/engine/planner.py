"""From a query to the plan that runs: build it, let every rule of the rulebook look at it, write down what they did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from service.spec.bound import BoundQuery
from service.spec.options import AggPhase, DistinctSplitSettings, JobSettings, JoinSkewStrategy, MiniBatchSettings
from service.spec.reports import KeyStatistics, PlanReport, RuleOutcome, RuleTrace, TableStatistics
from workers.engine.plan.builder import build
from workers.engine.plan.explain import explain, line_of
from workers.engine.plan.invariants import check
from workers.engine.plan.nodes import Aggregate, Node, inputs_of
from workers.engine.plan.schema import output_of
from workers.engine.plan.transform import walk_up, with_inputs
from workers.engine.rules.rule import N, Rule, RuleContext, Skip
from workers.engine.rules.rulebook import RULES
from workers.engine.rules.split_distinct_aggregate import SplitDistinctAggregate
from workers.engine.rules.two_phase_aggregate import TwoPhaseAggregate
from workers.engine.stats.cardinality import estimate_rows
from workers.engine.stats.statistics import KeySketch, Statistics, TableSize


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
    trace = (*rewriting.trace, *_settings_without_effect(before, ctx.settings))
    return Plan(before, after, trace, MappingProxyType(changed_by))


def plan_report(plan: Plan, statistics: Statistics, physical_plan: str | None) -> PlanReport:
    """What is told of a plan; `physical_plan` is Spark's own text of it, where Spark has been asked."""

    def rows_of(node: Node) -> int | None:
        return estimate_rows(node, statistics)

    return PlanReport(
        before=explain(plan.before, {}, rows_of),
        after=explain(plan.after, plan.changed_by, rows_of),
        rules=plan.trace,
        tables=tuple(_table_report(size) for size in statistics.tables.values()),
        keys=tuple(_key_report(sketch, statistics) for _, sketch in sorted(statistics.keys.items())),
        statistics_ms=statistics.elapsed_ms,
        physical_plan=physical_plan,
    )


def _settings_without_effect(plan: Node, settings: JobSettings) -> tuple[RuleTrace, ...]:
    """A trace for every setting that was given and that no rule can have looked at."""
    aggregates = [node for node in walk_up(plan) if isinstance(node, Aggregate)]
    has_distinct = any(call.distinct for node in aggregates for call in node.calls)
    idle = []
    if settings.mini_batch != MiniBatchSettings():
        idle.append(("mini_batch", "mini_batch.* concerns the streaming modes: a batch job gathers no mini-batches."))
    if not settings.incremental_agg:
        idle.append(
            ("incremental_agg", "incremental_agg concerns the streaming modes: a batch job keeps no state to merge.")
        )
    if settings.skew.join_strategy is not JoinSkewStrategy.AUTO:
        idle.append(
            ("skewed_join", "skew.join_strategy has no effect in this version: skewed joins are left to Spark.")
        )
    if settings.agg_phase is not AggPhase.AUTO and not aggregates:
        idle.append((TwoPhaseAggregate.name, "agg_phase is given, but the query has no aggregate."))
    if settings.distinct_split != DistinctSplitSettings() and not has_distinct:
        idle.append((SplitDistinctAggregate.name, "distinct_split.* is given, but the query has no DISTINCT call."))
    root = line_of(plan)
    return tuple(RuleTrace(rule=rule, outcome=RuleOutcome.SKIPPED, node=root, reason=reason) for rule, reason in idle)


def _table_report(size: TableSize) -> TableStatistics:
    return TableStatistics(
        table=size.alias, files=size.files, bytes=size.bytes, rows=size.rows, rows_are_exact=size.rows_are_exact
    )


def _key_report(sketch: KeySketch, statistics: Statistics) -> KeyStatistics:
    size = statistics.tables[sketch.alias]
    return KeyStatistics(
        table=sketch.alias,
        columns=sketch.columns,
        rows=size.rows,
        rows_are_exact=size.rows_are_exact,
        sampled_rows=sketch.sampled_rows,
        distinct_keys=sketch.distinct_keys,
        null_share=sketch.null_share,
        hot_keys=sketch.hot_keys,
    )


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
