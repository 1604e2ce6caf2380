"""The application over a migrated database of either kind, with one table to query."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.main import create_app
from service.settings import Settings
from service.store.session import Database
from service.store.tables import OutboxRow
from tests.support.lifecycle import SPEC, STREAM_TABLES
from tests.support.processes import wait_for


@dataclass(frozen=True)
class Api:
    """A started application, and what is behind it."""

    client: TestClient
    app: FastAPI
    database: Database
    settings: Settings

    @property
    def messages(self) -> list[str]:
        """The messages in the embedded broker, once those of all stored jobs have been sent and settled."""
        wait_for("the doorbell", lambda: not self.owed, 30)
        return [path.read_text() for path in (self.settings.broker_dir / "messages").iterdir()]

    @property
    def owed(self) -> list[str]:
        """The jobs of which workers have not been told."""
        with self.database.read() as session:
            return list(session.scalars(select(OutboxRow.job_id)))

    def end_ringing(self) -> None:
        """Waits until the doorbell has done what it can."""
        self.app.state.services.doorbell.close()

    def submit(self, **changes: object) -> httpx.Response:
        """Posts the usual job with some fields changed; one with a mode reads its table as a stream."""
        tables = {"tables": STREAM_TABLES} if "mode" in changes else {}
        answer: httpx.Response = self.client.post("/v1/jobs", json={**SPEC, **tables, **changes})
        return answer


@pytest.fixture
def explain_timeout_seconds() -> float:
    """Tests that want another patience parametrize it."""
    return 10


@pytest.fixture
def retry_seconds() -> float:
    """Most tests want to see at once how the database fails."""
    return 0


@pytest.fixture
def authentication() -> str:
    """Most tests are about what a caller that was let in sees."""
    return "off"


@pytest.fixture
def tenant_limits() -> dict[str, str]:
    """`EVENKEEL_LIMITS_...` for tests that parametrize it."""
    return {}


@pytest.fixture
def settings(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    explain_timeout_seconds: float,
    retry_seconds: float,
    database_url: str,
    authentication: str,
    tenant_limits: dict[str, str],
) -> Settings:
    for name, limit in tenant_limits.items():
        monkeypatch.setenv(f"EVENKEEL_LIMITS_{name}", limit)
    monkeypatch.setenv("EVENKEEL_API_AUTHENTICATION", authentication)
    monkeypatch.setenv("EVENKEEL_DATABASE_RETRY_SECONDS", str(retry_seconds))
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", database_url)
    monkeypatch.setenv("EVENKEEL_API_EXPLAIN_TIMEOUT_SECONDS", str(explain_timeout_seconds))
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("EVENKEEL_API_POLL_INTERVAL_SECONDS", "0.01")
    monkeypatch.setenv("EVENKEEL_API_MAX_BODY_BYTES", "20000")
    settings = Settings()
    settings.data_roots[0].mkdir(parents=True)
    orders = pa.table({"uid": pa.array([1, 1, 2], pa.int64()), "amount": pa.array([1.5, 2.5, None], pa.float64())})
    pq.write_table(orders, settings.data_roots[0] / "orders.parquet")
    (settings.data_roots[0] / "arriving").mkdir()
    pq.write_table(orders, settings.data_roots[0] / "arriving" / "0.parquet")
    return settings


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    with closing(Database(settings.database_url)) as database:
        yield database


@pytest.fixture
def api(settings: Settings, database: Database) -> Iterator[Api]:
    app = create_app(settings, database)
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        yield Api(client, app, database, settings)
