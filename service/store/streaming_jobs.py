"""Streaming jobs: what workers store of them, how clients stop and resume them, and which are due to run again.

What a worker writes is fenced: an attempt that has lost its lease changes nothing, and the function returns False. All
times are milliseconds by the database's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, delete, null, select, tuple_, update
from sqlalchemy.orm import Session

from service.contract.enums import AttemptStatus, JobStatus
from service.contract.problems import Problem
from service.store.attempts import Claim, end_attempt
from service.store.events import add_message
from service.store.jobs import effective_status
from service.store.session import json_or_null
from service.store.streaming_state import (
    UNMEASURED,
    Stream,
    StreamStopReason,
    count_unmeasured,
    deleted_unmeasured,
    reset,
    save_stop_reason,
    stream_row,
)
from service.store.tables import JobRow, StreamBatchRow, StreamRow
from service.store.transitions import (
    NO_LEASE,
    append_status_event,
    held_by,
    move_job,
    move_locked_job,
    stop_unclaimed_job,
    update_fenced,
)

BATCHES_KEPT = 1_000
"""The number of mini-batches of a job that stay stored: the newest."""

FOLLOWED = "followed"
"""Key of a stream's metrics: the versions of its lookup tables."""
BACKLOG = "backlog"
"""Key of the metrics of streams and mini-batches: a `Backlog`."""

_NOT_OF_A_BATCH = frozenset({FOLLOWED, BACKLOG, UNMEASURED})
"""Keys of a stream's metrics that the metrics of a new mini-batch do not replace."""

_NEXT_RUN: dict[str, Any] = {
    "stop_requested_at": None,
    "started_at": None,
    "next_run_at": None,
    "error": null(),
    "progress": null(),
}
"""Columns of a job that is queued for its next run."""


@dataclass(frozen=True)
class BatchFacts:
    """What a mini-batch did. `sink_version` is the version of the sink's table that includes it, if the sink has
    versions."""

    rows_in: int
    rows_out: int
    elapsed_ms: int
    sink_version: int | None
    metrics: dict[str, Any]


@dataclass(frozen=True)
class BatchMeasures:
    """What Spark reported about a mini-batch after its end: rows that it read, each counted once, and other metrics."""

    batch_id: int
    rows_in: int
    metrics: dict[str, Any]
    """A `BatchMetrics`, and under BACKLOG what was waiting after it."""


def open_stream(session: Session, held: Claim, now: int) -> Stream:
    """Returns the stored state of the job. Begins generation 1 for the first attempt."""
    # Not fenced: an attempt that has lost its lease learns of it when it begins a mini-batch.
    session.execute(select(JobRow.id).where(JobRow.id == held.job_id).with_for_update())
    return Stream.of(stream_row(session, held.job_id, held.tenant, now))


def save_layout(session: Session, held: Claim, layout: dict[str, Any], now: int, *, needs_version: int = 0) -> bool:
    """Stores the schema of this generation's state, once. The worker has compared it with the stored one before.
    Workers of a lower SPEC_VERSION than `needs_version` cannot continue with the state, and leave the job to others.

    False, and nothing changed, if the lease is lost.
    """
    if not _lock_claim(session, held):
        return False
    row = stream_row(session, held.job_id, held.tenant, now)
    if row.layout is None:
        row.layout, row.updated_at = layout, now
        of_older = (JobRow.id == held.job_id, JobRow.spec_version < needs_version)
        session.execute(update(JobRow).where(*of_older).values(spec_version=needs_version))
    return True


def begin_batch(session: Session, held: Claim, generation: int, batch_id: int, now: int) -> bool:
    """Stores that an attempt has begun a mini-batch. False, and nothing changed, if the lease is lost or the generation
    has changed.

    A mini-batch that was begun before is begun again; one that is committed stays as it is.
    """
    if not _lock_claim(session, held) or not _is_current(session, held.job_id, generation):
        return False
    row = _batch_row(session, held, generation, batch_id, now)
    if row.committed_at is None:
        row.fence, row.begun_at = held.fence, now
    return True


