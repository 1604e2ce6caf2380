"""Plans a query: builds the plan, applies every rule of the rulebook and records what each rule did.

`low_memory_plan` makes a plan that needs little memory: no side of a join is hashed or broadcast, and no bitmaps have
blocks. It is for a second run after the first one ran out of memory, and for an attempt after one that lost its worker
or its Spark driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from service.contract.options import (
    AggPhase,
    DistinctMethod,
    DistinctSplitSettings,
    JobSettings,
    JoinLocal,
    JoinShip,
    JoinSkew,
    MiniBatchSettings,
    StateSettings,
    Toggle,
)
from service.contract.query import AggregateFunction, JoinKind
from service.contract.reports import KeyStatistics, PlanReport, RuleOutcome, RuleTrace, TableStatistics
from service.sql.checks.settings import contradict
from service.sql.expressions.analysis import tree_of
from service.sql.expressions.nodes import Over
from service.sql.expressions.scalar import Scalar
from service.sql.resolve.bound import BoundQuery
from service.sql.types.aggregates import ORDER_DEPENDENT
from service.sql.types.data_types import BOOLEAN
from workers.engine.budget import PlanningBudget
from workers.engine.plan.aggregates import distinct_sets
from workers.engine.plan.builder import build
from workers.engine.plan.explain import explain, line_of
from workers.engine.plan.joined_aggregate import is_over_join
from workers.engine.plan.nodes import (
    Aggregate,
    Filter,
    Join,
    JoinStrategy,
    Node,
    Project,
    Scan,
    WindowFunctions,
    inputs_of,
    output_of,
)
from workers.engine.plan.traversal import NodeIds, id_of, walk_up, with_ids, with_inputs
from workers.engine.plan.validation import check
from workers.engine.rules.distinct.counted_percentiles import percentiles_of
from workers.engine.rules.distinct.split_distinct_aggregate import SplitDistinctAggregate
from workers.engine.rules.eager.eager_aggregation import EagerAggregation
from workers.engine.rules.joins.join_order import JoinOrder
from workers.engine.rules.joins.join_strategy import JoinStrategy as JoinStrategyRule
from workers.engine.rules.joins.skewed_join import SkewedJoin
from workers.engine.rules.rule import CascadingRule, Match, Rule, RuleContext, Skip
from workers.engine.rules.rulebook import RULES
from workers.engine.rules.shared_subqueries import SUBQUERIES, share_subqueries
from workers.engine.rules.two_phase_aggregate import TwoPhaseAggregate
from workers.engine.rules.windows.skewed_windows import SkewedWindows
from workers.engine.statistics.cardinality import estimate_rows
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

STATISTICS = "statistics"
"""The name in the trace for statistics that were not read before the run."""

COLUMNS = "columns"
"""The name in the trace for columns that got another name."""
ORDER = "order"
"""The name in the trace for aggregates whose result depends on an order that the query does not give."""

DISTINCT_METHOD = "distinct_method"
"""The name in the trace if the setting is set and no aggregate of the query has DISTINCT values."""

FALLBACK = "fallback"
"""The name in the trace that reports the low-memory plan and its reason."""

_ORDERED_OVER = frozenset({"first_value", "last_value", "LISTAGG", *ORDER_DEPENDENT})
"""Functions with OVER whose result depends on the order of rows."""

_COMPARES_ALL = frozenset({JoinKind.INNER, JoinKind.CROSS})
"""Kinds of joins without an equality that Spark can run without a broadcast, by comparing all pairs of partitions."""


@dataclass(frozen=True)
class Plan:
    """The plan of a query before and after the rules. `changed_by` has the rule that created or changed a node of
    `after`, by the node's id.
    """

    before: Node
    after: Node
    trace: tuple[RuleTrace, ...]
    changed_by: Mapping[int, str]


def plan_query(
    query: BoundQuery, statistics: Statistics, settings: JobSettings, budget: PlanningBudget | None = None
) -> Plan:
    """Returns the plan of `query`, with every rule of the rulebook applied bottom-up, in order.

    Raises `InvalidPlanError` if the plan of the builder or of a rule violates an invariant, and the errors of the check
    of `budget`. Without a budget, the pass has no time limit and cannot be cancelled.
    """
    built = with_ids(build(query))
    before, shared = share_subqueries(built, statistics)
    ids = NodeIds.after(built)
    before = ids.number(before, built)
    changed_by = dict.fromkeys(ids.new if shared else (), SUBQUERIES)
    context = RuleContext(settings, statistics, budget=budget or PlanningBudget())
    plan = apply_rules(before, context, changed_by)
    traces = (trace_of(SUBQUERIES, each.node, each.match) for each in shared)
    return replace(plan, before=built, trace=(*notes_on(query, built), *traces, *plan.trace))


def notes_on(query: BoundQuery, built: Node) -> tuple[RuleTrace, ...]:
    """Returns the traces of what the report says about the query; `built` is its plan before the rules."""
    return tuple(trace_of(COLUMNS, built, Skip(note)) for note in query.notes)


def apply_rules(before: Node, ctx: RuleContext, changed_by: Mapping[int, str] = MappingProxyType({})) -> Plan:
    """Applies the rulebook to a plan of the builder; `changed_by` as in `apply_some_rules`. Raises the errors of
    `plan_query`.
    """
    check(before, "the builder")
    plan = apply_some_rules(before, RULES, ctx, changed_by)
    unused = _settings_without_effect(plan.before, ctx.settings)
    return replace(plan, trace=(*plan.trace, *(trace_of(name, plan.before, Skip(reason)) for name, reason in unused)))


def apply_some_rules(
    before: Node, rules: Sequence[Rule[Any]], ctx: RuleContext, changed_by: Mapping[int, str] = MappingProxyType({})
) -> Plan:
    """Applies only `rules`, without traces for settings without effect. `changed_by` has the rules that created nodes
    of `before`; if it is given, the nodes must have ids.
    """
    ids = NodeIds.after(before)
    before = ids.number(before)
    after, rewriting = before, _Rewriting(ctx, ids, changed_by=dict(changed_by))
    checked = dict[int, Node]()
    for rule in rules:
        after = rewriting.apply(rule, after)
        check(after, rule.name, output_of(before), checked)
    alive = {node.id for node in walk_up(after)}
    changed_by = {number: rule_name for number, rule_name in rewriting.changed_by.items() if number in alive}
    trace = (*_warnings(before, ctx.statistics), *_notes(before), *rewriting.trace)
    return Plan(before, after, trace, MappingProxyType(changed_by))


@dataclass
class _Rewriting:
    """Applies rules to a plan, and collects the trace and the rule that created or changed each node."""

    ctx: RuleContext
    ids: NodeIds
    trace: list[RuleTrace] = field(default_factory=list)
    changed_by: dict[int, str] = field(default_factory=dict)
    is_incomplete: bool = False
    """Whether the last rule was not applied to all nodes because the time was over."""

    def apply(self, rule: Rule[Any], plan: Node) -> Node:
        """Applies `rule` to every node of `plan`, inputs first, until the time for rules is over."""
        self.is_incomplete = False
        applied = self._apply_to_tree(rule, plan, ())
        if self.is_incomplete:
            reason = (
                f"Not applied to the whole plan: the rewrites took longer than optimizer.timeout "
                f"({self.ctx.budget.seconds:g} s)."
            )
            self.trace.append(trace_of(rule.name, plan, Skip(reason)))
        return applied

    def _apply_to_tree(
        self, rule: Rule[Any], node: Node, above: tuple[Scalar, ...], conditions: tuple[Scalar, ...] = ()
    ) -> Node:
        """Applies `rule` to the tree of `node`; `above` and `conditions` as in `RuleContext`."""
        below = _above_inputs(node, above), _conditions_on_input(node, conditions)
        made = with_inputs(node, tuple(self._apply_to_tree(rule, child, *below) for child in inputs_of(node)))
        return self._apply_to_node(rule, made, above, conditions)

    def _apply_to_node(
        self, rule: Rule[Any], node: Node, above: tuple[Scalar, ...], conditions: tuple[Scalar, ...] = ()
    ) -> Node:
        """Applies `rule` to `node`, after it was applied to the node's inputs."""
        self.ctx.budget.check()
        if self.ctx.budget.is_spent():
            self.is_incomplete = True
            return node
        ctx = replace(self.ctx, above=above, conditions=conditions)
        match = rule.match(node, ctx)
        if match is None:
            return node
        self.trace.append(trace_of(rule.name, node, match))
        if isinstance(match, Skip):
            return node
        made = self._numbered(rule.name, node, rule.rewrite(match, ctx))
        if isinstance(rule, CascadingRule):
            rewritten = {id(part): self._apply_to_node(rule, part, ()) for part in rule.parts_of(match, made)}
            made = _with_parts(made, rewritten)
        return made

    def _numbered(self, rule_name: str, before: Node, after: Node) -> Node:
        """Returns `after` with ids, and records `rule_name` for its new nodes. If there are none, because the rule only
        removed nodes, `rule_name` is recorded for the top node.
        """
        numbered = self.ids.number(after, before)
        for copied, original in self.ids.copies.items():
            if original in self.changed_by:
                self.changed_by[copied] = self.changed_by[original]
        changed = self.ids.new if self.ids.new or numbered is before else {id_of(numbered)}
        self.changed_by.update(dict.fromkeys(changed, rule_name))
        return numbered


