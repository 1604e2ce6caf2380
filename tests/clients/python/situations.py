"""Where problems are provoked: a service, and how to come by clients of it and to keep it from working."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evenkeel_client import AuthenticatedClient

from tests.clients.acts import Acts

PROVOCATIONS: dict[str, Callable[[Situation], object]] = {}
"""By code. Each gives what the generated client makes of the answer, in the order in which they are to be tried."""


@dataclass(frozen=True)
class Situation:
    """A running service.

    acts      what can be done to it
    admin     a client of whoever runs it
    newcomer  makes a client of a tenant of its own; with headers
    stopped   ends the API while a request waits, and starts it again
    """

    acts: Acts
    admin: AuthenticatedClient
    newcomer: Callable[..., AuthenticatedClient]
    stopped: Callable[[Callable[[], object]], object]


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
