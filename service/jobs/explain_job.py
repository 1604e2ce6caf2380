"""Plans a job without running it. A worker plans it, on the way that every job takes, and nothing of it is kept."""

from __future__ import annotations

import asyncio

from sqlalchemy.orm import Session

from service.errors import WorkerUnavailableError
from service.jobs.doorbell import Doorbell
from service.jobs.submissions import Submissions
from service.jobs.submit_job import Submission, submit_job
from service.jobs.watch import JobWatcher
from service.settings import Settings
from service.spec.problem import Problem
from service.spec.reports import PlanReport
from service.spec.status import JobStatus
from service.store import jobs, plans
from service.store.session import Database


class ExplainFailedError(Exception):
    """A worker found out that the job cannot be planned."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


async def explain_job(
    database: Database,
    watcher: JobWatcher,
    doorbell: Doorbell,
    settings: Settings,
    submissions: Submissions,
    submission: Submission,
) -> PlanReport:
    """The plan report of a job that is not run.

    Raises SpecError for a job that cannot run, ExplainFailedError where only a worker found that out,
    TooManyExplanationsError where the tenant waits for as many as it may, and WorkerUnavailableError where none
    answered in time.
    """
    patience = settings.api.explain_timeout_seconds
    accepted = await submissions.run(submit_job, database, doorbell, settings, submission)
    job_id, tenant = accepted.job.id, submission.tenant
    try:
        async with asyncio.timeout(patience):
            return await _wait_for_report(database, watcher, tenant, job_id)
    except TimeoutError:
        raise WorkerUnavailableError(
            f"No worker has planned the job within {patience:g} s. Is one running (GET /readyz), and is it busy?"
        ) from None
    finally:
        # Also for a caller that went away; a worker that still plans it notices that its claim is void.
        await asyncio.shield(asyncio.to_thread(_forget, database, job_id))


def forget_abandoned(database: Database) -> None:
    """Removes explanations that a killed process left behind."""
    with database.write() as session:
        jobs.delete_forgotten_explains(session, database.now(session))


async def _wait_for_report(database: Database, watcher: JobWatcher, tenant: str, job_id: str) -> PlanReport:
    version = 0
    while True:
        # Every wait ends by itself now and then: a change may be missed while the database does not answer.
        await watcher.wait_for_change(job_id, version, seconds=5)
        version, report = await asyncio.to_thread(_read_report, database, tenant, job_id)
        if report is not None:
            return report


def _read_report(database: Database, tenant: str, job_id: str) -> tuple[int, PlanReport | None]:
    with database.read() as session:
        row = jobs.find_job(session, tenant=tenant, job_id=job_id, kind=jobs.EXPLAIN)
        if row is None:
            raise WorkerUnavailableError("The explanation was removed before it was read.")
        if not jobs.has_finished(row):
            return row.version, None
        if row.status == JobStatus.TIMED_OUT.value:
            # Its worker counts the same time, and was the first to see it over.
            raise TimeoutError
        if row.status != JobStatus.SUCCEEDED.value:
            raise ExplainFailedError(_problem(row.error, row.status))
        return row.version, _report(session, job_id)


def _report(session: Session, job_id: str) -> PlanReport:
    plan = plans.latest_plan(session, job_id)
    if plan is None:
        raise WorkerUnavailableError("The worker ended the explanation without a plan.")
    return plans.report_of(plan)


def _problem(error: object, status: str) -> Problem:
    if error is None:
        raise WorkerUnavailableError(f"The explanation ended {status} without a reason.")
    return Problem.model_validate(error)


def _forget(database: Database, job_id: str) -> None:
    with database.write() as session:
        jobs.delete_job(session, job_id)
