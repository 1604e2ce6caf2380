"""Every change of a job's state: one conditional UPDATE for each kind of change, and the event that clients read.

`service.contract.enums` has the table of moves. A job changes only from a state that leads to the new one, and on
behalf of a worker only while its claim holds, so of two processes that change a job at once one changes nothing. All
times are milliseconds by the database's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Row, func, null, update
from sqlalchemy.orm import Session

from service.contract import problems
from service.contract.enums import LEASED, JobStatus, sources_of
from service.contract.job import SPEC_VERSION
from service.store.attempts import Claim, end_abandoned_attempt
from service.store.events import append_event
from service.store.session import json_or_null
from service.store.tables import JobRow

LEASED_VALUES = tuple(sorted(status.value for status in LEASED))
NO_LEASE: Mapping[str, Any] = {"lease_owner": None, "lease_expires_at": None}
"""The columns of a job that no worker has claimed."""

UNDERSTOOD = JobRow.spec_version <= SPEC_VERSION
"""Condition: this version's worker can run the job, since no newer version stored it."""


def move_job(
    session: Session,
    *,
    job_id: str,
    tenant: str,
    target: JobStatus,
    sources: Collection[JobStatus],
    now: int,
    values: Mapping[str, Any],
) -> bool:
    """Moves a job to `target` if it is in one of `sources`, with an event; False if it is not.

    Raises ValueError unless the table of moves leads from each of `sources` to `target`.
    """
    if not sources_of(target).issuperset(sources):
        raise ValueError(f"no move from {sorted(sources)} to {target}")
    moved = session.execute(
        update(JobRow)
        .where(JobRow.id == job_id, JobRow.status.in_([source.value for source in sources]))
        .values(status=target.value, **_changed(now), **values)
        .returning(JobRow.id)
    ).one_or_none()
    if moved is None:
        return False
    append_event(session, job_id=job_id, tenant=tenant, now=now, type="status", data={"status": target.value})
    return True


def move_locked_job(session: Session, row: JobRow, target: JobStatus, now: int, values: Mapping[str, Any]) -> None:
    """Moves a job whose row this transaction has locked from the state that it has. The row is not refreshed."""
    move_job(
        session,
        job_id=row.id,
        tenant=row.tenant,
        target=target,
        sources={JobStatus(row.status)},
        now=now,
        values=values,
    )


def stop_unclaimed_job(session: Session, row: JobRow, now: int, values: Mapping[str, Any] | None = None) -> None:
    """Moves a locked streaming job that no worker runs to STOPPED. Ends the attempt of a worker that lost its lease."""
    end_abandoned_attempt(session, row, now)
    move_locked_job(session, row, JobStatus.STOPPED, now, {**NO_LEASE, **(values or {})})


def claim_queued_job(session: Session, job_id: str, worker: str, now: int, lease_ms: int) -> Row[Any] | None:
    """QUEUED -> PLANNING with the next fencing token and a lease, without an event; returns the job's columns.

    None if the job is in another state, is to be cancelled or run later, or is of a newer version.
    """
    return session.execute(
        update(JobRow)
        .where(
            JobRow.id == job_id,
            _leads_to(JobStatus.PLANNING),
            JobRow.cancel_requested_at.is_(None),
            JobRow.next_run_at.is_(None),
            UNDERSTOOD,
        )
        .values(
            status=JobStatus.PLANNING.value,
            fence=JobRow.fence + 1,
            lease_owner=worker,
            lease_expires_at=now + lease_ms,
            started_at=func.coalesce(JobRow.started_at, now),
            progress=null(),
            **_changed(now),
        )
        .returning(
            JobRow.id,
            JobRow.tenant,
            JobRow.kind,
            JobRow.name,
            JobRow.spec,
            JobRow.fence,
            JobRow.started_at,
            JobRow.timeout_ms,
            JobRow.queue,
            JobRow.submitted_at,
            JobRow.max_attempts,
            JobRow.isolated,
        )
    ).one_or_none()


def cancel_queued_job(session: Session, job_id: str, now: int) -> None:
    """QUEUED -> CANCELLED, with an event, if the job is to be cancelled; otherwise nothing changes."""
    tenant = session.execute(
        update(JobRow)
        .where(JobRow.id == job_id, JobRow.status == JobStatus.QUEUED.value, JobRow.cancel_requested_at.is_not(None))
        .values(
            status=JobStatus.CANCELLED.value,
            finished_at=now,
            error=json_or_null(problems.cancelled()),
            **_changed(now),
        )
        .returning(JobRow.tenant)
    ).scalar_one_or_none()
    if tenant is not None:
        data = {"status": JobStatus.CANCELLED.value}
        append_event(session, job_id=job_id, tenant=tenant, now=now, type="status", data=data)


def update_fenced(
    session: Session,
    held: Claim,
    now: int,
    *,
    target: JobStatus | None = None,
    values: Mapping[str, Any] | None = None,
) -> bool:
    """Changes a job on behalf of a claim, without an event; False, and nothing changed, unless the claim is the newest
    one and holds.

    Also False if the table of moves does not lead from the job's state to `target`.
    """
    changes: dict[str, Any] = {**_changed(now), **(values or {})}
    conditions = held_by(held)
    if target is not None:
        changes["status"] = target.value
        conditions = (*conditions, _leads_to(target))
    found = session.execute(update(JobRow).where(*conditions).values(**changes).returning(JobRow.id))
    return found.scalar_one_or_none() is not None


def held_by(claim: Claim) -> tuple[ColumnElement[bool], ...]:
    """Conditions: the claim is the newest one of its job, and holds."""
    return (
        JobRow.id == claim.job_id,
        JobRow.fence == claim.fence,
        JobRow.lease_owner == claim.worker,
        JobRow.status.in_(LEASED_VALUES),
    )


def append_status_event(session: Session, held: Claim, status: JobStatus, now: int) -> None:
    """Appends the event of a move, with the attempt that made it."""
    data = {"status": status.value, "attempt": held.fence}
    append_event(session, job_id=held.job_id, tenant=held.tenant, now=now, type="status", data=data)


def _leads_to(target: JobStatus) -> ColumnElement[bool]:
    return JobRow.status.in_(sorted(source.value for source in sources_of(target)))


def _changed(now: int) -> dict[str, Any]:
    return {"version": JobRow.version + 1, "updated_at": now}
