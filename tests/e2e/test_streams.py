"""Tests of streams while workers and JVMs are killed repeatedly: results must be exact.

`test_stream_workers` tests a single kill of each.
"""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from service.contract.enums import AttemptStatus, JobStatus
from service.store.tables import StreamBatchRow
from tests.support.counts import count
from tests.support.feeding import (
    HISTOGRAM,
    WINDOWS,
    Bar,
    Feeder,
    Group,
    Window,
    declare_over_http,
    groups_of,
    over_http,
)
from tests.support.processes import wait_for
from tests.support.production import Api, Production, Servers, running_production
from tests.support.streaming import ENVIRONMENT, StreamJob, Strikes, stream_job

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

_log = logging.getLogger(__name__)

SEED = int(os.environ.get("EVENKEEL_TEST_SEED", "20"))

WAREHOUSE = "warehouse"

SINKS = "sinks"

STREAM = "clicks"


@pytest.fixture
def production(tmp_path: Path) -> Iterator[Production]:
    """An API and two workers with Spark ready, so that one takes over at once, on SQLite and the embedded broker."""
    environment = {**ENVIRONMENT, "EVENKEEL_DATA_SINK_ROOTS": str(tmp_path / SINKS)}
    with running_production(tmp_path, None, apis=1, workers=2, environment=environment) as running:
        yield running


@pytest.fixture
def with_postgres(tmp_path: Path, servers: Servers) -> Iterator[Production]:
    """The same with PostgreSQL and Redis, and with the connection `warehouse` for sinks."""
    environment = {
        **ENVIRONMENT,
        "EVENKEEL_DATA_SINK_ROOTS": str(tmp_path / SINKS),
        "EVENKEEL_DATA_STREAMS": str(tmp_path / "streams"),
        "EVENKEEL_SINK_WAREHOUSE_URL": warehouse(servers),
    }
    servers.postgres.create_database(WAREHOUSE)
    with running_production(tmp_path, servers, apis=1, workers=2, environment=environment) as running:
        yield running


def warehouse(servers: Servers) -> str:
    """Returns the libpq connection string of the database for sinks."""
    return servers.postgres.url(WAREHOUSE).replace("+psycopg", "")


@dataclass(frozen=True)
class Watched:
    """A job, a function that reads its result, and the expected result. `last` posts rows for this job after all
    feeders have stopped.
    """

    job: StreamJob
    read: Callable[[], set[Any]]
    expected: Callable[[], set[Any]]
    last: Callable[[], None] = lambda: None

    def wait_until_exact(self) -> None:
        """Waits until the result is the expected one."""
        try:
            self.job.wait_for("the result", lambda: self.read() == self.expected())
        except AssertionError as error:
            found, expected = self.read(), self.expected()
            raise AssertionError(f"{found - expected} instead of {expected - found}\n{error}") from None


def submitted(production: Production, name: str, **further: Any) -> StreamJob:
    """Submits a job that reads the stream."""
    (api,) = production.apis
    return StreamJob(production.database, api.submit(stream_job(name, STREAM, **further)), production.logs)


def managed(production: Production, feeder: Feeder) -> Watched:
    """A job with updated groups in a managed result, which the API reads."""
    job = submitted(production, "managed")
    (api,) = production.apis
    return Watched(
        job, lambda: groups_of(tuple(row.values()) for row in api.rows(job.id)), lambda: feeder.posted.groups()
    )


def appended(production: Production, feeder: Feeder) -> Watched:
    """A job that appends each window to files once."""
    sink = {"kind": "parquet", "path": "windows"}
    directory = production.directory / SINKS / "windows"

    def read() -> set[Window]:
        files = sorted(directory.glob("part-*/*.parquet"))
        rows = [tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist()]
        found = {(k, begin.replace(tzinfo=None), n, d) for k, begin, n, d in rows}
        assert len(found) == len(rows), "a window is emitted twice"
        return found

    job = submitted(production, "appended", sql=WINDOWS, output_mode="append", sink=sink)
    return Watched(job, read, lambda: feeder.posted.windows(), feeder.close_windows)


def upserted(production: Production, feeder: Feeder, servers: Servers) -> Watched:
    """A job with updated groups in a PostgreSQL table."""
    sink = {"kind": "postgres", "connection": "warehouse", "table": "uniques"}

    def read() -> set[Group]:
        with psycopg.connect(warehouse(servers)) as connection:
            return groups_of(connection.execute("SELECT k, n, s, d FROM uniques").fetchall())

    return Watched(submitted(production, "upserted", sink=sink), read, lambda: feeder.posted.groups())


def changed(production: Production, feeder: Feeder) -> Watched:
    """A job whose rows are removed again, with a managed result."""
    job = submitted(production, "changed", sql=HISTOGRAM)
    (api,) = production.apis
    return Watched(job, lambda: bars_of(api.rows(job.id)), lambda: feeder.posted.histogram())


def changed_in_table(production: Production, feeder: Feeder, servers: Servers) -> Watched:
    """The same in a PostgreSQL table, from which rows are deleted."""
    sink = {"kind": "postgres", "connection": "warehouse", "table": "bars"}

    def read() -> set[Bar]:
        with psycopg.connect(warehouse(servers), row_factory=psycopg.rows.dict_row) as connection:
            return bars_of(connection.execute('SELECT k, n, "values", s FROM bars').fetchall())

    job = submitted(production, "changed in a table", sql=HISTOGRAM, sink=sink)
    return Watched(job, read, lambda: feeder.posted.histogram())