def finish_batch(session: Session, held: Claim, generation: int, batch_id: int, facts: BatchFacts, now: int) -> bool:
    """Stores that the sink has a mini-batch, adds its rows to the stream's, and that the attempt made progress.

    False, and nothing changed, if the lease is lost or the generation has changed. A second call changes nothing.
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
    _delete_old_batches(session, stream)
    return True


def measure_batches(
    session: Session, held: Claim, generation: int, measures: Sequence[BatchMeasures], now: int
) -> bool:
    """Stores the metrics of mini-batches, and those of the newest as the stream's. Stored metrics stay as they are.

    False, and nothing changed, if the lease is lost or the generation has changed.
    """
    stream = _current_stream(session, held, generation, now)
    if stream is None:
        return False
    for one in measures:
        row = session.get(StreamBatchRow, (held.job_id, generation, one.batch_id))
        if row is not None and not row.metrics:
            row.rows_in, row.metrics = one.rows_in, one.metrics
            stream.rows_in += one.rows_in
    if measures:
        kept = {key: value for key, value in (stream.metrics or {}).items() if key in _NOT_OF_A_BATCH}
        stream.metrics, stream.updated_at = {**kept, **measures[-1].metrics}, now
    return True


def save_stream_metric(session: Session, held: Claim, generation: int, key: str, value: object, now: int) -> bool:
    """Stores one of the metrics that are not of a mini-batch, FOLLOWED or BACKLOG.

    False, and nothing changed, if the lease is lost or the generation has changed.
    """
    stream = _current_stream(session, held, generation, now)
    if stream is None:
        return False
    stream.metrics, stream.updated_at = {**(stream.metrics or {}), key: value}, now
    return True


def mark_steady(session: Session, held: Claim, now: int) -> bool:
    """Stores that the attempt makes progress, even without a mini-batch: attempts that were lost before no longer
    count. False, and nothing changed, if the lease is lost.
    """
    if not _lock_claim(session, held):
        return False
    stream_row(session, held.job_id, held.tenant, now).steady_fence = held.fence
    return True


def mark_stopped(
    session: Session,
    held: Claim,
    now: int,
    *,
    reason: str,
    error: Problem | None = None,
    next_run_at: int | None = None,
) -> bool:
    """Moves a job and its attempt to STOPPED, and removes the lease. `reason` is a `StreamStopReason`.

    If a client has requested a stop meanwhile, that is the reason, and the job does not run again by itself. False, and
    nothing changed, if the lease is lost or the job is being cancelled; `leases.claim_states` shows which.
    """
    why = StreamStopReason(reason)
    next_run = None
    if next_run_at is not None:
        next_run = case((JobRow.stop_requested_at.is_(None), next_run_at), else_=null())
    values = {**NO_LEASE, "error": json_or_null(error), "next_run_at": next_run}
    if not update_fenced(session, held, now, target=JobStatus.STOPPED, values=values):
        return False
    requested = select(JobRow.stop_requested_at).where(JobRow.id == held.job_id)
    if why is StreamStopReason.CAUGHT_UP and session.execute(requested).scalar_one() is not None:
        why = StreamStopReason.STOPPED
    save_stop_reason(session, held.job_id, held.tenant, why, now)
    if error is None:
        # The attempt ended without a failure: attempts that were lost before no longer count.
        stream_row(session, held.job_id, held.tenant, now).steady_fence = held.fence
    end_attempt(session, held, AttemptStatus.STOPPED, error, now)
    append_status_event(session, held, JobStatus.STOPPED, now)
    return True


def is_stopped(session: Session, held: Claim) -> bool:
    """Returns whether this claim has stopped its job, after a `mark_stopped` whose commit was not confirmed."""
    found = select(JobRow.id).where(
        JobRow.id == held.job_id, JobRow.fence == held.fence, JobRow.status == JobStatus.STOPPED.value
    )
    return session.execute(found).scalar_one_or_none() is not None


def batches_before(
    session: Session, job_id: str, position: tuple[int, int] | None, limit: int
) -> Sequence[StreamBatchRow]:
    """Returns at most `limit` mini-batches of a job that are older than `position` (generation, batch id), newest
    first."""
    statement = select(StreamBatchRow).where(StreamBatchRow.job_id == job_id)
    if position is not None:
        statement = statement.where(tuple_(StreamBatchRow.generation, StreamBatchRow.batch_id) < position)
    newest = statement.order_by(StreamBatchRow.generation.desc(), StreamBatchRow.batch_id.desc())
    return session.scalars(newest.limit(limit)).all()


def request_stop(session: Session, row: JobRow, now: int) -> None:
    """Requests that a streaming job stops. `row` is locked and not refreshed.

    A job that a worker runs becomes STOPPING. Any other becomes STOPPED, and does not run again by itself. Nothing
    changes for a job that is being stopped or cancelled.
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
        )
        save_stop_reason(session, row.id, row.tenant, StreamStopReason.STOPPED, now)


