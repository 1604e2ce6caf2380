"""The routes of jobs: submit, list, read, cancel, delete; of streaming jobs also stop, resume, change settings,
and read the progress.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Request, Response
from pydantic import AwareDatetime, BeforeValidator, Field
from pydantic.json_schema import SkipJsonSchema

from service.api import headers
from service.api.authentication import KEY_ENDED, ReaderTenant, SubmitterTenant, principal_of
from service.api.database_retries import Repeatable, RetryingRoute
from service.api.dependencies import Cursor, JobId, KnownTags, Preferences, ServicesDep, page_size_query
from service.api.problems import BODY_ERRORS, problems, request_id_of
from service.api.representations import is_current, job_response, json_response, wait_seconds
from service.contract.enums import JobStatus, Queue
from service.contract.errors import (
    DatabaseUnavailableError,
    IdempotencyKeyReusedError,
    InvalidCursorError,
    JobAlreadyFinishedError,
    JobNotFinishedError,
    JobNotFoundError,
    JobStateUnknownError,
    NotAStreamError,
    NotStoppedError,
    StateNotCompatibleError,
    StorageUnavailableError,
    TooManyJobsError,
    UnauthenticatedError,
)
from service.contract.job import JobSpec
from service.contract.model import Frozen
from service.contract.options import MERGE_PATCH, SettingsPatch
from service.jobs import lifecycle, stream_progress
from service.jobs.known_jobs import JobKey
from service.jobs.lifecycle import ResumeFrom, change_settings
from service.jobs.lifecycle import resume_job as resume
from service.jobs.read_jobs import MAX_PAGE_SIZE, JobPage, wait_for_job
from service.jobs.read_jobs import list_jobs as list_page
from service.jobs.submit_job import Submission
from service.jobs.submit_job import submit_job as submit
from service.jobs.views import Job
from service.store.jobs import JobFilter

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=RetryingRoute)
streaming_router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["jobs"], route_class=RetryingRoute)

JobBody = Annotated[JobSpec, Body()]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IDEMPOTENCY_KEY = r'^("([\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])+"|[\x21\x23-\x7e][\x21-\x7e]*)$'
"""A string in the syntax of structured headers (RFC 9651), or bare text that does not begin with a quote."""
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]")

_SETTINGS_ERRORS = (
    *BODY_ERRORS,
    JobNotFoundError,
    NotAStreamError,
    NotStoppedError,
    JobStateUnknownError,
    StateNotCompatibleError,
    StorageUnavailableError,
)
"""The errors of requests that may change the settings of a streaming job."""


def _as_text(value: Any) -> Any:
    # Pydantic reads a number as seconds or milliseconds since 1970, which is not what the client meant.
    if isinstance(value, str) and not _DATE.match(value):
        raise ValueError("write a timestamp as 2026-01-31T12:00:00Z")
    return value


_Moment = Annotated[AwareDatetime, BeforeValidator(_as_text)]


@router.post(
    "",
    status_code=202,
    response_model=Job,
    summary="Submit a job",
    responses={
        202: {"description": "The job is stored and queued.", "headers": headers.OF_A_SUBMITTED_JOB},
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
            description="Any text, with or without double quotes. A request with the same key and the same body within "
            "24 hours returns the same job; with another body it is rejected.",
        ),
    ] = None,
) -> Response:
    """Checks the job against the files of its tables, stores it and queues it. A worker runs it when one is free."""
    submission = Submission(tenant, body, _unquoted(idempotency_key or ""), request_id_of(request.scope))
    accepted = await services.submissions.run(
        submit, services.database, services.announcer, services.settings, submission
    )
    headers = {"Location": f"/v1/jobs/{accepted.job.id}"}
    if accepted.replayed:
        headers["Idempotency-Replayed"] = "true"
    return job_response(accepted.job, 202, headers)


@router.get("", response_model=JobPage, summary="List jobs", responses=problems(InvalidCursorError))
def list_jobs(
    services: ServicesDep,
    tenant: ReaderTenant,
    status: Annotated[list[JobStatus], Query(description="Only jobs in one of these states. Repeatable.")] = [],  # noqa: B006
    queue: Annotated[Queue | SkipJsonSchema[None], Query(description="Only jobs in this queue.")] = None,
    name: Annotated[
        str,
        Query(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$", description="Only jobs with this name prefix."),
    ] = "",
    id_prefix: Annotated[
        str,
        Query(max_length=36, pattern="^[0-9a-f-]*$", description="Only jobs whose id starts with this text."),
    ] = "",
    submitted_after: Annotated[
        _Moment | SkipJsonSchema[None], Query(description="Only jobs submitted after this time.")
    ] = None,
    submitted_before: Annotated[
        _Moment | SkipJsonSchema[None], Query(description="Only jobs submitted before this time.")
    ] = None,
    cursor: Cursor = "",
    page_size: Annotated[int, page_size_query("Entries per page", MAX_PAGE_SIZE)] = 50,
) -> Response:
    """Returns jobs, newest first. Jobs that are submitted while you page do not shift the pages."""
    wanted = JobFilter(
        frozenset(status), name, id_prefix, _milliseconds(submitted_after), _milliseconds(submitted_before), queue
    )
    page = list_page(services.database, services.settings, tenant, wanted, cursor, page_size, services.summaries)
    return json_response(page.body)


@router.get(
    "/{job_id}",
    response_model=Job,
    summary="Read a job",
    responses={
        200: {"description": "The job.", "headers": headers.OF_A_READ_JOB},
        304: {"description": "The job has not changed.", "headers": headers.OF_A_READ_JOB},
        **problems(JobNotFoundError),
    },
)
async def get_job(
    job_id: JobId,
    request: Request,
    services: ServicesDep,
    tenant: ReaderTenant,
    known_tags: KnownTags,
    preferences: Preferences,
) -> Response:
    """Returns the job's state. To wait for a change, send `Prefer: wait=N`: it costs the service less than polling."""
    wait = wait_seconds(preferences, services.settings.api.max_wait_seconds)
    job = await wait_for_job(
        services.reader,
        services.watcher,
        JobKey(tenant, job_id),
        # A client that sends no tags waits for the end of the job.
        is_known=lambda job: not known_tags or is_current(job, known_tags),
        seconds=wait or 0,
    )
    # The key may have been revoked during the wait.
    if wait and not await asyncio.to_thread(services.key_ring.holds, principal_of(request.scope)):
        raise UnauthenticatedError(KEY_ENDED)
    headers = {} if wait is None else {"Preference-Applied": f"wait={wait}"}
    return job_response(job, headers=headers, known_tags=known_tags)


