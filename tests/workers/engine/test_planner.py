"""From a query to a plan with its trace."""

from __future__ import annotations

from typing import Any

import pytest

from service.spec.bound import BoundCall, BoundName, BoundQuery, BoundTable
from service.spec.options import JobSettings
from service.spec.query import AggregateFunction
from service.spec.reports import HotKey, RuleOutcome
from service.spec.scalar import column
from service.spec.types import BIGINT, STRING, Field, Schema
from workers.engine.errors import InvalidPlanError
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Aggregate, Filter, Limit, Node
from workers.engine.plan.schema import output_of
from workers.engine.planner import Plan, apply_rules, plan_query, plan_report
from workers.engine.rules import rulebook
from workers.engine.rules.rule import Match, RuleContext
from workers.engine.stats.statistics import KeySketch, Statistics, TableSize

UID, CATEGORY = Field("o.uid", BIGINT), Field("o.category", STRING)
OUTPUT = (Field("uid", BIGINT), Field("n", BIGINT))
HOT = (HotKey(value="7", share=0.25, estimated_rows=250_000),)
STATISTICS = Statistics(
    tables={"o": TableSize("o", 4, 100_000_000, 1_000_000, True)},
    keys={("o.uid",): KeySketch("o", ("o.uid",), 50_000, 900, 1000, 0.0, HOT)},
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
        keys=(BoundName(column("o.uid", BIGINT), "uid"),) if aggregate else (),
        calls=(call,) if aggregate else (),
        having=None,
        order_by=(),
        limit=None,
        select=tuple(BoundName(column(name, BIGINT), name) for name in selected),
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
        ("split_distinct_aggregate", RuleOutcome.SKIPPED),
        ("two_phase_aggregate", RuleOutcome.SKIPPED),
    ]
    assert all(trace.reason.endswith(".") for trace in plan.trace)


def test_a_forced_split_replaces_the_aggregate_and_keeps_the_output() -> None:
    plan = planned(query(), distinct_split={"enabled": True})
    assert outcomes(plan) == [
        ("split_distinct_aggregate", RuleOutcome.FIRED),
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
    assert set(plan.changed_by.values()) == {"split_distinct_aggregate"}
    assert len(plan.changed_by) == 3


def test_a_forced_phase_is_one_rule_later() -> None:
    plan = planned(query(), agg_phase="ONE_PHASE")
    assert outcomes(plan)[1] == ("two_phase_aggregate", RuleOutcome.FIRED)
    assert "ONE_PHASE" in text_of(plan.after)


@pytest.mark.parametrize(
    ("bound", "settings", "rule", "words"),
    [
        (query(), {"mini_batch": {"enabled": True}}, "mini_batch", "streaming modes"),
        (query(), {"mini_batch": {"size": 5}}, "mini_batch", "streaming modes"),
        (query(), {"incremental_agg": False}, "incremental_agg", "streaming modes"),
        (query(), {"skew": {"join_strategy": "forced"}}, "skewed_join", "no effect in this version"),
        (query(), {"skew": {"join_strategy": "none"}}, "skewed_join", "no effect in this version"),
        (query(aggregate=False), {"agg_phase": "TWO_PHASE"}, "two_phase_aggregate", "no aggregate"),
        (query(distinct=False), {"distinct_split": {"enabled": True}}, "split_distinct_aggregate", "no DISTINCT"),
        (query(aggregate=False), {"distinct_split": {"bucket_num": 5}}, "split_distinct_aggregate", "no DISTINCT"),
    ],
)
def test_a_setting_that_does_not_apply_is_told(
    bound: BoundQuery, settings: dict[str, Any], rule: str, words: str
) -> None:
    told = planned(bound, **settings).trace[-1]
    assert (told.rule, told.outcome) == (rule, RuleOutcome.SKIPPED)
    assert words in told.reason


@pytest.mark.parametrize("given", [{}, {"incremental_agg": True, "skew": {"join_strategy": "auto"}}])
def test_defaults_are_not_told(given: dict[str, Any]) -> None:
    assert planned(query(aggregate=False), **given).trace == ()


def test_the_report_tells_plans_rules_and_statistics() -> None:
    report = plan_report(planned(query(), distinct_split={"enabled": True}), STATISTICS, "== Physical Plan ==")
    assert report.before.text.startswith("Project")
    assert {node.changed_by for node in report.before.nodes} == {None}
    changed = [node.operator for node in report.after.nodes if node.changed_by]
    assert changed == ["Aggregate", "Aggregate", "Project"]
    assert [node.estimated_rows for node in report.after.nodes if node.operator == "Scan"] == [1_000_000]
    assert (report.statistics_ms, report.physical_plan) == (12, "== Physical Plan ==")
    assert (report.tables[0].table, report.tables[0].rows) == ("o", 1_000_000)
    assert (report.keys[0].columns, report.keys[0].distinct_keys, report.keys[0].hot_keys) == (("o.uid",), 1000, HOT)


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
    makers = {type(node).__name__: rule for node, rule in plan.changed_by.items()}
    assert makers == {
        "Limit": "limits",
        "Aggregate": "two_phase_aggregate",
        "Exchange": "two_phase_aggregate",
    }


def test_a_plan_that_is_built_already_takes_the_same_way() -> None:
    plan = planned(query())
    filtered = Filter(plan.before, column("n", BIGINT))
    assert apply_rules(filtered, RuleContext(JobSettings(), STATISTICS)).before == filtered
