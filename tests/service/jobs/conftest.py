"""A migrated database of either kind, and settings with one table to query."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.settings import Settings
from service.store.session import Database


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str) -> Settings:
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", database_url)
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path / "state"))
    settings = Settings()
    settings.data_roots[0].mkdir(parents=True)
    (settings.data_roots[0] / "arriving").mkdir(parents=True)
    for name in ("orders.parquet", "arriving/0.parquet"):
        pq.write_table(pa.table({"uid": pa.array([1, 2], pa.int64())}), settings.data_roots[0] / name)
    return settings


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    with closing(Database(settings.database_url)) as database:
        yield database
