"""Reads a job's plan report and metrics, compares it with an earlier job, and simulates its stages on other slot
counts.

A stage ends when its last task ends. The simulation assigns tasks longest first, each to the slot that is free first
(LPT), which takes at most 4/3 - 1/(3 slots) times as long as the best order (R. L. Graham, "Bounds on multiprocessing
timing anomalies", SIAM J. Appl. Math. 17(2), 1969). Tasks do not depend on each other here, so more slots never make a
stage slower. Sparklens simulates Spark applications on other clusters in the same way.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isclose
from typing import Any

from sqlalchemy.orm import Session

from service.contract.enums import JobStatus, Mode
from service.contract.errors import MetricsNotReadyError, PlanNotReadyError
from service.contract.options import JobSettings
from service.contract.problems import SpecError
from service.contract.reports import (
    Comparison,
    EstimateReport,
    MetricsReport,
    OperatorReport,
    PlanReport,
    Quantiles,
    RunFigures,
    SavingsReport,
    SimulatedSaving,
    SkewReport,
    StageMetrics,
    StageSaving,
    task_times,
    total_task_time,
)
from service.jobs.views import is_job_id, no_job, require_job
from service.store import jobs, publication
from service.store.session import Database
from service.store.tables import JobRow, PlanRow

_POINTER = "/compare_with"
MAX_SCHEDULED_TASKS = 100_000
"""The most tasks that one request schedules one by one. For further stages, the time is the work divided by the slots
or the slowest task, whichever is longer: with that many tasks the order hardly matters.
"""
_COMPLETE = "COMPLETE"
_MEASURING_MS = 8_000
"""How long after a job's end its worker may be measuring the run: the sum of the times that it waits for Spark, and of
its budget for advice.
"""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 0.5


def require_comparable(session: Session, tenant: str, job_id: str | None) -> None:
    """Raises SpecError: `unknown_job` if the tenant has no such job, `job_not_comparable` if it is a streaming job."""
    if job_id is None:
        return
    other = _other(session, tenant, job_id)
    if other is None:
        detail = f"{no_job(job_id)} Name another job of yours, or remove 'compare_with'."
        raise SpecError.of("unknown_job", detail, pointer=_POINTER)
    if Mode(other.mode).is_streaming:
        detail = "The job is a streaming job, which has no single run time to compare with. Name a batch job."
        raise SpecError.of("job_not_comparable", detail, pointer=_POINTER)


def compare(session: Session, row: JobRow, plan: PlanRow) -> Comparison | None:
    """Compares the run of `row` (read with its spec) with the job that its `compare_with` names.

    Returns None if it names no job, or that job has been deleted.
    """
    named = row.spec.get("compare_with")
    other = _other(session, row.tenant, named) if isinstance(named, str) else None
    if other is None:
        return None
    before_plan = publication.latest_plan(session, other.id)
    both = other.status == row.status == JobStatus.SUCCEEDED.value
    before = after = None
    if both and before_plan is not None:
        before, after = publication.queries_ms(before_plan), publication.queries_ms(plan)
    return Comparison(
        job_id=other.id,
        status=other.status,
        before_ms=before,
        after_ms=after,
        saved_ms=None if before is None or after is None else before - after,
        ratio=round(after / before, 4) if before and after is not None else None,
        same_query=all(other.spec.get(part) == row.spec.get(part) for part in ("sql", "parameters", "query", "tables")),
        settings_changed=dict(_changes(other.spec, row.spec)),
    )


def _other(session: Session, tenant: str, job_id: str) -> JobRow | None:
    return jobs.find_job(session, tenant=tenant, job_id=job_id, with_spec=True) if is_job_id(job_id) else None


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    defaults = dict(_flat(JobSettings().model_dump(mode="json", by_alias=True)))
    old, new = (defaults | dict(_flat(spec.get("settings") or {})) for spec in (before, after))
    for key in sorted({*old, *new}):
        values = [_text(settings.get(key)) for settings in (old, new)]
        if values[0] != values[1]:
            yield key, values


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _text(value: object) -> str:
    """Formats a value as the table of settings does."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def simulate(stages: Sequence[StageMetrics], slots: int) -> SimulatedSaving:
    """Returns the simulated times of the completed stages on `slots` (1 or more), and their sums."""
    left = MAX_SCHEDULED_TASKS
    found = []
    for stage in stages:
        if stage.duration_ms is None or stage.status != _COMPLETE or stage.tasks < 1:
            continue
        actual, balanced = stage_times(stage.duration_ms, stage.tasks, slots, one_by_one=stage.tasks <= left)
        left -= stage.tasks if stage.tasks <= left else 0
        found.append(
            StageSaving(
                stage_id=stage.stage_id,
                stage_attempt=stage.stage_attempt,
                actual_ms=round(actual),
                balanced_ms=round(balanced),
                saved_ms=round(actual) - round(balanced),
            )
        )
    return SimulatedSaving(
        slots=slots,
        actual_ms=sum(stage.actual_ms for stage in found),
        balanced_ms=sum(stage.balanced_ms for stage in found),
        saved_ms=sum(stage.saved_ms for stage in found),
        stages=tuple(found),
    )


