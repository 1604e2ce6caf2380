"""The routes of reports: a job's plan and metrics, the plan of a job that is not run, and the hot keys of a table."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from service.api import headers
from service.api.authentication import ReaderTenant, SubmitterTenant
from service.api.database_retries import Repeatable, RetryingRoute
from service.api.dependencies import JobId, KnownTags, ServicesDep
from service.api.jobs import JobBody
from service.api.problems import BODY_ERRORS, problems, request_id_of
from service.api.representations import report_response
from service.contract.errors import (
    DatabaseUnavailableError,
    JobNotFoundError,
    MetricsNotReadyError,
    PlanNotReadyError,
    StorageUnavailableError,
    TooManyExplanationsError,
    WorkerUnavailableError,
)
from service.contract.profiles import ProfileReport, ProfileRequest
from service.contract.reports import MetricsReport, PlanReport
from service.jobs.explain_job import explain_job as explain
from service.jobs.explain_job import profile_table as profile
from service.jobs.reports import get_metrics as read_metrics
from service.jobs.reports import get_plan as read_plan
from service.jobs.submit_job import Submission
from service.store.jobs import EXPLAIN

router = APIRouter(prefix="/v1", tags=["reports"], route_class=RetryingRoute)

_PLANNING_PROBLEMS = problems(
    *BODY_ERRORS,
    TooManyExplanationsError,
    DatabaseUnavailableError,
    StorageUnavailableError,
    WorkerUnavailableError,
    spec=True,
)
_WITH_ETAG: dict[int | str, dict[str, Any]] = {
    200: {"headers": headers.ETAG},
    304: {"description": "The report has not changed.", "headers": headers.ETAG},
}
_Slots = Annotated[
    # The bounds are on the integer: on the union, they would be missing from the specification.
    Annotated[int, Field(ge=1, le=100_000)] | SkipJsonSchema[None],
    Query(description="Number of task slots for `savings.simulated`; by default the number when the job ran."),
]


@router.get(
    "/jobs/{job_id}/plan",
    response_model=PlanReport,
    summary="Read a job's plan",
    responses={**_WITH_ETAG, **problems(JobNotFoundError, PlanNotReadyError)},
)
def get_plan(job_id: JobId, services: ServicesDep, tenant: ReaderTenant, known_tags: KnownTags) -> Response:
    """Returns the plan before and after the rules, each rule's decision and reason, and Spark's physical plan.

    404 until the job has been planned.
    """
    return report_response(read_plan(services.database, tenant, job_id), known_tags)


@router.get(
    "/jobs/{job_id}/metrics",
    response_model=MetricsReport,
    summary="Read a job's metrics",
    responses={**_WITH_ETAG, **problems(JobNotFoundError, MetricsNotReadyError)},
)
async def get_metrics(
    job_id: JobId, services: ServicesDep, tenant: ReaderTenant, known_tags: KnownTags, slots: _Slots = None
) -> Response:
    """Returns task quantiles of each stage, metrics of Spark's operators, the skew report and the savings.

    404 until the job has run. Waits for some seconds while the run is being measured.
    """
    return report_response(await read_metrics(services.database, tenant, job_id, slots), known_tags)


@router.post("/explain", summary="Explain a job", responses=_PLANNING_PROBLEMS)
@Repeatable()
async def explain_job(body: JobBody, request: Request, services: ServicesDep, tenant: SubmitterTenant) -> PlanReport:
    """Plans a job on a worker, without running or storing it. 503 if no worker is free in time."""
    submission = Submission(tenant, body, "", request_id_of(request.scope), kind=EXPLAIN)
    return await explain(
        services.database,
        services.watcher,
        services.announcer,
        services.settings,
        services.submissions,
        submission,
    )


@router.post("/profiles", summary="Profile keys of a table", responses=_PLANNING_PROBLEMS)
@Repeatable()
async def profile_keys(
    body: Annotated[ProfileRequest, Body()],
    request: Request,
    services: ServicesDep,
    tenant: SubmitterTenant,
) -> ProfileReport:
    """Estimates a table's hot keys from a sample of its files, and the load of each task in a shuffle by each key.

    A worker reads the sample: 503 if no worker is free in time. The request counts against the limit of explanations.
    """
    return await profile(
        services.database,
        services.watcher,
        services.announcer,
        services.settings,
        services.submissions,
        body,
        tenant,
        request_id_of(request.scope),
    )
