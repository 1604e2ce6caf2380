"""Clients stop and resume streaming jobs, and due ones are queued again."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from sqlalchemy import select, update

from service.contract.enums import Mode
from service.contract.reports import Progress
from service.store import leases, streaming_jobs
from service.store.attempts import Claim, attempts_of
from service.store.maintenance import sweep
from service.store.session import Database
from service.store.tables import JobEventRow, JobRow, OutboxRow
from tests.support import lifecycle
from tests.support.clocks import ManualClock
from tests.support.stored_streams import at_once, finish, locked, mark_stopped, opened, resume, stop, stream_of, writing


class TestStopping:
    """Requests to stop a job, in each of its states."""

    def test_a_queued_job_stops_at_once(self, database: Database, stream_id: str) -> None:
        stop(database, stream_id)
        row = lifecycle.row_of(database, stream_id)
        assert (row.status, row.version) == ("STOPPED", 2)
        assert row.stop_requested_at is not None
        assert stream_of(database, stream_id).stopped_because == "stopped"
        stop(database, stream_id)
        assert lifecycle.row_of(database, stream_id).version == 2

    def test_a_second_request_changes_nothing(self, database: Database, stream_id: str) -> None:
        opened(database, stream_id)
        stop(database, stream_id)
        version = lifecycle.row_of(database, stream_id).version
        stop(database, stream_id)
        row = lifecycle.row_of(database, stream_id)
        assert (row.status, row.version) == ("STOPPING", version)

    @pytest.mark.parametrize("asked_before", [False, True])
    def test_a_job_without_its_worker_stops_at_once(
        self, database: Database, clock: ManualClock, stream_id: str, *, asked_before: bool
    ) -> None:
        held = opened(database, stream_id)
        assert writing(database, lambda session, now: leases.save_progress(session, held, Progress(), now))
        if asked_before:
            stop(database, stream_id)
        clock.ms += lifecycle.LEASE_MS
        stop(database, stream_id)
        row = lifecycle.row_of(database, stream_id)
        assert (row.status, row.lease_owner, row.progress) == ("STOPPED", None, None)
        with database.read() as session:
            assert [attempt.status for attempt in attempts_of(session, stream_id)] == ["CRASHED"]
        assert not finish(database, held, 0)

    def test_a_stopped_schedule_is_over(
        self, database: Database, clock: ManualClock, add_job: Callable[..., str], stream_id: str
    ) -> None:
        other = add_job("other", mode=Mode.INCREMENTAL)
        for job_id in (stream_id, other):
            assert mark_stopped(database, opened(database, job_id), "caught_up", next_run_at=clock.ms + 1)
        version = lifecycle.row_of(database, stream_id).version
        clock.ms += 1
        stop(database, stream_id)
        row = lifecycle.row_of(database, stream_id)
        assert (row.version, row.updated_at, row.stop_requested_at) == (version + 1, clock.ms, clock.ms)
        assert stream_of(database, stream_id).stopped_because == "stopped"
        due = writing(database, lambda session, now: streaming_jobs.queue_due_streams(session, now, 5))
        assert due == [(other, "short")]

    @pytest.mark.parametrize("status", ["CANCELLING", "CANCELLED", "FAILED", "PAUSED"])
    def test_a_job_that_ends_or_has_ended_is_not_changed(self, database: Database, stream_id: str, status: str) -> None:
        """Also one that was to run again: `next_run_at` alone changes nothing."""
        opened(database, stream_id)
        with database.write() as session:
            session.execute(update(JobRow).values(status=status, next_run_at=1))
        version = lifecycle.row_of(database, stream_id).version
        stop(database, stream_id)
        row = lifecycle.row_of(database, stream_id)
        assert (row.status, row.version, row.next_run_at) == (status, version, 1)

    def test_a_stop_races_with_a_claim(self, database: Database, add_job: Callable[..., str]) -> None:
        for number in range(8):
            job_id = add_job(f"race-{number}", mode=Mode.CONTINUOUS)

            def claim(job_id: str = job_id) -> Claim | None:
                return writing(
                    database, lambda session, now: leases.claim(session, job_id, "w", now, lifecycle.LEASE_MS)
                )

            def ask(job_id: str = job_id) -> None:
                stop(database, job_id)

            held, _ = at_once(claim, ask)
            # Whoever was second saw what the first one did.
            assert lifecycle.row_of(database, job_id).status == ("STOPPED" if held is None else "STOPPING")


class TestResuming:
    """Requests and schedules that queue a STOPPED job again."""

    def test_from_the_checkpoint(self, database: Database, clock: ManualClock, stream_id: str) -> None:
        held = opened(database, stream_id)
        assert finish(database, held, 0)
        stop(database, stream_id)
        assert mark_stopped(database, held)
        clock.ms += 500
        before = stream_of(database, stream_id)
        resume(database, stream_id)
        row = lifecycle.row_of(database, stream_id)
        assert (row.status, row.started_at, row.stop_requested_at, row.announced_at) == ("QUEUED", None, None, clock.ms)
        found = stream_of(database, stream_id)
        assert (found.generation, found.last_batch, found.rows_in, found.stopped_because) == (1, 0, 10, None)
        assert before.stopped_because == "stopped"
        with database.read() as session:
            assert session.scalars(select(OutboxRow.job_id)).all() == [stream_id]
        again = opened(database, stream_id)
        assert (again.fence, again.started_at, again.remaining_ms) == (2, clock.ms, math.inf)
        assert finish(database, again, 1)

    def test_from_scratch(self, database: Database, stream_id: str) -> None:
        held = opened(database, stream_id)
        assert writing(database, lambda session, now: streaming_jobs.save_layout(session, held, {"partitions": 8}, now))
        assert finish(database, held, 7)
        assert mark_stopped(database, held)
        resume(database, stream_id, from_scratch=True)
        found = stream_of(database, stream_id)
        assert (found.generation, found.layout, found.last_batch) == (2, None, None)
        assert (found.rows_in, found.rows_out, found.sink_version, found.metrics) == (0, 0, None, None)
        again = opened(database, stream_id)
        assert not finish(database, again, 0, generation=1)
        assert finish(database, again, 0, generation=2)

    def test_a_job_whose_worker_was_lost_while_it_stopped(
        self, database: Database, clock: ManualClock, stream_id: str
    ) -> None:
        opened(database, stream_id)
        stop(database, stream_id)
        clock.ms += lifecycle.LEASE_MS
        resume(database, stream_id)
        assert lifecycle.row_of(database, stream_id).status == "QUEUED"
        assert lifecycle.claim(database, stream_id, "w2").crashes == 0

    def test_due_jobs_are_queued_once_by_two_sweepers(
        self, database: Database, clock: ManualClock, add_job: Callable[..., str]
    ) -> None:
        for number in range(4):
            held = opened(database, add_job(f"due-{number}", mode=Mode.INCREMENTAL))
            assert mark_stopped(database, held, "caught_up", next_run_at=clock.ms + 100 + number)
        assert writing(database, lambda session, now: streaming_jobs.queue_due_streams(session, now, 9)) == []
        clock.ms += 102
        found = at_once(*[lambda: writing(database, lambda s, now: streaming_jobs.queue_due_streams(s, now, 2))] * 4)
        assert sorted(job for some in found for job in some) == [(f"due-{number}", "short") for number in range(3)]
        assert [lifecycle.row_of(database, f"due-{number}").status for number in range(4)] == ["QUEUED"] * 3 + [
            "STOPPED"
        ]
        assert lifecycle.row_of(database, "due-0").announced_at == clock.ms
        queued, resting = stream_of(database, "due-0"), stream_of(database, "due-3")
        assert (queued.stopped_because, queued.updated_at) == (None, clock.ms)
        assert (resting.stopped_because, resting.updated_at) == ("caught_up", clock.ms - 102)
        clock.ms += 1
        swept = writing(database, lambda session, now: sweep(session, now, announce_again_ms=10_000, free={}))
        assert swept.announce == [("due-3", "short")]
        again = lifecycle.claim(database, "due-3")
        assert (again.started_at, again.remaining_ms) == (clock.ms, 60_000)

    def test_a_due_job_that_is_resumed_too_is_queued_once(
        self, database: Database, clock: ManualClock, add_job: Callable[..., str]
    ) -> None:
        held = opened(database, add_job("due", mode=Mode.INCREMENTAL))
        assert mark_stopped(database, held, "caught_up", next_run_at=clock.ms)

        def by_hand() -> int:
            with database.write() as session:
                row = locked(session, "due")
                if row.status == "STOPPED":
                    streaming_jobs.request_resume(session, row, database.now(session), from_scratch=False)
                    return 1
            return 0

        def by_clock() -> int:
            return len(writing(database, lambda session, now: streaming_jobs.queue_due_streams(session, now, 5)))

        assert sum(at_once(by_hand, by_clock)) == 1
        with database.read() as session:
            told = session.scalars(select(JobEventRow).where(JobEventRow.type == "status")).all()
        assert [event.data["status"] for event in told].count("QUEUED") == 2
