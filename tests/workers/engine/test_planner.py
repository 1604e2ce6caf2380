"""From a query to a plan with its trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from service.contract.job import JobSpec
from service.contract.options import JobSettings, Toggle
from service.contract.problems import SpecError
from service.contract.query import AggregateFunction, JoinKind
from service.contract.reports import HotKey, RuleOutcome
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema
from service.sql.expressions.scalar import column
from service.sql.resolve.bound import BoundCall, BoundQuery, BoundTable
from service.sql.types.data_types import BIGINT, STRING, Field, Schema
from tests.support.compiled import compiled
from tests.support.joined import call, col, joined, scan
from workers.engine.budget import PlanningBudget
from workers.engine.plan.aggregates import GROUPING_SETS
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import (
    Aggregate,
    Filter,
    Join,
    Limit,
    Named,
    Node,
    Project,
    Scan,
    Union,
    output_of,
)
from workers.engine.plan.traversal import id_of, walk_up
from workers.engine.plan.validation import InvalidPlanError
from workers.engine.planner import Plan, apply_rules, plan_query, plan_report
from workers.engine.rules import rulebook
from workers.engine.rules.rule import Match, RuleContext
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

UID, CATEGORY = Field("o.uid", BIGINT), Field("o.category", STRING)
OUTPUT = (Field("uid", BIGINT), Field("n", BIGINT))
HOT = (HotKey(value="7", share=0.25, estimated_rows=250_000),)
STATISTICS = Statistics(
    tables={"o": TableSize("o", 4, 100_000_000, 1_000_000, True)},
    keys={("o.uid",): KeySketch("o", ("o.uid",), 50_000, 1000, 0.0, HOT)},
    slots=8,
    elapsed_ms=12,
)


def query(distinct: bool = True, aggregate: bool = True) -> BoundQuery:
    call = BoundCall(AggregateFunction.COUNT, (column("o.category", STRING),), distinct, None, None, Field("n", BIGINT))
    selected = ("uid", "n") if aggregate else ("o.uid",)
    return BoundQuery(
        source=BoundTable("orders", "o", ((UID, "uid"), (CATEGORY, "category"))),
        joins=(),
        where=None,
        is_aggregate=aggregate,
        keys=(Named(column("o.uid", BIGINT), "uid"),) if aggregate else (),
        calls=(call,) if aggregate else (),
        having=None,
        order_by=(),
        limit=None,
        select=tuple(Named(column(name, BIGINT), name) for name in selected),
        output=Schema(OUTPUT if aggregate else (UID,)),
    )


def planned(bound: BoundQuery, **settings: Any) -> Plan:
    return plan_query(bound, STATISTICS, JobSettings.model_validate(settings))


def outcomes(plan: Plan) -> list[tuple[str, RuleOutcome]]:
    return [(trace.rule, trace.outcome) for trace in plan.trace]


def test_by_default_every_rule_that_is_concerned_says_why_it_does_nothing() -> None:
    plan = planned(query())
    assert plan.after == plan.before
    assert plan.changed_by == {}
    assert outcomes(plan) == [
        ("bitmap_distinct", RuleOutcome.SKIPPED),
        ("distinct_branches", RuleOutcome.SKIPPED),
        ("split_distinct_aggregate", RuleOutcome.SKIPPED),
        ("two_phase_aggregate", RuleOutcome.SKIPPED),
    ]
    assert all(trace.reason.endswith(".") for trace in plan.trace)


def test_a_forced_split_replaces_the_aggregate_and_keeps_the_output() -> None:
    plan = planned(query(), distinct_split={"enabled": True})
    assert outcomes(plan)[2:] == [
        ("split_distinct_aggregate", RuleOutcome.FIRED),
        ("incremental_aggregate", RuleOutcome.FIRED),
        ("two_phase_aggregate", RuleOutcome.SKIPPED),
    ]
    assert output_of(plan.after) == output_of(plan.before) == OUTPUT
    assert [line.split()[0] for line in text_of(plan.after).splitlines()] == [
        "Project",
        "Project",
        "Aggregate",
        "Aggregate",
        "Scan",
    ]
    assert sorted(plan.changed_by.values()) == [*["incremental_aggregate"] * 2, "split_distinct_aggregate"]


def test_a_forced_phase_is_the_last_rules() -> None:
    plan = planned(query(), agg_phase="ONE_PHASE")
    assert outcomes(plan)[-1] == ("two_phase_aggregate", RuleOutcome.FIRED)
    assert "ONE_PHASE" in text_of(plan.after)


@pytest.mark.parametrize(
    ("bound", "settings", "rule", "words"),
    [
        (query(), {"mini_batch": {"enabled": True}}, "mini_batch", "streaming modes"),
        (query(), {"mini_batch": {"size": 5}}, "mini_batch", "streaming modes"),
        (query(), {"state": {"partitions": 5}}, "state", "streaming modes"),
        (query(aggregate=False), {"join": {"local": "SORT_MERGE"}}, "join_strategy", "no join"),
        (query(aggregate=False), {"agg_phase": "TWO_PHASE"}, "two_phase_aggregate", "no aggregate"),
        (query(distinct=False), {"distinct_split": {"enabled": True}}, "split_distinct_aggregate", "no DISTINCT"),
        (query(), {"join": {"skew": "SALT"}}, "skewed_join", "no equi-join"),
        (query(aggregate=False), {"distinct_split": {"bucket_num": 5}}, "split_distinct_aggregate", "no DISTINCT"),
        (query(distinct=False), {"distinct_method": "bitmap"}, "distinct_method", "no aggregate has DISTINCT"),
        (
            query(),
            {"distinct_split": {"enabled": False}, "distinct_method": "split"},
            "split_distinct_aggregate",
            "false contradicts distinct_method split",
        ),
    ],
)
def test_a_setting_without_effect_is_in_the_trace(
    bound: BoundQuery, settings: dict[str, Any], rule: str, words: str
) -> None:
    told = planned(bound, **settings).trace[-1]
    assert (told.rule, told.outcome) == (rule, RuleOutcome.SKIPPED)
    assert words in told.reason


@pytest.mark.parametrize(
    ("sql", "settings", "rule", "words"),
    [
        ("SELECT COUNT(*) AS n FROM t", {"eager_aggregation": True}, "eager_aggregation", "above a join"),
        ("SELECT MAX(k) AS n FROM t", {"distinct_method": "split"}, "distinct_method", "DISTINCT values"),
        ("SELECT MIN(DISTINCT k) AS n FROM t", {"distinct_method": "bitmap"}, "distinct_method", "DISTINCT"),
        ("SELECT COUNT(DISTINCT s) AS n FROM t", {"distinct_method": "bitmap"}, "bitmap_distinct", "bit"),
        ("SELECT COUNT(DISTINCT k) AS n FROM t", {"distinct_method": "branches"}, "distinct_branches", "one"),
        (
            "SELECT s, COUNT(DISTINCT k) AS n FROM t GROUP BY CUBE(s)",
            {"distinct_method": "split"},
            "split_distinct_aggregate",
            "grouping sets",
        ),
        (
            "SELECT COUNT(DISTINCT k) AS n FROM t",
            {"distinct_split": {"enabled": True}, "distinct_method": "bitmap"},
            "split_distinct_aggregate",
            "contradicts",
        ),
        (
            "SELECT COUNT(*) AS n FROM t FULL JOIN u ON t.k = u.k",
            {"eager_aggregation": True},
            "eager_aggregation",
            "full",
        ),
        (
            "SELECT COUNT(*) AS n FROM t CROSS JOIN u",
            {"eager_aggregation": True},
            "eager_aggregation",
            "below a cross join",
        ),
        ("SELECT k FROM t", {"agg_phase": "TWO_PHASE"}, "two_phase_aggregate", "no aggregate"),
        ("SELECT COUNT(*) FROM t", {"agg_phase": "ONE_PHASE"}, "two_phase_aggregate", "no group keys"),
        ("SELECT k FROM t", {"distinct_split": {"enabled": True}}, "split_distinct_aggregate", "no DISTINCT call"),
        ("SELECT t.k FROM t CROSS JOIN u", {"join": {"ship": "repartition"}}, "join_strategy", "equality"),
        ("SELECT t.k FROM t CROSS JOIN u", {"join": {"skew": "salt"}}, "skewed_join", "no equi-join"),
        (
            "SELECT t.k FROM t FULL JOIN u ON t.k = u.k",
            {"join": {"ship": "broadcast_left"}},
            "join_strategy",
            "full join",
        ),
        ("SELECT t.k FROM t FULL JOIN u ON t.k = u.k", {"join": {"skew": "salt"}}, "skewed_join", "statistics"),
        (
            "SELECT t.k FROM t JOIN u ON t.k = u.k",
            {"join": {"ship": "broadcast_left", "local": "hash_right"}},
            "join_strategy",
            "requires HASH_LEFT",
        ),
        (
            "SELECT t.k FROM t JOIN u ON t.k = u.k",
            {"join": {"ship": "broadcast_left", "skew": "salt"}},
            "skewed_join",
            "One side is broadcast",
        ),
        (
            "SELECT t.k FROM t LEFT SEMI JOIN u ON t.k = u.k",
            {"join": {"local": "hash_left"}},
            "join_strategy",
            "left_semi",
        ),
    ],
)
def test_a_waiting_job_is_not_refused_for_a_setting_that_its_trace_reports(
    sql: str, settings: dict[str, Any], rule: str, words: str
) -> None:
    table = {"format": "parquet", "path": "t"}
    spec = JobSpec.model_validate({"tables": {"t": table, "u": table}, "sql": sql, "settings": settings})
    schemas = dict.fromkeys("tu", parse_schema("k BIGINT, s STRING", "/x"))
    with pytest.raises(SpecError):
        compile_job(spec, schemas)
    plan = plan_query(compile_job(spec, schemas, is_accepted=True), Statistics({}, {}, slots=4), spec.settings)
    told = [trace.reason for trace in plan.trace if (trace.rule, trace.outcome) == (rule, RuleOutcome.SKIPPED)]
    assert any(words in reason for reason in told), told


@pytest.mark.parametrize("given", [{}, {"incremental_agg": True, "skew": {"join_strategy": "auto"}}])
def test_defaults_are_not_in_the_trace(given: dict[str, Any]) -> None:
    assert planned(query(aggregate=False), **given).trace == ()


def test_the_report_has_plans_rules_and_statistics() -> None:
    report = plan_report(planned(query(), distinct_split={"enabled": True}), STATISTICS, "== Physical Plan ==")
    assert report.before.text.startswith("Project")
    assert {node.changed_by for node in report.before.nodes} == {None}
    changed = [node.operator for node in report.after.nodes if node.changed_by]
    assert changed == ["Aggregate", "Aggregate", "Project"]
    assert [node.estimated_rows for node in report.after.nodes if node.operator == "Scan"] == [1_000_000]
    assert (report.statistics_ms, report.physical_plan) == (12, "== Physical Plan ==")
    assert (report.tables[0].table, report.tables[0].rows) == ("o", 1_000_000)
    assert (report.keys[0].columns, report.keys[0].distinct_keys, report.keys[0].hot_keys) == (("o.uid",), 1000, HOT)


def test_what_replaces_a_union_with_one_branch_left_is_marked() -> None:
    sql = """
        WITH sales AS (SELECT uid, 'w' AS kind FROM web UNION ALL SELECT uid, 's' FROM shop)
        SELECT uid FROM sales WHERE kind = 's'
    """
    bound = compiled(dict.fromkeys(("web", "shop"), "uid BIGINT"), sql, name="pruned")
    plan = plan_query(bound, Statistics({}, {}, slots=4), JobSettings())
    (changed,) = (node for node in walk_up(plan.after) if node.id in plan.changed_by)
    assert isinstance(changed, Project)
    assert isinstance(changed.input, Scan)
    assert plan.changed_by == {changed.id: "prune_union_branches"}


class _LosesColumns:
    name = "loses_columns"

    def match(self, node: Node, _ctx: RuleContext, /) -> Match[Aggregate] | None:
        return Match(node, "", "Always.") if isinstance(node, Aggregate) else None

    def rewrite(self, match: Match[Aggregate], _ctx: RuleContext, /) -> Node:
        return match.node.input


class _Limits:
    name = "limits"

    def match(self, node: Node, _ctx: RuleContext, /) -> Match[Aggregate] | None:
        return Match(node, "", "Always.") if isinstance(node, Aggregate) else None

    def rewrite(self, match: Match[Aggregate], _ctx: RuleContext, /) -> Node:
        return Limit(match.node, 5)


def test_a_rule_that_breaks_the_plan_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.engine.planner.RULES", (_LosesColumns(),))
    with pytest.raises(InvalidPlanError, match="the plan made by loses_columns is invalid"):
        planned(query())


def test_a_node_keeps_its_maker_when_a_later_rule_changes_what_is_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.engine.planner.RULES", (_Limits(), *rulebook.RULES))
    plan = planned(query(), agg_phase="ONE_PHASE")
    made = (node for node in walk_up(plan.after) if node.id in plan.changed_by)
    makers = {type(node).__name__: plan.changed_by[id_of(node)] for node in made}
    assert makers == {
        "Limit": "limits",
        "Project": "two_phase_aggregate",
        "Aggregate": "two_phase_aggregate",
        "Exchange": "two_phase_aggregate",
    }


def test_a_plan_that_is_built_already_is_planned_in_the_same_way() -> None:
    plan = planned(query())
    filtered = Filter(plan.before, column("n", BIGINT))
    assert apply_rules(filtered, RuleContext(JobSettings(), STATISTICS)).before == filtered


def test_statistics_that_were_not_read_are_in_the_trace() -> None:
    sentences = (("orders", "The footer of a cannot be read: it is away."), (None, "Nothing was read."))
    known = Statistics(STATISTICS.tables, {}, slots=2, warnings=sentences)
    traces = plan_query(query(), known, JobSettings()).trace[:2]
    assert [(trace.rule, trace.outcome, trace.node.split()[0], trace.reason) for trace in traces] == [
        (
            "statistics",
            RuleOutcome.SKIPPED,
            "Scan",
            "The footer of a cannot be read: it is away. The planner uses defaults for what is not known.",
        ),
        ("statistics", RuleOutcome.SKIPPED, "Project", "Nothing was read."),
    ]


def test_the_report_has_each_rules_own_reason_for_leaving_grouping_sets_alone() -> None:
    sets = replace(query(), grouping_sets=((0,), ()))
    plan = planned(sets, agg_phase="ONE_PHASE", distinct_split={"enabled": "true"})
    assert plan.after == plan.before
    assert {trace.rule: trace.reason for trace in plan.trace if "SETS" in trace.node} == {
        "bitmap_distinct": GROUPING_SETS,
        "distinct_branches": GROUPING_SETS,
        "split_distinct_aggregate": GROUPING_SETS,
        "two_phase_aggregate": GROUPING_SETS,
    }


def test_another_reason_than_the_grouping_sets_reaches_the_report() -> None:
    rows = call("COUNT")
    sets = replace(joined(rows), grouping_sets=((0,), ()))
    plan = apply_rules(sets, RuleContext(JobSettings(eager_aggregation=Toggle.FALSE), STATISTICS))
    reasons = [trace.reason for trace in plan.trace if trace.rule == "eager_aggregation"]
    assert reasons == ["eager_aggregation is false."]


def test_a_rule_applies_to_parts_of_its_result() -> None:
    rows = call("COUNT")
    chain = Join(joined(rows).input, scan("v"), JoinKind.INNER, ((col("l.i"), col("v.i")),))
    before = Aggregate(chain, (Named(col("v.t"), "t"),), (rows,))
    ctx = RuleContext(JobSettings.model_validate({"eager_aggregation": True}), Statistics({}, {}, slots=2))
    plan = apply_rules(before, ctx)
    eager = [trace for trace in plan.trace if trace.rule == "eager_aggregation"]
    assert [(trace.node, trace.outcome) for trace in eager] == [
        ("Aggregate BY v.t AS t [COUNT(*) AS count]", RuleOutcome.FIRED),
        ("Aggregate BY l.i [COUNT(*) AS $l0]", RuleOutcome.FIRED),
    ]
    assert output_of(plan.after) == output_of(before)
    aggregates = [part for part in walk_up(plan.after) if isinstance(part, Aggregate)]
    assert len(aggregates) == 5
    assert {plan.changed_by[id_of(part)] for part in aggregates} == {"eager_aggregation"}


class _Looks:
    name = "looks"

    def __init__(self, spend: Callable[[], None]) -> None:
        self._spend = spend
        self.looked: list[Node] = []

    def match(self, node: Node, _ctx: RuleContext, /) -> Match[Node] | None:
        self.looked.append(node)
        self._spend()
        return None

    def rewrite(self, match: Match[Node], _ctx: RuleContext, /) -> Node:
        return match.node


def test_rules_are_skipped_once_the_time_for_rewrites_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def spend() -> None:
        nonlocal now
        now += 4.0

    first, second = _Looks(spend), _Looks(spend)
    monkeypatch.setattr("workers.engine.planner.RULES", (first, second))
    plan = plan_query(query(), STATISTICS, JobSettings(), PlanningBudget(seconds=6.0, clock=lambda: now))
    assert plan.after == plan.before
    assert [len(rule.looked) for rule in (first, second)] == [2, 0]
    assert [(trace.rule, trace.outcome) for trace in plan.trace] == [("looks", RuleOutcome.SKIPPED)] * 2
    assert {trace.reason for trace in plan.trace} == {
        "Not applied to the whole plan: the rewrites took longer than optimizer.timeout (6 s)."
    }


def test_a_rule_that_saw_every_node_in_time_has_no_trace_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def spend() -> None:
        nonlocal now
        now += 4.0

    rule = _Looks(spend)
    monkeypatch.setattr("workers.engine.planner.RULES", (rule,))
    plan = plan_query(query(), STATISTICS, JobSettings(), PlanningBudget(seconds=10.0, clock=lambda: now))
    assert (len(rule.looked), plan.trace) == (3, ())


def test_the_check_of_the_budget_ends_the_pass_at_the_next_node(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(Exception):  # noqa: N818 - an order, no error
        pass

    def stop() -> None:
        if rule.looked:
            raise Stopped

    rule = _Looks(lambda: None)
    monkeypatch.setattr("workers.engine.planner.RULES", (rule,))
    with pytest.raises(Stopped):
        plan_query(query(), STATISTICS, JobSettings(), PlanningBudget(check=stop))
    assert len(rule.looked) == 1


def test_two_equal_nodes_have_traces_of_their_own() -> None:
    rows = call("COUNT")
    side = Aggregate(scan("l"), (Named(col("l.k"), "k"),), (rows,))
    plan = apply_rules(Union((side, side)), RuleContext(JobSettings(), STATISTICS))
    traces = [trace for trace in plan.trace if trace.rule == "two_phase_aggregate"]
    assert len({trace.node for trace in traces}) == 1
    assert [trace.node_id for trace in traces] == [1, 3]
    report = plan_report(plan, STATISTICS, None)
    assert [node.id for node in report.before.nodes if node.operator == "Aggregate"] == [1, 3]


def test_a_node_keeps_its_id_through_the_rules() -> None:
    plan = planned(query(), agg_phase="ONE_PHASE")
    before = {node.id: node.operator for node in plan_report(plan, STATISTICS, None).before.nodes}
    after = {node.id: node for node in plan_report(plan, STATISTICS, None).after.nodes}
    kept = before.keys() & after.keys()
    assert {before[number] for number in kept} == {"Scan", "Project"}
    assert all(before[number] == after[number].operator for number in kept)
    made = after.keys() - kept
    assert min(made) > max(before)
    assert {after[number].changed_by for number in made} == {"two_phase_aggregate"}
