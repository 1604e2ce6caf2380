"""The requests of the API as data: one function for each operation. `connection.py` sends them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .address import segment
from .errors import ArgumentError
from .problem_text import Source

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
EVENT_STREAM = "text/event-stream"

_JSON_BODY = {"Content-Type": JSON}
_PLANNING_SECONDS = 300.0
"""The longest time that a service may be configured to wait for a worker that plans."""


@dataclass(frozen=True)
class Request:
    """A request.

    One that is not `repeatable` is sent again only if it was not received or if a quota refused it. `source` is the SQL
    of its job, and `has_job` says whether it has one. `extra_seconds` is added to the timeout of the response.
    """

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    repeatable: bool = True
    source: Source | None = None
    has_job: bool = False
    extra_seconds: float = 0
    timeout_seconds: float | None = None


def submission(spec: Mapping[str, Any], idempotency_key: str, source: Source | None = None) -> Request:
    """Submits a job. All tries have the same key, so that they create one job."""
    headers = {**_JSON_BODY, "Idempotency-Key": _quoted(idempotency_key)}
    return Request("POST", "/v1/jobs", headers=headers, content=encoded(spec), source=source, has_job=True)


def explanation(spec: Mapping[str, Any], source: Source | None = None) -> Request:
    """Plans a job without running it."""
    return _post("/v1/explain", spec, source=source, has_job=True, extra_seconds=_PLANNING_SECONDS)


def profile(body: Mapping[str, Any], source: Source | None = None) -> Request:
    """Asks for statistics of the keys of a table."""
    return _post("/v1/profiles", body, source=source, extra_seconds=_PLANNING_SECONDS)


def job(job_id: str) -> Request:
    """Asks for the job's current state."""
    return Request("GET", _job(job_id))


def changed_job(job_id: str, known_tag: str | None, wait_seconds: float) -> Request:
    """Asks for the job as soon as its `ETag` differs from `known_tag`; None if nothing is known of it yet."""
    headers = {} if known_tag is None else {"Prefer": f"wait={round(wait_seconds)}"}
    if known_tag:
        headers["If-None-Match"] = known_tag
    return Request("GET", _job(job_id), headers=headers, extra_seconds=wait_seconds)


def jobs(parameters: Mapping[str, Any]) -> Request:
    """Asks for a page of jobs, newest first."""
    return Request("GET", "/v1/jobs", params=parameters)


def events(job_id: str, after: int) -> Request:
    """Asks for a page of the job's events after event `after`."""
    return Request("GET", f"{_job(job_id)}/events", headers={"Last-Event-ID": str(after)})


def event_stream(job_id: str, after: int, silent_seconds: float) -> Request:
    """Asks for a stream of the events after `after`; it breaks off after `silent_seconds` without any data."""
    headers = {"Last-Event-ID": str(after), "Accept": EVENT_STREAM}
    return Request("GET", f"{_job(job_id)}/events", headers=headers, timeout_seconds=silent_seconds)


def plan(job_id: str) -> Request:
    """Asks for the job's plan report."""
    return Request("GET", f"{_job(job_id)}/plan")


def metrics(job_id: str, slots: int | None = None) -> Request:
    """Asks for the metrics of the job's run, with savings for `slots`."""
    return Request("GET", f"{_job(job_id)}/metrics", params={} if slots is None else {"slots": slots})


def result_page(job_id: str, page_size: int, cursor: str = "") -> Request:
    """Asks for a page of the job's rows."""
    params = {"page_size": page_size, **({"cursor": cursor} if cursor else {})}
    return Request("GET", f"{_job(job_id)}/result", params=params)


def rows_with(job_id: str, key: Mapping[str, Any]) -> Request:
    """Asks for the rows of the result with these values."""
    return Request("GET", f"{_job(job_id)}/result", params={"key": json.dumps(dict(key), default=str)})


def result(job_id: str, media_type: str, parameters: Mapping[str, Any] | None = None) -> Request:
    """Asks for the complete result in a media type."""
    return Request("GET", f"{_job(job_id)}/result", params=parameters or {}, headers={"Accept": media_type})


def cancellation(job_id: str) -> Request:
    """Cancels a job. A repeated request changes nothing."""
    return _post(f"{_job(job_id)}/cancel")


def stop(job_id: str) -> Request:
    """Stops a streaming job. A repeated request changes nothing."""
    return _post(f"{_job(job_id)}/stop")


def resumption(job_id: str, body: Mapping[str, Any]) -> Request:
    """Resumes a stopped job. It is sent once, since a repeated request would be refused."""
    return _post(f"{_job(job_id)}/resume", body, repeatable=False)


def deletion(job_id: str) -> Request:
    """Deletes a job and everything that is stored about it."""
    return Request("DELETE", _job(job_id), repeatable=False)


def workers() -> Request:
    """Asks for all workers."""
    return Request("GET", "/v1/workers")


def me() -> Request:
    """Asks for the caller's tenant and permissions."""
    return Request("GET", "/v1/me")


def key_creation(body: Mapping[str, Any]) -> Request:
    """Creates an API key. It is sent once, since a repeated request would create another key."""
    return _post("/v1/keys", body, repeatable=False)


def keys(parameters: Mapping[str, Any]) -> Request:
    """Asks for a page of API keys."""
    return Request("GET", "/v1/keys", params=parameters)


def key_revocation(key_id: str) -> Request:
    """Revokes an API key. A repeated request changes nothing."""
    return Request("DELETE", f"/v1/keys/{segment(key_id, 'API key')}")


def new_idempotency_key() -> str:
    """Returns a new unique key for a submission."""
    return str(uuid.uuid4())


def encoded(body: Mapping[str, Any]) -> bytes:
    """Returns a body as JSON. Raises ArgumentError for values that JSON does not support."""
    try:
        return json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError) as error:
        raise ArgumentError(f"the request cannot be written as JSON: {error}") from None


def _quoted(key: str) -> str:
    if not key.isascii() or not key.isprintable():
        raise ArgumentError("an idempotency key contains only printable ASCII characters")
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _job(job_id: str) -> str:
    return f"/v1/jobs/{segment(job_id, 'job')}"


def _post(path: str, body: Mapping[str, Any] | None = None, **others: Any) -> Request:
    if body is None:
        return Request("POST", path, **others)
    return Request("POST", path, headers=_JSON_BODY, content=encoded(body), **others)
