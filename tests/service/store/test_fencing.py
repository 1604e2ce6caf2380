"""What a worker writes about a job: by the newest claim alone, of a job that has a worker, and of no other job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.spec import ends
from service.spec.modes import Mode
from service.spec.reports import Progress
from service.spec.status import LEASED, AttemptStatus, JobStatus
from service.store import leases, publication, retries, streams
from service.store.leases import Claim
from service.store.publication import Ending, PublishedResult
from service.store.session import Database
from service.store.streams import BatchMeasures
from service.store.tables import AttemptRow, Base, JobRow
from tests.support import lifecycle
from tests.support.clocks import ManualClock
from tests.support.lifecycle import LEASE_MS, METRICS, REPORT, AddJob
from tests.support.stored_streams import FACTS

Write = Callable[[Session, Claim, int], object]
"""Writes something on behalf of a claim. Returns a false value where the claim is refused."""

SUCCEEDED = Ending(JobStatus.SUCCEEDED, result=PublishedResult("a/attempt-2", 7, 70), metrics=METRICS)
FAILED = Ending(JobStatus.FAILED, ends.storage_unavailable("The store does not answer."))


def handing_back(status: AttemptStatus) -> Write:
    def hand_back(session: Session, held: Claim, now: int) -> object:
        return leases.hand_back(session, held, now, status=status, error=ends.driver_lost(held.worker))

    return hand_back


WRITES: dict[str, Write] = {
    "renew": lambda session, held, now: leases.renew(session, held.worker, [held], now, LEASE_MS),
    "mark_running": leases.mark_running,
    "save_progress": lambda session, held, now: leases.save_progress(session, held, Progress(tasks_done=1), now),
    "save_plan": lambda session, held, now: publication.save_plan(session, held, REPORT, 7, now),
    "succeed": lambda session, held, now: publication.publish(session, held, SUCCEEDED, now),
    "fail": lambda session, held, now: publication.publish(session, held, FAILED, now),
    "retry": lambda session, held, now: retries.publish_or_retry(session, held, FAILED, now),
    "lose_driver": handing_back(AttemptStatus.CRASHED),
    "hand_back": handing_back(AttemptStatus.CANCELLED),
    "save_layout": lambda session, held, now: streams.save_layout(session, held, {"partitions": 8}, now),
    "begin_batch": lambda session, held, now: streams.begin_batch(session, held, 1, 0, now),
    "finish_batch": lambda session, held, now: streams.finish_batch(session, held, 1, 0, FACTS, now),
    "measure_batches": lambda session, held, now: streams.measure_batches(
        session, held, 1, [BatchMeasures(0, 5, {"rows": 5})], now
    ),
    "note_followed": lambda session, held, now: streams.note_followed(session, held, 1, [{"table": "u"}], now),
    "note_backlog": lambda session, held, now: streams.note_backlog(session, held, 1, {"files": 1}, now),
    "mark_steady": streams.mark_steady,
    "rest": lambda session, held, now: streams.rest(session, held, now, because="stopped"),
}

STALE: dict[str, dict[str, Any]] = {
    "earlier attempt": {"fence": 1},
    "attempt of a lost transaction": {"fence": 3},
    "another worker": {"worker": "w2"},
    "deleted job": {"job_id": "gone"},
}


@pytest.fixture
def held(database: Database, clock: ManualClock, add_job: AddJob) -> Claim:
    """The second claim of stream a. The same worker holds the second claim of stream b, which has done the same."""
    for job_id in ("a", "b"):
        add_job(job_id, mode=Mode.CONTINUOUS, failure_retries=1, timeout_ms=0)
        lifecycle.claim(database, job_id)
        with database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(status="QUEUED"))
    claims = {job_id: lifecycle.claim(database, job_id) for job_id in ("b", "a")}
    clock.ms += 5
    for claim in claims.values():
        with database.write() as session:
            streams.open_stream(session, claim, clock.ms)
            publication.save_plan(session, claim, REPORT.model_copy(update={"statistics_ms": 1}), 7, clock.ms)
            streams.begin_batch(session, claim, 1, 0, clock.ms)
            leases.save_progress(session, claim, Progress(tasks_total=1), clock.ms)
    clock.ms += 5
    return claims["a"]


def stored(database: Database, without_job: str | None = None) -> dict[str, Any]:
    """All rows of all tables, or of those of all other jobs."""
    found = {}
    with database.read() as session:
        for table in Base.metadata.sorted_tables:
            statement = select(table).order_by(*table.primary_key)
            column = table.c.id if table.name == "jobs" else table.c.get("job_id")
            if without_job is not None and column is not None:
                statement = statement.where(column != without_job)
            found[table.name] = session.execute(statement).all()
    return found


def do(database: Database, write: Write, held: Claim) -> object:
    with database.write() as session:
        return write(session, held, database.now(session))


def not_refused(database: Database, held: Claim) -> list[str]:
    """Names the writes that the claim is not refused, or that change something."""
    found = []
    for name, write in WRITES.items():
        before = stored(database)
        if do(database, write, held) or stored(database) != before:
            found.append(name)
    return found


@pytest.mark.parametrize("stale", STALE)
def test_a_stale_claim_changes_nothing(database: Database, held: Claim, stale: str) -> None:
    assert not_refused(database, replace(held, **STALE[stale])) == []


@pytest.mark.parametrize("status", [*sorted(set(JobStatus) - LEASED), "PAUSED"])
def test_a_job_that_no_worker_has_is_not_changed(database: Database, held: Claim, status: str) -> None:
    with database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == "a").values(status=status))
    assert not_refused(database, held) == []


@pytest.mark.parametrize("name", WRITES)
def test_a_write_changes_its_own_job_and_attempt_alone(database: Database, held: Claim, name: str) -> None:
    def earlier_attempt() -> AttemptRow:
        with database.read() as session:
            return session.scalars(select(AttemptRow).where(AttemptRow.job_id == "a", AttemptRow.fence == 1)).one()

    before, others, earlier = stored(database), stored(database, "a"), earlier_attempt()
    assert do(database, WRITES[name], held)
    assert stored(database) != before
    assert stored(database, "a") == others
    assert (earlier_attempt().status, earlier_attempt().finished_at) == (earlier.status, earlier.finished_at)
