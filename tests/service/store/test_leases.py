"""Claims: one worker at a time has a job, and a worker that lost it changes nothing."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import Select, event, func, select, update
from sqlalchemy.orm import ORMExecuteState

from service.contract import problems
from service.contract.enums import AttemptStatus, JobStatus, Queue
from service.contract.job import SPEC_VERSION
from service.contract.reports import Progress
from service.store import leases
from service.store.attempts import Claim, attempts_of
from service.store.session import Database
from service.store.streaming_state import find_stream
from service.store.tables import JobEventRow, JobRow
from tests.support import lifecycle
from tests.support.clocks import ManualClock
from tests.support.lifecycle import LEASE_MS, row_of


def statuses_of_events(database: Database, job_id: str) -> list[str]:
    with database.read() as session:
        rows = session.scalars(
            select(JobEventRow).where(JobEventRow.job_id == job_id, JobEventRow.type == "status").order_by("id")
        )
        return [row.data["status"] for row in rows]


def lose(database: Database, job_id: str) -> None:
    """Ends the attempt of a job whose lease expired, as a sweeper does."""
    with database.write() as session:
        session.execute(
            update(JobRow).where(JobRow.id == job_id).values(status="QUEUED", lease_owner=None, lease_expires_at=None)
        )


def test_claim_gives_token_lease_and_attempt(database: Database, clock: ManualClock, job_id: str) -> None:
    claim = lifecycle.claim(database, job_id, "w1")

    row = row_of(database, job_id)
    assert (claim.fence, claim.worker, claim.tenant, claim.remaining_ms) == (1, "w1", "default", 60_000)
    assert (row.status, row.fence, row.lease_owner) == ("PLANNING", 1, "w1")
    assert row.lease_expires_at == clock.ms + LEASE_MS
    assert row.started_at == clock.ms
    assert row.version == 2
    with database.read() as session:
        (attempt,) = attempts_of(session, job_id)
    assert (attempt.fence, attempt.status, attempt.worker) == (1, "PLANNING", "w1")
    assert statuses_of_events(database, job_id) == ["QUEUED", "PLANNING"]


def test_second_claim_finds_nothing(database: Database, job_id: str) -> None:
    lifecycle.claim(database, job_id, "w1")
    assert lifecycle.try_claim(database, job_id, "w2") is None
    assert row_of(database, job_id).lease_owner == "w1"


def test_claim_of_an_unknown_job_finds_nothing(database: Database) -> None:
    assert lifecycle.try_claim(database, "nobody", "w1") is None


def test_time_limit_counts_from_the_first_claim(database: Database, clock: ManualClock, job_id: str) -> None:
    lifecycle.run(database, lifecycle.claim(database, job_id, "w1"))
    lose(database, job_id)
    clock.ms += 45_000
    again = lifecycle.claim(database, job_id, "w2")
    assert again.fence == 2
    assert (again.started_at, again.remaining_ms) == (clock.ms - 45_000, 15_000)
    assert row_of(database, job_id).progress is None, "that of the first attempt is not shown"


def test_claim_of_a_job_to_be_cancelled_cancels_it_alone(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    job_id, waiting, running = add_job("a"), add_job("b"), add_job("c")
    held = lifecycle.claim(database, running, "w1")
    with database.write() as session:
        session.execute(update(JobRow).values(cancel_requested_at=clock.ms))
    clock.ms += 5
    assert lifecycle.try_claim(database, job_id, "w2") is None
    row = row_of(database, job_id)
    assert row.status == "CANCELLED"
    assert row.error is not None
    assert row.error["code"] == "cancelled"
    assert (row.finished_at, row.updated_at, row.version) == (clock.ms, clock.ms, 2)
    assert statuses_of_events(database, job_id) == ["QUEUED", "CANCELLED"]
    assert (row_of(database, waiting).status, row_of(database, waiting).version) == ("QUEUED", 1)
    assert lifecycle.try_claim(database, running, "w2") is None
    assert (row_of(database, running).status, row_of(database, running).fence) == ("PLANNING", held.fence)


def test_exactly_one_of_many_threads_claims(database: Database, add_job: Callable[..., str]) -> None:
    jobs = [add_job(f"job-{number}") for number in range(5)]
    workers = 8
    together = threading.Barrier(workers)

    def claim_all(worker: str) -> list[str]:
        together.wait(10)
        return [job for job in jobs if lifecycle.try_claim(database, job, worker) is not None]

    with ThreadPoolExecutor(workers) as pool:
        won = [job for taken_by in pool.map(claim_all, [f"w{i}" for i in range(workers)]) for job in taken_by]
    assert sorted(won) == jobs


def test_renewal_extends_only_claims_that_hold(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    kept, lost = lifecycle.claim(database, add_job("kept"), "w1"), lifecycle.claim(database, add_job("lost"), "w1")
    lose(database, "lost")
    assert lifecycle.claim(database, "lost", "w2").fence == 2
    clock.ms += 10_000
    with database.write() as session:
        assert leases.renew(session, "w1", [kept, lost], clock.ms, LEASE_MS) == {kept}
    assert row_of(database, "kept").lease_expires_at == clock.ms + LEASE_MS
    assert row_of(database, "lost").lease_expires_at == clock.ms - 10_000 + LEASE_MS


def test_renewal_does_not_change_the_version(database: Database, clock: ManualClock, job_id: str) -> None:
    claim = lifecycle.claim(database, job_id, "w1")
    version = row_of(database, job_id).version
    with database.write() as session:
        leases.renew(session, "w1", [claim], clock.ms, LEASE_MS)
    assert row_of(database, job_id).version == version


def test_states_of_claims_leave_out_lost_ones(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    running, cancelled, lost = (lifecycle.claim(database, add_job(name), "w1") for name in ("a", "b", "c"))
    with database.write() as session:
        session.execute(
            update(JobRow).where(JobRow.id == "b").values(status="CANCELLING", cancel_requested_at=clock.ms)
        )
    lose(database, "c")
    with database.read() as session:
        found = leases.claim_states(session, [running, cancelled, lost])
    assert found == {
        running: leases.ClaimState(JobStatus.PLANNING, False),
        cancelled: leases.ClaimState(JobStatus.CANCELLING, True),
    }


def test_the_move_to_running_has_one_event(database: Database, clock: ManualClock, job_id: str) -> None:
    claim = lifecycle.claim(database, job_id, "w1")
    with database.write() as session:
        assert leases.mark_running(session, claim, clock.ms)
        assert not leases.mark_running(session, claim, clock.ms)
    assert statuses_of_events(database, job_id) == ["QUEUED", "PLANNING", "RUNNING"]
    with database.read() as session:
        assert attempts_of(session, job_id)[0].status == "RUNNING"


def test_a_job_being_cancelled_does_not_start(database: Database, clock: ManualClock, job_id: str) -> None:
    claim = lifecycle.claim(database, job_id, "w1")
    with database.write() as session:
        session.execute(update(JobRow).values(status="CANCELLING", cancel_requested_at=clock.ms))
    with database.write() as session:
        assert not leases.mark_running(session, claim, clock.ms)
    assert row_of(database, job_id).status == "CANCELLING"


@pytest.mark.parametrize("how", ["running", "progress", "hand_back"])
def test_a_late_worker_changes_nothing(database: Database, clock: ManualClock, job_id: str, how: str) -> None:
    late = lifecycle.claim(database, job_id, "w1")
    lose(database, job_id)
    lifecycle.claim(database, job_id, "w2")
    with database.read() as session:
        events = session.scalar(select(func.count()).select_from(JobEventRow))
    with database.write() as session:
        if how == "running":
            assert not leases.mark_running(session, late, clock.ms)
        elif how == "progress":
            assert not leases.save_progress(session, late, Progress(tasks_done=1), clock.ms)
        else:
            status, error = AttemptStatus.CRASHED, problems.driver_lost("w1")
            assert leases.hand_back(session, late, clock.ms, status=status, error=error) is None
    row = row_of(database, job_id)
    assert (row.status, row.fence, row.lease_owner, row.version, row.progress) == ("PLANNING", 2, "w2", 3, None)
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(JobEventRow)) == events


def test_a_token_is_valid_only_for_its_worker(database: Database, clock: ManualClock, job_id: str) -> None:
    claim = lifecycle.claim(database, job_id, "w1")
    with database.write() as session:
        session.execute(update(JobRow).values(lease_owner="w2"))
        assert not leases.save_progress(session, claim, Progress(tasks_done=1), clock.ms)


def test_handing_back_after_a_lost_driver_uses_up_an_attempt(
    database: Database, clock: ManualClock, job_id: str
) -> None:
    for crashes, expected in enumerate((JobStatus.QUEUED, JobStatus.CRASHED)):
        claim = lifecycle.claim(database, job_id, "w1")
        assert claim.crashes == crashes
        with database.write() as session:
            error = problems.driver_lost("w1")
            told = leases.hand_back(session, claim, clock.ms, status=AttemptStatus.CRASHED, error=error)
        assert told is expected
    row = row_of(database, job_id)
    assert row.error is not None
    assert (row.status, row.error["code"], row.finished_at) == ("CRASHED", "worker_lost", clock.ms)


def test_handing_back_locks_the_job_first(database: Database, clock: ManualClock, job_id: str) -> None:
    claim = lifecycle.claim(database, job_id, "w1")
    statements: list[ORMExecuteState] = []
    with database.write() as session:
        event.listen(session, "do_orm_execute", statements.append)
        leases.hand_back(session, claim, clock.ms, status=AttemptStatus.CANCELLED, error=problems.handed_back("w1"))
    # SQLite has no such clause, its write transactions are alone anyway.
    first = statements[0].statement
    assert isinstance(first, Select)
    assert str(first.with_only_columns(JobRow.id)).startswith("SELECT jobs.id")
    assert first._for_update_arg is not None


def test_only_the_last_progress_of_an_attempt_is_kept(database: Database, clock: ManualClock, job_id: str) -> None:
    for worker in ("w1", "w2"):
        claim = lifecycle.claim(database, job_id, worker)
        for done in range(1, 4):
            clock.ms += 1_000
            with database.write() as session:
                assert leases.save_progress(session, claim, Progress(tasks_done=done, tasks_total=9), clock.ms)
        lose(database, job_id)
        clock.ms += 1_000
    with database.read() as session:
        rows = session.scalars(select(JobEventRow).where(JobEventRow.type == "progress").order_by("id")).all()
    assert [(row.at, row.data["tasks_done"]) for row in rows] == [(1_003_000, 3), (1_007_000, 3)]
    assert statuses_of_events(database, job_id) == ["QUEUED", "PLANNING", "PLANNING"]


def test_handing_back_because_of_a_stop_uses_up_no_attempt(database: Database, clock: ManualClock, job_id: str) -> None:
    for _ in range(5):
        claim = lifecycle.claim(database, job_id, "w1")
        assert claim.crashes == 0
        lifecycle.run(database, claim)
        with database.write() as session:
            error = problems.handed_back("w1")
            told = leases.hand_back(session, claim, clock.ms, status=AttemptStatus.CANCELLED, error=error)
        assert told is JobStatus.QUEUED
    row = row_of(database, job_id)
    assert (row.lease_owner, row.lease_expires_at, row.error, row.progress) == (None, None, None, None)
    assert statuses_of_events(database, job_id) == ["QUEUED", *["PLANNING", "RUNNING", "QUEUED"] * 5]
    with database.read() as session:
        assert find_stream(session, job_id) is None, "it is no stream, and has no stop reason"


def test_handing_back_a_job_being_cancelled_cancels_it(database: Database, clock: ManualClock, job_id: str) -> None:
    claim = lifecycle.claim(database, job_id, "w1")
    with database.write() as session:
        session.execute(update(JobRow).values(status="CANCELLING", cancel_requested_at=clock.ms))
    with database.write() as session:
        error = problems.driver_lost("w1")
        told = leases.hand_back(session, claim, clock.ms, status=AttemptStatus.CRASHED, error=error)
    assert told is JobStatus.CANCELLED
    assert row_of(database, job_id).status == "CANCELLED"


def test_a_job_that_a_newer_version_has_moved_is_lost(database: Database, clock: ManualClock, job_id: str) -> None:
    claim = lifecycle.claim(database, job_id, "w1")
    status, error = AttemptStatus.CANCELLED, problems.handed_back("w1")
    with database.write() as session:
        assert leases.hand_back(session, claim, clock.ms, status=status, error=error) is JobStatus.QUEUED
        assert leases.outcome_of_hand_back(session, claim, status=status, error=error) is JobStatus.QUEUED
        session.execute(update(JobRow).values(status="PAUSED"))
        assert leases.outcome_of_hand_back(session, claim, status=status, error=error) is None


def test_a_job_of_a_newer_version_is_not_claimed(database: Database, job_id: str) -> None:
    with database.write() as session:
        session.execute(update(JobRow).values(spec_version=SPEC_VERSION + 1))
    assert lifecycle.try_claim(database, job_id, "w1") is None
    row = row_of(database, job_id)
    assert (row.status, row.fence, row.version) == ("QUEUED", 0, 1)
    with database.write() as session:
        session.execute(update(JobRow).values(spec_version=SPEC_VERSION - 1))
    assert lifecycle.try_claim(database, job_id, "w1") is not None


def test_the_first_claim_has_the_time_that_the_job_waited(database: Database, clock: ManualClock, job_id: str) -> None:
    clock.ms += 2_500
    first = lifecycle.claim(database, job_id, "w1")
    assert (first.waited_ms, first.queue) == (2_500, "short")
    lose(database, job_id)
    assert lifecycle.claim(database, job_id, "w2").waited_ms is None


def test_workers_that_claim_at_once_get_the_oldest_jobs_once_each(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    for number in range(24):
        add_job(f"job-{number:02}", queue=Queue.LONG if number % 3 == 0 else Queue.SHORT)
        clock.ms += 1

    def take_all(worker: str) -> list[str]:
        found: list[str] = []
        while True:
            with database.write() as session:
                job_id = leases.oldest_waiting(session, ("short", "long"))
                if job_id is None:
                    return found
                assert leases.claim(session, job_id, worker, clock.ms, LEASE_MS) is not None
                found.append(job_id)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(take_all, ("w1", "w2", "w3", "w4")))
    assert sorted(job_id for one in found for job_id in one) == [f"job-{number:02}" for number in range(24)]
    assert all(one == sorted(one) for one in found), "each of them the oldest at its time"


def test_the_time_limit_of_an_explanation_counts_from_its_submission() -> None:
    """A run has its time limit from its first claim on."""

    def remaining(kind: str, submitted_at: int | None, timeout_ms: int = 60_000) -> float:
        claim = Claim("job-1", "default", kind, "a job", {}, 1, "w1", 2_000, 1_500, timeout_ms)
        return replace(claim, submitted_at=submitted_at).remaining_ms

    assert (remaining("explain", 1_000), remaining("explain", None)) == (59_000, 59_500)
    assert (remaining("run", 1_000), remaining("run", 1_000, timeout_ms=0)) == (59_500, math.inf)


def test_a_job_that_cannot_be_claimed_is_not_the_oldest_waiting(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    changes: dict[str, dict[str, object]] = {
        "running": {"status": "RUNNING"},
        "cancelled": {"cancel_requested_at": 1},
        "newer": {"spec_version": SPEC_VERSION + 1},
        "later": {"next_run_at": 1},
        "long": {"queue": "long"},
        "youngest": {},
        "last": {"submitted_at": clock.ms + 45},
    }
    for job_id, change in changes.items():
        add_job(job_id)
        clock.ms += 10
        if change:
            with database.write() as session:
                session.execute(update(JobRow).where(JobRow.id == job_id).values(**change))
    with database.write() as session:
        assert leases.oldest_waiting(session, ("short",)) == "last"
        assert leases.oldest_waiting(session, ("short", "long")) == "long"
    assert lifecycle.try_claim(database, "later") is None


def test_a_later_claim_with_the_same_token_is_another_one(database: Database, job_id: str, clock: ManualClock) -> None:
    """The same worker claims again after the first claim was rolled back."""
    clock.ms -= 5
    with database.write() as session:
        rolled_back = leases.claim(session, job_id, "w1", database.now(session), LEASE_MS)
        session.rollback()
    assert rolled_back is not None

    def is_claimed(claim: Claim) -> bool:
        with database.write() as session:
            return leases.is_claimed(session, claim)

    assert not is_claimed(rolled_back)
    clock.ms += 5
    later = lifecycle.claim(database, job_id, "w1")
    assert (later.fence, is_claimed(later), is_claimed(rolled_back)) == (rolled_back.fence, True, False)
    lose(database, job_id)
    assert not is_claimed(later)
