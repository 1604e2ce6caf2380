"""Tests of a production with two APIs, three workers, PostgreSQL and Redis, in which processes fail."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest
from sqlalchemy import select

from service.broker.dispatch import Dispatcher
from service.config.settings import Settings
from service.contract.enums import Queue
from service.store.tables import AttemptRow, JobRow, OutboxRow
from tests.support.burst import (
    SLOW,
    SLOW_ANSWER,
    assert_ended_once,
    small_answer,
    small_job,
    submit_all,
    wait_until_ended,
    write_pairs,
    write_small,
)
from tests.support.client import JobClient
from tests.support.counts import count
from tests.support.processes import wait_for
from tests.support.production import Production, Servers, running_production, running_servers
from tests.support.traffic import traffic

pytestmark = pytest.mark.e2e

WORKERS = 3
_BURST = count(sample=50, full=500)
"""The number of concurrent jobs."""
PAUSE = count(sample=12.0, full=60.0)
"""Seconds for which a server is frozen."""
AWAY = (503, "database_unavailable", True)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with running_servers(tmp_path_factory.mktemp("servers")) as running:
        yield running


@pytest.fixture(scope="module")
def production(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    with running_production(tmp_path_factory.mktemp("production"), servers, workers=WORKERS) as running:
        write_small(running.data)
        write_pairs(running.data)
        yield running


def problem(answer: httpx.Response) -> tuple[int, str, bool]:
    """Returns status, code, and whether there is a Retry-After header."""
    return answer.status_code, answer.json()["code"], "Retry-After" in answer.headers


def issues(client: JobClient) -> set[str]:
    """Returns the codes of an API's readiness problem."""
    answer = client.http.get("/readyz")
    return {issue["code"] for issue in answer.json()["errors"]} if answer.is_error else set()


