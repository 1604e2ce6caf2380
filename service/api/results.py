"""The result of a job: pages of JSON, or everything as CSV, Arrow or Parquet.

What happens to a job, as it happens: server-sent events, or pages of JSON.
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
from service.api.dependencies import Cursor, JobId, Services, ServicesDep, choose
from service.api.middleware import SteadyRoute
from service.api.problems import problems
from service.contract.errors import (
    InvalidCursorError,
    JobNotFoundError,
    NotAcceptableError,
    ResultMissingError,
    ResultNotReadyError,
    UnauthenticatedError,
)
from service.jobs.read_jobs import EventPage, EventRead, JobEvent, read_events
from service.jobs.read_result import MAX_PAGE_SIZE, Places, ResultPage, find_result, read_result
from service.keys.verification import Principal
from service.results.files import ARROW, CSV, PARQUET, WRITERS, as_csv
from service.store.session import fault_of

router = APIRouter(prefix="/v1/jobs", tags=["results"], route_class=SteadyRoute)

JSON = "application/json"
_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


@router.get(
    "/{job_id}/result",
    response_model=ResultPage,
    summary="Read a job's result",
    responses={
        200: {
            "description": "A page of rows as JSON, or the whole result in another format.",
            "content": {CSV: {"schema": {"type": "string"}}, ARROW: _BINARY, PARQUET: _BINARY},
        },
        **problems(JobNotFoundError, ResultNotReadyError, ResultMissingError, NotAcceptableError, InvalidCursorError),
    },
)
def get_result(
    job_id: JobId,
    request: Request,
    services: ServicesDep,
    tenant: ReaderTenant,
    cursor: Cursor = "",
    page_size: Annotated[
        int, Query(ge=1, description=f"Rows on a JSON page; more than {MAX_PAGE_SIZE} is read as {MAX_PAGE_SIZE}.")
    ] = 1000,
    csv_formulas: Annotated[
        Literal["escape", "keep"],
        Query(
            description="CSV alone: `escape` puts an apostrophe before texts that a spreadsheet would run as formulas, "
            "`keep` gives every text as it is."
        ),
    ] = "escape",
) -> Response:
    """Rows in the order of the query; of a streaming job all groups as they are now, in an order of their own.

    The Accept header chooses: JSON in pages (the default), CSV, Arrow or Parquet.
    """
    media_type = choose(request.headers.getlist("accept"), (JSON, *WRITERS))
    places = Places(services.settings.results_dir, services.settings.streams_dir)
    if media_type == JSON:
        page = read_result(services.database, places, tenant, job_id, cursor, page_size)
        return JSONResponse(page.model_dump(), headers={"Vary": "Accept"})
    files = find_result(services.database, places, tenant, job_id).files
    ending, write = WRITERS[media_type]
    headers = {"Vary": "Accept", "Content-Disposition": f'attachment; filename="{job_id}.{ending}"'}
    chunks = as_csv(files, formulas=True) if media_type == CSV and csv_formulas == "keep" else write(files)
    # Files that are gone or damaged are found out before the answer begins.
    first = next(chunks, b"")
    return StreamingResponse(chain((first,), chunks), headers=headers, media_type=media_type)


events_router = APIRouter(prefix="/v1/jobs", tags=["events"], route_class=SteadyRoute)

SSE = "text/event-stream"
_HEARTBEAT_SECONDS = 10.0
_DATABASE_PAUSE_SECONDS = 1.0


@events_router.get(
    "/{job_id}/events",
    response_model=EventPage,
    summary="Follow a job",
    responses={
        200: {
            "description": "A stream that ends with the job, or a page of what has happened so far. The `id` of an "
            "event in the stream is its id, `event` its type, and `data` the event as JSON.",
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
        str, Header(pattern=r"^\d{0,18}$", description="Only events after this one; browsers send it on reconnecting.")
    ] = "",
) -> Response:
    """Everything that happened, then everything as it happens. `Accept: application/json` gives what there is."""
    media_type = choose(request.headers.getlist("accept"), (SSE, JSON))
    first = await asyncio.to_thread(read_events, services.database, caller.tenant, job_id, int(last_event_id or 0))
    if media_type == JSON:
        return Response(first.page.model_dump_json(), media_type=JSON, headers={"Vary": "Accept"})
    headers = {"Vary": "Accept", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_stream(services, caller, job_id, first), headers=headers, media_type=SSE)


async def _stream(services: Services, caller: Principal, job_id: str, read: EventRead) -> AsyncIterator[str]:
    while True:
        for event in read.page.events:
            yield _framed(event)
        if read.page.complete:
            return
        if not read.page.events:
            changed = await services.watcher.wait_for_change(job_id, read.version, _HEARTBEAT_SECONDS)
            if not changed:
                # Tells proxies that the connection is alive, and finds out whether the client still is.
                yield ": waiting\n\n"
        after = read.page.last_event_id
        try:
            read = await asyncio.to_thread(_read_on, services, caller, job_id, after)
        except (JobNotFoundError, UnauthenticatedError):
            return
        except SQLAlchemyError as error:
            if fault_of(error) is None:
                raise
            # The client is connected already: better it hears what comes than that it comes again.
            yield ": waiting for the database\n\n"
            await asyncio.sleep(_DATABASE_PAUSE_SECONDS)
            read = EventRead(EventPage(events=(), last_event_id=after, complete=False), read.version)


def _read_on(services: Services, caller: Principal, job_id: str, after: int) -> EventRead:
    """What has happened since. A stream may be open for days: its key must still hold."""
    if not services.key_ring.holds(caller):
        raise UnauthenticatedError(KEY_ENDED)
    return read_events(services.database, caller.tenant, job_id, after)


def _framed(event: JobEvent) -> str:
    return f"id: {event.id}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n"
