"""A PostgreSQL database that a sink writes into."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.databases import PostgresDatabases


@pytest.fixture(scope="module")
def postgres_url(postgres_databases: PostgresDatabases) -> Iterator[str]:
    """The URL of a database for the tests of a module, as sinks take it."""
    with postgres_databases.new() as url:
        yield url.replace("+psycopg", "")
