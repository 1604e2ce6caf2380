"""The application starts against a current schema alone, and needs no Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fastapi.testclient import TestClient

from service.api.app import create_app
from service.config.settings import Settings
from service.store import jobs
from service.store.migrate import SchemaMismatchError
from service.store.session import Database
from tests.support import lifecycle
from tests.support.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """The time at which tests insert jobs: a second after the epoch, long ago for the application."""
    return ManualClock(1_000)


def test_an_empty_database_is_refused(settings: Settings) -> None:
    with pytest.raises(SchemaMismatchError, match="evenkeel migrate"), TestClient(create_app(settings)):
        pass


def test_starts_stops_and_starts_again(settings: Settings, sqlite_database: Database) -> None:
    app = create_app(settings)
    for _ in range(2):
        with TestClient(app, base_url="http://localhost") as client:
            assert client.get("/metrics").status_code == 200
            assert client.get("/v1/jobs").json()["jobs"] == []


def test_explanations_that_a_killed_process_left_are_removed(settings: Settings, sqlite_database: Database) -> None:
    lifecycle.insert(sqlite_database, kind=jobs.EXPLAIN)
    kept = lifecycle.insert(sqlite_database)
    with TestClient(create_app(settings)):
        pass
    with sqlite_database.read() as session:
        assert set(jobs.read_versions(session, [kept])) == {kept}
        assert session.connection().exec_driver_sql("SELECT COUNT(*) FROM jobs").scalar_one() == 1


@pytest.mark.not_quick
def test_neither_spark_nor_pandas_is_imported() -> None:
    script = (
        "import sys; from service.api.app import create_app; from service.config.settings import Settings; "
        "create_app(Settings()); "
        "assert not {'pyspark', 'pandas', 'workers'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
