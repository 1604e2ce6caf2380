"""Reads what happened to a job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import Field

from service.jobs.find import require_job
from service.jobs.views import timestamp
from service.spec.model import Frozen
from service.store import events
from service.store.jobs import has_finished
from service.store.session import Database

EVENTS_AT_ONCE = 200


class JobEvent(Frozen):
    """One thing that happened to a job."""

    id: int = Field(description="Grows with time; give it as `Last-Event-ID` to go on behind it.")
    at: datetime
    type: str = Field(description="`status`, `progress`, `attempt` or `plan`; more may come.", examples=["status"])
    data: dict[str, Any] = Field(examples=[{"status": "RUNNING"}])


class EventPage(Frozen):
    """Some events of a job, oldest first."""

    events: tuple[JobEvent, ...]
    last_event_id: int = Field(description="Give it as `Last-Event-ID` to go on; as given when there is nothing new.")
    complete: bool = Field(description="Whether the job has finished and these are its last events.")


@dataclass(frozen=True)
class EventRead:
    """A page of events and the version of the job that it shows."""

    page: EventPage
    version: int


def read_events(database: Database, tenant: str, job_id: str, after: int) -> EventRead:
    """Events whose id is greater than `after`, at most `EVENTS_AT_ONCE`. Raises JobNotFoundError."""
    with database.look() as session:
        row = require_job(session, tenant, job_id)
        rows = events.events_after(session, row.id, after, EVENTS_AT_ONCE)
        page = EventPage(
            events=tuple(
                JobEvent(id=event.id, at=timestamp(event.at), type=event.type, data=event.data) for event in rows
            ),
            last_event_id=rows[-1].id if rows else after,
            complete=has_finished(row) and len(rows) < EVENTS_AT_ONCE,
        )
        return EventRead(page, row.version)