@pytest.mark.withstands(
    "concurrent submissions, some sent twice",
    how="500 jobs from 8 threads to two APIs and three workers, a fifth of them posted twice with one key",
    times=1,
    guaranteed="each runs exactly once",
)
@pytest.mark.timeout(1200)
@pytest.mark.slow
def test_concurrent_submissions_run_exactly_once(production: Production) -> None:
    unkeyed = _BURST * 4 // 5
    before = {path.name for path in production.results.iterdir()}
    numbers = submit_all(production.apis, range(1, unkeyed + 1))
    numbers |= submit_all(production.apis, range(unkeyed + 1, _BURST + 1), keyed=True)
    assert len(numbers) == _BURST
    wait_until_ended(production, numbers, 900)
    assert_ended_once(production, {job_id: small_answer(number) for job_id, number in numbers.items()})
    attempts = production.all(select(AttemptRow.job_id, AttemptRow.worker).where(AttemptRow.job_id.not_in(before)))
    assert Counter(job_id for job_id, _ in attempts) == Counter(dict.fromkeys(numbers, 1))
    assert len({worker for _, worker in attempts}) == WORKERS
    assert {path.name for path in production.results.iterdir()} - before == set(numbers)
    for place, (job_id, number) in enumerate(list(numbers.items())[:: _BURST // 10]):
        rows = production.apis[place % 2].rows(job_id)
        assert sorted(tuple(row.values()) for row in rows) == small_answer(number)


@pytest.mark.withstands(
    "the database stops",
    how="PostgreSQL is stopped under load and started again",
    times=1,
    guaranteed="requests get 503 with Retry-After, no job is lost or runs twice, no client misses an event",
)
@pytest.mark.slow
def test_postgresql_restarted_under_load(production: Production, servers: Servers) -> None:
    with traffic(production, "postgresql") as clients:
        clients.start_slow(WORKERS)
        clients.post(range(1, 7))
        servers.postgres.stop(signal.SIGQUIT)
        clients.post(range(7, 13))
        for client in production.apis:
            assert problem(client.http.get(f"/v1/jobs/{clients.slow[0]}")) == AWAY
            assert problem(client.http.get("/v1/jobs")) == AWAY
            assert problem(client.http.post("/v1/jobs", json=small_job(1))) == AWAY
            assert problem(client.http.post(f"/v1/jobs/{clients.slow[0]}/cancel")) == AWAY
            assert "database" in issues(client)
            assert client.http.get("/healthz").is_success
        wait_for("clients to notice", lambda: clients.client.answers["submit", 503, "database_unavailable"] > 3)
        assert all(part.is_running for part in production.workers)
        servers.postgres.start()
        clients.finish()
        assert {(status, code) for _, status, code in clients.client.answers} <= {
            *((status, "") for status in (200, 202, 304)),
            (503, "database_unavailable"),
            # A stream that had started is interrupted.
            (0, "RemoteProtocolError"),
        }
    wait_for("the service to be ready", lambda: not issues(production.apis[0]))


@pytest.mark.withstands(
    "the broker loses all messages in a crash",
    how="Redis is killed under load and started again empty",
    times=1,
    guaranteed="submissions are still accepted; every job runs once",
)
@pytest.mark.slow
@pytest.mark.full
def test_redis_restarted_empty_under_load(production: Production, servers: Servers) -> None:
    with traffic(production, "redis") as clients:
        clients.start_slow(WORKERS)
        clients.post(range(1, 31))
        clients.wait_until_posted()
        servers.redis.stop()
        for number, client in enumerate(production.apis):
            assert issues(client) == {"broker"}
            # The job is stored and announced later; nothing else changes for a client.
            assert client.http.get("/v1/jobs").is_success
            assert client.submit(small_job(50 + number), **{"Idempotency-Key": f"while-redis-is-away-{number}"})
        clients.post(range(31, 37))
        clients.wait_until_posted()
        servers.redis.start()
        clients.finish()
        assert {(status, code) for _, status, code in clients.client.answers} <= {(200, ""), (202, ""), (304, "")}
    wait_for("the service to be ready", lambda: not issues(production.apis[0]))


@pytest.mark.withstands(
    "the broker is unreachable",
    how="Redis is frozen (SIGSTOP) under load for a minute",
    times=1,
    guaranteed="submissions are still accepted; every job runs once",
)
@pytest.mark.slow
@pytest.mark.full
def test_unresponsive_redis_under_load(production: Production, servers: Servers) -> None:
    with traffic(production, "silence") as clients:
        clients.start_slow(WORKERS)
        clients.post(range(1, 11))
        servers.redis.freeze()
        try:
            number, end = 10, time.monotonic() + PAUSE
            while time.monotonic() < end:
                number += 1
                clients.post([number])
                clients.wait_until_posted()
                for client in production.apis:
                    assert issues(client) == {"broker"}
                    assert client.http.get("/v1/jobs").is_success
        finally:
            servers.redis.thaw()
        clients.finish()
        assert {(status, code) for _, status, code in clients.client.answers} <= {(200, ""), (202, ""), (304, "")}
    wait_for("the service to be ready", lambda: not issues(production.apis[0]))
    assert all(part.is_running for part in production.workers)


@pytest.mark.withstands(
    "the broker loses all messages",
    how="FLUSHALL of Redis under load",
    times=10,
    guaranteed="every job runs once",
)
@pytest.mark.slow
@pytest.mark.full
def test_redis_flushed_under_load(production: Production, servers: Servers) -> None:
    with traffic(production, "flush") as clients, servers.redis.client() as redis:
        clients.start_slow(WORKERS)
        for tens in range(count(sample=3, full=10)):
            clients.post(range(tens * 5 + 1, tens * 5 + 6))
            clients.wait_until_posted()
            redis.flushall()
        clients.finish()
        assert {(status, code) for _, status, code in clients.client.answers} <= {(200, ""), (202, ""), (304, "")}


@pytest.mark.withstands(
    "the database is unreachable",
    how="PostgreSQL is frozen (SIGSTOP) under load for a minute: connections hang",
    times=1,
    guaranteed="requests get 503 with Retry-After in bounded time, no job is lost or runs twice; all processes "
    "recover by themselves",
)
@pytest.mark.slow
@pytest.mark.full
def test_unresponsive_postgresql_under_load(production: Production, servers: Servers) -> None:
    with traffic(production, "stall") as clients:
        clients.start_slow(WORKERS)
        clients.post(range(1, 7))
        clients.wait_until_posted()
        servers.postgres.freeze()
        try:
            end = time.monotonic() + PAUSE
            clients.post(range(7, 13))
            while time.monotonic() < end:
                for client in production.apis:
                    # The client waits for at most a minute.
                    assert problem(client.http.get("/v1/jobs")) == AWAY
                    assert problem(client.http.post("/v1/jobs", json=small_job(1))) == AWAY
                    assert "database" in issues(client)
                    assert client.http.get("/healthz").is_success
        finally:
            servers.postgres.thaw()
        clients.finish()
    wait_for("the service to be ready", lambda: not issues(production.apis[0]))
    assert all(part.is_running for part in (*production.workers, *(api.part for api in production.apis)))


@pytest.mark.withstands(
    "an API dies between commit and message",
    how="`kill -9` while it waits for a frozen Redis; the job is stored",
    times=1,
    guaranteed="a worker's sweeper sends the message; the job runs once",
)
@pytest.mark.slow
def test_api_killed_between_commit_and_message(production: Production, servers: Servers) -> None:
    api, other = production.apis
    known = {job_id for (job_id,) in production.all(select(JobRow.id))}
    with ThreadPoolExecutor(1) as pool:
        with servers.redis.silent():
            posted = pool.submit(api.http.post, "/v1/jobs", json=small_job(7))

            def owed() -> list[str]:
                return [job_id for (job_id,) in production.all(select(OutboxRow.job_id)) if job_id not in known]

            (job_id,) = wait_for("the commit", owed, every=0.01)
            api.part.process.kill()
            production.kill(api.part)
        # The client got its response when the job was stored, or none: the API sends messages independently of
        # requests.
        if posted.exception(30) is None:
            assert posted.result().json()["id"] == job_id
        else:
            assert isinstance(posted.exception(), httpx.TransportError)
    wait_until_ended(production, [job_id], 120)
    assert_ended_once(production, {job_id: small_answer(7)})
    assert other.job(job_id)["attempts"] == 1
    production.start_again(api.part)


@pytest.mark.withstands(
    "a batch job's message arrives many times",
    how="30 messages while the job waits and runs, and 30 after its end, to three workers",
    times=60,
    guaranteed="one attempt",
)
@pytest.mark.slow
def test_job_with_repeated_messages_runs_once(
    production: Production, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENKEEL_BROKER_URL", servers.redis.url)
    with closing(Dispatcher(Settings())) as dispatcher:
        job_id = production.apis[0].submit(SLOW)
        assert dispatcher.announce([job_id] * 30, Queue.SHORT) == (job_id,) * 30
        production.apis[0].wait(job_id)
        assert dispatcher.announce([job_id] * 30, Queue.SHORT) == (job_id,) * 30
        # When a later message has been read, all earlier ones have been too.
        last = production.apis[0].submit(small_job(3))
        wait_until_ended(production, [last], 60)
    assert_ended_once(production, {job_id: SLOW_ANSWER, last: small_answer(3)})
    assert production.apis[0].job(job_id)["attempts"] == 1


JUMPING = """
import pathlib, time
real, calls = time.time, iter(range(10**12))
time.time = lambda: real() + (86_400 if next(calls) % 2 else -86_400)
pathlib.Path(__file__).with_name("jumped").touch()
"""
"""A module that moves the clock by a day on every call. Python imports it first."""


@pytest.mark.withstands(
    "the clock of a worker jumps",
    how="its wall clock is a day ahead and a day back on alternate reads, under load",
    times=1,
    guaranteed="it keeps its leases, which use the database's clock; every job runs once, none is lost",
)
@pytest.mark.slow
@pytest.mark.full
def test_worker_with_jumping_clock_keeps_its_jobs(production: Production) -> None:
    directory = production.directory / "jumping"
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(JUMPING)
    path = os.pathsep.join(filter(None, (str(directory), os.environ.get("PYTHONPATH"))))
    worker = production.start_worker({"PYTHONPATH": path})
    try:
        production.wait_for_workers()
        assert (directory / "jumped").exists()
        with traffic(production, "jumps") as clients:
            clients.start_slow(4)
            clients.post(range(1, 31))
            clients.finish()
        its_own = AttemptRow.worker.contains(f"-{worker.process.pid}-")
        ended = {status for (status,) in production.all(select(AttemptRow.status).where(its_own))}
        assert ended == {"SUCCEEDED"}
    finally:
        production.stop(worker)
        production.workers.remove(worker)


@pytest.mark.withstands(
    "API processes stop",
    how="SIGTERM of one and `kill -9` of the other, under load",
    times=2,
    guaranteed="every accepted job runs once; a client that repeats its request loses nothing",
)
@pytest.mark.slow
def test_api_restarted_under_load_loses_nothing(production: Production) -> None:
    with traffic(production, "api") as clients:
        clients.start_slow(1)
        clients.post(range(1, 41))
        first, second = production.apis
        assert production.stop(first.part) in (0, -signal.SIGTERM), first.part.said()
        production.start_again(first.part)
        production.kill(second.part)
        production.start_again(second.part)
        clients.finish()
