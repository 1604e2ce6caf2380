"""Fencing: only the newest claim of a job with a worker changes the job, and no other job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.contract import problems
from service.contract.enums import LEASED, AttemptStatus, JobStatus, Mode
from service.contract.reports import Progress
from service.store import leases, publication, streaming_jobs
from service.store.attempts import Claim
from service.store.publication import Ending, PublishedResult
from service.store.session import Database
from service.store.streaming_jobs import BatchMeasures
from service.store.tables import Base, JobRow
from tests.support import lifecycle
from tests.support.clocks import ManualClock
from tests.support.lifecycle import LEASE_MS, METRICS, REPORT, AddJob
from tests.support.stored_streams import FACTS

Write = Callable[[Session, Claim, int], object]
"""Writes something on behalf of a claim. Returns a false value where the claim is refused."""

SUCCEEDED = Ending(JobStatus.SUCCEEDED, result=PublishedResult("a/attempt-2", 7, 70), metrics=METRICS)
FAILED = Ending(JobStatus.FAILED, problems.storage_unavailable("The store does not answer."))


def handing_back(status: AttemptStatus) -> Write:
    def hand_back(session: Session, held: Claim, now: int) -> object:
        return leases.hand_back(session, held, now, status=status, error=problems.driver_lost(held.worker))

    return hand_back


WRITES: dict[str, Write] = {
    "renew": lambda session, held, now: leases.renew(session, held.worker, [held], now, LEASE_MS),
    "mark_running": leases.mark_running,
    "save_progress": lambda session, held, now: leases.save_progress(session, held, Progress(tasks_done=1), now),
    "save_plan": lambda session, held, now: publication.save_plan(session, held, REPORT, 7, now),
    "succeed": lambda session, held, now: publication.publish(session, held, SUCCEEDED, now),
    "fail": lambda session, held, now: publication.publish(session, held, FAILED, now),
    "retry": lambda session, held, now: publication.publish_or_retry(session, held, FAILED, now),
    "lose_driver": handing_back(AttemptStatus.CRASHED),
    "hand_back": handing_back(AttemptStatus.CANCELLED),
    "save_layout": lambda session, held, now: streaming_jobs.save_layout(session, held, {"partitions": 8}, now),
    "begin_batch": lambda session, held, now: streaming_jobs.begin_batch(session, held, 1, 0, now),
    "finish_batch": lambda session, held, now: streaming_jobs.finish_batch(session, held, 1, 0, FACTS, now),
    "measure_batches": lambda session, held, now: streaming_jobs.measure_batches(
        session, held, 1, [BatchMeasures(0, 5, {"rows": 5})], now
    ),
    "save_lookup_tables": lambda session, held, now: streaming_jobs.save_stream_metric(
        session, held, 1, streaming_jobs.FOLLOWED, [{"table": "u"}], now
    ),
    "save_backlog": lambda session, held, now: streaming_jobs.save_stream_metric(
        session, held, 1, streaming_jobs.BACKLOG, {"files": 1}, now
    ),
    "mark_steady": streaming_jobs.mark_steady,
    "mark_stopped": lambda session, held, now: streaming_jobs.mark_stopped(session, held, now, reason="stopped"),
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
        first = lifecycle.claim(database, job_id)
        lifecycle.plan(database, first)
        with database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(status="QUEUED"))
    claims = {job_id: lifecycle.claim(database, job_id) for job_id in ("a", "b")}
    clock.ms += 5
    for claim in claims.values():
        with database.write() as session:
            streaming_jobs.open_stream(session, claim, clock.ms)
            publication.save_plan(session, claim, REPORT.model_copy(update={"statistics_ms": 1}), 7, clock.ms)
            streaming_jobs.begin_batch(session, claim, 1, 0, clock.ms)
            leases.save_progress(session, claim, Progress(tasks_total=1), clock.ms)
    clock.ms += 5
    return claims["a"]


def stored(database: Database) -> dict[str, Any]:
    """Returns all rows of all tables."""
    with database.read() as session:
        return {
            table.name: session.execute(select(table).order_by(*table.primary_key)).mappings().all()
            for table in Base.metadata.sorted_tables
        }


def of_others(database: Database) -> dict[str, Any]:
    """Returns the rows that are neither about job a as a whole nor about its second attempt."""
    return {
        name: [row for row in rows if row.get("job_id", row.get("id")) != "a" or row.get("fence") == 1]
        for name, rows in stored(database).items()
    }


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
def test_a_job_without_a_worker_is_not_changed(database: Database, held: Claim, status: str) -> None:
    with database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == "a").values(status=status))
    assert not_refused(database, held) == []


@pytest.mark.parametrize("name", WRITES)
def test_a_write_changes_only_its_job_and_attempt(database: Database, held: Claim, name: str) -> None:
    before, others = stored(database), of_others(database)
    assert do(database, WRITES[name], held)
    assert stored(database) != before
    assert of_others(database) == others


ANSWERS: dict[str, tuple[Write | None, Write]] = {
    "claim": (None, lambda session, held, _: leases.is_claimed(session, held)),
    "succeed": (
        WRITES["succeed"],
        lambda session, held, _: publication.is_published(session, held, JobStatus.SUCCEEDED),
    ),
    "retry": (
        WRITES["retry"],
        lambda session, held, now: publication.publish_or_retry(session, held, FAILED, now, again=True),
    ),
    "mark_stopped": (WRITES["mark_stopped"], lambda session, held, _: streaming_jobs.is_stopped(session, held)),
    "hand_back": (
        WRITES["hand_back"],
        lambda session, held, _: leases.outcome_of_hand_back(
            session, held, status=AttemptStatus.CANCELLED, error=problems.driver_lost(held.worker)
        ),
    ),
}
"""What a worker does, and how it asks afterwards, where it got no answer, whether this was done."""


@pytest.mark.parametrize("name", ANSWERS)
def test_an_unconfirmed_write_is_found_by_its_claim_only(database: Database, held: Claim, name: str) -> None:
    """Stream b, of the same worker and with the same fencing token, has done the same."""
    write, was_done = ANSWERS[name]
    for claim in (held, replace(held, job_id="b")):
        assert write is None or do(database, write, claim)
    before = stored(database)
    assert do(database, was_done, held)
    # Who did what has ended is asked by the fencing token alone: nobody has the lease any more.
    stale = {kind: change for kind, change in STALE.items() if kind != "another worker" or name == "claim"}
    assert [kind for kind, change in stale.items() if do(database, was_done, replace(held, **change))] == []
    assert stored(database) == before


def test_a_job_that_is_queued_again_has_no_worker_and_is_not_stopped(database: Database, held: Claim) -> None:
    with database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == "a").values(status="QUEUED"))
        assert not leases.is_claimed(session, held)
        assert not streaming_jobs.is_stopped(session, held)


def test_an_attempt_that_ended_otherwise_was_not_handed_back(database: Database, held: Claim) -> None:
    lost, other = problems.driver_lost("w1"), problems.handed_back("w1")
    assert do(database, WRITES["hand_back"], held)
    with database.write() as session:
        assert leases.outcome_of_hand_back(session, held, status=AttemptStatus.CRASHED, error=lost) is None
        assert leases.outcome_of_hand_back(session, held, status=AttemptStatus.CANCELLED, error=other) is None
        assert (
            leases.outcome_of_hand_back(session, held, status=AttemptStatus.CANCELLED, error=lost) is JobStatus.QUEUED
        )


def test_an_attempt_that_was_lost_meanwhile_has_not_failed(database: Database, held: Claim) -> None:
    assert do(database, WRITES["lose_driver"], held)
    with database.write() as session:
        assert publication.publish_or_retry(session, held, FAILED, database.now(session), again=True) is None
