"""Further attempts after a failure, and their number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import update

from service.contract import problems
from service.contract.enums import AttemptStatus, JobStatus
from service.contract.problems import Problem
from service.store import leases
from service.store.attempts import attempts_of, crashed_attempts
from service.store.events import events_after
from service.store.maintenance import Sweep, sweep
from service.store.publication import FIRST_PAUSE_MS, LONGEST_PAUSE_MS, Ending, publish_or_retry
from service.store.session import Database
from service.store.tables import JobRow
from tests.support import lifecycle
from tests.support.clocks import ManualClock
from tests.support.lifecycle import row_of

LEASE = 1_000
AWAY = problems.storage_unavailable("The store of 's3a://b/' does not answer.")
WRONG = Problem(type="/problems/divide_by_zero", title="Division by zero", status=422, detail="", code="divide_by_zero")
HEAVY = Problem(type="/problems/out_of_memory", title="Out of memory", status=500, detail="", code="out_of_memory")


def fails(
    database: Database,
    job_id: str,
    error: Problem = AWAY,
    *,
    status: JobStatus = JobStatus.FAILED,
) -> JobStatus | None:
    """Returns the job's status after another attempt that ends so."""
    held = lifecycle.try_claim(database, job_id, lease_ms=LEASE)
    assert held is not None
    with database.write() as session:
        return publish_or_retry(session, held, Ending(status, error), database.now(session))


def swept(database: Database) -> Sweep:
    with database.write() as session:
        return sweep(session, database.now(session), announce_again_ms=30_000, free={"short": 2})


def ends_of(database: Database, job_id: str) -> list[str]:
    with database.read() as session:
        return [attempt.status for attempt in attempts_of(session, job_id)]


