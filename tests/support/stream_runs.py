"""Runs streaming jobs on a `Bench` and reads their state and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import update

from service.results.json_values import json_rows
from service.results.stream_result import open_stream_result, result_directory
from service.store import streaming_jobs
from service.store.streaming_state import Stream
from service.store.tables import JobRow
from tests.support.bench import Bench
from tests.support.processes import wait_for
from tests.support.stored_streams import stream_of
from tests.support.tables import parquet

PER_USER = {
    "name": "per-user",
    "mode": "incremental",
    "tables": {"orders": parquet("orders")},
    "sql": "SELECT uid, COUNT(*) AS n, COUNT(DISTINCT category) AS c FROM orders WHERE uid < 3 GROUP BY uid",
    "settings": {"state": {"partitions": 2}},
}
FIRST = [[0, 100, 7], [1, 100, 7], [2, 100, 7]]
"""The result of `PER_USER` on the bench's orders."""


def stream(bench: Bench, job_id: str) -> Stream:
    """Returns the stream's progress."""
    return stream_of(bench.database, job_id)


def rows(bench: Bench, job_id: str) -> list[list[Any]]:
    """Returns the rows of the managed result."""
    found = open_stream_result(result_directory(bench.settings.streams_dir, job_id, stream(bench, job_id).generation))
    return sorted(json_rows(found.files.page(0, 1000)))


def resume(bench: Bench, job_id: str, *, from_scratch: bool = False, **changed: object) -> None:
    """Resumes a job, with other columns if given."""
    with bench.database.write() as session:
        if changed:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(**changed))
        row = session.get_one(JobRow, job_id)
        streaming_jobs.request_resume(session, row, bench.database.now(session), from_scratch=from_scratch)


def run(bench: Bench, job_id: str) -> JobRow:
    """Runs a job and returns its row when the runner has ended."""
    assert bench.runner.run(job_id)
    return bench.job(job_id)


def add_orders(bench: Bench, name: str, uids: list[int], category: str) -> None:
    """Adds a file of orders."""
    hidden = bench.settings.state_dir / "data" / "orders" / f".{name}"
    columns = {"uid": pa.array(uids, pa.int64()), "category": [category] * len(uids), "price": [1.0] * len(uids)}
    pq.write_table(pa.table(columns), hidden)
    hidden.rename(hidden.with_name(name))


def supervised(bench: Bench, probe: Callable[[], object]) -> None:
    """Supervises streams, as the worker does, until `probe` returns a true value."""

    def look() -> object:
        bench.runner.supervisor.step()
        return probe()

    wait_for("the stream's progress", look, 60)
