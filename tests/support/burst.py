"""Many small concurrent jobs with known results, and checks of them after their end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import select

from service.store.tables import AttemptRow, JobEventRow, JobRow, OutboxRow
from tests.support.client import JobClient
from tests.support.processes import wait_for
from tests.support.production import Production
from tests.support.tables import parquet

KINDS = 20
"""The number of different small jobs, each with its own table."""
PAIRS = 6_000
_THREADS = 8


def write_small(data: Path) -> None:
    """Writes `small-1/` to `small-20/`: one Parquet file each, whose `v` counts from 0; the name is the number of
    rows.
    """
    for rows in range(1, KINDS + 1):
        directory = data / f"small-{rows}"
        directory.mkdir()
        pq.write_table(pa.table({"v": pa.array(range(rows), pa.int64())}), directory / "part.parquet")


def small_job(number: int) -> dict[str, Any]:
    """Returns an aggregation over a table chosen by `number`. Consecutive numbers have different results.

    All jobs have the same query and different tables: with different literals, every worker would compile every query.
    """
    sql = "SELECT COUNT(*) AS n, SUM(s.v) AS total FROM s WHERE s.v >= 0"
    return {"name": f"small-{number}", "tables": {"s": parquet(f"small-{_rows(number)}")}, "sql": sql}


def small_answer(number: int) -> list[tuple[int, ...]]:
    """Returns the result of `small_job`: n and total."""
    values = range(_rows(number))
    return [(len(values), sum(values))]


def _rows(number: int) -> int:
    return number % KINDS + 1


def write_pairs(data: Path) -> None:
    """Writes `pairs/` for `SLOW`: one Parquet file with one key."""
    directory = data / "pairs"
    directory.mkdir()
    table = pa.table({"k": pa.array([1] * PAIRS, pa.int64()), "v": pa.array(range(PAIRS), pa.int64())})
    pq.write_table(table, directory / "part.parquet")


SLOW = {
    "name": "slow",
    "tables": {"a": parquet("pairs"), "b": parquet("pairs")},
    "sql": "SELECT COUNT(*) AS n FROM a JOIN b ON a.k = b.k WHERE a.v + b.v > 1",
}
"""Compares every pair of rows, which takes some seconds, in which a test can cause faults."""

SLOW_ANSWER: list[tuple[int, ...]] = [(PAIRS * PAIRS - 3,)]
"""All pairs except (0, 0), (0, 1) and (1, 0)."""


def submit_all(clients: Sequence[JobClient], numbers: Sequence[int], *, keyed: bool = False) -> dict[str, int]:
    """Posts a small job for every number, from several threads, to the clients in turn. Returns the number by job id.

    If `keyed`, each has an Idempotency-Key and is also posted to the next client at the same time. Raises
    AssertionError if that creates another job.
    """

    def submit(place: int) -> str:
        number = numbers[place]
        headers: Mapping[str, str] = {"Idempotency-Key": f"burst-{number}"} if keyed else {}
        return clients[place % len(clients)].submit(small_job(number), **headers)

    def submit_again(place: int) -> str:
        again = clients[(place + 1) % len(clients)]
        return again.submit(small_job(numbers[place]), **{"Idempotency-Key": f"burst-{numbers[place]}"})

    with ThreadPoolExecutor(_THREADS) as pool:
        first = [pool.submit(submit, place) for place in range(len(numbers))]
        second = [pool.submit(submit_again, place) for place in range(len(numbers))] if keyed else first
        ids = [future.result() for future in first]
        assert [future.result() for future in second] == ids
    return dict(zip(ids, numbers, strict=True))


def wait_until_ended(production: Production, job_ids: Collection[str], seconds: float) -> None:
    """Waits, by reading the database, until all jobs have ended. Raises AssertionError after `seconds`."""
    statement = select(JobRow.id).where(JobRow.finished_at.is_(None))

    def have_ended() -> bool:
        return not {job_id for (job_id,) in production.all(statement)} & set(job_ids)

    try:
        wait_for(f"the end of {len(job_ids)} jobs", have_ended, seconds, every=0.2)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{production.logs()}") from None


def assert_ended_once(production: Production, expected: Mapping[str, Sequence[tuple[int, ...]]]) -> None:
    """Checks that every job SUCCEEDED once with its expected rows and left only its result.

    Only the last attempt of each job succeeded, and only it has files. The events are in order, with one success. All
    messages are sent.
    """
    jobs = {row[0]: row[1:] for row in production.all(select(JobRow.id, JobRow.status, JobRow.fence, JobRow.error))}
    attempts, events = defaultdict(list), defaultdict(list)
    for job_id, status in production.all(select(AttemptRow.job_id, AttemptRow.status).order_by(AttemptRow.fence)):
        attempts[job_id].append(status)
    status_events = (
        select(JobEventRow.job_id, JobEventRow.data).where(JobEventRow.type == "status").order_by(JobEventRow.id)
    )
    for job_id, data in production.all(status_events):
        events[job_id].append(data["status"])
    for job_id, rows in expected.items():
        status, fence, error = jobs[job_id]
        assert status == "SUCCEEDED", (job_id, status, error)
        assert len(attempts[job_id]) == fence
        assert attempts[job_id][-1] == "SUCCEEDED"
        assert set(attempts[job_id][:-1]) <= {"CRASHED", "CANCELLED"}
        assert events[job_id][0] == "QUEUED"
        assert events[job_id][-3:] == ["PLANNING", "RUNNING", "SUCCEEDED"]
        assert events[job_id].count("SUCCEEDED") == 1
        assert [path.name for path in (production.results / job_id).iterdir()] == [f"attempt-{fence}"]
        assert rows_of(production, job_id, fence) == list(rows), (job_id, attempts[job_id])
    # The API deletes a message's row after it has sent the message, so a short job can end first.
    wait_for("an empty outbox", lambda: production.all(select(OutboxRow.job_id)) == [], 30, every=0.2)


def rows_of(production: Production, job_id: str, attempt: int) -> list[tuple[int, ...]]:
    """Returns the rows of a result's files, sorted."""
    table = pq.read_table(production.results / job_id / f"attempt-{attempt}")
    return sorted(tuple(row.values()) for row in table.to_pylist())
