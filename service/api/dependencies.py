"""What handlers need, named once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request

from service.api.shared_calls import SharedCalls
from service.jobs.check_readiness import Readiness
from service.jobs.doorbell import Doorbell
from service.jobs.read_jobs import JobReader
from service.jobs.submissions import Submissions
from service.jobs.watch import JobWatcher
from service.keys.key_ring import KeyRing
from service.settings import Settings
from service.store.session import Database


@dataclass(frozen=True)
class Services:
    """Everything behind the API; made when the application starts."""

    settings: Settings
    database: Database
    doorbell: Doorbell
    watcher: JobWatcher
    reader: JobReader
    key_ring: KeyRing
    submissions: Submissions
    readiness: SharedCalls[None, Readiness] = field(default_factory=SharedCalls)


async def _services(request: Request) -> Services:
    services = request.app.state.services
    if not isinstance(services, Services):
        raise TypeError("the application has not been started")
    return services


ServicesDep = Annotated[Services, Depends(_services)]

JobId = Annotated[str, Path(description="Id of a job.")]

Cursor = Annotated[
    str, Query(description="`next_cursor` of the page before; empty for the first page.", max_length=1024)
]


IfNoneMatch = Annotated[str, Header(description="Entity tags already known; 304 where one of them still holds.")]
"""The last line of the header; `lines_of` has all of them."""

Prefer = Annotated[
    str,
    Header(
        description="`wait=N` waits up to N seconds: with If-None-Match until the job changes, without until it has "
        "finished."
    ),
]
"""As above."""


def lines_of(request: Request, header: str) -> list[str]:
    """Every line of a header that may come more than once; generated clients take one string."""
    return request.headers.getlist(header)
