"""Gives every request an id, a log line, its metrics, and an answer even when the service itself fails."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.metrics import HttpMetrics
from service.api.problems import internal_error_response, service_error_response
from service.api.site_guard import UNSAFE_METHODS
from service.errors import StoppingError
from service.keys.principal import PRINCIPAL, Principal

_ACCEPTED_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DENIED = frozenset({401, 403})
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
_CLIENT_CLOSED = 499
_STOPPING = StoppingError(
    "This process of the service stops before it could answer. What the request was to change may have happened: look, "
    "or repeat it with its Idempotency-Key.",
    retry_after_seconds=1,
)

_HEADERS = {
    # No answer is a page, so none may run, load or be framed as one; what is one says so itself.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    # It is for whoever showed the key; a browser may keep it and asks with its ETag.
    "Cache-Control": "private, no-cache",
}
"""What every answer has that does not say otherwise."""

_log = structlog.get_logger(__name__)


class UnderWay:
    """The requests that are not answered yet. For one thread, that of the event loop."""

    def __init__(self) -> None:
        self._number = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around a request."""
        self._number += 1
        self._none.clear()
        try:
            yield
        finally:
            self._number -= 1
            if not self._number:
                self._none.set()

    async def ended(self, seconds: float) -> None:
        """Waits until there is none, for so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._none.wait()


class RequestContext:
    """ASGI middleware around all that answers. Keeps a sane `X-Request-Id`, replaces any other, and sends it back."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, under_way: UnderWay) -> None:
        self._app = app
        self._metrics = metrics
        self._under_way = under_way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application; an exception that nobody handled is logged and answered with 500, a request that the
        server gives up because it stops with 503.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._under_way.one():
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ACCEPTED_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _Answer(send, request_id)
        started = time.monotonic()
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, answer.send)
            except asyncio.CancelledError:
                if answer.status is not None:
                    raise
                await service_error_response(_STOPPING, scope)(scope, receive, answer.send)
            except Exception:
                _log.exception("request_failed", method=scope["method"], path=scope["path"])
                if answer.status is not None:
                    raise
                await internal_error_response(scope)(scope, receive, answer.send)
            finally:
                self._account(scope, answer.status or _CLIENT_CLOSED, time.monotonic() - started)

    def _account(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.observe(scope["method"], route, status, seconds)
        tell = _log.debug if scope["path"] in _QUIET else _log.info
        tell("request", method=scope["method"], path=scope["path"], status=status, ms=round(seconds * 1000, 1))
        if scope["method"] in UNSAFE_METHODS or status in _DENIED:
            _log.info("audit", method=scope["method"], path=scope["path"], status=status, **_who(scope))


def _who(scope: Scope) -> dict[str, str | None]:
    """Tenant and id of the key that was shown, and the address that it came from."""
    principal = scope["state"].get(PRINCIPAL)
    client = scope.get("client")
    return {
        "tenant": principal.tenant if isinstance(principal, Principal) else None,
        "key_id": (principal.key_id or None) if isinstance(principal, Principal) else None,
        "client": client[0] if client else None,
    }


class _Answer:
    """Sends on, with the id, and remembers the status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self._request_id
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)
