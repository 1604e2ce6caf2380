"""Streaming jobs as their workers write them: state, mini-batches, rest.

What a worker writes is fenced, as everywhere: an attempt that lost its lease changes nothing and is told so. All times
are milliseconds by the database's clock.

Streaming jobs as clients stop and resume them, and as the clock has them run again.

All times are milliseconds by the database's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, delete, null, select, tuple_, update
from sqlalchemy.orm import Session

from service.contract.enums import LEASED, AttemptStatus, JobStatus
from service.contract.problems import Problem
from service.store.jobs import (
    effective_status,
    end_attempt,
    owe_message,
)
from service.store.leases import Claim
from service.store.session import NO_SYNC
from service.store.streaming_state import (
    UNMEASURED,
    StoppedBecause,
    Stream,
    count_unmeasured,
    forgotten,
    note_rest,
    start_over,
    stream_row,
)
from service.store.tables import JobRow, StreamBatchRow, StreamRow
from service.store.transitions import (
    NO_LEASE,
    append_status_event,
    move_job,
    move_locked_job,
    stop_unclaimed_job,
    update_fenced,
)

BATCHES_KEPT = 1_000
"""The newest mini-batches of a job, of which something is known."""

FOLLOWED = "followed"
"""What stands so in a stream's metrics is not of a mini-batch."""
BACKLOG = "backlog"
"""Of a `Backlog` among stored metrics, of mini-batches and of streams."""

_NOT_OF_A_BATCH = frozenset({FOLLOWED, BACKLOG, UNMEASURED})

_LEASED_VALUES = tuple(sorted(status.value for status in LEASED))


@dataclass(frozen=True)
class BatchFacts:
    """What a mini-batch did. `sink_version` is that of the result which has it, where the sink counts any."""

    rows_in: int
    rows_out: int
    elapsed_ms: int
    sink_version: int | None
    metrics: dict[str, Any]


@dataclass(frozen=True)
class BatchMeasures:
    """What Spark told of a mini-batch after its end: rows that it read, each counted once, and the rest as JSON."""

    batch_id: int
    rows_in: int
    metrics: dict[str, Any]
    """A `BatchMetrics`, and under BACKLOG what was waiting after it."""


def open_stream(session: Session, held: Claim, now: int) -> Stream:
    """How far the job has come; makes generation 1 where no attempt has opened it before."""
    # Not fenced: an attempt that has lost its lease learns of it when it begins a mini-batch.
    session.execute(select(JobRow.id).where(JobRow.id == held.job_id).with_for_update())
    row = stream_row(session, held.job_id, held.tenant, now)
    return Stream.of(row)


def save_layout(session: Session, held: Claim, layout: dict[str, Any], now: int) -> bool:
    """Stores how the state of this generation is laid out, once: who runs the stream compares before.

    False, and nothing changed, where the lease is lost.
    """
    if not _holds(session, held):
        return False
    row = stream_row(session, held.job_id, held.tenant, now)
    if row.layout is None:
        row.layout, row.updated_at = layout, now
    return True


def begin_batch(session: Session, held: Claim, generation: int, batch_id: int, now: int) -> bool:
    """Notes that an attempt is at a mini-batch. False, and nothing changed, where the lease or the generation is lost.

    One that was begun before is begun again; one that is committed stays as it is.
    """
    if not _holds(session, held) or not _is_current(session, held.job_id, generation):
        return False
    row = _batch_row(session, held, generation, batch_id, now)
    if row.committed_at is None:
        row.fence, row.begun_at = held.fence, now
    return True


def finish_batch(session: Session, held: Claim, generation: int, batch_id: int, facts: BatchFacts, now: int) -> bool:
    """Notes that the sink has a mini-batch, counts its rows, and that the attempt got on.

    False, and nothing changed, where the lease or the generation is lost. Doing it again changes nothing.
    """
    if not _is_current(session, held.job_id, generation) or not update_fenced(session, held, now):
        return False
    stream = stream_row(session, held.job_id, held.tenant, now)
    stream.steady_fence, stream.updated_at = held.fence, now
    batch = _batch_row(session, held, generation, batch_id, now)
    if batch.committed_at is None:
        batch.fence, batch.committed_at, batch.elapsed_ms = held.fence, now, facts.elapsed_ms
        batch.rows_in, batch.rows_out = facts.rows_in, facts.rows_out
        batch.sink_version = facts.sink_version
        if facts.metrics:
            # NULL until then: see `service.store.streaming_state`.
            batch.metrics = facts.metrics
        stream.last_batch = batch_id
        stream.rows_in += facts.rows_in
        stream.rows_out += facts.rows_out
        if facts.sink_version is not None:
            stream.sink_version = facts.sink_version
    _forget_old_batches(session, stream)
    return True


