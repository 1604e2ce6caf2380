"""Jobs: submit, list, read, cancel, delete."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Request, Response
from pydantic import AwareDatetime, BeforeValidator, Field
from pydantic.json_schema import SkipJsonSchema

from service.access_errors import TooManyJobsError, UnauthenticatedError
from service.api.authentication import KEY_ENDED, ReaderTenant, SubmitterTenant, principal_of
from service.api.body_errors import BODY_ERRORS
from service.api.conditional import is_known, job_response, wait_seconds
from service.api.dependencies import Cursor, IfNoneMatch, JobId, Prefer, ServicesDep, lines_of
from service.api.problems import problems, request_id_of
from service.api.retries import Repeatable, SteadyRoute
from service.errors import (
    DatabaseUnavailableError,
    IdempotencyKeyReusedError,
    InvalidCursorError,
    JobAlreadyFinishedError,
    JobNotFinishedError,
    JobNotFoundError,
    JobStateUnknownError,
    StorageUnavailableError,
)
from service.jobs.cancel_job import cancel_job as cancel
from service.jobs.delete_job import delete_job as delete
from service.jobs.list_jobs import MAX_PAGE_SIZE, JobPage
from service.jobs.list_jobs import list_jobs as list_page
from service.jobs.read_jobs import JobKey
from service.jobs.submit_job import Submission
from service.jobs.submit_job import submit_job as submit
from service.jobs.views import Job
from service.jobs.wait_for_job import wait_for_job
from service.spec.job import JobSpec
from service.spec.queues import Queue
from service.spec.status import JobStatus
from service.store.jobs import JobFilter

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=SteadyRoute)

JobBody = Annotated[JobSpec, Body()]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IDEMPOTENCY_KEY = r'^("([\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])+"|[\x21\x23-\x7e][\x21-\x7e]*)$'
"""A string as structured headers have it (RFC 9651), or bare text that does not begin as one."""
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]")


def _as_text(value: Any) -> Any:
    # Pydantic would read a number as seconds, or milliseconds, since 1970: another moment than was meant.
    if isinstance(value, str) and not _DATE.match(value):
        raise ValueError("a moment is written as 2026-01-31T12:00:00Z")
    return value


_Moment = Annotated[AwareDatetime, BeforeValidator(_as_text)]


def _header(description: str, example: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}, "example": example}


ETAG_HEADER = {"ETag": _header("Strong entity tag of this representation.", '"3-5f1d0c7b9a3e2d41"')}
RETRY_HEADER = {
    "Retry-After": _header("Seconds after which to ask again; absent once the job has finished or is STOPPED.", "1")
}
_APPLIED = {"Preference-Applied": _header("The wait that was granted.", "wait=10")}
_REPLAYED = {
    "Idempotency-Replayed": _header("`true` where the Idempotency-Key had made this job before; else absent.", "true")
}
_LOCATION = {"Location": _header("Path of the job.", "/v1/jobs/0b9f6c1e-6a44-4b7e-9d0e-0f6d5a3c2b1a")}


@router.post(
    "",
    status_code=202,
    response_model=Job,
    summary="Submit a job",
    responses={
        202: {
            "description": "The job is stored and queued.",
            "headers": {**_LOCATION, **_REPLAYED, **ETAG_HEADER, **RETRY_HEADER},
        },
        **problems(
            *BODY_ERRORS,
            IdempotencyKeyReusedError,
            TooManyJobsError,
            DatabaseUnavailableError,
            StorageUnavailableError,
            spec=True,
        ),
    },
)
@Repeatable(header="idempotency-key")
async def submit_job(
    body: JobBody,
    request: Request,
    services: ServicesDep,
    tenant: SubmitterTenant,
    idempotency_key: Annotated[
        Annotated[str, Field(max_length=255, pattern=_IDEMPOTENCY_KEY)] | SkipJsonSchema[None],
        Header(
            description="Any text of your choice, in double quotes or bare. The same key with the same body within 24 "
            "hours is the same job; with another body it is refused.",
        ),
    ] = None,
) -> Response:
    """Checks the job against its tables' files and stores it. It is run as soon as a worker is free."""
    submission = Submission(tenant, body, _unquoted(idempotency_key or ""), request_id_of(request.scope))
    accepted = await services.submissions.run(
        submit, services.database, services.doorbell, services.settings, submission
    )
    headers = {"Location": f"/v1/jobs/{accepted.job.id}"}
    if accepted.replayed:
        headers["Idempotency-Replayed"] = "true"
    return job_response(accepted.job, 202, headers)


