"""Streaming jobs of a database that was restored: a backup holds none of their state, so none may go on from it."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.spec.status import JobStatus, known_status, sources_of
from service.store import jobs
from service.store.attempts import end_abandoned_attempt
from service.store.leases import NO_LEASE
from service.store.stream_state import StoppedBecause, start_over
from service.store.tables import JobRow, StreamRow

_ATTEMPTS_SINCE = 1_000_000
"""More attempts of a job than there can have been between its backup and the restore."""


def start_streams_over(session: Session, now: int) -> int:
    """Lets every stream that had begun start from scratch, once it is resumed; gives how many there are.

    They rest until then: what begins anew writes its sink anew, and somebody should want that.
    """
    begun = session.execute(select(StreamRow, JobRow).join(JobRow, JobRow.id == StreamRow.job_id)).all()
    for stream, row in begun:
        start_over(stream)
        # Whatever ran since the backup was made used the numbers behind it, for directories and in sinks.
        stream.generation = max(stream.generation, now // 10_000)
        row.fence += _ATTEMPTS_SINCE
        stream.updated_at = now
        status = known_status(row.status)
        if status is JobStatus.STOPPED:
            row.next_run_at = None
        elif status in sources_of(JobStatus.STOPPED):
            _lay_to_rest(session, row, now)
        if not jobs.has_finished(row):
            stream.stopped_because = StoppedBecause.RESTORED.value
    session.flush()
    return len(begun)


def _lay_to_rest(session: Session, row: JobRow, now: int) -> None:
    end_abandoned_attempt(session, row, now)
    jobs.move_job(
        session,
        job_id=row.id,
        tenant=row.tenant,
        target=JobStatus.STOPPED,
        sources={JobStatus(row.status)},
        now=now,
        values={**NO_LEASE},
    )
