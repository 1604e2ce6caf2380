"""What a job's worker found out: its plan and its metrics; and what is found out without a job: a plan, hot keys."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from service.api.authentication import ReaderTenant, SubmitterTenant
from service.api.dependencies import IfNoneMatch, JobId, ServicesDep, lines_of, report_response
from service.api.jobs import ETAG_HEADER, JobBody
from service.api.middleware import Repeatable, SteadyRoute
from service.api.problems import BODY_ERRORS, problems, request_id_of
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

router = APIRouter(prefix="/v1", tags=["reports"], route_class=SteadyRoute)

_PLANNED = problems(
    *BODY_ERRORS,
    TooManyExplanationsError,
    DatabaseUnavailableError,
    StorageUnavailableError,
    WorkerUnavailableError,
    spec=True,
)
_TAGGED: dict[int | str, dict[str, Any]] = {
    200: {"headers": ETAG_HEADER},
    304: {"description": "The report is as you know it.", "headers": ETAG_HEADER},
}
_Slots = Annotated[
    # The bounds stand within: beside a union, the specification would not tell them.
    Annotated[int, Field(ge=1, le=100_000)] | SkipJsonSchema[None],
    Query(description="Tasks that run at once in `savings.simulated`; by default as many as when the job ran."),
]


@router.get(
    "/jobs/{job_id}/plan",
    response_model=PlanReport,
    summary="Read a job's plan",
    responses={**_TAGGED, **problems(JobNotFoundError, PlanNotReadyError)},
)
def get_plan(
    job_id: JobId,
    request: Request,
    services: ServicesDep,
    tenant: ReaderTenant,
    if_none_match: IfNoneMatch = "",  # noqa: ARG001 - for the specification
) -> Response:
    """The query before and after the rules, what each rule did and why, Spark's physical plan. 404 until planned."""
    return report_response(read_plan(services.database, tenant, job_id), lines_of(request, "if-none-match"))


@router.get(
    "/jobs/{job_id}/metrics",
    response_model=MetricsReport,
    summary="Read a job's metrics",
    responses={**_TAGGED, **problems(JobNotFoundError, MetricsNotReadyError)},
)
def get_metrics(
    job_id: JobId,
    request: Request,
    services: ServicesDep,
    tenant: ReaderTenant,
    slots: _Slots = None,
    if_none_match: IfNoneMatch = "",  # noqa: ARG001 - for the specification
) -> Response:
    """Task quantiles of each stage, what Spark's operators did, the skew report and what was saved. 404 until the job
    has run.
    """
    report = read_metrics(services.database, tenant, job_id, slots)
    return report_response(report, lines_of(request, "if-none-match"))


@router.post("/explain", summary="Explain a job", responses=_PLANNED)
@Repeatable()
async def explain_job(body: JobBody, request: Request, services: ServicesDep, tenant: SubmitterTenant) -> PlanReport:
    """Plans a job without running or keeping it. A worker does it: 503 when none is free in time."""
    submission = Submission(tenant, body, "", request_id_of(request.scope), kind=EXPLAIN)
    return await explain(
        services.database,
        services.watcher,
        services.doorbell,
        services.settings,
        services.submissions,
        submission,
    )


@router.post("/profiles", summary="Profile keys of a table", responses=_PLANNED)
@Repeatable()
async def profile_keys(
    body: Annotated[ProfileRequest, Body()],
    request: Request,
    services: ServicesDep,
    tenant: SubmitterTenant,
) -> ProfileReport:
    """Hot keys of a table before any job reads it, from a sample of its files, and how a shuffle by each key would load
    its tasks. A worker does it: 503 when none is free in time. It counts as an explanation.
    """
    return await profile(
        services.database,
        services.watcher,
        services.doorbell,
        services.settings,
        services.submissions,
        body,
        tenant,
        request_id_of(request.scope),
    )
