"""Reads a stream of posted rows."""

from __future__ import annotations

from service.jobs.stream_views import Stream, require_stream
from service.store.session import Database


def get_stream(database: Database, tenant: str, name: str) -> Stream:
    """The tenant's stream as it stands. Raises StreamNotFoundError."""
    with database.read() as session:
        return Stream.of(require_stream(session, tenant, name))
