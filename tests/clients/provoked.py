"""The situations in which a real service returns problems. Importing it needs the generated client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.clients.acts import Acts
from tests.support.production import Production, running_production
from tests.support.tables import write_orders

if TYPE_CHECKING:
    from tests.clients.python.situations import Situation

_NARROW = {
    "EVENKEEL_API_AUTHENTICATION": "on",
    "EVENKEEL_API_MAX_BODY_BYTES": "20000",
    # Longer than a stopping API waits for requests.
    "EVENKEEL_API_EXPLAIN_TIMEOUT_SECONDS": "10",
    "EVENKEEL_LIMITS_QUEUED_JOBS": "2",
    "EVENKEEL_LIMITS_EXPLANATIONS": "1",
    "EVENKEEL_LIMITS_STREAMS": "2",
    "EVENKEEL_LIMITS_POSTED_BYTES": "1000",
    "EVENKEEL_DATABASE_LOCK_TIMEOUT_SECONDS": "0.5",
    "EVENKEEL_DATABASE_RETRY_SECONDS": "0",
    "EVENKEEL_WORKER_LEASE_SECONDS": "3",
    # An object store that is unreachable.
    "EVENKEEL_DATA_S3_ENDPOINT": "http://127.0.0.1:9",
    "EVENKEEL_DATA_S3_REGION": "us-east-1",
    "EVENKEEL_DATA_S3_ACCESS_KEY": "flights",
    "EVENKEEL_DATA_S3_SECRET_KEY": "flights-2013",
    "EVENKEEL_DATA_STORE_CONNECT_TIMEOUT_SECONDS": "0.5",
    "EVENKEEL_DATA_STORE_ATTEMPTS": "1",
}
LATE = ("job_already_finished", "result_missing", "state_not_compatible")
"""Codes that require a job that has run."""

LAST = ("worker_silent", "stopping")
"""Codes that run last: they require a known worker, or stop the service."""

_STORE = "s3a://flights"

_TRIES = 5


@contextmanager
def idle_service(directory: Path) -> Iterator[Production]:
    """Runs a service without a worker and with low limits, so that refusals are easy to provoke."""
    settings = {**_NARROW, "EVENKEEL_DATA_ROOTS": f"{directory / 'data'},{_STORE}"}
    with running_production(directory, None, apis=1, workers=0, environment=settings) as running:
        write_orders(running.data)
        yield running


def provocations() -> dict[str, Callable[[Situation], object]]:
    """Returns the provocations by code."""
    for module in ("provocations", "late_provocations"):
        import_module(f"tests.clients.python.{module}")
    from tests.clients.python.situations import PROVOCATIONS

    return dict(PROVOCATIONS)


def situation_of(production: Production) -> Situation:
    """Returns the situation for provocations on a service with one API."""
    from tests.clients.python.journey import client_of
    from tests.clients.python.situations import Situation

    acts = Acts(production)

    def newcomer(**headers: str) -> Any:
        return client_of(acts.address, acts.newcomer()).with_headers(headers)

    def stopped(request: Callable[[], object]) -> object:
        for _ in range(_TRIES):
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(request)
                acts.stop()
                gone = waiting.exception()
            acts.start_again()
            if gone is None:
                return waiting.result()
            # The request arrived after the API had stopped listening.
            assert isinstance(gone, httpx.TransportError), gone
        raise AssertionError(f"in {_TRIES} tries, no request was under way when the API stopped")

    return Situation(acts=acts, admin=client_of(acts.address, acts.admin), newcomer=newcomer, stopped=stopped)
