"""Looks a job up for the other use cases."""

from __future__ import annotations

import re

from sqlalchemy.orm import Session

from service.errors import JobNotFoundError
from service.store import jobs
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
