"""An installation with jobs in every state, on either database, and a database of the same kind with nothing in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from service.store.session import Database
from tests.support import lifecycle
from tests.support.databases import SQLITE
from tests.support.installation import Installation
from tests.support.servers import PostgresServer

ROWS = pa.table({"uid": pa.array(range(7), pa.int64())})

_numbers = itertools.count(1)


@pytest.fixture
def tools(database_url: str, request: pytest.FixtureRequest) -> Path | None:
    if database_url.startswith(SQLITE):
        return None
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return Path(postgres.binary("pg_dump")).parent


@pytest.fixture
def here(database_url: str, tmp_path: Path, tools: Path | None) -> Iterator[Installation]:
    """With jobs: two SUCCEEDED, one FAILED, one QUEUED, one RUNNING."""
    with closing(Database(database_url)) as database:
        own = Installation(database, tmp_path / "here", tools)
        for files in (1, 3):
            lifecycle.run_whole(database, lifecycle.insert(database, name="done"), own.results, ROWS, files)
        lifecycle.fail(database, lifecycle.claim(database, lifecycle.insert(database, name="failed")))
        lifecycle.insert(database, name="queued")
        held = lifecycle.claim(database, lifecycle.insert(database, name="running"))
        lifecycle.plan(database, held)
        lifecycle.run(database, held)
        (own.results / held.job_id / "attempt-1").mkdir(parents=True)
        lifecycle.beat(database)
        yield own


@pytest.fixture
def elsewhere(
    database_url: str, tmp_path: Path, tools: Path | None, request: pytest.FixtureRequest
) -> Iterator[Installation]:
    """Without even tables."""
    url = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    if not database_url.startswith(SQLITE):
        postgres: PostgresServer = request.getfixturevalue("postgres")
        url = postgres.create_database(f"elsewhere_{next(_numbers)}")
    with closing(Database(url)) as database:
        yield Installation(database, tmp_path / "elsewhere", tools)