def _with_parts(node: Node, rewritten: Mapping[int, Node]) -> Node:
    """Returns `node` with nodes replaced by their identity (`id()`)."""
    if id(node) in rewritten:
        return rewritten[id(node)]
    return with_inputs(node, tuple(_with_parts(child, rewritten) for child in inputs_of(node)))


def _above_inputs(node: Node, above: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    if isinstance(node, Filter):
        return (*above, node.condition)
    return above if isinstance(node, Join) else ()


def _conditions_on_input(node: Node, conditions: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    """Returns the conditions above `node`, and its own, over the columns of its input."""
    if isinstance(node, Filter):
        return (*conditions, node.condition)
    if not isinstance(node, Project):
        return ()
    items = {item.name: item.expression.tree for item in node.items}
    trees = (tree_of(condition, items) for condition in conditions)
    return tuple(Scalar(tree, BOOLEAN) for tree in trees if tree is not None)


def plan_report(plan: Plan, statistics: Statistics, physical_plan: str | None) -> PlanReport:
    """Returns the report of a plan; `physical_plan` is Spark's EXPLAIN text, None without Spark."""
    with_guesses = replace(statistics, guesses=True)

    def rows_of(node: Node) -> int | None:
        return estimate_rows(node, with_guesses)

    return PlanReport(
        before=explain(plan.before, {}, rows_of),
        after=explain(plan.after, plan.changed_by, rows_of),
        rules=plan.trace,
        tables=tuple(_table_report(size) for size in statistics.tables.values()),
        keys=tuple(_key_report(sketch, statistics) for _, sketch in sorted(statistics.keys.items())),
        statistics_ms=statistics.elapsed_ms,
        physical_plan=physical_plan,
    )


def _warnings(plan: Node, statistics: Statistics) -> Iterator[RuleTrace]:
    """Yields a trace for all statistics that were not read; the planner uses defaults instead."""
    scans = {node.table: node for node in walk_up(plan) if isinstance(node, Scan)}
    for table, sentence in statistics.warnings:
        reason = sentence if table is None else f"{sentence} The planner uses defaults for what is not known."
        yield trace_of(STATISTICS, scans.get(table or "", plan), Skip(reason))


def _notes(plan: Node) -> Iterator[RuleTrace]:
    """Yields a trace for each aggregate call whose result depends on an order that the query does not give."""
    for node in walk_up(plan):
        for window in node.calls if isinstance(node, WindowFunctions) else ():
            over = window.expression.tree
            if not isinstance(over, Over) or over.order_by or over.function not in _ORDERED_OVER:
                continue
            if over.function == AggregateFunction.LISTAGG:
                reason = f"{window.expression} has no order: its values are sorted."
            else:
                reason = (
                    f"{window.expression} has no order, so it depends on the one in which Spark reads the rows, and "
                    "may differ when the job runs again. Write ORDER BY in OVER."
                )
            yield trace_of(ORDER, node, Skip(reason))
        for call in node.calls if isinstance(node, Aggregate) else ():
            if call.function is AggregateFunction.LISTAGG and call.order_by is None:
                yield trace_of(ORDER, node, Skip(f"{call.output.name} has no order: its values are sorted."))
            elif call.function in ORDER_DEPENDENT:
                reason = (
                    f"{call.output.name} depends on the order in which Spark reads the rows, and may differ when the "
                    "job runs again."
                )
                yield trace_of(ORDER, node, Skip(reason))


def trace_of(rule: str, node: Node, found: Match[Any] | Skip) -> RuleTrace:
    """Returns the trace of what a rule did at `node`; `rule` may also be the name of another part of the planner."""
    return RuleTrace(
        rule=rule,
        outcome=RuleOutcome.SKIPPED if isinstance(found, Skip) else RuleOutcome.FIRED,
        node=line_of(node),
        node_id=node.id,
        reason=found.reason,
        alternatives=found.alternatives,
    )


def _settings_without_effect(plan: Node, settings: JobSettings) -> Iterator[tuple[str, str]]:
    """Yields each setting that is set but has no effect on this query: the rule's name, and the reason."""
    nodes = list(walk_up(plan))
    aggregates = [node for node in nodes if isinstance(node, Aggregate)]
    calls = [call for node in aggregates for call in node.calls]
    joins = [node for node in nodes if isinstance(node, Join)]
    if settings.mini_batch != MiniBatchSettings():
        yield "mini_batch", "mini_batch.* applies to the streaming modes: a batch job has no mini-batches."
    if settings.state != StateSettings():
        yield "state", "state.* applies to the streaming modes: a batch job keeps no state."
    if settings.agg_phase is not AggPhase.AUTO and not aggregates:
        yield TwoPhaseAggregate.name, "agg_phase is set, but the query has no aggregate."
    if settings.eager_aggregation is not Toggle.AUTO and not any(map(is_over_join, aggregates)):
        yield EagerAggregation.name, "eager_aggregation is set, but no aggregate is above a join."
    split, method = settings.distinct_split, settings.distinct_method
    counted = any(map(percentiles_of, aggregates))
    if split != DistinctSplitSettings() and not counted and not any(call.distinct for call in calls):
        yield (
            SplitDistinctAggregate.name,
            "distinct_split.* is set, but the query has no DISTINCT call and no PERCENTILE.",
        )
    if method is not DistinctMethod.AUTO and not counted and not any(map(distinct_sets, aggregates)):
        yield DISTINCT_METHOD, "distinct_method is set, but no aggregate has DISTINCT values or PERCENTILE."
    if contradict(split.enabled, method):
        reason = f"distinct_split.enabled {split.enabled} contradicts distinct_method {method}, which takes precedence."
        yield SplitDistinctAggregate.name, reason
    if (settings.join.ship, settings.join.local) != (JoinShip.AUTO, JoinLocal.AUTO) and not joins:
        yield JoinStrategyRule.name, "join.ship or join.local is set, but the query has no join."
    if settings.join.skew is not JoinSkew.AUTO and not any(join.keys for join in joins):
        yield SkewedJoin.name, "join.skew is set, but the query has no equi-join."
    if settings.optimizer.join_reorder is not Toggle.AUTO and len(joins) < 2:
        yield JoinOrder.name, "optimizer.join_reorder is set, but the query joins fewer than three tables."
    if settings.skewed_windows is not Toggle.AUTO and not any(isinstance(node, WindowFunctions) for node in nodes):
        yield SkewedWindows.name, "skewed_windows is set, but the query has no OVER."


def _table_report(size: TableSize) -> TableStatistics:
    return TableStatistics(
        table=size.alias,
        files=size.files,
        bytes=size.bytes,
        rows=size.rows,
        rows_are_exact=size.rows_are_exact,
        cached=size.cached,
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


def has_joins(plan: Node) -> bool:
    """Whether the plan has joins, whose sides could be hashed or broadcast."""
    return any(isinstance(node, Join) for node in walk_up(plan))


def low_memory_plan(
    before: Node, statistics: Statistics, settings: JobSettings, why: str, budget: PlanningBudget | None = None
) -> Plan:
    """Plans `before`, a plan of the builder, so that all joins with keys use sort-merge, even if query or settings
    force something else; hot keys may be salted, but not isolated. The caller must turn off Spark's automatic
    broadcasts.

    `why` is a sentence for the trace. Raises the errors of `apply_rules`.
    """
    join = settings.join.model_copy(
        update={"ship": JoinShip.REPARTITION, "local": JoinLocal.SORT_MERGE, "skew": _salted(settings.join.skew)}
    )
    ctx = RuleContext(
        settings.model_copy(update={"join": join, "skewed_windows": Toggle.FALSE}),
        replace(statistics, hashes_blocks=False),
        budget=budget or PlanningBudget(),
    )
    before = with_ids(before)
    made = apply_rules(_without_hints(before), ctx)
    return Plan(before, made.after, (*_traces(before, why), *made.trace), made.changed_by)


def crash_reason(crashes: int) -> str:
    """Returns the reason to plan an attempt with low memory after so many crashes of its job."""
    attempts = "An earlier attempt" if crashes == 1 else f"{crashes} earlier attempts"
    return f"{attempts} lost the worker or its Spark driver, which a lack of memory can cause."


def out_of_memory_reason(failure: str, milliseconds: int, *, while_it_ran: bool = False) -> str:
    """Returns the reason why an attempt runs its query again: memory ran out after so many milliseconds; `failure` is
    Spark's message.

    `while_it_ran`: the plan did not cause it, but Spark's adaptive execution may have.
    """
    reason = f"Fell back and ran again: after {milliseconds:,} ms the query ran out of memory ({failure.rstrip('.')})."
    by_spark = " The plan hashed and broadcast no side of a join, but adaptive execution may have broadcast one."
    return reason + by_spark if while_it_ran else reason


def _salted(skew: JoinSkew) -> JoinSkew:
    # Isolated hot keys are broadcast. Without broadcasts, AUTO salts hot keys or does nothing.
    return JoinSkew.AUTO if skew is JoinSkew.ISOLATE else skew


def _without_hints(node: Node) -> Node:
    """Returns `node` without the strategies that the query forces for its joins."""
    made = with_inputs(node, tuple(_without_hints(child) for child in inputs_of(node)))
    return replace(made, strategy=JoinStrategy(skew=_salted(made.strategy.skew))) if isinstance(made, Join) else made


def _traces(before: Node, why: str) -> Iterator[RuleTrace]:
    reason = (
        f"{why} Every equi-join now uses sort-merge, Spark broadcasts nothing automatically, "
        "and distinct values are not counted with blocks of bitmaps."
    )
    yield trace_of(FALLBACK, before, Match(before, FALLBACK, reason))
    for node in walk_up(before):
        if isinstance(node, Join) and not node.keys and node.kind not in _COMPARES_ALL:
            reason = "The join has no equality: Spark can run this kind of join only by broadcasting a side."
            yield trace_of(FALLBACK, node, Skip(reason))
