"""Requests that outlive a restart of the database: whatever cannot have changed anything is done once more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from fastapi import Request, Response
from fastapi.routing import APIRoute
from sqlalchemy.exc import SQLAlchemyError

from service.store.faults import CommitUnknownError, Fault, fault_of

_log = structlog.get_logger(__name__)

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


class SteadyRoute(APIRoute):
    """A route of which each request asks the database, and is tried again while that restarts.

    A request is one transaction that matters, or none: a failure before its commit has changed nothing. Where the
    commit itself got no answer, only what finds what it did is tried again: a submission with an Idempotency-Key, rows
    with their batch id, a declaration.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler, called until the database answers."""
        handle = super().get_route_handler()

        async def steadily(request: Request) -> Response:
            outage: Outage = request.app.state.outage
            tried = 0
            while True:
                try:
                    response = await handle(request)
                except SQLAlchemyError as error:
                    tried += 1
                    pause = _pause(outage, request, error, tried)
                    if pause is None:
                        raise
                    _log.warning("database_away", tries=tried, error=type(error).__name__)
                    await asyncio.sleep(pause)
                else:
                    outage.is_over()
                    return response

        return steadily


def _pause(outage: Outage, request: Request, error: SQLAlchemyError, tried: int) -> float | None:
    fault = fault_of(error)
    if fault is None or (isinstance(error, CommitUnknownError) and not _is_repeatable(request)):
        return None
    return outage.pause(fault, tried)


def _is_repeatable(request: Request) -> bool:
    """Whether a second try finds what the first one did."""
    return request.method == "PUT" or "idempotency-key" in request.headers or "batch_id" in request.query_params
