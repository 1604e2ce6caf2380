"""Where problems are provoked: a service, and how to come by clients of it and to keep it from working."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from evenkeel_client import AuthenticatedClient

PROVOCATIONS: dict[str, Callable[[Situation], object]] = {}
"""By code. Each gives what the generated client makes of the answer, in the order in which they are to be tried."""


@dataclass(frozen=True)
class Situation:
    """A running service.

    newcomer       makes a client of a tenant of its own, who may do everything but make keys; with headers
    key            makes an API key, of all scopes unless it is asked for otherwise
    stuck          while it lasts, nothing can be stored
    silent_worker  starts a worker and kills it; gives its id
    stopped        ends the API while a request waits, and starts it again
    lost           takes a job's result away
    """

    address: str
    admin: AuthenticatedClient
    newcomer: Callable[..., AuthenticatedClient]
    key: Callable[..., str]
    stuck: Callable[[], AbstractContextManager[None]]
    silent_worker: Callable[[], str]
    stopped: Callable[[Callable[[], object]], object]
    lost: Callable[[str], None]


def provokes(code: str) -> Callable[[Callable[[Situation], object]], Callable[[Situation], object]]:
    """Registers a function as what provokes a problem."""

    def register(provoke: Callable[[Situation], object]) -> Callable[[Situation], object]:
        assert code not in PROVOCATIONS, code
        PROVOCATIONS[code] = provoke
        return provoke

    return register


ORDERS: dict[str, Any] = {
    "tables": {"o": {"format": "parquet", "path": "orders/"}},
    "sql": "SELECT o.category, COUNT(*) AS n FROM o GROUP BY o.category",
}
CLICKS: dict[str, Any] = {
    "mode": "incremental",
    "tables": {"c": {"format": "stream", "stream": "clicks"}},
    "sql": "SELECT c.page, COUNT(*) AS n FROM c GROUP BY c.page",
}
SCHEMA = "uid BIGINT, page STRING"
