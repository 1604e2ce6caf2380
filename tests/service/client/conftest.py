"""Fixtures: the commands, and the real application listening on a port, with a database and without a worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uvicorn

from service.api.app import create_app
from service.config.settings import Settings
from service.store.session import Database
from tests.support.processes import wait_for
from tests.support.served import Evenkeel, Served, evenkeel


@pytest.fixture(name="evenkeel")
def _evenkeel() -> Evenkeel:
    return evenkeel


@pytest.fixture(autouse=True)
def _of_no_service(monkeypatch: pytest.MonkeyPatch, state_dir: Path) -> None:
    """Unsets the variables of the client, and limits retries so that failing tests end."""
    for name in ("URL", "API_KEY", "API_KEY_FILE"):
        monkeypatch.delenv(f"EVENKEEL_{name}", raising=False)
    monkeypatch.setenv("EVENKEEL_RETRY_SECONDS", "20")


@pytest.fixture
def authentication() -> str:
    """Whether callers are authenticated; tests of keys parametrize it."""
    return "off"


@pytest.fixture
def served(sqlite_database: Database, authentication: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A running API with one table, `orders.parquet` (uid BIGINT, amount DOUBLE), and without a worker."""
    monkeypatch.setenv("EVENKEEL_API_AUTHENTICATION", authentication)
    # Its log would be among what commands write.
    monkeypatch.setenv("EVENKEEL_LOG_LEVEL", "ERROR")
    monkeypatch.setenv("EVENKEEL_API_POLL_INTERVAL_SECONDS", "0.01")
    settings = Settings()
    settings.data_roots[0].mkdir(parents=True)
    orders = pa.table({"uid": pa.array([1, 1, 2], pa.int64()), "amount": pa.array([1.5, 2.5, None], pa.float64())})
    pq.write_table(orders, settings.data_roots[0] / "orders.parquet")
    config = uvicorn.Config(
        create_app(settings, sqlite_database), port=0, log_config=None, access_log=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for("the API", lambda: server.started or not thread.is_alive(), every=0.005)
        assert server.started
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        monkeypatch.setenv("EVENKEEL_URL", url)
        yield Served(url, sqlite_database, settings)
    finally:
        server.should_exit = True
        thread.join(30)
