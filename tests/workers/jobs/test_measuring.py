"""Metrics that Spark does not provide are omitted, and the job continues."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from service.contract.reports import (
    EstimateReport,
    OperatorReport,
    PlanReport,
    Progress,
    Quantity,
    RuleOutcome,
    RunFigures,
    SkewReport,
    StageMetrics,
)
from service.store.publication import report_of
from service.store.tables import PlanRow, StageMetricsRow
from tests.support.bench import Bench
from tests.support.tables import parquet, write_hot
from workers.engine.report import task_skew
from workers.engine.spark.status_store import MonitorError

pytestmark = pytest.mark.spark

JOB = {"tables": {"orders": parquet("orders")}, "sql": "SELECT o.uid, COUNT(*) AS n FROM orders o GROUP BY o.uid"}


@pytest.mark.parametrize("error", [MonitorError("Cannot read the status store"), KeyError("nodes"), RecursionError()])
def test_operators_that_cannot_be_read_are_only_omitted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> OperatorReport:
        raise error

    monkeypatch.setattr(bench.driver.monitor, "operators", fail)
    job_id = bench.submit(JOB)
    with capture_logs() as logs:
        bench.runner.run(job_id)
    assert bench.job(job_id).status == "SUCCEEDED"
    assert [log["log_level"] for log in logs if log["event"] == "operators_missing"] == ["warning"]
    with bench.database.read() as session:
        plan = session.scalars(select(PlanRow)).one()
        assert session.scalars(select(StageMetricsRow)).all()
    assert plan.skew is not None
    assert RunFigures.model_validate(plan.figures) == RunFigures(slots=2)


def test_a_job_keeps_its_result_where_its_skew_report_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> SkewReport:
        raise RecursionError

    monkeypatch.setattr("workers.jobs.run_metrics.skew_report", fail)
    job_id = bench.submit(JOB)
    with capture_logs() as logs:
        bench.runner.run(job_id)
    assert bench.job(job_id).status == "SUCCEEDED"
    assert [log["log_level"] for log in logs if log["event"] == "metrics_missing"] == ["warning"]


def test_the_end_is_published_before_the_run_is_measured(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = bench.driver.monitor.outcome
    before: list[tuple[str, Any, int | None, Any]] = []

    def observed(tag: str) -> tuple[tuple[StageMetrics, ...], Progress]:
        with bench.database.read() as session:
            plan = session.scalars(select(PlanRow)).one()
            before.append((bench.job(job_id).status, bench.job(job_id).progress, plan.execution_ms, plan.skew))
        return outcome(tag)

    monkeypatch.setattr(bench.driver.monitor, "outcome", observed)
    job_id = bench.submit(JOB)
    bench.runner.run(job_id)
    ((status, progress, execution_ms, skew),) = before
    assert (status, skew) == ("SUCCEEDED", None)
    assert progress["tasks_done"] == progress["tasks_total"] > 0
    with bench.database.read() as session:
        plan = session.scalars(select(PlanRow)).one()
        assert session.scalars(select(StageMetricsRow)).all()
    assert (plan.skew is None, plan.execution_ms) == (False, execution_ms)
    assert bench.job(job_id).progress == progress


def test_a_long_text_of_an_operator_is_cut(bench: Bench) -> None:
    columns = ", ".join(f"SUM(o.uid + {number}) AS a_rather_long_name_{number}" for number in range(60))
    job_id = bench.submit({**JOB, "sql": f"SELECT {columns} FROM orders o"})
    bench.runner.run(job_id)
    with bench.database.read() as session:
        figures = RunFigures.model_validate(session.scalars(select(PlanRow)).one().figures)
    details = [operator.detail for operator in figures.run_by.operators]
    assert max(map(len, details)) == 500
    assert any(detail.endswith("…") for detail in details)


def test_there_are_no_figures_if_a_stage_ran_twice(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = bench.driver.monitor.outcome

    def with_a_second_attempt(tag: str) -> tuple[tuple[StageMetrics, ...], Progress]:
        (first, *others), progress = outcome(tag)
        return (first.model_copy(update={"stage_attempt": 1}), *others), progress

    monkeypatch.setattr(bench.driver.monitor, "outcome", with_a_second_attempt)
    bench.runner.run(bench.submit(JOB))
    with bench.database.read() as session:
        run_by = RunFigures.model_validate(session.scalars(select(PlanRow)).one().figures).run_by
    assert run_by.operators
    assert {(one.rows, one.bytes, one.time_ms) for one in run_by.operators} == {(None, None, None)}
    assert run_by.nodes == ()


SELF_JOIN = {
    "tables": {"t": parquet("hot")},
    "sql": "SELECT a.g AS ag, b.g AS bg, COUNT(*) AS n FROM t a JOIN t b ON a.k = b.k GROUP BY a.g, b.g",
    "settings": {"join.ship": "REPARTITION"},
}


def measured(bench: Bench, spec: dict[str, Any]) -> tuple[PlanReport, SkewReport, EstimateReport, RunFigures]:
    bench.runner.run(bench.submit(spec))
    with bench.database.read() as session:
        row = session.scalars(select(PlanRow)).one()
        return (
            report_of(row),
            SkewReport.model_validate(row.skew),
            EstimateReport.model_validate(row.estimates),
            RunFigures.model_validate(row.figures),
        )


def test_the_report_of_a_self_join_is_about_the_plan_that_ran(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine a task that does little may take many times as long as the others.
    monkeypatch.setattr(task_skew, "MIN_TASK_MS", 60_000.0)
    write_hot(bench.settings.state_dir / "data", "hot")
    plan, skew, estimates, figures = measured(bench, SELF_JOIN)
    (eager,) = [trace for trace in plan.rules if trace.rule == "eager_aggregation"]
    assert eager.outcome is RuleOutcome.FIRED
    # 40,000 times 40,000 rows were never joined.
    join = next(node for node in plan.after.nodes if node.operator == "Join")
    assert {each.id: each.rows for each in figures.run_by.nodes}[join.id] == 20_000 + 20 * 20
    assert (skew.skewed, skew.setting, skew.stages) == (False, None, ())
    assert "aggregated before the join, by eager_aggregation. Nothing needs to change" in skew.advice
    assert {(key.role, key.hot_keys[0].value, key.rows_on_one_task) for key in skew.keys} == {("join key", "7", None)}
    # Two thirds of the groups were taken to have the hot key.
    (wrong,) = [one for one in estimates.wrong if one.rule is not None]
    assert (wrong.rule, wrong.node_id, wrong.quantity) == (eager.rule, eager.node_id, Quantity.ROWS_ON_HOTTEST_TASK)
    assert wrong.estimated > 10 * wrong.measured
    assert [choice.rule for choice in estimates.choices if choice.is_wrong] == [eager.rule]
    assert [saving.rule for saving in figures.estimated if saving.is_wrong] == [eager.rule]
    assert estimates.estimated_rows_on_hottest_task is not None
    assert estimates.estimated_rows_on_hottest_task <= 60_000


def test_the_report_of_a_group_on_one_task_advises_what_changes_it(bench: Bench) -> None:
    write_hot(bench.settings.state_dir / "data", "hot")
    sql = "SELECT t.k, COUNT(*) AS n FROM t GROUP BY t.k"
    _, skew, _, _ = measured(bench, {**SELF_JOIN, "sql": sql, "settings": {"agg_phase": "ONE_PHASE"}})
    (key,) = skew.keys
    assert (key.rows_on_one_task, key.estimate_is_wrong) == (40_000, False)
    assert (skew.setting, skew.value) == ("agg_phase", "TWO_PHASE")
