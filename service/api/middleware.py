"""Requests that another site has a browser send are refused before anything else is looked at.

A service without keys on loopback is within reach of every web page that its user visits. A page can name another host
(DNS rebinding) or post a form across sites; it can neither forge the Host header of its own site nor send JSON to
another one unasked.

HEAD wherever there is GET: the same status and headers, without the body.

Reads a body as JSON once, before anything else does, and refuses what later readers would take differently.

JSON parsers keep one of two equal keys, guess at encodings, and accept text that neither a database nor a file name
can hold. Here each of these is refused with a reason instead.

Bodies are read whole before a handler runs: plain, bounded JSON, or bounded rows where these are posted.

Gives every request an id, a log line, its metrics, and an answer even when the service itself fails.

Repeats requests while the database restarts: those that changed nothing, and those whose route is declared safe to
repeat.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.metrics import HttpMetrics
from service.api.problems import internal_error_response, service_error_response
from service.config.settings import ApiSettings
from service.contract.errors import (
    BodyTooLargeError,
    DuplicateKeyError,
    HostNotAllowedError,
    InvalidRequestError,
    MalformedJsonError,
    NestingTooDeepError,
    OriginNotAllowedError,
    ServiceError,
    StoppingError,
    UnsupportedMediaTypeError,
)
from service.contract.options import MERGE_PATCH
from service.contract.problems import Issue
from service.ingest.parsing import ROWS
from service.keys.verification import PRINCIPAL, Principal
from service.store.session import CommitUnknownError, Fault, fault_of

UNSAFE_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""What changes something, or may."""


