"""Looks a job up for the other use cases."""

from __future__ import annotations

import re

from sqlalchemy.orm import Session

from service.errors import JobNotFoundError, JobStateUnknownError
from service.spec.status import JobStatus
from service.store import jobs
from service.store.jobs import effective_status, has_finished
from service.store.tables import JobRow

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def is_job_id(text: str) -> bool:
    """Whether a job could have this id."""
    return _ID.fullmatch(text) is not None


def require_job(
    session: Session, tenant: str, job_id: str, *, for_change: bool = False, with_spec: bool = False
) -> JobRow:
    """The tenant's job, locked until the transaction ends where it is read `for_change`.

    `spec` can be read only where it is asked for. Raises JobNotFoundError, also for an id that no job can have.
    """
    row = None
    if is_job_id(job_id):
        row = jobs.find_job(session, tenant=tenant, job_id=job_id, lock=for_change, with_spec=with_spec)
    if row is None:
        raise JobNotFoundError("No job has this id; it may have been deleted.")
    return row


def state_for_change(row: JobRow, now: int) -> JobStatus | None:
    """The state of a job for a request that changes it; None where the job has finished.

    Raises JobStateUnknownError for a state that only a newer version knows: what is allowed in it is not known here.
    """
    if has_finished(row):
        return None
    status = effective_status(row, now)
    if status is None:
        raise JobStateUnknownError(
            f"The job is {row.status}, a state that this version of the service does not know: a newer version stored "
            "it. Send the request again when every process of the service runs that version; GET /v1/jobs/{id} shows "
            "the job until then."
        )
    return status
