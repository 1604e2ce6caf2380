"""A migrated database, and settings with one table to query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.settings import Settings
from service.store.migrate import upgrade
from service.store.session import Database


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path / "state"))
    settings = Settings()
    settings.data_roots[0].mkdir(parents=True)
    pq.write_table(pa.table({"uid": pa.array([1, 2], pa.int64())}), settings.data_roots[0] / "orders.parquet")
    return settings


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    database = Database(settings.database_url)
    upgrade(database)
    yield database
    database.close()
