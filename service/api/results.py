"""The routes of a job's result and events.

The result is JSON in pages, or the whole result as CSV, Arrow or Parquet. The events are server-sent events, or a page
of JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import chain
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from sqlalchemy.exc import SQLAlchemyError

from service.api.authentication import KEY_ENDED, Reader, ReaderTenant
from service.api.database_retries import RetryingRoute
from service.api.dependencies import Cursor, JobId, Services, ServicesDep, page_size_query
from service.api.problems import problems
from service.api.representations import JSON, choose_media_type
from service.contract.errors import (
    InvalidCursorError,
    InvalidLookupError,
    JobNotFoundError,
    NotAcceptableError,
    ResultMissingError,
    ResultNotReadyError,
    UnauthenticatedError,
)
from service.jobs.read_jobs import EventPage, EventRead, JobEvent, read_events
from service.jobs.read_result import MAX_PAGE_SIZE, ResultDirectories, ResultPage, find_result, look_up, read_result
from service.keys.verification import Principal
from service.results.files import ARROW, CSV, PARQUET, WRITERS, as_csv
from service.store.session import fault_of

router = APIRouter(prefix="/v1/jobs", route_class=RetryingRoute)

_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}

SSE = "text/event-stream"
_HEARTBEAT_SECONDS = 10.0
_DATABASE_PAUSE_SECONDS = 1.0
_MAX_KEY_LENGTH = 4096
"""A URL with a key of this length, each character as 12 bytes (`%F0%9F%98%80`), is below the limit of a request's
head, 64 KiB."""


@router.get(
    "/{job_id}/result",
    response_model=ResultPage,
    tags=["results"],
    summary="Read a job's result",
    responses={
        200: {
            "description": "A page of rows as JSON, or the whole result in another format.",
            "content": {CSV: {"schema": {"type": "string"}}, ARROW: _BINARY, PARQUET: _BINARY},
        },
        **problems(
            JobNotFoundError,
            ResultNotReadyError,
            ResultMissingError,
            NotAcceptableError,
            InvalidCursorError,
            InvalidLookupError,
        ),
    },
)
def get_result(
    job_id: JobId,
    request: Request,
    services: ServicesDep,
    tenant: ReaderTenant,
    cursor: Cursor = "",
    page_size: Annotated[int, page_size_query("Rows per JSON page", MAX_PAGE_SIZE)] = 1000,
    key: Annotated[
        str,
        Query(
            max_length=_MAX_KEY_LENGTH,
            description="A JSON object of columns and values: one page of the rows that have them, as JSON. If rows of "
            "a streaming job replace each other, name all columns of their keys.",
            examples=['{"k": "a"}'],
        ),
    ] = "",
    csv_formulas: Annotated[
        Literal["escape", "keep"],
        Query(
            description="For CSV only: `escape` prefixes text that a spreadsheet would evaluate as a formula with an "
            "apostrophe, `keep` returns all text unchanged."
        ),
    ] = "escape",
) -> Response:
    """Returns the rows in the order of the query; for a streaming job all current groups, in no particular order.

    The Accept header selects the format: JSON in pages (the default), CSV, Arrow or Parquet.
    """
    media_type = choose_media_type(request.headers.getlist("accept"), (JSON,) if key else (JSON, *WRITERS))
    places = ResultDirectories(services.settings.results_dir, services.settings.streams_dir)
    if key:
        found = look_up(services.database, places, tenant, job_id, key, page_size)
        return JSONResponse(found.model_dump(), headers={"Vary": "Accept"})
    if media_type == JSON:
        page = read_result(services.database, places, tenant, job_id, cursor, page_size)
        return JSONResponse(page.model_dump(), headers={"Vary": "Accept"})
    files = find_result(services.database, places, tenant, job_id).files
    ending, write = WRITERS[media_type]
    headers = {"Vary": "Accept", "Content-Disposition": f'attachment; filename="{job_id}.{ending}"'}
    chunks = as_csv(files, formulas=True) if media_type == CSV and csv_formulas == "keep" else write(files)
    # Read the first chunk now, so that missing or damaged files raise an error before the response starts.
    first = next(chunks, b"")
    return StreamingResponse(chain((first,), chunks), headers=headers, media_type=media_type)


@router.get(
    "/{job_id}/events",
    response_model=EventPage,
    tags=["events"],
    summary="Follow a job",
    responses={
        200: {
            "description": "A stream of events that ends with the job, or a page of the events so far. In the stream, "
            "`id` is the event's id, `event` its type, and `data` the event as JSON.",
            "content": {SSE: {"schema": {"type": "string"}}},
        },
        **problems(JobNotFoundError, NotAcceptableError),
    },
)
async def get_events(
    job_id: JobId,
    request: Request,
    services: ServicesDep,
    caller: Reader,
    last_event_id: Annotated[
        str,
        Header(
            pattern=r"^\d{0,18}$",
            description="Id of the last event that the client received: only later events are returned. Browsers "
            "send it when they reconnect.",
        ),
    ] = "",
) -> Response:
    """Streams all past events, then new events as they occur. With `Accept: application/json`, returns past events."""
    media_type = choose_media_type(request.headers.getlist("accept"), (SSE, JSON))
    first = await asyncio.to_thread(read_events, services.database, caller.tenant, job_id, int(last_event_id or 0))
    if media_type == JSON:
        return Response(first.page.model_dump_json(), media_type=JSON, headers={"Vary": "Accept"})
    headers = {"Vary": "Accept", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_stream(services, caller, job_id, first), headers=headers, media_type=SSE)


async def _stream(services: Services, caller: Principal, job_id: str, read: EventRead) -> AsyncIterator[str]:
    while True:
        for event in read.page.events:
            yield _as_sse(event)
        if read.page.complete:
            return
        if not read.page.events:
            changed = await services.watcher.wait_for_change(job_id, read.version, _HEARTBEAT_SECONDS)
            if not changed:
                # Keeps the connection open through proxies, and detects a client that has disconnected.
                yield ": waiting\n\n"
        after = read.page.last_event_id
        try:
            read = await asyncio.to_thread(_read_events_after, services, caller, job_id, after)
        except (JobNotFoundError, UnauthenticatedError):
            return
        except SQLAlchemyError as error:
            if fault_of(error) is None:
                raise
            # Keep the connection open until the database answers, instead of making the client reconnect.
            yield ": waiting for the database\n\n"
            await asyncio.sleep(_DATABASE_PAUSE_SECONDS)
            read = EventRead(EventPage(events=(), last_event_id=after, complete=False), read.version)


def _read_events_after(services: Services, caller: Principal, job_id: str, after: int) -> EventRead:
    """Reads the events after `after`. Raises UnauthenticatedError if the key has expired or was revoked meanwhile."""
    if not services.key_ring.holds(caller):
        raise UnauthenticatedError(KEY_ENDED)
    return read_events(services.database, caller.tenant, job_id, after)


def _as_sse(event: JobEvent) -> str:
    return f"id: {event.id}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n"
