"""Who asks."""

from __future__ import annotations

from dataclasses import dataclass

from service.jobs.tenants import DEFAULT_TENANT
from service.spec.scopes import ALL_SCOPES, KeyScope


@dataclass(frozen=True)
class Principal:
    """A caller: whose jobs it sees, and what it may do. `key_id` is empty where callers are not authenticated."""

    tenant: str
    scopes: frozenset[KeyScope]
    key_id: str = ""


PRINCIPAL = "principal"
"""Where the state of a request has its caller."""

ANYBODY = Principal(DEFAULT_TENANT, ALL_SCOPES)
"""Every caller of a service that authenticates nobody."""
