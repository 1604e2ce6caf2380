"""A job that is CANCELLING ends though no worker is left to end it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from service.api.app import create_app
from service.config.settings import Settings
from service.jobs.end_cancelled import CancelledJobs
from service.jobs.known_jobs import JobKey, KnownJobs
from service.jobs.lifecycle import cancel_job
from service.jobs.views import Job
from service.store import leases
from service.store.attempts import Claim, attempts_of
from service.store.maintenance import sweep
from service.store.session import Database
from service.store.tables import JobRow
from tests.support import lifecycle
from tests.support.processes import wait_for


def with_lease(database: Database) -> Claim:
    """Of a worker that is there."""
    return lifecycle.claim(database, lifecycle.insert(database))


def lapse(database: Database, *claims: Claim) -> None:
    """Their worker gives no sign of life for longer than their leases."""
    with database.write() as session:
        now = database.now(session)
        session.execute(
            update(JobRow).where(JobRow.id.in_([claim.job_id for claim in claims])).values(lease_expires_at=now - 1)
        )


def shown(database: Database, settings: Settings, claim: Claim) -> Job:
    key = JobKey(lifecycle.TENANT, claim.job_id)
    return KnownJobs().read(database, settings, {key})[key]


def test_only_what_is_cancelling_and_has_no_worker_is_ended(database: Database, settings: Settings) -> None:
    lost, live, running = with_lease(database), with_lease(database), with_lease(database)
    for claim in (lost, live):
        assert cancel_job(database, settings, lifecycle.TENANT, claim.job_id).status == "CANCELLING"
    step = CancelledJobs(database).step
    step()
    assert shown(database, settings, lost).status == "CANCELLING"
    lapse(database, lost, running)
    step()
    ended = shown(database, settings, lost)
    assert ended.error is not None
    assert (ended.status, ended.finished, ended.error.code) == ("CANCELLED", True, "cancelled")
    assert ended.finished_at is not None
    assert shown(database, settings, live).status == "CANCELLING"
    with database.read() as session:
        # Another worker takes it, and ends the attempt that was lost.
        assert session.get_one(JobRow, running.job_id).status == "PLANNING"
        (attempt,) = attempts_of(session, lost.job_id)
    assert (attempt.status, (attempt.error or {})["code"]) == ("CRASHED", "worker_lost")
    # Who wakes up later changes nothing, and finds nothing more to end.
    with database.write() as session:
        now = database.now(session)
        assert leases.claim_states(session, [lost]) == {}
        swept = sweep(session, now, announce_again_ms=10_000, free={})
    assert (swept.recovered, swept.ended) == ([running.job_id], [])
    step()
    assert shown(database, settings, lost).version == ended.version


@pytest.mark.not_quick
@pytest.mark.withstands(
    "no worker is left while a job is CANCELLING",
    how="its lease expires with only the API running, on both databases",
    times=1,
    guaranteed="it is CANCELLED within seconds",
)
def test_the_api_ends_it_by_itself(database: Database, settings: Settings) -> None:
    claim = with_lease(database)
    with TestClient(create_app(settings, database), base_url="http://127.0.0.1:8080"):
        cancel_job(database, settings, lifecycle.TENANT, claim.job_id)
        lapse(database, claim)
        wait_for("the end of the job", lambda: shown(database, settings, claim).status == "CANCELLED", 30)


def test_a_look_that_fails_is_not_the_last(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = with_lease(database)
    cancel_job(database, settings, lifecycle.TENANT, claim.job_id)
    lapse(database, claim)
    looking = CancelledJobs(database, check_interval_seconds=0.01)
    step, failures = looking.step, iter([OperationalError("SELECT", {}, Exception("gone"))])

    def failing_once() -> None:
        for failure in failures:
            raise failure
        step()

    monkeypatch.setattr(looking, "step", failing_once)

    async def scenario() -> None:
        await looking.stop()
        looking.start()
        await until(lambda: shown(database, settings, claim).status == "CANCELLED")
        await looking.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
