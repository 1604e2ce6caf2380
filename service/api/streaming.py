"""Streaming jobs: stop, resume, change settings, and see how far they have come."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Response
from pydantic import Field

from service.access_errors import TooManyJobsError
from service.api.authentication import ReaderTenant, SubmitterTenant
from service.api.body_errors import BODY_ERRORS
from service.api.conditional import job_response
from service.api.dependencies import Cursor, JobId, ServicesDep
from service.api.jobs import ETAG_HEADER, RETRY_HEADER
from service.api.problems import problems
from service.api.retries import SteadyRoute
from service.errors import (
    InvalidCursorError,
    JobAlreadyFinishedError,
    JobNotFoundError,
    JobStateUnknownError,
    NotAStreamError,
    NotStoppedError,
    StateNotCompatibleError,
    StorageUnavailableError,
)
from service.jobs.change_settings import change_settings
from service.jobs.get_job_stream import JobStream
from service.jobs.get_job_stream import get_job_stream as read_stream
from service.jobs.list_job_batches import MAX_PAGE_SIZE, JobBatchPage
from service.jobs.list_job_batches import list_job_batches as list_page
from service.jobs.resume_job import ResumeFrom
from service.jobs.resume_job import resume_job as resume
from service.jobs.stop_job import stop_job as stop
from service.jobs.views import Job
from service.spec.model import Frozen
from service.spec.settings_patch import MERGE_PATCH, SettingsPatch

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["jobs"], route_class=SteadyRoute)


class Resumption(Frozen):
    """Where a job goes on, and with which settings changed."""

    begin: ResumeFrom = Field(
        default=ResumeFrom.CHECKPOINT,
        alias="from",
        description="`checkpoint`: behind the last mini-batch. `scratch`: without state, with all input that is still "
        "there, and with a new result.",
    )
    settings: SettingsPatch = Field(
        default_factory=dict[str, Any],
        description="Settings to change before. From `scratch`, those that state depends on may change too.",
    )


_AS_IT_IS = Resumption()


@router.post(
    "/stop",
    status_code=202,
    response_model=Job,
    summary="Stop a streaming job",
    responses={
        202: {"description": "The job, STOPPING or STOPPED.", "headers": {**ETAG_HEADER, **RETRY_HEADER}},
        **problems(JobNotFoundError, NotAStreamError, JobAlreadyFinishedError, JobStateUnknownError),
    },
)
def stop_job(job_id: JobId, services: ServicesDep, tenant: SubmitterTenant) -> Response:
    """Lets the mini-batch at hand end and lays the job to rest; nothing is lost. Asking twice changes nothing."""
    return job_response(stop(services.database, services.settings, tenant, job_id), 202)


@router.post(
    "/resume",
    status_code=202,
    response_model=Job,
    summary="Resume a streaming job",
    responses={
        202: {"description": "The job, QUEUED.", "headers": {**ETAG_HEADER, **RETRY_HEADER}},
        **problems(
            *BODY_ERRORS,
            JobNotFoundError,
            NotAStreamError,
            NotStoppedError,
            JobStateUnknownError,
            StateNotCompatibleError,
            TooManyJobsError,
            StorageUnavailableError,
            spec=True,
        ),
    },
)
async def resume_job(
    job_id: JobId, services: ServicesDep, tenant: SubmitterTenant, body: Resumption = _AS_IT_IS
) -> Response:
    """Queues a STOPPED job again. It goes on behind its last mini-batch, or begins anew without state."""
    job = await services.submissions.run(
        resume, services.database, services.doorbell, services.settings, tenant, job_id, body.begin, body.settings
    )
    return job_response(job, 202)


@router.patch(
    "/settings",
    response_model=Job,
    summary="Change settings of a streaming job",
    responses={
        200: {"description": "The job with the settings changed.", "headers": {**ETAG_HEADER}},
        **problems(
            *BODY_ERRORS,
            JobNotFoundError,
            NotAStreamError,
            NotStoppedError,
            JobStateUnknownError,
            StateNotCompatibleError,
            StorageUnavailableError,
            spec=True,
        ),
    },
)
async def change_job_settings(
    job_id: JobId,
    services: ServicesDep,
    tenant: SubmitterTenant,
    # Told as of one type: of two, generators of clients choose badly.
    body: Annotated[SettingsPatch, Body(media_type=MERGE_PATCH)],
) -> Response:
    """A merge patch of the settings of a STOPPED job, for its next run; `application/json` is taken as well. Settings
    that its state was laid out by change only with a start from scratch.
    """
    job = await services.submissions.run(change_settings, services.database, services.settings, tenant, job_id, body)
    return job_response(job)


@router.get("/stream", summary="Read how far a streaming job is", responses=problems(JobNotFoundError, NotAStreamError))
def get_job_stream(job_id: JobId, services: ServicesDep, tenant: ReaderTenant) -> JobStream:
    """Its state, its newest mini-batch, what its worker measured, and why it rests where it does."""
    return read_stream(services.database, tenant, job_id)


@router.get(
    "/batches",
    summary="List the mini-batches of a streaming job",
    responses=problems(JobNotFoundError, NotAStreamError, InvalidCursorError),
)
def list_job_batches(
    job_id: JobId,
    services: ServicesDep,
    tenant: ReaderTenant,
    cursor: Cursor = "",
    page_size: Annotated[
        int, Query(ge=1, description=f"Mini-batches on a page; more than {MAX_PAGE_SIZE} is read as {MAX_PAGE_SIZE}.")
    ] = 50,
) -> JobBatchPage:
    """Mini-batches, newest first; the newest thousand of a job are kept."""
    return list_page(services.database, tenant, job_id, cursor, page_size)
