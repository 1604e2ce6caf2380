"""The service in production shape: two APIs, three workers, PostgreSQL and Redis, each a process that may go away."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import select

from service.store.tables import AttemptRow
from tests.support.burst import (
    assert_ended_once,
    small_answer,
    small_job,
    submit_all,
    wait_until_ended,
    write_pairs,
    write_small,
)
from tests.support.client import JobClient
from tests.support.processes import wait_for
from tests.support.production import Production, Servers, running_production, running_servers
from tests.support.traffic import traffic

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WORKERS = 3


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
    """Status, code, and whether it says when to come again."""
    return answer.status_code, answer.json()["code"], "Retry-After" in answer.headers


def issues(client: JobClient) -> set[str]:
    """What an API says is missing."""
    answer = client.http.get("/readyz")
    return {issue["code"] for issue in answer.json()["errors"]} if answer.is_error else set()


@pytest.mark.withstands(
    "submissions at once, some of them twice",
    how="60 and 500 jobs from 8 threads to two APIs and three workers, a fifth of them posted twice under one key",
    times=2,
    guaranteed="each runs exactly once",
)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("jobs", [60, pytest.param(500, marks=pytest.mark.long)])
def test_jobs_submitted_at_once_each_run_exactly_once(production: Production, jobs: int) -> None:
    unkeyed = jobs * 4 // 5
    before = {path.name for path in production.results.iterdir()}
    numbers = submit_all(production.apis, range(1, unkeyed + 1))
    numbers |= submit_all(production.apis, range(unkeyed + 1, jobs + 1), keyed=True)
    assert len(numbers) == jobs
    wait_until_ended(production, numbers, 900)
    assert_ended_once(production, {job_id: small_answer(number) for job_id, number in numbers.items()})
    attempts = production.all(select(AttemptRow.job_id, AttemptRow.worker).where(AttemptRow.job_id.not_in(before)))
    assert Counter(job_id for job_id, _ in attempts) == Counter(dict.fromkeys(numbers, 1))
    assert len({worker for _, worker in attempts}) == WORKERS
    assert {path.name for path in production.results.iterdir()} - before == set(numbers)
    for place, (job_id, number) in enumerate(list(numbers.items())[:: jobs // 10]):
        rows = production.apis[place % 2].rows(job_id)
        assert sorted(tuple(row.values()) for row in rows) == small_answer(number)


@pytest.mark.withstands(
    "the database goes away",
    how="PostgreSQL stopped under load and started again",
    times=1,
    guaranteed="requests get 503 with Retry-After, no job is lost or runs twice, no client misses an event",
)
@pytest.mark.long
def test_postgresql_restarted_under_load(production: Production, servers: Servers) -> None:
    with traffic(production, "postgresql") as clients:
        clients.start_slow(WORKERS)
        clients.post(range(1, 7))
        servers.postgres.stop(signal.SIGQUIT)
        clients.post(range(7, 13))
        for client in production.apis:
            away = (503, "database_unavailable", True)
            assert problem(client.http.get(f"/v1/jobs/{clients.slow[0]}")) == away
            assert problem(client.http.get("/v1/jobs")) == away
            assert problem(client.http.post("/v1/jobs", json=small_job(1))) == away
            assert problem(client.http.post(f"/v1/jobs/{clients.slow[0]}/cancel")) == away
            assert "database" in issues(client)
            assert client.http.get("/healthz").is_success
        wait_for("clients to notice", lambda: clients.client.answers["submit", 503, "database_unavailable"] > 3)
        assert all(part.is_running for part in production.workers)
        servers.postgres.start()
        clients.finish()
        assert {(status, code) for _, status, code in clients.client.answers} <= {
            *((status, "") for status in (200, 202, 304)),
            (503, "database_unavailable"),
            # A stream that had begun is cut off.
            (0, "RemoteProtocolError"),
        }
    wait_for("the service to be ready", lambda: not issues(production.apis[0]))


@pytest.mark.withstands(
    "the broker goes away with all its messages",
    how="Redis killed under load, started again empty",
    times=1,
    guaranteed="submissions go on; every job runs once",
)
@pytest.mark.long
def test_redis_restarted_under_load_and_its_messages_lost(production: Production, servers: Servers) -> None:
    with traffic(production, "redis") as clients:
        clients.start_slow(WORKERS)
        clients.post(range(1, 31))
        clients.wait_until_posted()
        servers.redis.stop()
        for number, client in enumerate(production.apis):
            assert issues(client) == {"broker"}
            # Stored, and rung for later: nothing else changes for a client.
            assert client.http.get("/v1/jobs").is_success
            assert client.submit(small_job(50 + number), **{"Idempotency-Key": f"while-redis-is-away-{number}"})
        clients.post(range(31, 37))
        clients.wait_until_posted()
        servers.redis.start()
        clients.finish()
        assert {(status, code) for _, status, code in clients.client.answers} <= {(200, ""), (202, ""), (304, "")}
    wait_for("the service to be ready", lambda: not issues(production.apis[0]))


@pytest.mark.withstands(
    "API processes go away",
    how="SIGTERM of one, `kill -9` of the other, under load",
    times=2,
    guaranteed="what was accepted runs once; clients that repeat their request lose nothing",
)
@pytest.mark.long
def test_an_api_restarted_under_load_loses_nothing(production: Production) -> None:
    with traffic(production, "api") as clients:
        clients.start_slow(1)
        clients.post(range(1, 41))
        first, second = production.apis
        assert production.stop(first.part) in (0, -signal.SIGTERM), first.part.said()
        production.start_again(first.part)
        production.kill(second.part)
        production.start_again(second.part)
        clients.finish()
