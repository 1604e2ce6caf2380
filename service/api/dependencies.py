"""The parameters that several routes share, and the objects that the application passes to its routes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request

from service.api.authentication import SharedCalls
from service.broker.dispatch import JobAnnouncer
from service.config.settings import Settings
from service.jobs.known_jobs import KnownSummaries
from service.jobs.read_jobs import JobReader, JobWatcher
from service.jobs.readiness import Readiness
from service.jobs.submit_job import Submissions
from service.keys.verification import KeyRing
from service.store.session import Database


@dataclass(frozen=True)
class Services:
    """The objects that routes use; created when the application starts."""

    settings: Settings
    database: Database
    announcer: JobAnnouncer
    watcher: JobWatcher
    reader: JobReader
    key_ring: KeyRing
    submissions: Submissions
    summaries: KnownSummaries = field(default_factory=KnownSummaries)
    readiness: SharedCalls[None, Readiness] = field(default_factory=SharedCalls)


async def _services(request: Request) -> Services:
    services = request.app.state.services
    if not isinstance(services, Services):
        raise TypeError("the application has not been started")
    return services


# For generated clients, each of these headers is one string. A request may also repeat the header.


async def _known_tags(
    request: Request,
    if_none_match: Annotated[  # noqa: ARG001 - for the OpenAPI document
        str, Header(description="Entity tags of responses that the client has cached; 304 if one of them is current.")
    ] = "",
) -> list[str]:
    return request.headers.getlist("if-none-match")


async def _preferences(
    request: Request,
    prefer: Annotated[  # noqa: ARG001 - for the OpenAPI document
        str,
        Header(
            description="`wait=N` waits up to N seconds: with If-None-Match until the job changes, otherwise until it "
            "has finished or is STOPPED."
        ),
    ] = "",
) -> list[str]:
    return request.headers.getlist("prefer")


ServicesDep = Annotated[Services, Depends(_services)]
JobId = Annotated[str, Path(description="Id of a job.")]
Cursor = Annotated[
    str, Query(description="`next_cursor` of the previous page; empty for the first page.", max_length=1024)
]
KnownTags = Annotated[list[str], Depends(_known_tags)]
"""The values of all If-None-Match headers."""
Preferences = Annotated[list[str], Depends(_preferences)]
"""The values of all Prefer headers."""


def page_size_query(what: str, largest: int) -> Any:
    """Returns the declaration of a parameter `page_size`; `what` is for example `Entries per page`."""
    return Query(ge=1, description=f"{what}; larger values are treated as {largest}.")