def test_the_pauses_grow_and_the_job_fails_at_last(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    assert fails(database, add_job("other", failure_retries=2, timeout_ms=3_600_000), WRONG) is JobStatus.FAILED
    job_id = add_job("a", failure_retries=2, timeout_ms=3_600_000)
    for pause in (FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS):
        assert fails(database, job_id) is JobStatus.QUEUED
        row = row_of(database, job_id)
        assert (row.status, row.next_run_at, row.error, row.lease_owner) == ("QUEUED", clock.ms + pause, None, None)
        clock.ms += pause - 1
        assert swept(database).announce == []
        assert lifecycle.try_claim(database, job_id, lease_ms=LEASE) is None, "it waits for its pause to end"
        with database.write() as session:
            assert leases.oldest_waiting(session, {"short"}) is None
        clock.ms += 1
        assert swept(database).announce == [(job_id, "short")]
    assert fails(database, job_id) is JobStatus.FAILED
    assert (row_of(database, job_id).error or {})["code"] == "storage_unavailable"
    assert ends_of(database, job_id) == ["FAILED"] * 3
    with database.read() as session:
        moves = [event.data["status"] for event in events_after(session, job_id, 0, 99) if event.type == "status"]
    assert moves == ["QUEUED", "PLANNING"] * 3 + ["FAILED"]


def test_lost_attempts_and_failures_have_separate_limits(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    job_id = add_job("a", max_attempts=2, failure_retries=1, timeout_ms=3_600_000)
    assert fails(database, job_id) is JobStatus.QUEUED
    clock.ms += FIRST_PAUSE_MS
    swept(database)
    held = lifecycle.try_claim(database, job_id, lease_ms=LEASE)
    assert held is not None
    with database.write() as session:
        lost = leases.hand_back(session, held, clock.ms, status=AttemptStatus.CRASHED, error=problems.driver_lost("w1"))
        assert (lost, crashed_attempts(session, job_id)) == (JobStatus.QUEUED, 1)
    assert fails(database, job_id) is JobStatus.FAILED
    assert ends_of(database, job_id) == ["FAILED", "CRASHED", "FAILED"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (WRONG, JobStatus.FAILED),
        (HEAVY, JobStatus.FAILED),
        (problems.timed_out(1), JobStatus.TIMED_OUT),
        (problems.cancelled(), JobStatus.CANCELLED),
    ],
)
def test_a_lasting_failure_is_not_retried(
    database: Database, add_job: Callable[..., str], error: Problem, status: JobStatus
) -> None:
    job_id = add_job("a", failure_retries=5, timeout_ms=3_600_000)
    assert fails(database, job_id, error, status=status) is status
    assert row_of(database, job_id).status == status.value


@pytest.mark.parametrize(
    "job",
    [
        {},
        {"failure_retries": 3, "timeout_ms": FIRST_PAUSE_MS},
        # It would be over before a worker had it.
        {"failure_retries": 3, "timeout_ms": FIRST_PAUSE_MS + 10_000},
        {"kind": "explain"},
    ],
)
def test_a_job_without_retries_or_time_is_not_retried(
    database: Database, add_job: Callable[..., str], job: dict[str, int | str]
) -> None:
    assert fails(database, add_job("a", **job)) is JobStatus.FAILED


def test_a_job_can_be_claimed_after_its_pause(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    job_id = add_job("a", failure_retries=10, timeout_ms=7 * 24 * 3_600_000)
    for _ in range(10):
        assert fails(database, job_id) is JobStatus.QUEUED
        due = row_of(database, job_id).next_run_at or 0
        assert due - clock.ms <= LONGEST_PAUSE_MS
        clock.ms = due
        swept(database)
    assert fails(database, job_id) is JobStatus.FAILED


def test_a_clock_that_is_set_back_does_not_delay_a_retry(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    clock.ms += 86_400_000
    job_id = add_job("a", failure_retries=1, timeout_ms=0)
    assert fails(database, job_id) is JobStatus.QUEUED
    clock.ms -= 86_400_000
    assert (job_id, "short") in swept(database).announce
    assert lifecycle.try_claim(database, job_id, lease_ms=LEASE) is not None


def test_a_job_that_is_to_be_cancelled_is_not_retried(database: Database, add_job: Callable[..., str]) -> None:
    job_id = add_job("a", failure_retries=1, timeout_ms=3_600_000)
    held = lifecycle.try_claim(database, job_id, lease_ms=LEASE)
    assert held is not None
    with database.write() as session:
        session.execute(update(JobRow).values(status="CANCELLING"))
        ending = Ending(JobStatus.FAILED, AWAY)
        assert publish_or_retry(session, held, ending, database.now(session)) is JobStatus.FAILED


def test_the_last_attempt_is_not_retried(database: Database, add_job: Callable[..., str]) -> None:
    held = lifecycle.try_claim(database, add_job("a", failure_retries=1, timeout_ms=3_600_000), lease_ms=LEASE)
    assert held is not None
    with database.write() as session:
        ending = Ending(JobStatus.FAILED, AWAY)
        became = publish_or_retry(session, held, ending, database.now(session), last=True)
    assert became is JobStatus.FAILED
    assert ends_of(database, "a") == ["FAILED"]


@pytest.mark.parametrize("retries", [0, 1])
def test_an_unconfirmed_commit_counts(
    database: Database, clock: ManualClock, add_job: Callable[..., str], retries: int
) -> None:
    held = lifecycle.try_claim(database, add_job("a", failure_retries=retries, timeout_ms=3_600_000), lease_ms=LEASE)
    assert held is not None
    ending = Ending(JobStatus.FAILED, AWAY)
    told = []
    for again in (False, True):
        with database.write() as session:
            told.append(publish_or_retry(session, held, ending, clock.ms, again=again))
    assert told == [JobStatus.QUEUED if retries else JobStatus.FAILED] * 2
    with database.write() as session:
        assert publish_or_retry(session, held, ending, clock.ms) is None
    assert ends_of(database, "a") == ["FAILED"]
