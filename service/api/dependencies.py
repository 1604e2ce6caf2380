"""Which representation a client gets, by its Accept header.

Entity tags of jobs and reports, and the preferences of a request that waits.

What handlers need, named once.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from service.api.authentication import SharedCalls
from service.broker.dispatch import JobAnnouncer
from service.config.settings import Settings
from service.contract.errors import NotAcceptableError
from service.jobs.read_jobs import JobReader, JobWatcher
from service.jobs.readiness import Readiness
from service.jobs.submit_job import Submissions
from service.jobs.views import Job
from service.keys.verification import KeyRing
from service.store.session import Database

_QUALITY = re.compile(r"(?:0(?:\.\d{0,3})?|1(?:\.0{0,3})?)")


@dataclass(frozen=True)
class _Range:
    type: str
    subtype: str
    quality: float

    def specificity(self, media_type: str) -> int:
        """2 for the very type, 1 for `type/*`, 0 for `*/*`, -1 for another."""
        wanted, _, sub = media_type.partition("/")
        if self.type == "*":
            return 0
        if self.type != wanted or self.subtype not in ("*", sub):
            return -1
        return 1 if self.subtype == "*" else 2


def choose(accept: Sequence[str], offered: Sequence[str]) -> str:
    """The best of the offered media types; of equally good ones the first. `accept` are the lines of the header.

    Where they name nothing, anything is taken. Raises NotAcceptableError with what is offered.
    """
    ranges = [_parse(part) for part in ",".join(accept).split(",") if part.strip()]
    if not ranges:
        return offered[0]
    best = max(offered, key=lambda media_type: _quality(media_type, ranges))
    if _quality(best, ranges) <= 0:
        raise NotAcceptableError(f"Offered are {', '.join(offered)}.")
    return best


def _quality(media_type: str, ranges: Sequence[_Range]) -> float:
    closest = max(ranges, key=lambda item: item.specificity(media_type))
    return closest.quality if closest.specificity(media_type) >= 0 else 0.0


def _parse(part: str) -> _Range:
    media_type, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = 1.0
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "q" and _QUALITY.fullmatch(value):
            quality = float(value)
    main, _, sub = media_type.partition("/")
    return _Range(main, sub, quality)


RETRY_AFTER_SECONDS = "1"
_TAG = re.compile(r'(?:W/)?("[^"]*")')
_WAIT = re.compile(r'\s*wait\s*=\s*"?([0-9]+)"?\s*(?:;.*)?', re.IGNORECASE)
_DIGITS_READ = 9


def job_response(
    job: Job, status: int = 200, headers: dict[str, str] | None = None, known_tags: Sequence[str] = ()
) -> Response:
    """The job with its ETag, and Retry-After until it is at rest; 304 where `known_tags` (If-None-Match) has it."""
    body = _body(job)
    complete = {"ETag": _tag(job, body), "Cache-Control": "private, no-cache", **(headers or {})}
    if not job.is_at_rest:
        complete["Retry-After"] = RETRY_AFTER_SECONDS
    if is_known(job, known_tags):
        return Response(status_code=304, headers=complete)
    return Response(body, status, complete, "application/json")


def report_response(report: BaseModel, known_tags: Sequence[str]) -> Response:
    """A report with its ETag; 304 where `known_tags` (If-None-Match) has it."""
    body = report.model_dump_json(by_alias=True).encode()
    headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"', "Cache-Control": "private, no-cache"}
    if names_tag(known_tags, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(body, 200, headers, "application/json")


def is_known(job: Job, known_tags: Sequence[str]) -> bool:
    """Whether one of the entity tags in these lines of If-None-Match is that of the job as it stands."""
    return names_tag(known_tags, _tag(job, _body(job)))


def names_tag(known_tags: Sequence[str], tag: str) -> bool:
    """Whether these lines of If-None-Match name an entity tag. Compared weakly (RFC 9110, 13.1.2)."""
    opaque = tag.removeprefix("W/")
    return any(line.strip() == "*" or opaque in _TAG.findall(line) for line in known_tags)


def wait_seconds(prefer: Sequence[str], longest: float) -> int | None:
    """How long a `Prefer: wait=N` waits at most, in whole seconds; None where no line of the header asks for it."""
    for preference in ",".join(prefer).split(","):
        match = _WAIT.fullmatch(preference)
        if match:
            digits = match.group(1)
            return math.floor(min(int(digits) if len(digits) <= _DIGITS_READ else math.inf, longest))
    return None


def _body(job: Job) -> bytes:
    return job.model_dump_json(by_alias=True).encode()


def _tag(job: Job, body: bytes) -> str:
    return f'"{job.version}-{hashlib.sha256(body).hexdigest()[:16]}"'


@dataclass(frozen=True)
class Services:
    """Everything behind the API; made when the application starts."""

    settings: Settings
    database: Database
    announcer: JobAnnouncer
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
