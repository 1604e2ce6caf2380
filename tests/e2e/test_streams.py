"""What a stream must survive, exactly: the death of its worker and of its JVM, again and again."""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pyarrow.parquet as pq
import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from service.spec.status import AttemptStatus, JobStatus
from service.store.tables import StreamBatchRow
from tests.support.feeding import WINDOWS, Feeder, Group, Window, declare_over_http, groups_of, over_http
from tests.support.processes import wait_for
from tests.support.production import Api, Production, Servers, running_production, running_servers
from tests.support.streaming import StreamJob, Strikes, stream_job

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

_log = logging.getLogger(__name__)

KILLS = 5
"""Of workers, and as many of JVMs."""

SEED = int(os.environ.get("EVENKEEL_TEST_SEED", "20"))

ENVIRONMENT = {
    "EVENKEEL_SPARK_MASTER": "local[2]",
    "EVENKEEL_SPARK_DRIVER_MEMORY": "512m",
    "EVENKEEL_WORKER_CONCURRENCY": "2",
    "EVENKEEL_WORKER_LEASE_SECONDS": "3",
    "EVENKEEL_WORKER_HEARTBEAT_SECONDS": "0.5",
    "EVENKEEL_WORKER_SWEEP_SECONDS": "0.3",
    "EVENKEEL_WORKER_RING_AGAIN_SECONDS": "1",
    "EVENKEEL_WORKER_DRAIN_SECONDS": "0",
}

WAREHOUSE = "warehouse"

SINKS = "sinks"

T = TypeVar("T")


@pytest.fixture
def production(tmp_path: Path) -> Iterator[Production]:
    """An API and two workers, both with their Spark up: one takes over at once. On SQLite and the embedded broker."""
    environment = {**ENVIRONMENT, "EVENKEEL_DATA_SINK_ROOTS": str(tmp_path / SINKS)}
    with running_production(tmp_path, None, apis=1, workers=2, environment=environment) as running:
        yield running


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with running_servers(tmp_path) as running:
        yield running


@pytest.fixture
def beside_postgres(tmp_path: Path, servers: Servers) -> Iterator[Production]:
    """The same on PostgreSQL and Redis, with the connection `warehouse` for sinks."""
    environment = {
        **ENVIRONMENT,
        "EVENKEEL_DATA_STREAMS": str(tmp_path / "streams"),
        "EVENKEEL_SINK_WAREHOUSE_URL": warehouse(servers),
    }
    servers.postgres.create_database(WAREHOUSE)
    with running_production(tmp_path, servers, apis=1, workers=2, environment=environment) as running:
        yield running


def warehouse(servers: Servers) -> str:
    """The database that sinks write to, as libpq has it."""
    return servers.postgres.url(WAREHOUSE).replace("+psycopg", "")


def submitted(production: Production, stream: str, **further: Any) -> StreamJob:
    """A stream, and a job that reads it."""
    (api,) = production.apis
    declare_over_http(api, stream)
    return StreamJob(production.database, api.submit(stream_job(stream, stream, **further)), production.logs)


def survive(production: Production, job: StreamJob, feeder: Feeder, *further: Callable[[], object]) -> None:
    """Kills who is at the job, over and over, while rows come in. `further` are other strikes."""
    kills = Strikes(production, job, SEED)
    strikes = [*[kills.kill_worker] * KILLS, *[kills.kill_jvm] * KILLS, *further]
    random.Random(SEED).shuffle(strikes)
    with feeder.feeding():
        for strike in strikes:
            strike()
        job.wait_for_attempt(after=kills.struck)
        job.wait_for_batch()
    # For whoever has to find out what happened.
    _log.warning("seed %s: %s", SEED, "; ".join(kills.told))
    _log.warning("%s posts, %s again, %s mini-batches", feeder.batches, feeder.repeats, job.committed())
    assert len(job.attempts) > 2 * KILLS
    assert job.stream.generation == 1


def assert_exact(job: StreamJob, read: Callable[[], set[T]], expected: set[T]) -> None:
    """Waits until the result is what was posted; it stays so, and the job rests."""
    wait_until_exact(job, read, expected)
    job.stop()
    assert read() == expected


def wait_until_exact(job: StreamJob, read: Callable[[], set[T]], expected: set[T]) -> None:
    """Waits until the result is what was posted."""
    try:
        job.wait_for("the result", lambda: read() == expected)
    except AssertionError as error:
        found = read()
        raise AssertionError(f"{found - expected} instead of {expected - found}\n{error}") from None


def test_a_managed_result_survives_kills(production: Production) -> None:
    job = submitted(production, "clicks")
    (api,) = production.apis

    def read() -> set[Group]:
        return groups_of(tuple(row.values()) for row in api.rows(job.id))

    feeder = Feeder(over_http(api, "clicks"), SEED)
    survive(production, job, feeder)
    assert_exact(job, read, feeder.posted.groups())