class SiteGuard:
    """ASGI middleware. Lets requests pass that name this service's host, and changes that its own pages ask for."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._hosts = frozenset(host.strip().lower() for host in settings.allowed_hosts.split(",") if host.strip())
        self._origins = origins_of(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers with a problem, or hands the request on."""
        if scope["type"] == "http":
            try:
                self._check(scope)
            except ServiceError as error:
                await service_error_response(error, scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._serves(hosts[0]):
            raise HostNotAllowedError(
                "The Host header names another host than this service. If it is reachable under that name, add the "
                "name to EVENKEEL_API_ALLOWED_HOSTS."
            )
        origin = headers.get("origin")
        if scope["method"] in UNSAFE_METHODS and origin is not None and not self._trusts(origin, hosts[0]):
            raise OriginNotAllowedError("A page of another site may not change anything here.")

    def _trusts(self, origin: str, host: str) -> bool:
        """Whether a page of `origin` is one of this service, as it was asked for, or of a site that may use it.

        Another port of the same machine is another site: whatever listens there is not this service.
        """
        return origin in self._origins or origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")

    def _serves(self, authority: str) -> bool:
        name = re.sub(r":\d*$", "", authority).lower()
        return bool(name) and ("*" in self._hosts or name in self._hosts)


def origins_of(settings: ApiSettings) -> tuple[str, ...]:
    """Of other sites whose pages may use the API."""
    return tuple(origin for origin in settings.allowed_origins.split(",") if origin)


class HeadAsGet:
    """ASGI middleware, the outermost. The application sees a GET whose client leaves once it has the headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands the request on, a HEAD as a GET."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = asyncio.Event()
        pending: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive_until_answered() -> Message:
            if pending:
                return pending.pop()
            # An endless stream of events ends by this.
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                answered.set()

        await self._app({**scope, "method": "GET"}, receive_until_answered, send_headers)


MAX_NESTING = 64
"""Arrays and objects inside one another. The deepest accepted job needs a dozen."""

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_SHOWN_OF_A_KEY = 100


def check_json(body: bytes) -> None:
    """Refuses a body that is not plain JSON in UTF-8.

    Raises MalformedJsonError, NestingTooDeepError, DuplicateKeyError, and InvalidRequestError for the character U+0000
    and for halves of surrogate pairs.
    """
    try:
        # Decoded here: from bytes, the parser would accept UTF-16 and UTF-32 as well.
        _check_values(json.loads(body.decode("utf-8-sig"), object_pairs_hook=_object))
    except RecursionError as error:
        raise _too_deep() from error
    except UnicodeDecodeError as error:
        raise MalformedJsonError(f"The body is not JSON in UTF-8: see byte {error.start}.") from error
    except json.JSONDecodeError as error:
        raise MalformedJsonError(f"The body is not JSON: {error.msg}, at character {error.pos}.") from error
    except ValueError as error:
        raise MalformedJsonError("The body holds a number with more digits than can be read.") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise DuplicateKeyError(
            f"The key '{twice[:_SHOWN_OF_A_KEY]}' is given twice in one object: remove one of them."
        )
    return found


def _check_values(document: Any) -> None:
    # A list instead of recursion, which Python bounds. The outermost value is seen as the member of a list.
    pending: list[tuple[Any, int, str]] = [([document], 0, "")]
    while pending:
        container, depth, pointer = pending.pop()
        if depth > MAX_NESTING:
            raise _too_deep()
        for name, value in container.items() if isinstance(container, dict) else enumerate(container):
            if _is_unstorable(name):
                raise _unstorable(pointer)
            if _is_unstorable(value):
                raise _unstorable(_below(pointer, name, depth))
            if isinstance(value, (dict, list)):
                pending.append((value, depth + 1, _below(pointer, name, depth)))


def _is_unstorable(value: object) -> bool:
    return isinstance(value, str) and _UNSTORABLE.search(value) is not None


def _unstorable(pointer: str) -> InvalidRequestError:
    detail = "The character U+0000 and halves of surrogate pairs are not allowed."
    issue = Issue(code="unstorable_character", detail=detail, pointer=pointer)
    return InvalidRequestError(f"{pointer}: {detail}" if pointer else detail, issues=[issue])


def _below(pointer: str, name: str | int, depth: int) -> str:
    return f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}" if depth else ""


def _too_deep() -> NestingTooDeepError:
    return NestingTooDeepError(f"Arrays and objects may be nested {MAX_NESTING} deep.")


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


_E = TypeVar("_E", bound=Callable[..., Any])
_DECLARED: dict[Callable[..., Any], Repeatable] = {}

_CONFLICT_TRIES = 4
_LONGEST_PAUSE = 1.0


class Outage:
    """How long the database has been away, as all requests of a process see it together.

    So a short outage is waited for, and in a long one nobody waits any more: requests that came later are tried once.
    For one thread, that of the event loop.
    """

    def __init__(self, patience_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience = patience_seconds
        self._clock = clock
        self._since: float | None = None

    def is_over(self) -> None:
        """The database has answered."""
        self._since = None

    def pause(self, fault: Fault, tried: int) -> float | None:
        """Seconds until the next try after `tried` ones that failed; None where there should be no other."""
        if fault is Fault.CONFLICT:
            return 0.02 * 2**tried if tried < _CONFLICT_TRIES else None
        if fault is Fault.BUSY:
            return None
        now = self._clock()
        if self._since is None:
            self._since = now
        left = self._since + self._patience - now
        return min(0.05 * 2**tried, _LONGEST_PAUSE, left) if left > 0 else None


class Repeatable:
    """What makes it safe to repeat a request of a route: nothing more, or a header or query parameter that it must
    carry. The second try finds what the first one did.
    """

    def __init__(self, *, header: str = "", query: str = "") -> None:
        self._header = header
        self._query = query

    def __call__(self, endpoint: _E) -> _E:
        """Declares it of a route's function; stands below the decorator of the route."""
        _DECLARED[endpoint] = self
        return endpoint

    def includes(self, request: Request) -> bool:
        """Whether the request carries what it must."""
        if self._header:
            return self._header in request.headers
        return not self._query or self._query in request.query_params


class SteadyRoute(APIRoute):
    """A route that uses the database: while that restarts, the request is tried again.

    A request has at most one transaction that changes anything for good, so a failure before its commit has changed
    nothing. Where the answer to the commit was lost, the request is repeated only if the route is declared
    `Repeatable`, or if its method is one that changes nothing.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler, called until the database answers."""
        handle = super().get_route_handler()
        endpoint = self.endpoint

        async def steadily(request: Request) -> Response:
            outage: Outage = request.app.state.outage
            tried = 0
            while True:
                try:
                    response = await handle(request)
                except SQLAlchemyError as error:
                    tried += 1
                    pause = _pause(outage, _is_repeatable(endpoint, request), error, tried)
                    if pause is None:
                        raise
                    _log.warning("database_away", tries=tried, error=type(error).__name__)
                    await asyncio.sleep(pause)
                else:
                    outage.is_over()
                    return response

        return steadily


def repeatable(endpoint: Callable[..., Any]) -> Repeatable | None:
    """What was declared of a route's function; None where its requests are never repeated after a commit."""
    return _DECLARED.get(endpoint)


def _is_repeatable(endpoint: Callable[..., Any], request: Request) -> bool:
    declared = repeatable(endpoint)
    return request.method not in UNSAFE_METHODS or (declared is not None and declared.includes(request))


def _pause(outage: Outage, is_repeatable: bool, error: SQLAlchemyError, tried: int) -> float | None:
    fault = fault_of(error)
    if fault is None or (isinstance(error, CommitUnknownError) and not is_repeatable):
        return None
    return outage.pause(fault, tried)
