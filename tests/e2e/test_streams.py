"""What a stream must survive, exactly: the death of its worker and of its JVM, again and again."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.feeding import Feeder, Group, declare_over_http, groups_of, over_http
from tests.support.production import Production, Servers, running_production, running_servers
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

Read = Callable[[], set[Group]]


@pytest.fixture
def production(tmp_path: Path) -> Iterator[Production]:
    """An API and two workers, both with their Spark up: one takes over at once. On SQLite and the embedded broker."""
    with running_production(tmp_path, None, apis=1, workers=2, environment=ENVIRONMENT) as running:
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


def submitted(production: Production, stream: str, **further: object) -> StreamJob:
    """A stream, and a job that reads it."""
    (api,) = production.apis
    declare_over_http(api, stream)
    return StreamJob(production.database, api.submit(stream_job(stream, stream, **further)), production.logs)


def survive(production: Production, job: StreamJob, feeder: Feeder, read: Read) -> None:
    """Kills who is at the job, over and over, while rows come in; in the end every row is counted once."""
    kills = Strikes(production, job, SEED)
    strikes = [kills.kill_worker] * KILLS + [kills.kill_jvm] * KILLS
    random.Random(SEED).shuffle(strikes)
    with feeder.feeding():
        for strike in strikes:
            strike()
        job.wait_for_batch()
    told = f"seed {SEED}: {'; '.join(kills.told)}"
    _log.info("%s; %s posts, %s again, %s mini-batches", told, feeder.batches, feeder.repeats, job.committed())
    wait_until_exact(job, feeder, read, told)
    job.stop()
    assert read() == feeder.expected.groups
    assert len(job.attempts) > 2 * KILLS
    assert job.stream.generation == 1


def wait_until_exact(job: StreamJob, feeder: Feeder, read: Read, told: str = "") -> None:
    """Waits until the result is that of what was posted."""
    expected = feeder.expected.groups
    try:
        job.wait_for("the result", lambda: read() == expected)
    except AssertionError as error:
        found = read()
        raise AssertionError(f"{told}\n{found - expected} instead of {expected - found}\n{error}") from None


def test_a_managed_result_survives_kills(production: Production) -> None:
    job = submitted(production, "clicks")
    (api,) = production.apis

    def read() -> set[Group]:
        return groups_of(row.values() for row in api.rows(job.id))

    survive(production, job, Feeder(over_http(api, "clicks"), SEED), read)


def test_a_table_of_postgresql_survives_kills(beside_postgres: Production, servers: Servers) -> None:
    sink = {"kind": "postgres", "connection": "warehouse", "table": "uniques"}
    job = submitted(beside_postgres, "clicks", sink=sink)

    def read() -> set[Group]:
        with psycopg.connect(warehouse(servers)) as connection:
            return groups_of(connection.execute("SELECT k, n, s, d FROM uniques").fetchall())

    (api,) = beside_postgres.apis
    survive(beside_postgres, job, Feeder(over_http(api, "clicks"), SEED), read)
