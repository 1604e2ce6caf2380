"""What happens to a job, as it happens: server-sent events, or pages of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import StreamingResponse
from sqlalchemy.exc import SQLAlchemyError

from service.access_errors import UnauthenticatedError
from service.api.authentication import KEY_ENDED, Reader
from service.api.dependencies import JobId, Services, ServicesDep
from service.api.negotiation import choose
from service.api.problems import problems
from service.api.retries import SteadyRoute
from service.errors import JobNotFoundError, NotAcceptableError
from service.jobs.read_events import EventPage, EventRead, JobEvent, read_events
from service.keys.principal import Principal
from service.store.faults import fault_of

router = APIRouter(prefix="/v1/jobs", tags=["events"], route_class=SteadyRoute)

SSE = "text/event-stream"
JSON = "application/json"
_HEARTBEAT_SECONDS = 10.0
_DATABASE_PAUSE_SECONDS = 1.0


@router.get(
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
