"""What is worth less than the result is left out where Spark does not give it, and the job goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from service.spec.reports import OperatorReport, Progress, RunFigures, StageMetrics
from service.store.tables import PlanRow, StageMetricsRow
from tests.support.tables import parquet
from workers.engine.spark.status_store import MonitorError

if TYPE_CHECKING:
    from tests.workers.conftest import Bench

pytestmark = pytest.mark.spark

JOB = {"tables": {"orders": parquet("orders")}, "sql": "SELECT o.uid, COUNT(*) AS n FROM orders o GROUP BY o.uid"}


@pytest.mark.parametrize("error", [MonitorError("Spark does not tell"), KeyError("nodes"), RecursionError()])
def test_operators_that_cannot_be_told_cost_nothing_but_themselves(
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


def test_a_long_text_of_an_operator_is_cut(bench: Bench) -> None:
    columns = ", ".join(f"SUM(o.uid + {number}) AS a_rather_long_name_{number}" for number in range(60))
    job_id = bench.submit({**JOB, "sql": f"SELECT {columns} FROM orders o"})
    bench.runner.run(job_id)
    with bench.database.read() as session:
        figures = RunFigures.model_validate(session.scalars(select(PlanRow)).one().figures)
    details = [operator.detail for operator in figures.run_by.operators]
    assert max(map(len, details)) == 500
    assert any(detail.endswith("…") for detail in details)


def test_where_a_stage_ran_twice_no_figures_are_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
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