def measure_batches(
    session: Session, held: Claim, generation: int, measures: Sequence[BatchMeasures], now: int
) -> bool:
    """Stores what was measured of mini-batches, the newest's as that of the stream; what was measured before stays.

    False, and nothing changed, where the lease or the generation is lost.
    """
    if not _holds(session, held) or not _is_current(session, held.job_id, generation):
        return False
    stream = stream_row(session, held.job_id, held.tenant, now)
    for one in measures:
        row = session.get(StreamBatchRow, (held.job_id, generation, one.batch_id))
        if row is not None and not row.metrics:
            row.rows_in, row.metrics = one.rows_in, one.metrics
            stream.rows_in += one.rows_in
    if measures:
        known = {key: told for key, told in (stream.metrics or {}).items() if key in _NOT_OF_A_BATCH}
        stream.metrics, stream.updated_at = {**known, **measures[-1].metrics}, now
    return True


def note_followed(session: Session, held: Claim, generation: int, told: Sequence[dict[str, Any]], now: int) -> bool:
    """Stores which versions of the tables that it follows a stream uses, beside what was measured of it.

    False, and nothing changed, where the lease or the generation is lost.
    """
    if not _holds(session, held) or not _is_current(session, held.job_id, generation):
        return False
    stream = stream_row(session, held.job_id, held.tenant, now)
    stream.metrics, stream.updated_at = {**(stream.metrics or {}), FOLLOWED: list(told)}, now
    return True


def note_backlog(session: Session, held: Claim, generation: int, backlog: dict[str, Any], now: int) -> bool:
    """Stores how far the job is behind, beside what was measured of its newest mini-batch.

    False, and nothing changed, where the lease or the generation is lost.
    """
    if not _holds(session, held) or not _is_current(session, held.job_id, generation):
        return False
    stream = stream_row(session, held.job_id, held.tenant, now)
    stream.metrics, stream.updated_at = {**(stream.metrics or {}), BACKLOG: backlog}, now
    return True


def mark_steady(session: Session, held: Claim, now: int) -> bool:
    """Notes that the attempt gets on, though no mini-batch may come: attempts that were lost before do not count any
    more. False, and nothing changed, where the lease is lost.
    """
    if not _holds(session, held):
        return False
    stream_row(session, held.job_id, held.tenant, now).steady_fence = held.fence
    return True


def rest(
    session: Session,
    held: Claim,
    now: int,
    *,
    because: str,
    error: Problem | None = None,
    next_run_at: int | None = None,
) -> bool:
    """Lays a job to rest: STOPPED, with the attempt, and without a lease. `because` is a `StoppedBecause`.

    One that was asked to stop meanwhile has stopped, and is not run again by itself, whatever the reason here. False,
    and nothing changed, where the lease is lost or the job is being cancelled; `standings` tells which.
    """
    reason = StoppedBecause(because)
    moved = update_fenced(
        session,
        held,
        now,
        target=JobStatus.STOPPED,
        values={
            **NO_LEASE,
            "error": null() if error is None else error.model_dump(mode="json"),
            "next_run_at": None
            if next_run_at is None
            else case((JobRow.stop_requested_at.is_(None), next_run_at), else_=null()),
        },
    )
    if not moved:
        return False
    asked = select(JobRow.stop_requested_at).where(JobRow.id == held.job_id)
    if reason is StoppedBecause.CAUGHT_UP and session.execute(asked).scalar_one() is not None:
        reason = StoppedBecause.STOPPED
    note_rest(session, held.job_id, held.tenant, reason, now)
    if error is None:
        # It came to a sound end: attempts that were lost before do not count any more.
        stream_row(session, held.job_id, held.tenant, now).steady_fence = held.fence
    end_attempt(
        session,
        job_id=held.job_id,
        tenant=held.tenant,
        fence=held.fence,
        status=AttemptStatus.STOPPED,
        error=error,
        now=now,
    )
    append_status_event(session, held, JobStatus.STOPPED, now)
    return True


def is_at_rest(session: Session, held: Claim) -> bool:
    """Whether this very claim laid its job to rest: after a lost answer."""
    found = select(JobRow.id).where(
        JobRow.id == held.job_id, JobRow.fence == held.fence, JobRow.status == JobStatus.STOPPED.value
    )
    return session.execute(found).scalar_one_or_none() is not None


def batches_before(
    session: Session, job_id: str, position: tuple[int, int] | None, limit: int
) -> Sequence[StreamBatchRow]:
    """At most `limit` mini-batches of a job, the newest first, from before `position` (generation, batch id) on."""
    statement = select(StreamBatchRow).where(StreamBatchRow.job_id == job_id)
    if position is not None:
        statement = statement.where(tuple_(StreamBatchRow.generation, StreamBatchRow.batch_id) < position)
    newest = statement.order_by(StreamBatchRow.generation.desc(), StreamBatchRow.batch_id.desc())
    return session.scalars(newest.limit(limit)).all()


def _holds(session: Session, held: Claim) -> bool:
    """Whether the claim is the newest and still held; nobody changes that before the transaction ends."""
    found = session.execute(
        select(JobRow.id)
        .where(
            JobRow.id == held.job_id,
            JobRow.fence == held.fence,
            JobRow.lease_owner == held.worker,
            JobRow.status.in_(_LEASED_VALUES),
        )
        .with_for_update()
    )
    return found.scalar_one_or_none() is not None


def _is_current(session: Session, job_id: str, generation: int) -> bool:
    found = select(StreamRow.generation).where(StreamRow.job_id == job_id)
    return session.execute(found).scalar_one_or_none() == generation