def bars_of(rows: Iterable[dict[str, Any]]) -> set[Bar]:
    """Returns the rows of a result of `HISTOGRAM`. Raises AssertionError if one occurs twice."""
    listed = [tuple(row.values()) for row in rows]
    found = {(k, n, values, None if s is None else int(s)) for k, n, values, s in listed}
    assert len({(k, n) for k, n, *_ in listed}) == len(listed), f"a row occurs twice: {listed}"
    return found


def fed(production: Production) -> Feeder:
    """Declares the stream and returns its feeder."""
    (api,) = production.apis
    declare_over_http(api, STREAM)
    return Feeder(over_http(api, STREAM), SEED)


def survive(
    production: Production, all_of: Sequence[Watched], feeder: Feeder, kills: int, *further: Callable[[], object]
) -> None:
    """Kills this number of workers and of JVMs with all their jobs, while rows are posted; `further` are other faults.
    Afterwards, each result must be exact, and stay so after its job is stopped.
    """
    jobs = [watched.job for watched in all_of]
    killer = Strikes(production, jobs, SEED)
    strikes = [*[killer.kill_worker] * kills, *[killer.kill_jvm] * kills, *further]
    random.Random(SEED).shuffle(strikes)
    with feeder.feeding():
        for strike in strikes:
            strike()
        killer.wait_for_the_last()
    # For the analysis of a failure.
    _log.warning("seed %s: %s", SEED, "; ".join(killer.kills))
    _log.warning(
        "%s posts, %s again, %s mini-batches", feeder.batches, feeder.repeats, [job.committed() for job in jobs]
    )
    for watched in all_of:
        watched.last()
        watched.wait_until_exact()
        watched.job.stop()
        assert watched.read() == watched.expected()
        assert watched.job.stream.generation == 1
    assert sum(len(job.attempts) for job in jobs) >= len(jobs) + 2 * kills


@pytest.mark.withstands(
    "workers and JVMs of streams die, and PostgreSQL crashes",
    how="`kill -9` of 5 workers and 5 JVMs at random moments, 2 crashes of the server; all sinks",
    times=12,
    guaranteed="no row is lost or duplicated",
)
def test_results_survive_kills_and_crashes_of_postgresql(with_postgres: Production, servers: Servers) -> None:
    feeder = fed(with_postgres)
    table = upserted(with_postgres, feeder, servers)
    jobs = [table, managed(with_postgres, feeder), appended(with_postgres, feeder)]

    def crash() -> None:
        # The server also stores jobs and leases.
        servers.postgres.restart(signal.SIGKILL)
        wait_for("the database", lambda: is_reachable(with_postgres))
        table.job.wait_for_batch()

    survive(with_postgres, jobs, feeder, count(sample=1, full=5), *[crash] * count(sample=1, full=2))


@pytest.mark.withstands(
    "workers and JVMs of streams whose rows are removed again die, and PostgreSQL crashes",
    how="`kill -9` of 20 workers and 20 JVMs at random moments, 5 crashes of the server; managed results and tables",
    times=45,
    guaranteed="no row is lost or duplicated",
)
def test_changing_results_survive_kills_and_crashes(with_postgres: Production, servers: Servers) -> None:
    feeder = fed(with_postgres)
    table = changed_in_table(with_postgres, feeder, servers)

    def crash() -> None:
        servers.postgres.restart(signal.SIGKILL)
        wait_for("the database", lambda: is_reachable(with_postgres))
        table.job.wait_for_batch()

    jobs = [table, changed(with_postgres, feeder)]
    survive(with_postgres, jobs, feeder, count(sample=1, full=20), *[crash] * count(sample=1, full=5))


def is_reachable(production: Production) -> bool:
    """Whether the database responds."""
    with suppress(SQLAlchemyError):
        return bool(production.all(select(1)))
    return False


@pytest.mark.withstands(
    "a full restart between stop and resume of a stream",
    how="SIGTERM of all processes",
    times=1,
    guaranteed="it continues exactly from its checkpoint",
)
@pytest.mark.full
def test_stream_continues_after_a_full_restart(production: Production) -> None:
    (api,) = production.apis
    feeder = fed(production)
    watched = managed(production, feeder)
    job = watched.job
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
    watched.wait_until_exact()
    assert job.stream.generation == stopped.generation
    assert first_batch(job, row.fence + 1) == (stopped.last_batch or 0) + 1

    # Stopped workers hand the job back; as all stop together, none takes it over meanwhile.
    with feeder.feeding():
        job.wait_for_batch()
        for part in production.workers:
            part.process.terminate()
        for part in production.workers:
            assert part.process.wait(120) == 0, production.logs()
        job.wait_for("the job to be handed back", lambda: job.row.lease_owner is None)
        for part in production.workers:
            production.start_again(part)
        job.wait_for("the next attempt", lambda: job.committed(job.row.fence))
    watched.wait_until_exact()

    # The same with kills, including the API.
    with feeder.feeding():
        job.wait_for_batch()
        for part in parts:
            production.kill(part)
        for part in parts:
            production.start_again(part)
        job.wait_for_batch()
    assert feeder.repeats
    watched.wait_until_exact()
    asked(api, job, "stop")
    job.wait(JobStatus.STOPPED)
    assert watched.read() == watched.expected()
    # The backlog is right after any kill.
    backlog = api.http.get(f"/v1/jobs/{job.id}/stream").json()["backlog"]["tables"]["t"]
    assert backlog == {"files": 0, "rows": 0, "bytes": 0, "oldest_age_seconds": None}
    # A mini-batch is measured after its end; metrics lost with a worker are reported as missing.
    found = api.http.get(f"/v1/jobs/{job.id}/stream").json()
    assert found["rows_in"] <= len(feeder.posted.rows)
    assert (found["rows_in"] < len(feeder.posted.rows)) <= (found["unmeasured_batches"] > 0)
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
