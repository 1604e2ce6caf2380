"""`evenkeel explain` and `evenkeel plan`: rules and reasons, alternatives, plan and SQL."""

from __future__ import annotations

import json

import pytest

from service.contract.reports import (
    Alternative,
    HotKey,
    KeyStatistics,
    PlanNodeReport,
    PlanReport,
    PlanTree,
    RuleOutcome,
    RuleTrace,
    TableStatistics,
)
from tests.support import lifecycle
from tests.support.scripted import answers, scripted
from tests.support.served import Evenkeel, Served


def way(name: str, cost: float, *, chosen: bool) -> Alternative:
    return Alternative(name=name, cost=cost, rows_shuffled=12_345, rows_on_hottest_task=678, chosen=chosen)


REPORT = PlanReport(
    before=PlanTree(nodes=(), text="Scan o", sql="SELECT 1 AS before"),
    after=PlanTree(nodes=(), text="Aggregate\n  Scan o", sql="SELECT 1 AS after"),
    rules=(
        RuleTrace(rule="join_strategy", outcome=RuleOutcome.SKIPPED, node="Join", reason="There is no join."),
        RuleTrace(
            rule="two_phase_aggregate",
            outcome=RuleOutcome.FIRED,
            node="Aggregate",
            reason="It reduces the rows.",
            alternatives=(way("ONE_PHASE", 1_000_000, chosen=False), way("TWO_PHASE", 2_000, chosen=True)),
        ),
    ),
    tables=(TableStatistics(table="o", files=4, bytes=2_000, rows=10_000, rows_are_exact=True),),
    keys=(
        KeyStatistics(
            table="o",
            columns=("o.uid",),
            rows=10_000,
            rows_are_exact=True,
            sampled_rows=10_000,
            distinct_keys=2,
            null_share=0,
            hot_keys=(HotKey(value="7\x1b[2J", share=0.9, estimated_rows=9_000),),
        ),
    ),
    statistics_ms=3,
    physical_plan="*(1) HashAggregate",
)


def planned(served: Served, report: PlanReport = REPORT) -> str:
    job_id = lifecycle.insert(served.database)
    lifecycle.plan(served.database, lifecycle.claim(served.database, job_id), report)
    return job_id


def test_plan_shows_rules_with_reasons(served: Served, evenkeel: Evenkeel) -> None:
    printed = evenkeel("plan", planned(served)).stdout
    for line in (
        "  o  10,000 rows  4 files, 2 kB",
        "  o.uid  7\\x1b[2J  90.0%  9,000",
        "  skipped  join_strategy        There is no join.",
        "  fired    two_phase_aggregate  It reduces the rows.",
        "  Aggregate\n    Scan o",
    ):
        assert f"{line}\n" in printed
    weighed = [line.split() for line in printed.splitlines() if "_PHASE" in line]
    assert weighed == [
        ["ONE_PHASE", "1,000,000", "12,345", "678"],
        ["→", "TWO_PHASE", "2,000", "12,345", "678"],
    ]
    assert "SELECT 1" not in printed
    assert "HashAggregate" not in printed


def test_rules_and_plan_have_ids_of_nodes(served: Served, evenkeel: Evenkeel) -> None:
    nodes = [
        PlanNodeReport(id=number, operator=operator, detail="", inputs=inputs)
        for number, operator, inputs in ((0, "Scan", ()), (12, "Exchange", (0,)), (1, "Scan", ()), (2, "Join", (12, 1)))
    ]
    after = PlanTree(nodes=tuple(nodes), text="Join\n  Exchange\n    Scan o\n  Scan u")
    first, second = REPORT.rules
    rules = (first.model_copy(update={"node_id": 2}), second.model_copy(update={"node_id": 12}))
    printed = evenkeel("plan", planned(served, REPORT.model_copy(update={"after": after, "rules": rules}))).stdout
    for line in (
        "  skipped  join_strategy        #2   There is no join.",
        "  fired    two_phase_aggregate  #12  It reduces the rows.",
        "  #2  Join\n  #12   Exchange\n  #0      Scan o\n  #1    Scan u",
    ):
        assert f"{line}\n" in printed


def test_sql_and_physical_plan_are_shown_on_request(served: Served, evenkeel: Evenkeel) -> None:
    job_id = planned(served)
    printed = evenkeel("plan", job_id, "--show-sql", "--show-physical").stdout
    assert "SQL before\n  SELECT 1 AS before\n\nSQL after\n  SELECT 1 AS after\n" in printed
    assert "  *(1) HashAggregate\n" in printed
    assert json.loads(evenkeel("plan", job_id, "--json").stdout) == REPORT.model_dump(mode="json")


def test_job_without_plan(served: Served, evenkeel: Evenkeel) -> None:
    result = evenkeel("plan", lifecycle.insert(served.database))
    assert (result.exit_code, "[plan_not_ready]" in result.stderr) == (8, True)


def test_explain_posts_the_job_and_shows_the_plan(evenkeel: Evenkeel, monkeypatch: pytest.MonkeyPatch) -> None:
    # A newer service may tell more.
    document = {**REPORT.model_dump(mode="json"), "more": {"x": 1}}
    with scripted(answers(200, document)) as service:
        monkeypatch.setenv("EVENKEEL_URL", service.url)
        result = evenkeel("explain", "--sql", "SELECT o.uid FROM o", "--table", "o=orders.parquet", "--set", "a=1")
    assert "two_phase_aggregate" in result.stdout
    assert (service.seen[0].method, service.seen[0].path) == ("POST", "/v1/explain")
    assert json.loads(service.seen[0].body) == {
        "tables": {"o": {"path": "orders.parquet"}},
        "sql": "SELECT o.uid FROM o",
        "settings": {"a": 1},
    }


def test_error_is_shown_in_the_sql(served: Served, evenkeel: Evenkeel) -> None:
    result = evenkeel("explain", "--sql", "SELECT o.x FROM o", "--table", "o=orders.parquet")
    assert result.exit_code == 2
    assert "  --sql:1:8\n  SELECT o.x FROM o\n         ^\n" in result.stderr