def _batch_row(session: Session, held: Claim, generation: int, batch_id: int, now: int) -> StreamBatchRow:
    row = session.get(StreamBatchRow, (held.job_id, generation, batch_id), populate_existing=True)
    if row is None:
        row = StreamBatchRow(
            job_id=held.job_id,
            generation=generation,
            batch_id=batch_id,
            tenant=held.tenant,
            fence=held.fence,
            begun_at=now,
        )
        session.add(row)
    return row


def _forget_old_batches(session: Session, stream: StreamRow) -> None:
    place = tuple_(StreamBatchRow.generation, StreamBatchRow.batch_id)
    oldest = session.execute(
        select(StreamBatchRow.generation, StreamBatchRow.batch_id)
        .where(StreamBatchRow.job_id == stream.job_id)
        .order_by(StreamBatchRow.generation.desc(), StreamBatchRow.batch_id.desc())
        .offset(BATCHES_KEPT - 1)
        .limit(1)
    ).one_or_none()
    if oldest is None:
        return
    if oldest.generation == stream.generation:
        unmeasured = count_unmeasured(session, stream.job_id, stream.generation, before=oldest.batch_id)
        if unmeasured:
            told = stream.metrics or {}
            stream.metrics = {**told, UNMEASURED: forgotten(told) + unmeasured}
    older = delete(StreamBatchRow).where(StreamBatchRow.job_id == stream.job_id, place < tuple(oldest))
    session.execute(older.execution_options(**NO_SYNC))


_GOES_ON: dict[str, Any] = {
    "stop_requested_at": None,
    "started_at": None,
    "next_run_at": None,
    "error": null(),
    "progress": null(),
}
"""Columns of a job whose next run begins."""


def request_stop(session: Session, row: JobRow, now: int) -> None:
    """Asks a streaming job that has not ended to stop; `row` is locked. The row is not refreshed.

    One that a worker has is STOPPING; any other rests at once, and is not run again by itself. Nothing changes where it
    was asked before, or is being cancelled.
    """
    status = effective_status(row, now)
    if status in {JobStatus.PLANNING, JobStatus.RUNNING}:
        move_locked_job(session, row, JobStatus.STOPPING, now, {"stop_requested_at": now})
    elif status is JobStatus.QUEUED or (row.status == JobStatus.STOPPING.value and status is JobStatus.STOPPED):
        _stop_unclaimed(session, row, now)
    elif status is JobStatus.STOPPED and row.next_run_at is not None:
        session.execute(
            update(JobRow)
            .where(JobRow.id == row.id)
            .values(next_run_at=None, stop_requested_at=now, version=JobRow.version + 1, updated_at=now)
            .execution_options(**NO_SYNC)
        )
        note_rest(session, row.id, row.tenant, StoppedBecause.STOPPED, now)


def request_resume(session: Session, row: JobRow, now: int, *, from_scratch: bool) -> None:
    """Queues a job again that rests, with the message that is owed to workers; `row` is locked and not refreshed.

    `from_scratch` throws its state away. Attempts that were lost before do not count any more.
    """
    if row.status == JobStatus.STOPPING.value:
        # Its worker is gone, and no sweeper has come by yet.
        _stop_unclaimed(session, row, now)
        session.refresh(row)
    stream = stream_row(session, row.id, row.tenant, now)
    stream.steady_fence, stream.stopped_because, stream.updated_at = row.fence, None, now
    if from_scratch:
        start_over(stream)
    move_locked_job(session, row, JobStatus.QUEUED, now, {**_GOES_ON, "rung_at": now})
    owe_message(session, job_id=row.id, tenant=row.tenant, now=now)


def due_streams(session: Session, now: int, at_most: int) -> list[tuple[str, str]]:
    """Queues jobs whose next run is due, the longest due first; gives id and queue of each, to ring for.

    Should ringing fail, they are rung again like every job that nobody claims.
    """
    due = session.execute(
        select(JobRow.id, JobRow.tenant, JobRow.queue)
        .where(JobRow.status == JobStatus.STOPPED.value, JobRow.next_run_at <= now)
        .order_by(JobRow.next_run_at)
        .limit(at_most)
        # On PostgreSQL, somebody who stops or resumes the job just now goes first.
        .with_for_update(skip_locked=True)
    ).all()
    for job_id, tenant, _ in due:
        move_job(
            session,
            job_id=job_id,
            tenant=tenant,
            target=JobStatus.QUEUED,
            sources={JobStatus.STOPPED},
            now=now,
            values={**_GOES_ON, "rung_at": now},
        )
        session.execute(
            update(StreamRow)
            .where(StreamRow.job_id == job_id)
            .values(stopped_because=None, updated_at=now)
            .execution_options(**NO_SYNC)
        )
    return [(job_id, queue) for job_id, _, queue in due]


def _stop_unclaimed(session: Session, row: JobRow, now: int) -> None:
    stop_unclaimed_job(session, row, now, {"stop_requested_at": now, "progress": null()})
    note_rest(session, row.id, row.tenant, StoppedBecause.STOPPED, now)
