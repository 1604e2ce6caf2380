"""Plan reports are stored so that the API of version 1, which refuses unknown fields, can read them."""

from __future__ import annotations

from typing import Any

import pytest

from service.contract.reports import (
    Alternative,
    FirstRun,
    HotKey,
    KeyStatistics,
    PlanNodeReport,
    PlanReport,
    PlanTree,
    RuleOutcome,
    RuleTrace,
    TableStatistics,
)
from service.store.publication import columns_of, report_of
from service.store.tables import PlanRow

NODE = PlanNodeReport(id=0, operator="Scan", detail="t", inputs=())
WAY = Alternative(name="TWO_PHASE", cost=1, rows_shuffled=1, rows_on_hottest_task=1, chosen=True)
REPORT = PlanReport(
    before=PlanTree(nodes=(NODE,), text="Scan t", sql="SELECT 1"),
    after=PlanTree(nodes=(NODE,), text="Scan t", sql="SELECT 2"),
    rules=(
        RuleTrace(rule="r", outcome=RuleOutcome.FIRED, node="Scan t", node_id=0, reason="So.", alternatives=(WAY,)),
        RuleTrace(rule="r", outcome=RuleOutcome.SKIPPED, node="Scan t", node_id=7, reason="No."),
    ),
    tables=(
        TableStatistics(table="t", files=1, bytes=1, rows=1, rows_are_exact=True, cached=True),
        TableStatistics(table="u", files=1, bytes=1, rows=1, rows_are_exact=True),
    ),
    keys=(
        KeyStatistics(
            table="t",
            columns=("k",),
            rows=1,
            rows_are_exact=True,
            sampled_rows=1,
            distinct_keys=1,
            null_share=0,
            hot_keys=(HotKey(value="1", share=1, estimated_rows=1),),
        ),
    ),
    statistics_ms=1,
)
WITHOUT_IDS = tuple(trace.model_copy(update={"node_id": None}) for trace in REPORT.rules)
FELL_BACK = REPORT.model_copy(
    update={"first_run": FirstRun(after=REPORT.after, rules=REPORT.rules, failure="Too large.", execution_ms=7)}
)

TREE = {"nodes": {"id", "operator", "detail", "inputs", "changed_by", "estimated_rows"}, "text": None}
VERSION_1: dict[str, Any] = {
    "before": TREE,
    "after": TREE,
    "rules": {
        "rule": None,
        "outcome": None,
        "node": None,
        "reason": None,
        "alternatives": {"name", "cost", "rows_shuffled", "rows_on_hottest_task", "chosen"},
    },
    "tables": {"table", "files", "bytes", "rows", "rows_are_exact"},
    "keys": {
        "table": None,
        "columns": None,
        "rows": None,
        "rows_are_exact": None,
        "sampled_rows": None,
        "distinct_keys": None,
        "null_share": None,
        "hot_keys": {"value", "share", "estimated_rows", "is_null"},
    },
    "statistics_ms": None,
    "physical_plan": None,
}
"""What `plans.report` held in version 1, by name."""


def check(stored: Any, known: Any) -> None:
    for each in stored if isinstance(stored, list) else [stored]:
        if isinstance(each, dict):
            assert set(each) == set(known)
            for name, value in each.items():
                check(value, known[name] if isinstance(known, dict) else None)


def row(report: dict[str, Any], details: dict[str, Any] | None) -> PlanRow:
    return PlanRow(job_id="j", fence=1, tenant="default", planning_ms=1, report=report, details=details)


def test_the_report_has_the_fields_of_version_1() -> None:
    check(columns_of(REPORT)[0], VERSION_1)
    check(columns_of(FELL_BACK)[0], VERSION_1)


@pytest.mark.parametrize("report", [REPORT, FELL_BACK])
def test_both_columns_give_the_report(report: PlanReport) -> None:
    assert report_of(row(*columns_of(report))) == report


def test_a_report_of_version_1_is_read() -> None:
    old = report_of(row(columns_of(REPORT)[0], None))
    assert (old.before.sql, old.after.sql) == ("", "")
    assert [table.cached for table in old.tables] == [False, False]
    assert old.rules == WITHOUT_IDS


def test_a_report_without_node_ids_is_read() -> None:
    told, details = columns_of(REPORT)
    del details["node_ids"]
    old = report_of(row(told, details))
    assert old.rules == WITHOUT_IDS
    assert old.tables == REPORT.tables


@pytest.mark.parametrize("part", ["before", "report"])
def test_fields_of_a_newer_version_are_left_out(part: str) -> None:
    told, details = columns_of(REPORT)
    (told if part == "report" else told["before"])["later"] = 1
    assert report_of(row(told, details | {"later": 1})) == REPORT
