"""Reads request bodies whole, up to a limit, and accepts only JSON, or rows where rows are posted.

JSON parsers differ: some keep one of two equal keys, guess the encoding, or accept characters that neither a database
nor a file name can contain. Here a body is parsed once, before anything else reads it, and all of this is refused.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.host_and_origin import UNSAFE_METHODS
from service.api.problems import json_pointer, service_error_response
from service.config.settings import ApiSettings
from service.contract.errors import (
    BodyTooLargeError,
    DuplicateKeyError,
    InvalidRequestError,
    MalformedJsonError,
    NestingTooDeepError,
    ServiceError,
    UnsupportedMediaTypeError,
)
from service.contract.options import MERGE_PATCH
from service.contract.problems import Issue
from service.ingest.parsing import ROWS

MAX_NESTING = 64
"""The maximum depth of nested arrays and objects. The deepest valid job has about twelve."""

_JSON = "application/json"
_ROWS_PATH = re.compile(r"/v1/streams/[^/]+/rows")
_CHARSET = re.compile(r"(?:^|;)\s*charset\s*=\s*\"?([^\";\s]*)")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_MAX_KEY_SHOWN = 100


class _DisconnectedError(Exception):
    """The client disconnected before its body was complete."""


@dataclass(frozen=True)
class _Limit:
    """The maximum size of a body, and the environment variable that sets it."""

    bytes: int
    variable: str

    def error(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"The body exceeds the limit of {self.bytes} bytes ({self.variable}).")


class BodyCheck:
    """ASGI middleware. Reads and checks the body before the application runs."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._json_limit = _Limit(settings.max_body_bytes, "EVENKEEL_API_MAX_BODY_BYTES")
        self._rows_limit = _Limit(settings.max_rows_bytes, "EVENKEEL_API_MAX_ROWS_BYTES")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers with a problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            checked = await self._check(scope, receive)
        except ServiceError as error:
            if _has_route(scope):
                await service_error_response(error, scope)(scope, receive, send)
                return
            # The application answers 404 or 405, whatever the body is.
            checked = _replay(b"", receive)
        except _DisconnectedError:
            return
        await self._app(scope, checked, send)

    async def _check(self, scope: Scope, receive: Receive) -> Receive:
        if scope["method"] not in UNSAFE_METHODS:
            return receive
        headers = Headers(scope=scope)
        if scope["method"] == "POST" and _ROWS_PATH.fullmatch(scope["path"]):
            # Headers first, since the body may be large. The rows are parsed when the schema of the stream is known.
            _check_rows_headers(headers)
            return _replay(await _read(headers, receive, self._rows_limit), receive)
        body = await _read(headers, receive, self._json_limit)
        if body:
            _check_json_type(headers, scope["method"])
            check_json(body)
        return _replay(body, receive)


def _has_route(scope: Scope) -> bool:
    """Whether there is a route for this path and method."""
    app: FastAPI | None = scope.get("app")
    return app is None or any(route.matches(scope)[0] is Match.FULL for route in app.router.routes)


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


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


def _check_json_type(headers: Headers, method: str) -> None:
    media_type, _ = _content_type(headers)
    # A page of another site cannot send these types without the permission of this service.
    accepted = (_JSON, MERGE_PATCH) if method == "PATCH" else (_JSON,)
    if media_type not in accepted:
        types = " or ".join(f"'Content-Type: {each}'" for each in accepted)
        raise UnsupportedMediaTypeError(f"Send the body as JSON, with {types}.")


def _check_rows_headers(headers: Headers) -> None:
    media_type, charset = _content_type(headers)
    if media_type not in ROWS:
        raise UnsupportedMediaTypeError(f"Send rows as one of {', '.join(ROWS)}, and name it in Content-Type.")
    if charset not in {"", "utf-8", "utf8"}:
        raise UnsupportedMediaTypeError("Send text in UTF-8; other character sets are not supported.")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        # A few compressed bytes may expand to any number of bytes.
        raise UnsupportedMediaTypeError("Send the rows uncompressed, without Content-Encoding.")


def _content_type(headers: Headers) -> tuple[str, str]:
    """Returns media type and charset in lowercase; empty if they are missing."""
    media_type, _, parameters = headers.get("content-type", "").lower().partition(";")
    found = _CHARSET.search(parameters)
    return media_type.strip(), found[1] if found else ""


def check_json(body: bytes) -> None:
    """Checks that a body is plain JSON in UTF-8.

    Raises MalformedJsonError, NestingTooDeepError, DuplicateKeyError, and InvalidRequestError for the character U+0000
    and for halves of surrogate pairs.
    """
    try:
        # Decoded here, because the parser would also accept UTF-16 and UTF-32 from bytes.
        _check_values(json.loads(body.decode("utf-8-sig"), object_pairs_hook=_object))
    except RecursionError as error:
        raise _too_deep() from error
    except UnicodeDecodeError as error:
        raise MalformedJsonError(f"The body is not JSON in UTF-8: see byte {error.start}.") from error
    except json.JSONDecodeError as error:
        raise MalformedJsonError(f"The body is not JSON: {error.msg}, at character {error.pos}.") from error
    except ValueError as error:
        raise MalformedJsonError("The body contains a number with too many digits.") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((duplicate, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise DuplicateKeyError(f"An object has the key '{duplicate[:_MAX_KEY_SHOWN]}' twice: remove one of them.")
    return found


def _check_values(document: Any) -> None:
    # Not recursive, because Python limits recursion. The outermost value is checked as the member of a list.
    pending: list[tuple[Any, int, str]] = [([document], 0, "")]
    while pending:
        container, depth, pointer = pending.pop()
        if depth > MAX_NESTING:
            raise _too_deep()
        for name, value in container.items() if isinstance(container, dict) else enumerate(container):
            if _is_unstorable(name):
                raise _unstorable(pointer)
            if _is_unstorable(value):
                raise _unstorable(_pointer_to(pointer, name, depth))
            if isinstance(value, (dict, list)):
                pending.append((value, depth + 1, _pointer_to(pointer, name, depth)))


def _is_unstorable(value: object) -> bool:
    return isinstance(value, str) and _UNSTORABLE.search(value) is not None


def _unstorable(pointer: str) -> InvalidRequestError:
    detail = "The character U+0000 and halves of surrogate pairs are not allowed."
    issue = Issue(code="unstorable_character", detail=detail, pointer=pointer)
    return InvalidRequestError(f"{pointer}: {detail}" if pointer else detail, issues=[issue])


def _pointer_to(pointer: str, name: str | int, depth: int) -> str:
    return pointer + json_pointer([name]) if depth else ""


def _too_deep() -> NestingTooDeepError:
    return NestingTooDeepError(f"Arrays and objects may be nested at most {MAX_NESTING} deep.")
