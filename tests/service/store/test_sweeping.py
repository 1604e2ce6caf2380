"""Sweeps find lost workers, lost messages and unclaimed jobs, each once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.config.settings import DatabaseSettings
from service.contract.enums import Mode, Queue
from service.contract.job import SPEC_VERSION
from service.contract.reports import Progress
from service.store import events, leases
from service.store.attempts import attempts_of
from service.store.jobs import LONGEST_LEASE_MS
from service.store.maintenance import Sweep, end_cancelled, has_cancelled_to_end, sweep
from service.store.publication import release_due_retries
from service.store.session import Database
from service.store.streaming_jobs import queue_due_streams
from service.store.tables import JobRow, OutboxRow
from tests.support import lifecycle
from tests.support.clocks import ManualClock
from tests.support.lifecycle import LEASE_MS, row_of

ANNOUNCE_AGAIN = 10_000


def run_sweep(database: Database, **free: int) -> Sweep:
    with database.write() as session:
        return sweep(session, database.now(session), announce_again_ms=ANNOUNCE_AGAIN, free=free or {"short": 100})


def test_a_job_with_a_lease_is_not_changed(database: Database, clock: ManualClock, job_id: str) -> None:
    lifecycle.claim(database, job_id)
    clock.ms += LEASE_MS - 1
    assert run_sweep(database) == Sweep()
    assert row_of(database, job_id).status == "PLANNING"


def test_an_expired_lease_queues_the_job_again(database: Database, clock: ManualClock, job_id: str) -> None:
    lifecycle.claim(database, job_id)
    clock.ms += LEASE_MS
    assert run_sweep(database) == Sweep(announce=[(job_id, "short")], recovered=[job_id])
    row = row_of(database, job_id)
    assert (row.status, row.lease_owner, row.announced_at) == ("QUEUED", None, clock.ms)
    with database.read() as session:
        (attempt,) = attempts_of(session, job_id)
    assert (attempt.status, attempt.finished_at) == ("CRASHED", clock.ms)
    assert attempt.error is not None
    assert "w1" in attempt.error["detail"]
    assert lifecycle.claim(database, job_id, "w2").fence == 2


def test_the_last_attempt_crashes_the_job(database: Database, clock: ManualClock, job_id: str) -> None:
    for _ in range(2):
        lifecycle.claim(database, job_id)
        clock.ms += LEASE_MS
        found = run_sweep(database)
    assert found == Sweep(ended=[("default", job_id)])
    row = row_of(database, job_id)
    assert row.error is not None
    assert (row.status, row.error["code"], row.error["status"]) == ("CRASHED", "worker_lost", 500)


def test_an_expired_lease_of_a_job_being_cancelled_cancels_it(
    database: Database, clock: ManualClock, job_id: str
) -> None:
    lifecycle.claim(database, job_id)
    with database.write() as session:
        session.execute(update(JobRow).values(status="CANCELLING", cancel_requested_at=clock.ms))
    clock.ms += LEASE_MS
    assert run_sweep(database) == Sweep(ended=[("default", job_id)])
    assert row_of(database, job_id).status == "CANCELLED"


def test_only_a_cancelling_job_without_a_lease_is_to_be_ended(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    for job_id, status in (("running", "RUNNING"), ("stopping", "STOPPING"), ("cancelling", "CANCELLING")):
        lifecycle.claim(database, add_job(job_id))
        with database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(status=status))
    found = []
    for left in (1, 0, -1):
        with database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == "running").values(lease_expires_at=clock.ms))
            session.execute(update(JobRow).where(JobRow.id != "running").values(lease_expires_at=clock.ms + left))
            found.append((has_cancelled_to_end(session, clock.ms), end_cancelled(session, clock.ms)))
    assert found == [(False, []), (True, ["cancelling"]), (False, [])]
    assert row_of(database, "stopping").status == "STOPPING"


def test_a_worker_paused_past_its_lease_learns_of_it(database: Database, clock: ManualClock, job_id: str) -> None:
    paused = lifecycle.claim(database, job_id, "paused")
    clock.ms += LEASE_MS
    run_sweep(database)
    lifecycle.claim(database, job_id, "w2")
    with database.write() as session:
        assert leases.renew(session, "paused", [paused], clock.ms, LEASE_MS) == set()
        assert not leases.save_progress(session, paused, Progress(tasks_done=9), clock.ms)
    row = row_of(database, job_id)
    assert (row.lease_owner, row.progress) == ("w2", None)


def test_a_heartbeat_before_the_sweep_saves_the_lease(database: Database, clock: ManualClock, job_id: str) -> None:
    claim = lifecycle.claim(database, job_id)
    clock.ms += LEASE_MS
    with database.write() as session:
        assert leases.renew(session, "w1", [claim], clock.ms, LEASE_MS) == {claim}
    assert run_sweep(database) == Sweep()


@pytest.mark.withstands(
    "two concurrent sweepers",
    how="threads that sweep the same expired leases, on both databases",
    times=1,
    guaranteed="each attempt is ended once",
)
def test_two_sweepers_end_an_attempt_once(database: Database, clock: ManualClock, add_job: Callable[..., str]) -> None:
    jobs = [add_job(f"job-{number}") for number in range(6)]
    for job in jobs:
        lifecycle.claim(database, job)
    clock.ms += LEASE_MS
    together = threading.Barrier(4)

    def sweep_together(_: int) -> Sweep:
        together.wait(10)
        return run_sweep(database)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(sweep_together, range(4)))
    assert sorted(job for one in found for job in one.recovered) == jobs
    assert {row_of(database, job).version for job in jobs} == {3}


def test_queued_jobs_are_announced_with_growing_pauses(database: Database, clock: ManualClock, job_id: str) -> None:
    begin = clock.ms
    announced = []
    for _ in range(60):
        clock.ms += 5_000
        if run_sweep(database).announce:
            announced.append((clock.ms - begin) // 1000)
    assert announced == [10, 20, 40, 80, 160, 260]


def test_no_more_jobs_are_announced_than_could_start(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    jobs = []
    for number in range(6):
        jobs.append(add_job(f"job-{number}"))
        clock.ms += 1
    clock.ms += ANNOUNCE_AGAIN
    messages = [(job, "short") for job in jobs]
    assert run_sweep(database, short=4).announce == messages[:4]
    assert run_sweep(database, short=4).announce == messages[4:], "those announced first have had their turn"
    clock.ms += LEASE_MS - 1
    assert run_sweep(database, short=0).announce == messages[:1], (
        "one at least, should workers have more slots than it seems"
    )


def test_each_queue_is_announced_to_its_own_workers(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    for number in range(3):
        add_job(f"short-{number}")
        add_job(f"long-{number}", queue=Queue.LONG)
        clock.ms += 1
    clock.ms += ANNOUNCE_AGAIN
    assert run_sweep(database, short=2, long=1).announce == [
        ("short-0", "short"),
        ("short-1", "short"),
        ("long-0", "long"),
    ]
    assert run_sweep(database, short=2).announce == [("short-2", "short")], "nobody listens to the other queue"
    assert run_sweep(database, long=2).announce == [("long-1", "long"), ("long-2", "long")]


def test_a_lost_job_is_announced_in_its_queue(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    lifecycle.claim(database, add_job("job", queue=Queue.LONG))
    clock.ms += LEASE_MS
    assert run_sweep(database).announce == [("job", "long")]


def test_a_claimed_job_is_not_announced(database: Database, clock: ManualClock, job_id: str) -> None:
    lifecycle.claim(database, job_id)
    clock.ms += ANNOUNCE_AGAIN
    assert run_sweep(database) == Sweep()


@pytest.mark.parametrize(("age", "announced"), [(1_999, False), (2_000, True)])
def test_unsent_messages_are_sent(
    database: Database, clock: ManualClock, job_id: str, age: int, announced: bool
) -> None:
    with database.write() as session:
        events.add_message(session, job_id=job_id, tenant="default", now=clock.ms)
    clock.ms += age
    assert run_sweep(database) == Sweep(announce=[(job_id, "short")] if announced else [])
    with database.read() as session:
        assert (session.scalar(select(OutboxRow)) is None) is announced
    assert run_sweep(database) == Sweep()


def test_a_lost_job_with_an_unsent_message_is_announced_once(
    database: Database, clock: ManualClock, job_id: str
) -> None:
    with database.write() as session:
        events.add_message(session, job_id=job_id, tenant="default", now=clock.ms)
    lifecycle.claim(database, job_id)
    clock.ms += LEASE_MS
    assert run_sweep(database) == Sweep(announce=[(job_id, "short")], recovered=[job_id])


def test_the_unsent_message_of_a_running_job_is_deleted(database: Database, clock: ManualClock, job_id: str) -> None:
    with database.write() as session:
        events.add_message(session, job_id=job_id, tenant="default", now=clock.ms)
    lifecycle.claim(database, job_id)
    clock.ms += 2_000
    assert run_sweep(database) == Sweep()


def test_only_old_messages_are_announced_and_deleted(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    for job_id in ("old", "young", "none"):
        add_job(job_id)
    with database.write() as session:
        events.add_message(session, job_id="old", tenant="default", now=clock.ms)
        events.add_message(session, job_id="young", tenant="default", now=clock.ms + 1)
    clock.ms += 2_000
    assert run_sweep(database) == Sweep(announce=[("old", "short")])
    with database.read() as session:
        assert session.scalars(select(OutboxRow.job_id)).all() == ["young"]
    assert {job_id: row_of(database, job_id).announced_at for job_id in ("old", "young", "none")} == {
        "old": clock.ms,
        "young": clock.ms - 2_000,
        "none": clock.ms - 2_000,
    }


def test_jobs_that_are_not_due_or_not_queued_are_not_announced(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    """The one that was submitted first comes first, wherever it is stored."""
    changes: dict[str, dict[str, object]] = {
        "later": {},
        "first": {"submitted_at": 1},
        "held": {"status": "RUNNING"},
        "retried": {"next_run_at": clock.ms + 60_000},
        "newer": {"spec_version": SPEC_VERSION + 1},
        "just announced": {"announced_at": clock.ms + ANNOUNCE_AGAIN},
    }
    for job_id, change in changes.items():
        add_job(job_id)
        if change:
            with database.write() as session:
                session.execute(update(JobRow).where(JobRow.id == job_id).values(**change))
    clock.ms += ANNOUNCE_AGAIN
    assert run_sweep(database, short=1).announce == [("first", "short")]
    assert run_sweep(database, short=9).announce == [("later", "short")]
    announced_at = {job_id: row_of(database, job_id).announced_at for job_id in changes}
    assert {job_id for job_id, at in announced_at.items() if at == clock.ms} == {"first", "later", "just announced"}
    with database.write() as session:
        found = sweep(session, clock.ms, announce_again_ms=ANNOUNCE_AGAIN, free={"short": 9}, other_versions=True)
    assert found.announce == [("newer", "short")]


def test_no_attempt_is_ended_while_workers_may_renew_their_leases(
    database: Database, clock: ManualClock, job_id: str
) -> None:
    lifecycle.claim(database, job_id)
    clock.ms += LEASE_MS
    with database.write() as session:
        assert sweep(session, clock.ms, announce_again_ms=ANNOUNCE_AGAIN, free={}, end_lost=False) == Sweep()
    assert row_of(database, job_id).status == "PLANNING"


def test_a_lease_longer_than_allowed_has_expired(database: Database, clock: ManualClock, job_id: str) -> None:
    """It was stored before the clock was set back."""
    lifecycle.claim(database, job_id, lease_ms=LONGEST_LEASE_MS)
    assert run_sweep(database) == Sweep()
    clock.ms -= 1
    assert run_sweep(database).recovered == [job_id]


@pytest.mark.parametrize("step", [queue_due_streams, release_due_retries])
def test_due_jobs_come_in_the_order_of_their_times(
    database: Database,
    clock: ManualClock,
    add_job: Callable[..., str],
    step: Callable[[Session, int, int], list[tuple[str, str]]],
) -> None:
    """Jobs in a state to which this does not apply, or that are due later, are left alone."""
    status, other = ("STOPPED", "QUEUED") if step is queue_due_streams else ("QUEUED", "STOPPED")
    jobs = {"b": (status, 10), "c": (status, 20), "a": (status, 0), "later": (status, 21), "other": (other, 0)}
    for job_id, (stored, after) in jobs.items():
        add_job(job_id, mode=Mode.INCREMENTAL)
        with database.write() as session:
            change = update(JobRow).where(JobRow.id == job_id).values(status=stored, next_run_at=clock.ms + after)
            session.execute(change)
    clock.ms += 20
    found = []
    for _ in range(3):
        with database.write() as session:
            found.append({job_id for job_id, _ in step(session, clock.ms, 2)})
    assert found == [{"a", "b"}, {"c"}, set()]
    for job_id, (stored, _) in jobs.items():
        row = row_of(database, job_id)
        if job_id in {"later", "other"}:
            assert (row.status, row.version, row.next_run_at is None) == (stored, 1, False)
        else:
            assert (row.status, row.version, row.next_run_at) == ("QUEUED", 2, None)
            assert (row.announced_at, row.updated_at) == (clock.ms, clock.ms)


@pytest.mark.one_database("postgresql")
def test_a_sweep_does_not_wait_for_a_locked_job(
    database: Database, database_url: str, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    """Of each kind, the other job is dealt with, and the first one in the next sweep."""
    for job_id in ("lost", "lost too"):
        lifecycle.claim(database, add_job(job_id))
    for job_id, status in {"due": "STOPPED", "due too": "STOPPED", "retry": "QUEUED", "retry too": "QUEUED"}.items():
        add_job(job_id, mode=Mode.INCREMENTAL)
        with database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(status=status, next_run_at=clock.ms))
    clock.ms += LEASE_MS
    with closing(Database(database_url, clock, settings=DatabaseSettings(lock_timeout_seconds=1))) as other:
        with database.write() as session:
            changed = JobRow.id.in_(["lost", "due", "retry"])
            session.execute(update(JobRow).where(changed).values(updated_at=JobRow.updated_at))
            assert {job_id for job_id, _ in run_sweep(other, long=1).announce} == {"lost too", "due too", "retry too"}
        assert {job_id for job_id, _ in run_sweep(other, long=1).announce} == {"lost", "due", "retry"}
