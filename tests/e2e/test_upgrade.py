"""An earlier version's state directory goes on in this version: streams from their checkpoints, jobs from the queue."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest

from service.contract.enums import JobStatus
from tests.e2e.upgrade import (
    BATCH_ORACLES,
    OTHER,
    PLACE,
    STREAM,
    STREAMS,
    has_read,
    move_times,
    post,
    progress,
    replace_text,
    rows_of,
)
from tests.support.processes import wait_for
from tests.support.service import Service, running_service

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

_ARCHIVES = sorted((Path(__file__).parents[1] / "data" / "upgrade").glob("*.tar.xz"))
_BATCHES = 4
"""Posts to each stream: two before the upgrade, two after it."""


def test_there_are_archives() -> None:
    assert _ARCHIVES


@pytest.mark.timeout(900)
@pytest.mark.parametrize("archive", _ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_running_streams_and_queued_jobs_of_an_earlier_version_continue(tmp_path: Path, archive: Path) -> None:
    shutil.unpack_archive(archive, tmp_path, filter="data")
    state = tmp_path / "state"
    replace_text(state, PLACE, str(tmp_path))
    move_times(state, int(time.time() * 1000))
    recorded = json.loads((state / "recorded.json").read_text(encoding="utf-8"))
    with running_service(tmp_path, {"EVENKEEL_WORKER_CONCURRENCY": str(len(STREAMS) + 1)}) as service:
        for name, job_id in recorded["batches"].items():
            job = service.wait(job_id, seconds=180)
            assert job["status"] == JobStatus.SUCCEEDED, job["error"]
            assert sorted_rows(service.rows(job_id)) == oracle(state, BATCH_ORACLES[name]), name
        for batch in range(2, _BATCHES):
            for stream in (STREAM, OTHER):
                post(service, stream, batch)
        for name, job_id in recorded["streams"].items():
            expected = oracle(state, STREAMS[name].oracle or STREAMS[name].sql)
            try:
                wait_for(name, lambda: result(service, job_id) == expected, 120)  # noqa: B023
            except AssertionError:
                assert result(service, job_id) == expected, name
                raise
            assert progress(service, job_id)["generation"] == recorded["generations"][name]


def result(service: Service, job_id: str) -> list[tuple[str, ...]] | None:
    """The result of a stream that has read all rows, None before."""
    if not has_read(service, job_id, 40 * _BATCHES):
        return None
    return sorted_rows(service.rows(job_id, page_size=1000))


def sorted_rows(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Rows as texts, in order; numbers that are equal have one text."""
    return sorted(tuple(_text(value) for value in row.values()) for row in rows)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    text = str(value)
    # A timestamp, as the API or as DuckDB returns it.
    return text[:19].replace("T", " ") if text.startswith("2026-") else text


def oracle(state: Path, sql: str) -> list[tuple[str, ...]]:
    """What DuckDB returns for the query."""
    with duckdb.connect() as database:
        for table, stream in (("t", STREAM), ("u", OTHER)):
            database.execute(f"CREATE TABLE {table} (k VARCHAR, x BIGINT, y BIGINT, ts TIMESTAMP)")
            rows = [(*row, ts.replace(tzinfo=None)) for batch in range(_BATCHES) for *row, ts in rows_of(stream, batch)]
            database.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", rows)
        data = state / "data"
        database.execute(f"CREATE TABLE names AS FROM read_csv('{data / 'names.csv'}', header = true)")
        database.execute(f"CREATE TABLE r AS FROM read_csv('{data / 'rows.csv'}', header = true)")
        return sorted(tuple(_text(value) for value in row) for row in database.execute(sql).fetchall())
