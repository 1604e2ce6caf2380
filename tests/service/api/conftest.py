"""The application over a migrated database of either kind, with one table to query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from service.api.app import create_app
from service.config.settings import Settings
from service.store.session import Database
from tests.support.api import Api


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
    state_dir: Path,
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
def api(settings: Settings, database: Database) -> Iterator[Api]:
    app = create_app(settings, database)
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        yield Api(client, app, database, settings)