@router.get("", summary="List jobs", responses=problems(InvalidCursorError))
def list_jobs(
    services: ServicesDep,
    tenant: ReaderTenant,
    status: Annotated[list[JobStatus], Query(description="Only jobs in one of these states; may be repeated.")] = [],  # noqa: B006
    queue: Annotated[Queue | SkipJsonSchema[None], Query(description="Only jobs in this queue.")] = None,
    name: Annotated[
        str, Query(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$", description="Only jobs whose name starts so.")
    ] = "",
    submitted_after: Annotated[
        _Moment | SkipJsonSchema[None], Query(description="Only jobs submitted later than this.")
    ] = None,
    submitted_before: Annotated[
        _Moment | SkipJsonSchema[None], Query(description="Only jobs submitted earlier than this.")
    ] = None,
    cursor: Cursor = "",
    page_size: Annotated[
        int, Query(ge=1, description=f"Jobs on a page; more than {MAX_PAGE_SIZE} is read as {MAX_PAGE_SIZE}.")
    ] = 50,
) -> JobPage:
    """Jobs, newest first. What is submitted while you page does not shift the pages."""
    wanted = JobFilter(frozenset(status), name, _milliseconds(submitted_after), _milliseconds(submitted_before), queue)
    return list_page(services.database, services.settings, tenant, wanted, cursor, page_size)


@router.get(
    "/{job_id}",
    response_model=Job,
    summary="Read a job",
    responses={
        200: {"description": "The job.", "headers": {**ETAG_HEADER, **RETRY_HEADER, **_APPLIED}},
        304: {"description": "The job is as you know it.", "headers": {**ETAG_HEADER, **RETRY_HEADER, **_APPLIED}},
        **problems(JobNotFoundError),
    },
)
async def get_job(
    job_id: JobId,
    request: Request,
    services: ServicesDep,
    tenant: ReaderTenant,
    if_none_match: IfNoneMatch = "",  # noqa: ARG001 - for the specification, as the next one
    prefer: Prefer = "",  # noqa: ARG001
) -> Response:
    """How the job stands. A wait costs the service next to nothing: prefer it to polling."""
    known_tags = lines_of(request, "if-none-match")
    wait = wait_seconds(lines_of(request, "prefer"), services.settings.api.max_wait_seconds)
    job = await wait_for_job(
        services.reader,
        services.watcher,
        JobKey(tenant, job_id),
        # Without tags, nothing but the end of the job is worth telling.
        is_known=lambda job: not known_tags or is_known(job, known_tags),
        seconds=wait or 0,
    )
    # The key may have been revoked meanwhile.
    if wait and not await asyncio.to_thread(services.key_ring.holds, principal_of(request.scope)):
        raise UnauthenticatedError(KEY_ENDED)
    headers = {} if wait is None else {"Preference-Applied": f"wait={wait}"}
    return job_response(job, headers=headers, known_tags=known_tags)


@router.delete(
    "/{job_id}",
    status_code=204,
    summary="Delete a job that has finished or is STOPPED",
    responses=problems(JobNotFoundError, JobNotFinishedError, JobStateUnknownError),
)
def delete_job(job_id: JobId, services: ServicesDep, tenant: SubmitterTenant) -> None:
    """Removes the job with its plan, metrics, events, result and state; what its sink wrote elsewhere stays."""
    delete(services.database, services.settings.results_dir, services.settings.streams_dir, tenant, job_id)


@router.post(
    "/{job_id}/cancel",
    status_code=202,
    response_model=Job,
    summary="Cancel a job",
    responses={
        202: {"description": "The job, CANCELLED or CANCELLING.", "headers": {**ETAG_HEADER, **RETRY_HEADER}},
        **problems(JobNotFoundError, JobAlreadyFinishedError, JobStateUnknownError),
    },
)
def cancel_job(job_id: JobId, services: ServicesDep, tenant: SubmitterTenant) -> Response:
    """Ends a queued job at once, and a running one as soon as its worker notices. Asking twice changes nothing."""
    return job_response(cancel(services.database, services.settings, tenant, job_id), 202)


def _unquoted(key: str) -> str:
    return re.sub(r"\\(.)", r"\1", key[1:-1]) if key.startswith('"') else key


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else (moment - _EPOCH) // timedelta(milliseconds=1)
