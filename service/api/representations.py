"""How the headers of a request select its response: Accept, If-None-Match with ETags, Prefer: wait; and HEAD."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.contract.errors import NotAcceptableError
from service.jobs.views import Job

JSON = "application/json"
RETRY_AFTER_SECONDS = "1"

_QUALITY = re.compile(r"(?:0(?:\.\d{0,3})?|1(?:\.0{0,3})?)")
_TAG = re.compile(r'(?:W/)?("[^"]*")')
_WAIT = re.compile(r'\s*wait\s*=\s*"?([0-9]+)"?\s*(?:;.*)?', re.IGNORECASE)
_MAX_WAIT_DIGITS = 9


@dataclass(frozen=True)
class _MediaRange:
    """An item of an Accept header."""

    type: str
    subtype: str
    quality: float

    @classmethod
    def parse(cls, text: str) -> _MediaRange:
        media_type, *parameters = (piece.strip().lower() for piece in text.split(";"))
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name == "q" and _QUALITY.fullmatch(value):
                quality = float(value)
        main, _, sub = media_type.partition("/")
        return cls(main, sub, quality)

    def specificity(self, media_type: str) -> int:
        """Returns 2 if this is the media type itself, 1 for `type/*`, 0 for `*/*`, and -1 if it does not match."""
        wanted, _, sub = media_type.partition("/")
        if self.type == "*":
            return 0
        if self.type != wanted or self.subtype not in ("*", sub):
            return -1
        return 1 if self.subtype == "*" else 2


def choose_media_type(accept: Sequence[str], offered: Sequence[str]) -> str:
    """Returns the offered media type that the lines of an Accept header prefer; among equal ones, the first offered.

    Without an Accept header, any type is accepted. Raises NotAcceptableError with the offered types.
    """
    ranges = [_MediaRange.parse(part) for part in ",".join(accept).split(",") if part.strip()]
    if not ranges:
        return offered[0]
    best = max(offered, key=lambda media_type: _quality(media_type, ranges))
    if _quality(best, ranges) <= 0:
        raise NotAcceptableError(f"Available media types: {', '.join(offered)}.")
    return best


def _quality(media_type: str, ranges: Sequence[_MediaRange]) -> float:
    closest = max(ranges, key=lambda item: item.specificity(media_type))
    return closest.quality if closest.specificity(media_type) >= 0 else 0.0


def job_response(
    job: Job, status: int = 200, headers: dict[str, str] | None = None, known_tags: Sequence[str] = ()
) -> Response:
    """Returns the job with its ETag, and with Retry-After until it has finished or is STOPPED.

    Returns 304 if the lines of If-None-Match, `known_tags`, contain the ETag.
    """
    complete = {**(headers or {})}
    if not job.is_at_rest:
        complete["Retry-After"] = RETRY_AFTER_SECONDS
    return _tagged_response(job.body, job.tag, known_tags, status, complete)


def report_response(report: BaseModel, known_tags: Sequence[str]) -> Response:
    """Returns a report with its ETag; 304 if the lines of If-None-Match, `known_tags`, contain it."""
    body = _body(report)
    return _tagged_response(body, f'"{hashlib.sha256(body).hexdigest()[:32]}"', known_tags)


def json_response(body: bytes) -> Response:
    """Returns JSON that is already serialised."""
    return Response(body, media_type=JSON)


def is_current(job: Job, known_tags: Sequence[str]) -> bool:
    """Whether one of the entity tags in these lines of If-None-Match is that of the job's current state."""
    return has_tag(known_tags, job.tag)


def has_tag(known_tags: Sequence[str], tag: str) -> bool:
    """Whether these lines of If-None-Match contain an entity tag. Compares weakly (RFC 9110, 13.1.2)."""
    opaque = tag.removeprefix("W/")
    return any(line.strip() == "*" or opaque in _TAG.findall(line) for line in known_tags)


def wait_seconds(prefer: Sequence[str], longest: float) -> int | None:
    """Returns the whole seconds of the first `wait=N` in the lines of a Prefer header, at most `longest`.

    Returns None if no line contains it.
    """
    for preference in ",".join(prefer).split(","):
        match = _WAIT.fullmatch(preference)
        if match:
            digits = match.group(1)
            return math.floor(min(int(digits) if len(digits) <= _MAX_WAIT_DIGITS else math.inf, longest))
    return None


def _tagged_response(
    body: bytes, tag: str, known_tags: Sequence[str], status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    complete = {"ETag": tag, "Cache-Control": "private, no-cache", **(headers or {})}
    if has_tag(known_tags, tag):
        return Response(status_code=304, headers=complete)
    return Response(body, status, complete, JSON)


def _body(model: BaseModel) -> bytes:
    return model.model_dump_json(by_alias=True).encode()


class HeadAsGet:
    """ASGI middleware, the outermost. Answers HEAD on every path that has GET, with the same status and headers.

    The application gets a GET whose client disconnects as soon as it has the headers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, a HEAD as a GET."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = asyncio.Event()
        pending: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive_until_answered() -> Message:
            if pending:
                return pending.pop()
            # This ends the response of an endpoint that streams events.
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                answered.set()

        await self._app({**scope, "method": "GET"}, receive_until_answered, send_headers)
