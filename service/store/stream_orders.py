"""Streaming jobs as clients stop and resume them, and as the clock has them run again.

All times are milliseconds by the database's clock.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import null, select, update
from sqlalchemy.orm import Session

from service.spec.status import JobStatus
from service.store import outbox
from service.store.attempts import end_abandoned_attempt
from service.store.jobs import effective_status, move_job, move_locked_job
from service.store.leases import NO_LEASE
from service.store.session import NO_SYNC
from service.store.stream_state import StoppedBecause, note_rest, start_over, stream_row
from service.store.tables import JobRow, StreamRow

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
        _lay_to_rest(session, row, now)
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
        _lay_to_rest(session, row, now)
        session.refresh(row)
    stream = stream_row(session, row.id, row.tenant, now)
    stream.steady_fence, stream.stopped_because, stream.updated_at = row.fence, None, now
    if from_scratch:
        start_over(stream)
    move_locked_job(session, row, JobStatus.QUEUED, now, {**_GOES_ON, "rung_at": now})
    outbox.owe_message(session, job_id=row.id, tenant=row.tenant, now=now)


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


def _lay_to_rest(session: Session, row: JobRow, now: int) -> None:
    """No worker holds the job: there is nobody to wait for. One that lost its lease changes nothing any more."""
    end_abandoned_attempt(session, row, now)
    values = {**NO_LEASE, "stop_requested_at": now, "progress": null()}
    move_locked_job(session, row, JobStatus.STOPPED, now, values)
    note_rest(session, row.id, row.tenant, StoppedBecause.STOPPED, now)