def test_windows_that_are_appended_survive_kills(production: Production) -> None:
    sink = {"kind": "parquet", "path": "windows"}
    job = submitted(production, "clicks", sql=WINDOWS, output="append", sink=sink)
    directory = production.directory / SINKS / "windows"

    def read() -> set[Window]:
        files = sorted(directory.glob("part-*/*.parquet"))
        rows = [tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist()]
        found = {(k, begin.replace(tzinfo=None), n, d) for k, begin, n, d in rows}
        assert len(found) == len(rows), "a window comes twice"
        return found

    (api,) = production.apis
    feeder = Feeder(over_http(api, "clicks"), SEED)
    survive(production, job, feeder)
    feeder.close_windows()
    assert_exact(job, read, feeder.posted.windows())


def test_a_table_of_postgresql_survives_kills(beside_postgres: Production, servers: Servers) -> None:
    sink = {"kind": "postgres", "connection": "warehouse", "table": "uniques"}
    job = submitted(beside_postgres, "clicks", sink=sink)

    def read() -> set[Group]:
        with psycopg.connect(warehouse(servers)) as connection:
            return groups_of(connection.execute("SELECT k, n, s, d FROM uniques").fetchall())

    def crash() -> None:
        servers.postgres.restart(signal.SIGKILL)
        wait_for("the database", lambda: is_there(beside_postgres))
        job.wait_for_batch()

    (api,) = beside_postgres.apis
    # Of the server that jobs and leases are in, too.
    feeder = Feeder(over_http(api, "clicks"), SEED)
    survive(beside_postgres, job, feeder, crash, crash)
    assert_exact(job, read, feeder.posted.groups())


def is_there(production: Production) -> bool:
    """Whether the database answers on connections that are as good as new."""
    with suppress(SQLAlchemyError):
        return bool(production.all(select(1)))
    return False


def test_a_stream_goes_on_across_a_restart_of_everything(production: Production) -> None:
    job = submitted(production, "clicks")
    (api,) = production.apis
    feeder = Feeder(over_http(api, "clicks"), SEED)

    def read() -> set[Group]:
        return groups_of(tuple(row.values()) for row in api.rows(job.id))

    feeder.feed(5)
    job.wait_for_batch()
    asked(api, job, "stop")
    job.wait(JobStatus.STOPPED)
    feeder.feed(3)
    parts = [*production.workers, api.part]
    for part in parts:
        production.stop(part)
    for part in parts:
        production.start_again(part)
    feeder.feed(3)
    stopped = job.stream
    row = job.row
    assert row.status == JobStatus.STOPPED
    asked(api, job, "resume")
    wait_until_exact(job, read, feeder.posted.groups())
    assert job.stream.generation == stopped.generation
    assert first_batch(job, row.fence + 1) == (stopped.last_batch or 0) + 1

    # Told to leave, workers give it back; all at once, there is nobody who would take it meanwhile.
    with feeder.feeding():
        job.wait_for_batch()
        for part in production.workers:
            part.process.terminate()
        for part in production.workers:
            assert part.process.wait(120) == 0, production.logs()
        job.wait_for("the job to be given back", lambda: job.row.lease_owner is None)
        for part in production.workers:
            production.start_again(part)
        job.wait_for("the next attempt", lambda: job.committed(job.row.fence))
    wait_until_exact(job, read, feeder.posted.groups())

    # And killed, the API with them.
    with feeder.feeding():
        job.wait_for_batch()
        for part in parts:
            production.kill(part)
        for part in parts:
            production.start_again(part)
        job.wait_for_batch()
    assert feeder.repeats
    wait_until_exact(job, read, feeder.posted.groups())
    asked(api, job, "stop")
    job.wait(JobStatus.STOPPED)
    assert read() == feeder.posted.groups()
    # Whatever was killed, what is behind is told by what is there.
    behind = api.http.get(f"/v1/jobs/{job.id}/stream").json()["backlog"]["tables"]["t"]
    assert behind == {"files": 0, "rows": 0, "bytes": 0, "oldest_seconds": None}
    # What a mini-batch read is measured after its end, and lost with the worker.
    assert job.stream.rows_in <= len(feeder.posted.rows)
    ends = [attempt.status for attempt in job.attempts]
    assert ends[0] == ends[-1] == AttemptStatus.STOPPED
    assert AttemptStatus.CANCELLED in ends
    assert AttemptStatus.CRASHED in ends


def asked(api: Api, job: StreamJob, what: str) -> None:
    answer = api.http.post(f"/v1/jobs/{job.id}/{what}", json={})
    assert answer.is_success, answer.text


def first_batch(job: StreamJob, fence: int) -> int:
    with job.database.read() as session:
        of = (StreamBatchRow.job_id == job.id, StreamBatchRow.fence == fence)
        return session.execute(select(func.min(StreamBatchRow.batch_id)).where(*of)).scalar_one()