def request_resume(session: Session, row: JobRow, now: int, *, from_scratch: bool) -> None:
    """Queues a STOPPED job, with the message that announces it. `row` is locked and not refreshed.

    `from_scratch` drops its state. Attempts that were lost before no longer count.
    """
    if row.status == JobStatus.STOPPING.value:
        # Its worker is lost, and no sweeper has found that yet.
        _stop_unclaimed(session, row, now)
        session.refresh(row)
    stream = stream_row(session, row.id, row.tenant, now)
    stream.steady_fence, stream.stopped_because, stream.updated_at = row.fence, None, now
    if from_scratch:
        reset(stream)
    move_locked_job(session, row, JobStatus.QUEUED, now, {**_NEXT_RUN, "announced_at": now})
    add_message(session, job_id=row.id, tenant=row.tenant, now=now)


def queue_due_streams(session: Session, now: int, at_most: int) -> list[tuple[str, str]]:
    """Queues jobs whose next run is due, in the order of their due times. Returns the id and queue of each.

    The caller announces them. A job whose message is lost is announced again, like every job that nobody claims.
    """
    due = session.execute(
        select(JobRow.id, JobRow.tenant, JobRow.queue)
        .where(JobRow.status == JobStatus.STOPPED.value, JobRow.next_run_at <= now)
        .order_by(JobRow.next_run_at)
        .limit(at_most)
        # On PostgreSQL, leaves out a job that a client is stopping or resuming.
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
            values={**_NEXT_RUN, "announced_at": now},
        )
        session.execute(
            update(StreamRow).where(StreamRow.job_id == job_id).values(stopped_because=None, updated_at=now)
        )
    return [(job_id, queue) for job_id, _, queue in due]


def _lock_claim(session: Session, held: Claim) -> bool:
    """Returns whether the claim is the newest and holds. Nobody changes that before the transaction ends."""
    found = session.execute(select(JobRow.id).where(*held_by(held)).with_for_update())
    return found.scalar_one_or_none() is not None


def _is_current(session: Session, job_id: str, generation: int) -> bool:
    found = select(StreamRow.generation).where(StreamRow.job_id == job_id)
    return session.execute(found).scalar_one_or_none() == generation


def _current_stream(session: Session, held: Claim, generation: int, now: int) -> StreamRow | None:
    """Returns the job's row; None if the lease is lost or the generation has changed."""
    if not _lock_claim(session, held) or not _is_current(session, held.job_id, generation):
        return None
    return stream_row(session, held.job_id, held.tenant, now)


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


def _delete_old_batches(session: Session, stream: StreamRow) -> None:
    position = tuple_(StreamBatchRow.generation, StreamBatchRow.batch_id)
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
            stored = stream.metrics or {}
            stream.metrics = {**stored, UNMEASURED: deleted_unmeasured(stored) + unmeasured}
    session.execute(delete(StreamBatchRow).where(StreamBatchRow.job_id == stream.job_id, position < tuple(oldest)))


def _stop_unclaimed(session: Session, row: JobRow, now: int) -> None:
    stop_unclaimed_job(session, row, now, {"stop_requested_at": now, "progress": null()})
    save_stop_reason(session, row.id, row.tenant, StreamStopReason.STOPPED, now)
