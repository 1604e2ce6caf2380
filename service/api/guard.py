"""What is refused before a handler sees it: foreign hosts and origins, and bodies that are not plain, bounded JSON.

A service without keys on loopback is within reach of every web page that its user visits. A page can name another host
(DNS rebinding) or post a form across sites; it can neither forge the Host header of its own site nor send JSON to
another one unasked.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.json_body import check_json
from service.api.problems import service_error_response
from service.errors import (
    BodyTooLargeError,
    HostNotAllowedError,
    OriginNotAllowedError,
    ServiceError,
    UnsupportedMediaTypeError,
)
from service.settings import ApiSettings

_UNSAFE = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class _DisconnectedError(Exception):
    """The client went away while it sent its body: what came of it is no request."""


class Guard:
    """ASGI middleware. Bodies are read whole, at most `max_body_bytes` of them, before the application runs."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._hosts = frozenset(host.strip().lower() for host in settings.allowed_hosts.split(",") if host.strip())
        self._max_body_bytes = settings.max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers with a problem, or hands the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            checked = await self._check(scope, receive)
        except ServiceError as error:
            await service_error_response(error, scope)(scope, receive, send)
            return
        except _DisconnectedError:
            return
        await self._app(scope, checked, send)

    async def _check(self, scope: Scope, receive: Receive) -> Receive:
        headers = Headers(scope=scope)
        self._check_host(headers)
        if scope["method"] not in _UNSAFE:
            return receive
        self._check_origin(headers)
        if self._declared_length(headers) > self._max_body_bytes:
            raise self._too_large()
        body = await self._read(receive)
        if body:
            _check_media_type(headers)
            check_json(body)
        return _replay(body, receive)

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._serves(hosts[0]):
            raise HostNotAllowedError(
                "The Host header names another host than this service. If it is reachable under that name, add the "
                "name to EVENKEEL_API_ALLOWED_HOSTS."
            )

    def _check_origin(self, headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is not None and not self._serves(_authority(origin)):
            raise OriginNotAllowedError("A page of another site may not change anything here.")

    def _serves(self, authority: str) -> bool:
        name = re.sub(r":\d*$", "", authority).lower()
        return bool(name) and ("*" in self._hosts or name in self._hosts)

    def _declared_length(self, headers: Headers) -> int:
        length = headers.get("content-length", "0")
        return int(length) if length.isdecimal() else 0

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"A body may hold {self._max_body_bytes} bytes (EVENKEEL_API_MAX_BODY_BYTES).")

    async def _read(self, receive: Receive) -> bytes:
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _DisconnectedError
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._max_body_bytes:
                raise self._too_large()
        return bytes(body)


def _check_media_type(headers: Headers) -> None:
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMediaTypeError("Send the body as JSON, with 'Content-Type: application/json'.")


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
