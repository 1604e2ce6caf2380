"""Repeats requests while the database restarts: those that changed nothing, and those whose route is declared safe to
repeat."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog
from fastapi import Request, Response
from fastapi.routing import APIRoute
from sqlalchemy.exc import SQLAlchemyError

from service.api.site_guard import UNSAFE_METHODS
from service.store.faults import CommitUnknownError, Fault, fault_of

_log = structlog.get_logger(__name__)

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
