"""Entity tags of jobs and reports, and the preferences of a request that waits."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence

from pydantic import BaseModel
from starlette.responses import Response

from service.jobs.views import Job

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
