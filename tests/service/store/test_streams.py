"""Streaming jobs in the store: fenced mini-batches, stop and resume; on both databases, with real races."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError

from service.config.settings import DatabaseSettings
from service.contract import problems
from service.contract.enums import AttemptStatus, JobStatus, Mode
from service.store import jobs, leases, streaming_jobs, transitions
from service.store.attempts import Claim, attempts_of
from service.store.events import events_after
from service.store.maintenance import Sweep
from service.store.session import Database
from service.store.streaming_jobs import BatchFacts, BatchMeasures
from service.store.streaming_state import UNMEASURED, unmeasured_batches
from service.store.tables import JobRow, StreamRow
from tests.support import lifecycle
from tests.support.clocks import ManualClock
from tests.support.stored_streams import (
    at_once,
    begin,
    finish,
    lose_lease,
    mark_stopped,
    opened,
    resume,
    stop,
    stream_of,
    writing,
)


class TestBatches:
    """What an attempt stores of its mini-batches."""

    def test_a_stream_is_opened_once(self, database: Database, clock: ManualClock, stream_id: str) -> None:
        first = lifecycle.claim(database, stream_id)
        opened_ = writing(database, lambda session, now: streaming_jobs.open_stream(session, first, now))
        assert (opened_.generation, opened_.layout, opened_.last_batch, opened_.rows_in) == (1, None, None, 0)
        clock.ms += 5
        again = writing(database, lambda session, now: streaming_jobs.open_stream(session, first, now))
        assert again == opened_

    def test_two_attempts_open_one_stream(self, database: Database, stream_id: str) -> None:
        held = lifecycle.claim(database, stream_id)
        found = at_once(*[lambda: writing(database, lambda s, now: streaming_jobs.open_stream(s, held, now))] * 4)
        assert {item.generation for item in found} == {1}

    def test_a_layout_is_stored_once_in_a_generation(self, database: Database, stream_id: str) -> None:
        held = opened(database, stream_id)

        def save(layout: dict[str, Any]) -> bool:
            return writing(database, lambda session, now: streaming_jobs.save_layout(session, held, layout, now))

        assert save({"partitions": 8})
        # Whoever runs the stream compares: a later release may tell more of the same layout.
        assert save({"partitions": 8, "more": 1})
        assert stream_of(database, stream_id).layout == {"partitions": 8}

    def test_a_state_may_need_newer_workers_than_the_job(self, database: Database, stream_id: str) -> None:
        held = opened(database, stream_id)

        def save(needs_version: int) -> int:
            assert writing(
                database,
                lambda session, now: streaming_jobs.save_layout(session, held, {}, now, needs_version=needs_version),
            )
            return lifecycle.row_of(database, stream_id).spec_version

        before = lifecycle.row_of(database, stream_id).spec_version
        assert save(before + 1) == before + 1
        # The state exists, so this plan is not the one that made it.
        assert save(before + 2) == before + 1

    def test_progress_without_mini_batches_resets_the_lost_attempts(self, database: Database, stream_id: str) -> None:
        held = opened(database, stream_id)
        assert writing(database, lambda session, now: streaming_jobs.mark_steady(session, held, now))
        assert stream_of(database, stream_id).steady_fence == held.fence
        late = replace(held, fence=held.fence - 1)
        assert not writing(database, lambda session, now: streaming_jobs.mark_steady(session, late, now))

    def test_metrics_are_stored_once(self, database: Database, stream_id: str) -> None:
        held = opened(database, stream_id)
        assert begin(database, held, 0)
        assert finish(database, held, 0, facts=BatchFacts(0, 4, 7, 3, {}))

        def measure(rows: int) -> bool:
            measures = [BatchMeasures(0, rows, {"rows": rows})]
            return writing(
                database, lambda session, now: streaming_jobs.measure_batches(session, held, 1, measures, now)
            )

        assert measure(10)
        assert measure(99)
        found = stream_of(database, stream_id)
        assert (found.rows_in, found.metrics) == (10, {"rows": 99})
        late = replace(held, fence=held.fence - 1)
        assert not writing(database, lambda session, now: streaming_jobs.measure_batches(session, late, 1, [], now))

    def test_unmeasured_mini_batches_are_counted_after_their_deletion(
        self, database: Database, stream_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held = opened(database, stream_id)

        def unmeasured(generation: int = 1) -> int:
            with database.read() as session:
                return unmeasured_batches(session, stream_id, generation, stream_of(database, stream_id).metrics)

        assert begin(database, held, 0)
        assert unmeasured() == 0, "it is not committed"
        for batch_id in range(3):
            assert finish(database, held, batch_id, facts=BatchFacts(0, 4, 7, 3, {}))
        assert unmeasured() == 3
        measures = [BatchMeasures(1, 5, {"rows": 5})]
        assert writing(database, lambda session, now: streaming_jobs.measure_batches(session, held, 1, measures, now))
        assert (unmeasured(), stream_of(database, stream_id).rows_in) == (2, 5)
        monkeypatch.setattr(streaming_jobs, "BATCHES_KEPT", 2)
        for batch_id in range(3, 6):
            assert finish(database, held, batch_id)
        measures = [BatchMeasures(6, 5, {"rows": 5})]
        assert writing(database, lambda session, now: streaming_jobs.measure_batches(session, held, 1, measures, now))
        assert unmeasured() == 2
        assert mark_stopped(database, held)
        resume(database, stream_id, from_scratch=True)
        assert unmeasured(2) == 0

    def test_versions_of_lookup_tables_stay_with_new_metrics(self, database: Database, stream_id: str) -> None:
        held = opened(database, stream_id)
        told = [{"table": "u", "version": 2}]
        assert writing(
            database,
            lambda session, now: streaming_jobs.save_stream_metric(
                session, held, 1, streaming_jobs.FOLLOWED, told, now
            ),
        )
        measures = [BatchMeasures(0, 5, {"rows": 5})]
        assert writing(database, lambda session, now: streaming_jobs.measure_batches(session, held, 1, measures, now))
        assert stream_of(database, stream_id).metrics == {"rows": 5, streaming_jobs.FOLLOWED: told}
        assert not writing(
            database,
            lambda session, now: streaming_jobs.save_stream_metric(session, held, 2, streaming_jobs.FOLLOWED, [], now),
        )
        late = replace(held, fence=held.fence - 1)
        assert not writing(
            database,
            lambda session, now: streaming_jobs.save_stream_metric(session, late, 1, streaming_jobs.FOLLOWED, [], now),
        )

    def test_rows_are_counted_once(self, database: Database, clock: ManualClock, stream_id: str) -> None:
        held = opened(database, stream_id)
        version = lifecycle.row_of(database, stream_id).version
        assert begin(database, held, 0)
        assert lifecycle.row_of(database, stream_id).version == version
        assert finish(database, held, 0)
        assert lifecycle.row_of(database, stream_id).version == version + 1
        # The answer was lost, or the batch is replayed with other measurements.
        assert finish(database, held, 0, facts=BatchFacts(99, 99, 99, 99, {}))
        begun_at = clock.ms
        clock.ms += 5
        assert begin(database, held, 0)
        assert begin(database, held, 1)
        found = stream_of(database, stream_id)
        assert (found.last_batch, found.rows_in, found.rows_out, found.sink_version) == (0, 10, 4, 3)
        with database.read() as session:
            newest, first = streaming_jobs.batches_before(session, stream_id, None, 5)
        assert (newest.batch_id, newest.committed_at, newest.metrics) == (1, None, None)
        assert (first.batch_id, first.rows_in, first.elapsed_ms, first.metrics) == (0, 10, 7, {"state_rows": 4})
        assert (first.begun_at, first.committed_at) == (begun_at, begun_at)

    def test_a_batch_without_a_sink_version_keeps_the_last_one(self, database: Database, stream_id: str) -> None:
        held = opened(database, stream_id)
        assert finish(database, held, 0)
        assert finish(database, held, 1, facts=BatchFacts(1, 0, 1, None, {}))
        found = stream_of(database, stream_id)
        assert (found.last_batch, found.rows_in, found.sink_version) == (1, 11, 3)

    def test_two_attempts_that_finish_a_batch_count_it_once(self, database: Database, stream_id: str) -> None:
        held = opened(database, stream_id)
        assert all(at_once(*[lambda: finish(database, held, 0)] * 4))
        assert (stream_of(database, stream_id).rows_in, stream_of(database, stream_id).last_batch) == (10, 0)

    def test_an_attempt_that_lost_its_lease_writes_nothing(
        self, database: Database, clock: ManualClock, stream_id: str
    ) -> None:
        old = opened(database, stream_id)
        assert begin(database, old, 0)
        lose_lease(database, clock)
        new = opened(database, stream_id, "w2")
        before = stream_of(database, stream_id)
        assert not begin(database, old, 1)
        assert not finish(database, old, 0)
        assert not writing(database, lambda session, now: streaming_jobs.save_layout(session, old, {}, now))
        assert not writing(database, lambda session, now: streaming_jobs.measure_batches(session, old, 1, (), now))
        assert not mark_stopped(database, old)
        assert stream_of(database, stream_id) == before
        assert begin(database, new, 0)
        assert finish(database, new, 0)
        with database.read() as session:
            (batch,) = streaming_jobs.batches_before(session, stream_id, None, 5)
        assert batch.fence == 2

    def test_old_and_new_attempt_race_for_a_batch(self, database: Database, clock: ManualClock, stream_id: str) -> None:
        old = opened(database, stream_id)
        lose_lease(database, clock)
        new = opened(database, stream_id, "w2")
        assert at_once(lambda: finish(database, old, 0), lambda: finish(database, new, 0)) == [False, True]
        assert stream_of(database, stream_id).rows_in == 10

    @pytest.mark.one_database("postgresql")
    @pytest.mark.parametrize("write", ["open_stream", "mark_steady"])
    def test_no_other_worker_claims_the_job_while_its_worker_writes(
        self, database: Database, database_url: str, stream_id: str, write: str
    ) -> None:
        held = opened(database, stream_id)
        claimed_again = update(JobRow).where(JobRow.id == stream_id).values(fence=JobRow.fence + 1)
        with closing(Database(database_url, settings=DatabaseSettings(lock_timeout_seconds=1))) as other:
            with database.write() as session:
                assert getattr(streaming_jobs, write)(session, held, database.now(session))
                with pytest.raises(OperationalError), other.write() as another:
                    another.execute(claimed_again)
            with other.write() as another:
                another.execute(claimed_again)
        assert lifecycle.row_of(database, stream_id).fence == held.fence + 1

    def test_batches_of_another_generation_are_refused(self, database: Database, stream_id: str) -> None:
        held = opened(database, stream_id)
        assert not begin(database, held, 0, generation=2)
        assert not finish(database, held, 0, generation=2)

    def test_the_newest_batches_are_kept(
        self, database: Database, add_job: Callable[..., str], stream_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def batches(job_id: str, position: tuple[int, int] | None = None, limit: int = 9) -> list[tuple[int, int]]:
            with database.read() as session:
                rows = streaming_jobs.batches_before(session, job_id, position, limit)
            return [(row.generation, row.batch_id) for row in rows]

        monkeypatch.setattr(streaming_jobs, "BATCHES_KEPT", 3)
        other = opened(database, add_job("other", mode=Mode.CONTINUOUS, timeout_ms=0))
        assert all(finish(database, other, batch_id) for batch_id in (100, 101))
        held = opened(database, stream_id)
        measures = [BatchMeasures(4, 5, {"rows": 5})]
        for batch_id in range(5):
            assert finish(database, held, batch_id, facts=BatchFacts(0, 4, 7, 3, {}))
        assert writing(database, lambda session, now: streaming_jobs.measure_batches(session, held, 1, measures, now))
        assert batches(stream_id) == [(1, 4), (1, 3), (1, 2)]
        assert batches(stream_id, (1, 4), 1) == [(1, 3)]
        assert finish(database, held, 5)
        assert stream_of(database, stream_id).metrics == {"rows": 5, UNMEASURED: 3}
        assert mark_stopped(database, held)
        resume(database, stream_id, from_scratch=True)
        held = opened(database, stream_id)
        assert finish(database, held, 0, generation=2)
        assert batches(stream_id) == [(2, 0), (1, 5), (1, 4)]
        assert stream_of(database, stream_id).metrics is None, "those of the last generation are not counted"
        assert batches(other.job_id) == [(1, 101), (1, 100)]

    def test_metrics_do_not_change_the_version(self, database: Database, stream_id: str) -> None:
        held = opened(database, stream_id)
        version = lifecycle.row_of(database, stream_id).version
        assert writing(
            database,
            lambda session, now: streaming_jobs.measure_batches(
                session, held, 1, [BatchMeasures(0, 0, {"behind_ms": 5})], now
            ),
        )
        assert stream_of(database, stream_id).metrics == {"behind_ms": 5}
        assert lifecycle.row_of(database, stream_id).version == version

    def test_the_backlog_is_stored_with_the_newest_metrics(self, database: Database, stream_id: str) -> None:
        def note(held: Claim, files: int, generation: int = 1) -> bool:
            return writing(
                database,
                lambda session, now: streaming_jobs.save_stream_metric(
                    session, held, generation, streaming_jobs.BACKLOG, {"files": files}, now
                ),
            )

        held = opened(database, stream_id)
        assert note(held, 1)
        assert stream_of(database, stream_id).metrics == {"backlog": {"files": 1}}
        measured = [BatchMeasures(0, 0, {"behind_ms": 5})]
        assert writing(database, lambda session, now: streaming_jobs.measure_batches(session, held, 1, measured, now))
        assert note(held, 2)
        assert not note(held, 3, generation=2)
        assert not note(replace(held, fence=held.fence + 1), 3)
        assert stream_of(database, stream_id).metrics == {"behind_ms": 5, "backlog": {"files": 2}}


class TestStopped:
    """How a stream is stopped, and the stored reason."""

    def test_a_stream_that_caught_up_is_stopped_until_it_is_due(
        self, database: Database, clock: ManualClock, stream_id: str
    ) -> None:
        held = opened(database, stream_id)
        assert mark_stopped(database, held, "caught_up", next_run_at=clock.ms + 100)
        row = lifecycle.row_of(database, stream_id)
        assert (row.status, row.lease_owner, row.lease_expires_at, row.error) == ("STOPPED", None, None, None)
        assert (row.finished_at, row.next_run_at) == (None, clock.ms + 100)
        with database.read() as session:
            assert [attempt.status for attempt in attempts_of(session, stream_id)] == [AttemptStatus.STOPPED.value]
            assert streaming_jobs.is_stopped(session, held)
            last = events_after(session, stream_id, 0, 99)[-1]
        assert (last.type, last.data) == ("status", {"status": "STOPPED", "attempt": 1})
        found = stream_of(database, stream_id)
        assert (found.stopped_because, found.steady_fence) == ("caught_up", 1)
        assert not mark_stopped(database, held, "caught_up")

    def test_a_failed_stream_has_an_error_and_can_be_resumed(self, database: Database, stream_id: str) -> None:
        held = opened(database, stream_id)
        assert mark_stopped(database, held, "failed", error=problems.storage_unavailable("It is away."))
        row = lifecycle.row_of(database, stream_id)
        assert row.error is not None
        assert (row.status, row.error["code"]) == ("STOPPED", "storage_unavailable")
        found = stream_of(database, stream_id)
        assert (found.stopped_because, found.steady_fence) == ("failed", 0)
        resume(database, stream_id)
        assert lifecycle.row_of(database, stream_id).error is None

    def test_an_unknown_reason_raises(self, database: Database, stream_id: str) -> None:
        held = opened(database, stream_id)
        with pytest.raises(ValueError, match="tired"):
            mark_stopped(database, held, "tired")

    def test_a_stream_that_was_to_stop_does_not_run_again(
        self, database: Database, clock: ManualClock, stream_id: str
    ) -> None:
        held = opened(database, stream_id)
        stop(database, stream_id)
        with database.read() as session:
            standing = leases.claim_states(session, [held])[held]
        assert (standing.status, standing.stop_requested) == (JobStatus.STOPPING, True)
        assert mark_stopped(database, held, "caught_up", next_run_at=clock.ms + 100)
        assert lifecycle.row_of(database, stream_id).next_run_at is None
        assert stream_of(database, stream_id).stopped_because == "stopped"

    def test_a_stream_that_is_being_cancelled_is_not_stopped(self, database: Database, stream_id: str) -> None:
        held = opened(database, stream_id)
        writing(
            database,
            lambda session, now: transitions.move_job(
                session,
                job_id=stream_id,
                tenant="default",
                target=JobStatus.CANCELLING,
                sources={JobStatus.RUNNING},
                now=now,
                values={"cancel_requested_at": now},
            ),
        )
        assert not mark_stopped(database, held)
        assert lifecycle.row_of(database, stream_id).status == "CANCELLING"

    @pytest.mark.parametrize("status", [AttemptStatus.CRASHED, AttemptStatus.CANCELLED])
    def test_a_stopping_stream_that_is_handed_back_is_stopped(
        self, database: Database, stream_id: str, status: AttemptStatus
    ) -> None:
        held = opened(database, stream_id)
        stop(database, stream_id)
        target = writing(
            database,
            lambda session, now: leases.hand_back(session, held, now, status=status, error=problems.driver_lost("w1")),
        )
        row = lifecycle.row_of(database, stream_id)
        assert (target, row.status, row.error, row.finished_at) == (JobStatus.STOPPED, "STOPPED", None, None)
        assert stream_of(database, stream_id).stopped_because == "stopped"

    def test_a_stopping_stream_that_loses_its_lease_is_stopped(
        self, database: Database, clock: ManualClock, stream_id: str
    ) -> None:
        opened(database, stream_id)
        stop(database, stream_id)
        assert lose_lease(database, clock) == Sweep()
        assert lifecycle.row_of(database, stream_id).status == "STOPPED"


class TestLostAttempts:
    """The number of attempts that a stream may lose."""

    @pytest.mark.not_quick
    def test_lost_attempts_count_since_the_last_progress(
        self, database: Database, clock: ManualClock, add_job: Callable[..., str], stream_id: str
    ) -> None:
        # One that got on in a later attempt says nothing of this stream.
        other = opened(database, add_job("a", mode=Mode.CONTINUOUS, timeout_ms=0))
        assert finish(database, other, 0)
        assert mark_stopped(database, other)
        with database.write() as session:
            session.execute(update(StreamRow).values(steady_fence=9))
        for batch_id in range(4):
            held = opened(database, stream_id)
            assert finish(database, held, batch_id)
            assert lose_lease(database, clock).recovered == [stream_id]
        # The second one in a row without a batch spends them; the first was lost after it got on.
        held = opened(database, stream_id)
        assert held.crashes == 0
        assert lose_lease(database, clock).recovered == [stream_id]
        assert lifecycle.claim(database, stream_id).crashes == 1
        assert lose_lease(database, clock) == Sweep()
        row = lifecycle.row_of(database, stream_id)
        assert row.error is not None
        assert (row.status, row.error["code"], row.finished_at) == ("STOPPED", "worker_lost", None)
        assert stream_of(database, stream_id).stopped_because == "failed"

    def test_a_resumed_stream_has_all_attempts_again(
        self, database: Database, clock: ManualClock, stream_id: str
    ) -> None:
        for _ in range(2):
            opened(database, stream_id)
            lose_lease(database, clock)
        assert lifecycle.row_of(database, stream_id).status == "STOPPED"
        resume(database, stream_id)
        assert opened(database, stream_id).crashes == 0
        assert lose_lease(database, clock).recovered == [stream_id]

    def test_a_batch_job_crashes(self, database: Database, clock: ManualClock, job_id: str) -> None:
        for _ in range(2):
            lifecycle.claim(database, job_id)
            lose_lease(database, clock)
        assert lifecycle.row_of(database, job_id).status == "CRASHED"


def test_a_stream_is_deleted_with_its_job(database: Database, stream_id: str) -> None:
    assert finish(database, opened(database, stream_id), 0)
    writing(database, lambda session, _: jobs.delete_job(session, stream_id))
    with database.read() as session:
        assert session.scalars(select(StreamRow)).all() == []
        assert streaming_jobs.batches_before(session, stream_id, None, 5) == []
