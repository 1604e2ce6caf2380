"""Claims and attempts: what a worker knows of a job that it claimed, and the row of each attempt.

The fencing token of a claim numbers the attempt. An attempt is CRASHED if its worker or Spark driver was lost. A job
with such attempts may be what crashes the workers: workers run it apart from others (`workers.jobs.claims`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Row, func, select, update
from sqlalchemy.orm import Session

from service.contract import problems
from service.contract.enums import AttemptStatus, Queue
from service.contract.problems import Problem
from service.store.events import append_event
from service.store.jobs import EXPLAIN
from service.store.session import json_or_null
from service.store.tables import AttemptRow, JobRow, StreamRow

_UNFINISHED = (AttemptStatus.PLANNING.value, AttemptStatus.RUNNING.value)


@dataclass(frozen=True)
class Claim:
    """A job that a worker has claimed. `fence` is the fencing token and the number of the attempt.

    Times are milliseconds by the database's clock.
    """

    job_id: str
    tenant: str
    kind: str
    name: str
    spec: Mapping[str, Any] = field(compare=False)
    fence: int
    worker: str
    claimed_at: int
    started_at: int
    """First claim of the job: its time limit counts from here."""
    timeout_ms: int
    """0 for a job without a time limit."""
    queue: str = field(default=Queue.SHORT.value, compare=False)
    submitted_at: int | None = field(default=None, compare=False)
    crashes: int = field(default=0, compare=False)
    """Earlier attempts of the job that lost their worker or Spark driver."""
    max_attempts: int = field(default=0, compare=False)
    """The limit of such attempts."""
    isolated: bool = field(default=False, compare=False)
    """Whether the job runs in a Spark driver of its own."""

    @property
    def waited_ms(self) -> int | None:
        """Time from the submission to this claim; None unless it is the job's first claim."""
        return self.claimed_at - self.submitted_at if self.fence == 1 and self.submitted_at is not None else None

    @property
    def remaining_ms(self) -> float:
        """What was left of the time limit when the job was claimed: negative if it was over, infinite without a limit.

        The time of an explanation counts from its submission, since its client waits from then on.
        """
        begun = self.started_at if self.kind != EXPLAIN or self.submitted_at is None else self.submitted_at
        return begun + self.timeout_ms - self.claimed_at if self.timeout_ms else math.inf


def claim_of(row: JobRow | Row[Any], worker: str, now: int, crashes: int = 0) -> Claim:
    """Returns the claim of `worker` on the job of `row`, as claimed at `now`."""
    return Claim(
        job_id=row.id,
        tenant=row.tenant,
        kind=row.kind,
        name=row.name,
        spec=row.spec,
        fence=row.fence,
        worker=worker,
        claimed_at=now,
        started_at=row.started_at if row.started_at is not None else now,
        timeout_ms=row.timeout_ms,
        queue=row.queue,
        submitted_at=row.submitted_at,
        crashes=crashes,
        max_attempts=row.max_attempts,
        isolated=row.isolated,
    )


def attempts_of(session: Session, job_id: str) -> Sequence[AttemptRow]:
    """Returns the attempts of a job, oldest first."""
    return session.scalars(select(AttemptRow).where(AttemptRow.job_id == job_id).order_by(AttemptRow.fence)).all()


def start_attempt(session: Session, held: Claim) -> None:
    """Adds the attempt of a new claim in PLANNING, with an event."""
    status = AttemptStatus.PLANNING
    session.add(
        AttemptRow(
            job_id=held.job_id,
            tenant=held.tenant,
            fence=held.fence,
            status=status.value,
            worker=held.worker,
            started_at=held.claimed_at,
        )
    )
    _append_attempt_event(session, held.job_id, held.tenant, held.fence, status, held.claimed_at)


def mark_attempt_running(session: Session, held: Claim) -> None:
    """PLANNING -> RUNNING, without an event: the job has one for the same move."""
    session.execute(
        update(AttemptRow)
        .where(
            AttemptRow.job_id == held.job_id,
            AttemptRow.fence == held.fence,
            AttemptRow.status == AttemptStatus.PLANNING.value,
        )
        .values(status=AttemptStatus.RUNNING.value)
    )


def end_attempt(session: Session, held: Claim, status: AttemptStatus, error: Problem | None, now: int) -> None:
    """Ends the attempt of a claim, with an event. An attempt that has ended stays as it is."""
    _end_attempt(session, held.job_id, held.tenant, held.fence, status, error, now)


def end_abandoned_attempt(session: Session, row: JobRow, now: int) -> None:
    """Ends the attempt of a job whose lease has expired as CRASHED. Does nothing if no worker had claimed the job."""
    if row.lease_owner is not None:
        error = problems.lease_lost(row.lease_owner)
        _end_attempt(session, row.id, row.tenant, row.fence, AttemptStatus.CRASHED, error, now)


def _end_attempt(
    session: Session, job_id: str, tenant: str, fence: int, status: AttemptStatus, error: Problem | None, now: int
) -> None:
    ended = session.execute(
        update(AttemptRow)
        .where(AttemptRow.job_id == job_id, AttemptRow.fence == fence, AttemptRow.status.in_(_UNFINISHED))
        .values(status=status.value, finished_at=now, error=json_or_null(error))
        .returning(AttemptRow.id)
    ).scalar_one_or_none()
    if ended is not None:
        _append_attempt_event(session, job_id, tenant, fence, status, now)


def _append_attempt_event(
    session: Session, job_id: str, tenant: str, fence: int, status: AttemptStatus, now: int
) -> None:
    data = {"attempt": fence, "status": status.value}
    append_event(session, job_id=job_id, tenant=tenant, now=now, type="attempt", data=data)


def crashed_attempts(session: Session, job_id: str) -> int:
    """Returns how many attempts lost their worker or Spark driver, which `max_attempts` limits.

    For a stream, counts only the attempts after the last one that made progress: a stream that runs for months loses a
    worker now and then.
    """
    return session.execute(select(_crashes()).where(JobRow.id == job_id)).scalar_one_or_none() or 0


def is_isolated() -> ColumnElement[bool]:
    """Condition: the job runs in a Spark driver of its own."""
    return JobRow.isolated.is_(True)


def is_suspect() -> ColumnElement[bool]:
    """Condition: `crashed_attempts` of the job is not 0."""
    return _crashes() >= 1


def is_on_last_attempt() -> ColumnElement[bool]:
    """Condition: the job becomes CRASHED if it loses the next attempt, after it has lost others.

    Never true for a continuous stream, which becomes STOPPED instead and can be resumed.
    """
    return (JobRow.queue != Queue.STREAM.value) & is_suspect() & (_crashes() >= JobRow.max_attempts - 1)


def is_true_for(session: Session, job_id: str, condition: ColumnElement[bool]) -> bool:
    """Returns whether the job exists and meets the condition."""
    return session.execute(select(JobRow.id).where(JobRow.id == job_id, condition)).first() is not None


def _crashes() -> ColumnElement[int]:
    steady = select(StreamRow.steady_fence).where(StreamRow.job_id == JobRow.id).correlate(JobRow).scalar_subquery()
    return (
        select(func.count())
        .where(
            AttemptRow.job_id == JobRow.id,
            AttemptRow.status == AttemptStatus.CRASHED.value,
            AttemptRow.fence > func.coalesce(steady, 0),
        )
        .correlate(JobRow)
        .scalar_subquery()
    )