ROUTE_OF_A_JOB = router.routes[-1]
"""The route of `get_job`."""


@router.delete(
    "/{job_id}",
    status_code=204,
    summary="Delete a job that has finished or is STOPPED",
    responses=problems(JobNotFoundError, JobNotFinishedError, JobStateUnknownError),
)
def delete_job(job_id: JobId, services: ServicesDep, tenant: SubmitterTenant) -> None:
    """Deletes the job with its plan, metrics, events, result and state. Rows that its sink wrote elsewhere remain."""
    lifecycle.delete_job(
        services.database, services.settings.results_dir, services.settings.streams_dir, tenant, job_id
    )


@router.post(
    "/{job_id}/cancel",
    status_code=202,
    response_model=Job,
    summary="Cancel a job",
    responses={
        202: {"description": "The job, CANCELLED or CANCELLING.", "headers": headers.OF_A_JOB},
        **problems(JobNotFoundError, JobAlreadyFinishedError, JobStateUnknownError),
    },
)
def cancel_job(job_id: JobId, services: ServicesDep, tenant: SubmitterTenant) -> Response:
    """Cancels a queued job immediately, and a running job when its worker sees the request. Idempotent."""
    return job_response(lifecycle.cancel_job(services.database, services.settings, tenant, job_id), 202)


def _unquoted(key: str) -> str:
    return re.sub(r"\\(.)", r"\1", key[1:-1]) if key.startswith('"') else key


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else (moment - _EPOCH) // timedelta(milliseconds=1)


