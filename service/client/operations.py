"""The operations of jobs and results as routines, which both kinds of connection run; see `exchange.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import httpx

from ..contract.enums import JobStatus
from . import requests
from .errors import (
    ConflictError,
    JobCancelledError,
    JobFailedError,
    JobTimedOutError,
    WaitTimeoutError,
)
from .exchange import Exchange, Pause, Steps
from .problem_text import Source
from .requests import Request
from .responses import Document, Job, JobPage, JobSummary, M, ResultPage, document_of, read

T = TypeVar("T")

WAIT_SECONDS = 10.0
_MIN_SECONDS = 0.1
_UNCHANGED_SECONDS = 1.0
"""Time between requests if the service responds at once although the job is unchanged, because it limits waits."""

_PAGE = 200
_MAX_INTERRUPTIONS = 5
"""Each one restarts the download from the beginning, so a connection that always breaks must not retry forever."""

_FAILURES = {JobStatus.CANCELLED: JobCancelledError, JobStatus.TIMED_OUT: JobTimedOutError}


@dataclass(frozen=True)
class JobState:
    """A job as the service returned it, with its `ETag`, with which a request asks for changes."""

    document: Document
    tag: str = ""

    @property
    def job(self) -> Job:
        """The job. Raises ServiceFailedError if the document does not have its form."""
        return read(Job, self.document)


def fetched(exchange: Exchange, request: Request, kind: type[M]) -> Steps[M]:
    """Returns the response to a request as a model."""
    response = yield from exchange.send(request)
    return read(kind, document_of(response))


def submitted(
    exchange: Exchange, spec: Mapping[str, Any], source: Source | None, idempotency_key: str | None
) -> Steps[JobState]:
    """Submits a job and returns it. All tries have the same key, so that they create one job."""
    key = idempotency_key or requests.new_idempotency_key()
    response = yield from exchange.send(requests.submission(spec, key, source))
    return JobState(document_of(response))


def found(exchange: Exchange, job_id: str) -> Steps[JobState]:
    """Returns the job's current state."""
    return (yield from answered(exchange, requests.job(job_id)))


def answered(exchange: Exchange, request: Request) -> Steps[JobState]:
    """Returns the job that the response to a request contains."""
    response = yield from exchange.send(request)
    return JobState(document_of(response), response.headers.get("etag", ""))


def listed(exchange: Exchange, filters: Mapping[str, Any], limit: int) -> Steps[list[JobSummary]]:
    """Returns at most `limit` jobs, newest first; 0 for all."""
    jobs: list[JobSummary] = []
    cursor = ""
    while True:
        size = _PAGE if limit == 0 else min(_PAGE, limit - len(jobs))
        parameters = {**filters, "page_size": size, **({"cursor": cursor} if cursor else {})}
        page = yield from fetched(exchange, requests.jobs(parameters), JobPage)
        jobs += page.jobs
        cursor = page.next_cursor
        if not cursor or (limit and len(jobs) >= limit):
            return jobs


def changed(exchange: Exchange, job_id: str, known: JobState | None, wait_seconds: float) -> Steps[JobState | None]:
    """Returns the job as soon as its state differs from `known`; None if it is the same after `wait_seconds`."""
    request = requests.changed_job(job_id, known.tag if known else None, wait_seconds)
    response = yield from exchange.send(request)
    if response.status_code == httpx.codes.NOT_MODIFIED:
        return None
    return JobState(document_of(response), response.headers.get("etag", ""))


def ended(
    exchange: Exchange,
    job_id: str,
    show: Callable[[Job], None],
    *,
    timeout: float | None = None,
    wait_seconds: float = WAIT_SECONDS,
) -> Steps[JobState]:
    """Returns the job when it has ended or is STOPPED. Calls `show` with it after each change and after each wait.

    Raises WaitTimeoutError after `timeout` seconds.
    """
    until = None if timeout is None else time.monotonic() + timeout
    known: JobState | None = None
    job: Job | None = None
    while True:
        requested_at = time.monotonic()
        left = wait_seconds if until is None else min(wait_seconds, max(until - requested_at, 0))
        state = yield from changed(exchange, job_id, known, left)
        if state is not None:
            known, job = state, state.job
        assert known is not None  # noqa: S101 - the first response is never 304
        assert job is not None  # noqa: S101
        show(job)
        if job.is_at_rest:
            return known
        now = time.monotonic()
        if until is not None and now >= until:
            raise WaitTimeoutError(f"the job {job_id} has not ended within {timeout:g} s", job_id=job_id)
        pause = (_MIN_SECONDS if state is not None else _UNCHANGED_SECONDS) - (now - requested_at)
        if until is not None:
            pause = min(pause, until - now)
        if pause > 0:
            yield Pause(pause)


def cancelled(exchange: Exchange, job_id: str) -> Steps[JobState]:
    """Cancels a job and returns it; a job that has ended is returned as it is."""
    try:
        return (yield from answered(exchange, requests.cancellation(job_id)))
    except ConflictError:
        return (yield from found(exchange, job_id))


def failure(job: Job, source: Source | None) -> JobFailedError | None:
    """Returns the error of a job that ended without success, or is STOPPED because a run failed; otherwise None."""
    if job.status == JobStatus.SUCCEEDED or (job.status == JobStatus.STOPPED and job.error is None):
        return None
    kind = next((kind for status, kind in _FAILURES.items() if status == job.status), JobFailedError)
    message = f"the job {job.id} ended {job.status}"
    return kind(message, "", job.error, None, source or (Source(job.sql) if job.sql else None), job.id)


def page(exchange: Exchange, job_id: str, size: int, cursor: str = "") -> Steps[ResultPage]:
    """Returns a page of rows."""
    return (yield from fetched(exchange, requests.result_page(job_id, size, cursor), ResultPage))


def downloaded(exchange: Exchange, job_id: str, sink: IO[bytes]) -> Steps[None]:
    """Writes the complete result to `sink` in Arrow's stream format; starts again if the connection breaks."""
    interruptions = 0
    request = requests.result(job_id, requests.ARROW)
    while True:
        sink.seek(0)
        sink.truncate()
        try:
            yield from exchange.send(request, sink=sink)
        except httpx.TransportError as error:
            interruptions += 1
            # The service has sent data, so its time for retries starts again.
            pause = exchange.retry_budget().next_pause() if interruptions < _MAX_INTERRUPTIONS else None
            if pause is None:
                raise exchange.unreachable(error) from None
            yield from exchange.pause(pause, "The download was interrupted")
        else:
            return
