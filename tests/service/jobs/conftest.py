"""A migrated database of either kind, and settings with one table to query."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.broker.dispatch import Dispatcher, JobAnnouncer
from service.config.settings import Settings
from service.store.session import Database


@pytest.fixture
def settings(state_dir: Path, monkeypatch: pytest.MonkeyPatch, database_url: str) -> Settings:
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", database_url)
    settings = Settings()
    settings.data_roots[0].mkdir(parents=True)
    (settings.data_roots[0] / "arriving").mkdir(parents=True)
    for name in ("orders.parquet", "arriving/0.parquet"):
        pq.write_table(pa.table({"uid": pa.array([1, 2], pa.int64())}), settings.data_roots[0] / name)
    return settings


@pytest.fixture
def announcer(database: Database, settings: Settings) -> Iterator[JobAnnouncer]:
    with closing(JobAnnouncer(database, Dispatcher(settings))) as announcer:
        yield announcer
