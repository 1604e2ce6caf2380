"""Reads the plan report of a job."""

from __future__ import annotations

from service.errors import PlanNotReadyError
from service.jobs.find import require_job
from service.spec.reports import PlanReport
from service.store import plans
from service.store.session import Database


def get_plan(database: Database, tenant: str, job_id: str) -> PlanReport:
    """The plan of the job's newest planned attempt. Raises JobNotFoundError and PlanNotReadyError."""
    with database.read() as session:
        row = require_job(session, tenant, job_id)
        plan = plans.latest_plan(session, row.id)
        if plan is None:
            raise PlanNotReadyError(f"The job is {row.status} and has not been planned.")
        return plans.report_of(plan)
