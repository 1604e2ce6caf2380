"""Repeats requests while the database restarts: those that change nothing, and those of `Repeatable` routes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog
from fastapi import Request, Response
from fastapi.routing import APIRoute
from sqlalchemy.exc import SQLAlchemyError

from service.api.host_and_origin import UNSAFE_METHODS
from service.store.session import CommitUnknownError, Fault, fault_of

_E = TypeVar("_E", bound=Callable[..., Any])
_MAX_TRIES_AFTER_CONFLICT = 4
_MAX_PAUSE_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class DatabaseOutage:
    """The current outage of the database, as all requests of the process see it. Not thread-safe: belongs to the event
    loop.

    Requests wait until the outage has lasted `retry_seconds`. After that, no request waits any longer: each is tried
    once.
    """

    def __init__(self, retry_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._since: float | None = None

    def mark_recovered(self) -> None:
        """Ends the outage: the database has answered."""
        self._since = None

    def pause(self, fault: Fault, tried: int) -> float | None:
        """Returns the seconds until the next try, after `tried` that failed; None if there should not be another."""
        if fault is Fault.CONFLICT:
            return 0.02 * 2**tried if tried < _MAX_TRIES_AFTER_CONFLICT else None
        if fault is Fault.BUSY:
            return None
        now = self._clock()
        if self._since is None:
            self._since = now
        left = self._since + self._retry_seconds - now
        return min(0.05 * 2**tried, _MAX_PAUSE_SECONDS, left) if left > 0 else None


class Repeatable:
    """Declares a route's function as safe to repeat after a commit without an answer; goes below the route's decorator.

    The second try finds what the first one stored. If a header or a query parameter makes that possible, only requests
    that have it are repeated.
    """

    def __init__(self, *, header: str = "", query: str = "") -> None:
        self._header = header
        self._query = query

    def __call__(self, endpoint: _E) -> _E:
        """Registers the function, and returns it."""
        _REPEATABLE[endpoint] = self
        return endpoint

    def includes(self, request: Request) -> bool:
        """Whether the request has the required header or query parameter."""
        if self._header:
            return self._header in request.headers
        return not self._query or self._query in request.query_params


_REPEATABLE: dict[Callable[..., Any], Repeatable] = {}


def repeatable(endpoint: Callable[..., Any]) -> Repeatable | None:
    """Returns the declaration of a route's function; None if its requests are never repeated after a commit."""
    return _REPEATABLE.get(endpoint)


class RetryingRoute(APIRoute):
    """A route that uses the database: while the database restarts, the request is repeated.

    A request commits at most one transaction, so a failure before the commit has changed nothing. If the answer to the
    commit was lost, the request is repeated only if its method changes nothing, or the route is `Repeatable`.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns the framework's handler in a loop that ends when the database answers."""
        handle = super().get_route_handler()

        async def handle_with_retries(request: Request) -> Response:
            outage: DatabaseOutage = request.app.state.outage
            tried = 0
            while True:
                try:
                    response = await handle(request)
                except SQLAlchemyError as error:
                    tried += 1
                    fault = fault_of(error)
                    may_repeat = not isinstance(error, CommitUnknownError) or self._is_repeatable(request)
                    pause = outage.pause(fault, tried) if fault is not None and may_repeat else None
                    if pause is None:
                        raise
                    _log.warning("request_retried", tries=tried, error=type(error).__name__)
                    await asyncio.sleep(pause)
                else:
                    outage.mark_recovered()
                    return response

        return handle_with_retries

    def _is_repeatable(self, request: Request) -> bool:
        declared = repeatable(self.endpoint)
        return request.method not in UNSAFE_METHODS or (declared is not None and declared.includes(request))
