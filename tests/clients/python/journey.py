"""Uses of the generated Python client, which mypy checks against the generated package."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, TypeVar

import httpx
from evenkeel_openapi import AuthenticatedClient
from evenkeel_openapi.api.events import get_events
from evenkeel_openapi.api.jobs import get_job, list_jobs, submit_job
from evenkeel_openapi.api.keys import create_key, get_me, list_keys, revoke_key
from evenkeel_openapi.api.operations import get_health, get_prometheus_metrics, get_readiness
from evenkeel_openapi.api.reports import explain_job, get_metrics, get_plan
from evenkeel_openapi.api.results import get_result
from evenkeel_openapi.api.streams import append_rows, declare_stream, get_stream
from evenkeel_openapi.api.workers import list_workers
from evenkeel_openapi.models import (
    AppendedRows,
    Job,
    JobSpec,
    JobStatus,
    KeyRequest,
    KeyScope,
    Me,
    MetricsReport,
    PlanReport,
    Problem,
    Stream,
    StreamDeclaration,
)
from evenkeel_openapi.types import UNSET, File, Unset

T = TypeVar("T")

ARROW = "application/vnd.apache.arrow.stream"
CSV = "text/csv"

SECONDS = 60.0
"""The timeout of a request: longer than the longest wait."""


def client_of(address: str, key: str) -> AuthenticatedClient:
    """Returns a client that requests JSON where other formats exist."""
    return AuthenticatedClient(
        base_url=address,
        token=key,
        headers={"Accept": "application/json"},
        timeout=httpx.Timeout(SECONDS),
        raise_on_unexpected_status=True,
    )


def done(answer: T | Problem | None) -> T:
    """Returns the response. Raises AssertionError with the problem if the request was refused."""
    assert answer is not None
    assert not isinstance(answer, Problem), answer.detail
    return answer


def submit(client: AuthenticatedClient, spec: dict[str, Any], key: str | Unset = UNSET) -> Job:
    """Submits a job, with an idempotency key if given, and returns it."""
    return done(submit_job.sync(client=client, body=JobSpec.from_dict(spec), idempotency_key=key))


def wait_for(client: AuthenticatedClient, job_id: str, *states: str, waits: int = 60) -> Job:
    """Waits until the job has finished or is in one of the states, with `Prefer: wait`."""
    known = ""
    for _ in range(waits):
        answer = get_job.sync_detailed(job_id, client=client, prefer="wait=2", if_none_match=known)
        if answer.status_code == HTTPStatus.NOT_MODIFIED:
            continue
        job: Job = done(answer.parsed)
        known = answer.headers["ETag"]
        if job.finished or job.status in states:
            return job
    raise AssertionError(f"timed out waiting for {job_id}")


def rows_of(client: AuthenticatedClient, job_id: str, page_size: int) -> Iterator[list[list[Any]]]:
    """Yields the pages of a result."""
    cursor = ""
    while True:
        page = done(get_result.sync(job_id, client=client, cursor=cursor, page_size=page_size))
        yield page.rows
        cursor = page.next_cursor
        if not cursor:
            return


def download(client: AuthenticatedClient, job_id: str, media_type: str) -> bytes:
    """Downloads a whole result in another format, with another Accept header."""
    http = client.get_httpx_client()
    answer = http.get(f"/v1/jobs/{job_id}/result", headers={"Accept": media_type})
    answer.raise_for_status()
    return bytes(answer.content)


def names_of_jobs(client: AuthenticatedClient, status: JobStatus) -> list[str]:
    """Returns the names of all jobs in a state, page by page."""
    names: list[str] = []
    cursor = ""
    while True:
        page = done(list_jobs.sync(client=client, status=[status], cursor=cursor, page_size=1))
        names += [job.name for job in page.jobs]
        cursor = page.next_cursor
        if not cursor:
            return names


def events_of(client: AuthenticatedClient, job_id: str, after: int) -> list[tuple[int, str]]:
    """Returns the ids and types of the events after an event."""
    page = done(get_events.sync(job_id, client=client, last_event_id=str(after)))
    return [(event.id, event.type_) for event in page.events]


def reports_of(client: AuthenticatedClient, job_id: str) -> tuple[PlanReport, MetricsReport]:
    """Returns the plan report and the metrics of a job."""
    return done(get_plan.sync(job_id, client=client)), done(get_metrics.sync(job_id, client=client))


def explanation(client: AuthenticatedClient, spec: dict[str, Any]) -> PlanReport:
    """Returns the plan report of an explanation."""
    return done(explain_job.sync(client=client, body=JobSpec.from_dict(spec)))


def declare(client: AuthenticatedClient, name: str, schema: str) -> Stream:
    """Declares an input stream."""
    return done(declare_stream.sync(name, client=client, body=StreamDeclaration(schema=schema)))


def append(client: AuthenticatedClient, name: str, batch_id: str, rows: File) -> AppendedRows:
    """Posts rows as NDJSON."""
    return done(append_rows.sync(name, client=client, batch_id=batch_id, body=rows))


def posted_rows(client: AuthenticatedClient, name: str) -> int:
    """Returns the number of rows of a stream."""
    return int(done(get_stream.sync(name, client=client)).rows)


def who(client: AuthenticatedClient) -> Me:
    """Returns the caller."""
    return done(get_me.sync(client=client))


def key_that_lives_and_ends(client: AuthenticatedClient) -> list[bool]:
    """Creates and revokes a key. Returns whether it was valid before and after, and whether it is listed."""
    made = done(create_key.sync(client=client, body=KeyRequest(name="nightly loads", scopes=[KeyScope.READ])))
    ended = done(revoke_key.sync(made.id, client=client))
    listed = [key.id for key in done(list_keys.sync(client=client)).keys]
    return [made.active, ended.active, made.id in listed]


def state_of_the_service(client: AuthenticatedClient) -> tuple[str, str, int, str]:
    """Returns the service's health, readiness, number of workers and metrics."""
    health = done(get_health.sync(client=client))
    readiness = done(get_readiness.sync(client=client))
    workers = done(list_workers.sync(client=client))
    return health.status, readiness.status, len(workers.workers), str(done(get_prometheus_metrics.sync(client=client)))
