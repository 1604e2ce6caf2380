"""What the bearer of an API key may do."""

from __future__ import annotations

from enum import StrEnum


class KeyScope(StrEnum):
    """Each stands for itself; a key has one or several."""

    READ = "read"
    """Jobs, results, events, reports, streams and workers: everything that changes nothing."""
    SUBMIT = "submit"
    """Submit, explain, cancel, stop, resume, change and delete jobs; declare, fill and delete streams."""
    METRICS = "metrics"
    """What Prometheus scrapes."""
    ADMIN = "admin"
    """Keys of every tenant, and workers: for whoever runs the service. Jobs of others it does not see."""


ALL_SCOPES = frozenset(KeyScope)
