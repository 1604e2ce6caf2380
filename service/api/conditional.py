"""Entity tags of jobs and the preferences of a request that waits."""

from __future__ import annotations

import hashlib
import math
import re

from starlette.responses import Response

from service.jobs.views import Job

RETRY_AFTER_SECONDS = "1"
_TAG = re.compile(r'(?:W/)?"((?:(\d{1,18})-)?[^"]*)"')
_WAIT = re.compile(r'\s*wait\s*=\s*"?(\d{1,9})"?\s*(?:;.*)?', re.IGNORECASE)


def job_response(job: Job, status: int = 200, headers: dict[str, str] | None = None, known_tags: str = "") -> Response:
    """The job with its ETag, and Retry-After until it has finished; 304 where `known_tags` (If-None-Match) has it."""
    body = job.model_dump_json(by_alias=True).encode()
    tag = f'"{job.version}-{hashlib.sha256(body).hexdigest()[:16]}"'
    complete = {"ETag": tag, "Cache-Control": "private, no-cache", **(headers or {})}
    if not job.finished:
        complete["Retry-After"] = RETRY_AFTER_SECONDS
    if _matches(tag, known_tags):
        return Response(status_code=304, headers=complete)
    return Response(body, status, complete, "application/json")


def known_version(known_tags: str) -> int | None:
    """The version in the first entity tag of an If-None-Match; None where there is none."""
    match = _TAG.search(known_tags)
    return int(match.group(2)) if match and match.group(2) else None


def wait_seconds(prefer: str, longest: float) -> int | None:
    """How long a `Prefer: wait=N` waits at most, in whole seconds; None where the header does not ask for it."""
    for preference in prefer.split(","):
        match = _WAIT.fullmatch(preference)
        if match:
            return min(int(match.group(1)), math.floor(longest))
    return None


def _matches(tag: str, known_tags: str) -> bool:
    # If-None-Match compares weakly (RFC 9110, 13.1.2).
    return known_tags.strip() == "*" or any(f'"{match.group(1)}"' == tag for match in _TAG.finditer(known_tags))