def stage_times(times: Quantiles, tasks: int, slots: int, *, one_by_one: bool = True) -> tuple[float, float]:
    """Returns the milliseconds that a stage of `tasks` tasks takes on `slots`: with its measured tasks, and with even
    tasks.

    With total work W, n even tasks take W / n each, and ceil(n / slots) of them run one after the other. The result is
    capped at the time of the measured tasks. A difference within the error of floating-point sums is no saving.
    """
    if one_by_one:
        durations = list(task_times(times, tasks))
        total, actual = fsum(durations), makespan(durations, slots)
    else:
        total = total_task_time(times, tasks)
        actual = max(total / slots, times.max)
    balanced = -(-tasks // slots) * total / tasks
    return actual, actual if isclose(balanced, actual, rel_tol=1e-10) else min(balanced, actual)


def makespan(durations: Sequence[float], slots: int) -> float:
    """Returns the end of the last task when tasks are assigned longest first, each to the slot that is free first.

    >>> makespan([3, 3, 2, 2, 2], 2), makespan([5, 1], 9), makespan([], 4)
    (7.0, 5, 0.0)
    """
    if len(durations) <= slots:
        return max(durations, default=0.0)
    free = [0.0] * slots
    for duration in sorted(durations, reverse=True):
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def get_plan(database: Database, tenant: str, job_id: str) -> PlanReport:
    """Returns the plan report of the job's newest planned attempt. Raises JobNotFoundError and PlanNotReadyError."""
    with database.read() as session:
        row = require_job(session, tenant, job_id)
        plan = publication.latest_plan(session, row.id)
        if plan is None:
            raise PlanNotReadyError(f"The job is {row.status} and has not been planned.")
        return publication.report_of(plan)


async def get_metrics(database: Database, tenant: str, job_id: str, slots: int | None = None) -> MetricsReport:
    """Returns stages, operators, skew and savings of the attempt that ended the job. Waits while the run is measured.

    `slots` is the number of slots for the simulated saving of even tasks, by default those that the job ran on. Raises
    JobNotFoundError and MetricsNotReadyError.
    """
    deadline = time.monotonic() + _MEASURING_MS / 1000
    pause = _FIRST_PAUSE_SECONDS
    while True:
        found = await asyncio.to_thread(_metrics_or_reason, database, tenant, job_id, slots)
        if isinstance(found, MetricsReport):
            return found
        if not found.is_being_measured or time.monotonic() >= deadline:
            raise MetricsNotReadyError(found.reason)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


@dataclass(frozen=True)
class _NoMetrics:
    reason: str
    is_being_measured: bool


def _metrics_or_reason(database: Database, tenant: str, job_id: str, slots: int | None) -> MetricsReport | _NoMetrics:
    with database.read() as session:
        row = require_job(session, tenant, job_id, with_spec=True)
        plan = publication.latest_plan(session, row.id)
        if plan is not None and plan.skew is not None and plan.execution_ms is not None:
            return _report(session, row, plan, slots)
        if _may_be_measuring(row, database.now(session)):
            return _NoMetrics("The job SUCCEEDED, and its run is still being measured. Read them again.", True)
        return _NoMetrics(_reason(row.status, Mode(row.mode)), False)


def _may_be_measuring(row: JobRow, now: int) -> bool:
    """Whether a worker may still be measuring the run of the job."""
    has_succeeded = row.status == JobStatus.SUCCEEDED.value and not Mode(row.mode).is_streaming
    return has_succeeded and row.finished_at is not None and now < row.finished_at + _MEASURING_MS


def _report(session: Session, row: JobRow, plan: PlanRow, slots: int | None) -> MetricsReport:
    # A worker of a newer version may store more fields.
    stages = tuple(
        StageMetrics.model_validate(stage.metrics, extra="ignore")
        for stage in publication.stage_metrics(session, row.id, plan.fence)
    )
    figures = None if plan.figures is None else RunFigures.model_validate(plan.figures, extra="ignore")
    run_slots = None if figures is None else figures.slots
    at = run_slots if slots is None else slots
    run_by = OperatorReport() if figures is None else figures.run_by
    return MetricsReport(
        stages=stages,
        operators=run_by.operators,
        operators_truncated=run_by.is_cut,
        nodes=run_by.nodes,
        skew=SkewReport.model_validate(plan.skew, extra="ignore"),
        estimates=None if plan.estimates is None else EstimateReport.model_validate(plan.estimates, extra="ignore"),
        slots=run_slots,
        savings=SavingsReport(
            simulated=None if at is None else simulate(stages, at),
            estimated=() if figures is None else figures.estimated,
        ),
        comparison=compare(session, row, plan),
        planning_ms=plan.planning_ms,
        execution_ms=plan.execution_ms,
        result_rows=row.result_rows,
        result_bytes=row.result_bytes,
        corrupt_records={} if figures is None else figures.corrupt_records,
    )


def _reason(status: str, mode: Mode) -> str:
    if mode.is_streaming:
        return "A streaming job has metrics for each mini-batch: see /stream and /batches of the job."
    if status == JobStatus.SUCCEEDED.value:
        return "The job SUCCEEDED, but its worker received no stage metrics from Spark."
    return f"The job is {status} and none of its attempts has completed."
