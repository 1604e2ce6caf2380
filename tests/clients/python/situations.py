"""The situation in which problems are provoked: a service, its clients, and ways to disturb it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evenkeel_openapi import AuthenticatedClient

from tests.clients.acts import Acts

PROVOCATIONS: dict[str, Callable[[Situation], object]] = {}
"""Provocations by code, in the order in which they run. Each returns the client's parsed response."""


@dataclass(frozen=True)
class Situation:
    """A running service.

    acts      changes to the service
    admin     a client of the operator
    newcomer  creates a client of a new tenant, with headers
    stopped   stops the API while a request waits, and starts it again
    """

    acts: Acts
    admin: AuthenticatedClient
    newcomer: Callable[..., AuthenticatedClient]
    stopped: Callable[[Callable[[], object]], object]


def provokes(code: str) -> Callable[[Callable[[Situation], object]], Callable[[Situation], object]]:
    """Registers a function that provokes a problem."""

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
