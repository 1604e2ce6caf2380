"""Bodies are read whole before a handler runs: plain, bounded JSON, or bounded rows where these are posted."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.json_body import check_json
from service.api.problems import service_error_response
from service.api.site_guard import UNSAFE_METHODS
from service.errors import (
    BodyTooLargeError,
    ServiceError,
    UnsupportedMediaTypeError,
)
from service.ingest.media_types import ROWS
from service.settings import ApiSettings
from service.spec.settings_patch import MERGE_PATCH

_CHARSET = re.compile(r"(?:^|;)\s*charset\s*=\s*\"?([^\";\s]*)")
_OF_ROWS = re.compile(r"/v1/streams/[^/]+/rows")

_JSON = "application/json"


class _DisconnectedError(Exception):
    """The client went away while it sent its body: what came of it is no request."""


@dataclass(frozen=True)
class _Limit:
    """How large a body may be, and the variable that says so."""

    bytes: int
    variable: str

    def error(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"A body may hold {self.bytes} bytes ({self.variable}).")


class BodyGuard:
    """ASGI middleware. Bodies are read whole, up to the limit of their kind, before the application runs."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._of_json = _Limit(settings.max_body_bytes, "EVENKEEL_API_MAX_BODY_BYTES")
        self._of_rows = _Limit(settings.max_rows_bytes, "EVENKEEL_API_MAX_ROWS_BYTES")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers with a problem, or hands the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            checked = await self._check(scope, receive)
        except ServiceError as error:
            if _leads_nowhere(scope):
                # Nobody reads this body: the application says so.
                checked = _replay(b"", receive)
            else:
                await service_error_response(error, scope)(scope, receive, send)
                return
        except _DisconnectedError:
            return
        await self._app(scope, checked, send)

    async def _check(self, scope: Scope, receive: Receive) -> Receive:
        if scope["method"] not in UNSAFE_METHODS:
            return receive
        headers = Headers(scope=scope)
        if scope["method"] == "POST" and _OF_ROWS.fullmatch(scope["path"]):
            # First, since so much may come. What is in it is for whoever knows the stream.
            _check_rows_headers(headers)
            return _replay(await _read(headers, receive, self._of_rows), receive)
        body = await _read(headers, receive, self._of_json)
        if body:
            _check_json_type(headers, scope["method"])
            check_json(body)
        return _replay(body, receive)


def _leads_nowhere(scope: Scope) -> bool:
    """Whether nothing has this path, or what has it does not take this method."""
    app: FastAPI | None = scope.get("app")
    return app is not None and all(route.matches(scope)[0] is not Match.FULL for route in app.router.routes)


async def _read(headers: Headers, receive: Receive, limit: _Limit) -> bytes:
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) > limit.bytes:
        raise limit.error()
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _DisconnectedError
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > limit.bytes:
            raise limit.error()
    return bytes(body)


def _check_json_type(headers: Headers, method: str) -> None:
    media_type, _ = _content_type(headers)
    # No page of another site can send either unasked.
    taken = (_JSON, MERGE_PATCH) if method == "PATCH" else (_JSON,)
    if media_type not in taken:
        told = " or ".join(f"'Content-Type: {each}'" for each in taken)
        raise UnsupportedMediaTypeError(f"Send the body as JSON, with {told}.")


def _check_rows_headers(headers: Headers) -> None:
    media_type, charset = _content_type(headers)
    if media_type not in ROWS:
        raise UnsupportedMediaTypeError(f"Rows come as {', '.join(ROWS)}: say which in the Content-Type header.")
    if charset not in {"", "utf-8", "utf8"}:
        raise UnsupportedMediaTypeError("Texts are read as UTF-8 alone.")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        # A few compressed bytes may stand for any number of them.
        raise UnsupportedMediaTypeError("Send the rows as they are, without Content-Encoding.")


def _content_type(headers: Headers) -> tuple[str, str]:
    """The media type and its charset, in small letters; empty where there is none."""
    media_type, _, parameters = headers.get("content-type", "").lower().partition(";")
    found = _CHARSET.search(parameters)
    return media_type.strip(), found[1] if found else ""


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