class Resumption(Frozen):
    """From where a job resumes, and which settings change."""

    begin: ResumeFrom = Field(
        default=ResumeFrom.CHECKPOINT,
        alias="from",
        description="`checkpoint`: after the last mini-batch. `scratch`: without state; reads all input that still "
        "exists and writes a new result.",
    )
    settings: SettingsPatch = Field(
        default_factory=dict[str, Any],
        description="Settings to change before the job resumes. Settings that the state depends on can change only "
        "with `scratch`.",
    )


_DEFAULT_RESUMPTION = Resumption()


@streaming_router.post(
    "/stop",
    status_code=202,
    response_model=Job,
    summary="Stop a streaming job",
    responses={
        202: {"description": "The job, STOPPING or STOPPED.", "headers": headers.OF_A_JOB},
        **problems(JobNotFoundError, NotAStreamError, JobAlreadyFinishedError, JobStateUnknownError),
    },
)
def stop_job(job_id: JobId, services: ServicesDep, tenant: SubmitterTenant) -> Response:
    """Stops the job after its current mini-batch. No progress is lost, and the job can be resumed. Idempotent."""
    return job_response(lifecycle.stop_job(services.database, services.settings, tenant, job_id), 202)


@streaming_router.post(
    "/resume",
    status_code=202,
    response_model=Job,
    summary="Resume a streaming job",
    responses={
        202: {"description": "The job, QUEUED.", "headers": headers.OF_A_JOB},
        **problems(*_SETTINGS_ERRORS, TooManyJobsError, spec=True),
    },
)
async def resume_job(
    job_id: JobId, services: ServicesDep, tenant: SubmitterTenant, body: Resumption = _DEFAULT_RESUMPTION
) -> Response:
    """Queues a STOPPED job again. It resumes after its last mini-batch, or starts from scratch without state."""
    job = await services.submissions.run(
        resume,
        services.database,
        services.announcer,
        services.settings,
        tenant,
        job_id,
        body.begin,
        body.settings,
    )
    return job_response(job, 202)


@streaming_router.patch(
    "/settings",
    response_model=Job,
    summary="Change settings of a streaming job",
    responses={
        200: {"description": "The job with the settings changed.", "headers": headers.ETAG},
        **problems(*_SETTINGS_ERRORS, spec=True),
    },
)
async def change_job_settings(
    job_id: JobId,
    services: ServicesDep,
    tenant: SubmitterTenant,
    # Documented with one media type: given two, client generators choose the wrong one.
    body: Annotated[SettingsPatch, Body(media_type=MERGE_PATCH)],
) -> Response:
    """Applies a merge patch to the settings of a STOPPED job, for its next run; `application/json` is accepted too.
    Settings that the layout of the state depends on can change only when the job resumes from scratch.
    """
    job = await services.submissions.run(change_settings, services.database, services.settings, tenant, job_id, body)
    return job_response(job)


@streaming_router.get(
    "/stream", summary="Read the progress of a streaming job", responses=problems(JobNotFoundError, NotAStreamError)
)
def get_job_stream(job_id: JobId, services: ServicesDep, tenant: ReaderTenant) -> stream_progress.JobStream:
    """Returns the state, the newest mini-batch, the worker's measurements, and the reason why the job stopped."""
    return stream_progress.get_job_stream(services.database, tenant, job_id)


@streaming_router.get(
    "/batches",
    summary="List the mini-batches of a streaming job",
    responses=problems(JobNotFoundError, NotAStreamError, InvalidCursorError),
)
def list_job_batches(
    job_id: JobId,
    services: ServicesDep,
    tenant: ReaderTenant,
    cursor: Cursor = "",
    page_size: Annotated[int, page_size_query("Entries per page", stream_progress.MAX_BATCH_PAGE_SIZE)] = 50,
) -> stream_progress.JobBatchPage:
    """Returns mini-batches, newest first. The service keeps the newest thousand of each job."""
    return stream_progress.list_job_batches(services.database, tenant, job_id, cursor, page_size)
