"""Surrounds every request: its id, log lines and metrics, default headers, and responses to errors and shutdown."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from contextlib import suppress

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.host_and_origin import UNSAFE_METHODS
from service.api.operations import HttpMetrics
from service.api.problems import internal_error_response, service_error_response
from service.contract.errors import StoppingError
from service.keys.verification import PRINCIPAL, Principal

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DENIED = frozenset({401, 403})
_POLLED_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths that are requested all the time; logged at debug level."""
_CLIENT_CLOSED = 499
"""The status in logs and metrics if the client disconnected before the response."""
_STOPPING = StoppingError(
    "This process of the service is stopping and could not answer in time. The change may have been made: check, or "
    "repeat the request with its Idempotency-Key.",
    retry_after_seconds=1,
)
_DEFAULT_HEADERS = (
    # Responses are not web pages: browsers must not run, load or frame them. The dashboard sets its own policy.
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    # Only the caller's browser may store the response, and it must revalidate it with its ETag.
    (b"cache-control", b"private, no-cache"),
)
"""Headers of every response that does not set them itself."""

_log = structlog.get_logger(__name__)


class RequestsInProgress:
    """Counts the requests that have not been answered. Not thread-safe: belongs to the event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def __enter__(self) -> None:
        """Counts a request while the context is open."""
        self._count += 1
        self._none.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._none.set()

    async def wait_until_none(self, seconds: float) -> None:
        """Waits until all requests have been answered, at most the given time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._none.wait()


class RequestContext:
    """ASGI middleware around everything that answers. Accepts a valid `X-Request-Id`, or generates one."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, in_progress: RequestsInProgress) -> None:
        self._app = app
        self._metrics = metrics
        self._in_progress = in_progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application. Answers 500 after an unexpected error, which it logs, and 503 if the server cancels the
        request because it stops.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._in_progress:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).getlist("x-request-id")
        request_id = given[0] if given and _REQUEST_ID.fullmatch(given[0]) else secrets.token_hex(16)
        scope.setdefault("state", {})["request_id"] = request_id
        response = _Response(send, request_id)
        started = time.monotonic()
        bound = structlog.contextvars.bind_contextvars(request_id=request_id)
        try:
            await self._app(scope, receive, response.send)
        except asyncio.CancelledError:
            if response.status is not None:
                raise
            await service_error_response(_STOPPING, scope)(scope, receive, response.send)
        except Exception:
            _log.exception("request_failed", method=scope["method"], path=scope["path"])
            if response.status is not None:
                raise
            await internal_error_response(scope)(scope, receive, response.send)
        finally:
            self._record(scope, response.status or _CLIENT_CLOSED, time.monotonic() - started)
            structlog.contextvars.reset_contextvars(**bound)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        """Writes the log lines and the metrics of a request."""
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.observe(scope["method"], route, status, seconds)
        request = {"method": scope["method"], "path": scope["path"], "status": status}
        write = _log.debug if scope["path"] in _POLLED_PATHS else _log.info
        write("request", **request, ms=round(seconds * 1000, 1))
        if scope["method"] in UNSAFE_METHODS or status in _DENIED:
            _log.info("audit", **request, **_caller_of(scope))


def _caller_of(scope: Scope) -> dict[str, str | None]:
    """Returns tenant and id of the caller's key, and the caller's address."""
    principal, client = scope["state"].get(PRINCIPAL), scope.get("client")
    caller = principal if isinstance(principal, Principal) else None
    return {
        "tenant": caller.tenant if caller else None,
        "key_id": (caller.key_id or None) if caller else None,
        "client": client[0] if client else None,
    }


class _Response:
    """Sends the messages of a response, with request id and default headers, and remembers its status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = list(message.get("headers", ()))
            names = {name for name, _ in own}
            defaults = [header for header in _DEFAULT_HEADERS if header[0] not in names]
            message["headers"] = [*own, (b"x-request-id", self._request_id.encode()), *defaults]
        await self._send(message)
