"""Lists jobs, newest first, page by page."""

from __future__ import annotations

from pydantic import Field

from service.errors import InvalidCursorError
from service.jobs.cursors import decode_cursor, encode_cursor
from service.jobs.find import is_job_id
from service.jobs.views import JobSummary
from service.jobs.waiting import Listening
from service.settings import Settings
from service.spec.model import Frozen
from service.store import jobs
from service.store.jobs import JobFilter, JobPosition
from service.store.session import Database

MAX_PAGE_SIZE = 200
"""A larger `page_size` is read as this."""


class JobPage(Frozen):
    """One page of a list of jobs."""

    jobs: tuple[JobSummary, ...]
    next_cursor: str = Field(description="Give it as `cursor` for the next page; empty on the last one.")


def list_jobs(
    database: Database, settings: Settings, tenant: str, wanted: JobFilter, cursor: str, page_size: int
) -> JobPage:
    """A page of at most `page_size` jobs from behind `cursor` (empty: from the newest on).

    Jobs submitted meanwhile do not shift later pages. Raises InvalidCursorError.
    """
    scope = _scope(wanted)
    limit = min(page_size, MAX_PAGE_SIZE)
    after = _position(cursor, scope) if cursor else None
    with database.look() as session:
        now = database.now(session)
        # One row more than asked for tells whether there is a next page.
        rows = jobs.list_jobs(session, tenant=tenant, wanted=wanted, after=after, limit=limit + 1, now=now)
        page = rows[:limit]
        more = len(rows) > limit
        listening = Listening(session, settings, now)
        return JobPage(
            jobs=tuple(JobSummary.of(row, now, listening) for row in page),
            next_cursor=encode_cursor([page[-1].submitted_at, page[-1].id], scope) if more else "",
        )


def _position(cursor: str, scope: str) -> JobPosition:
    submitted_at, job_id = decode_cursor(cursor, scope, (int, str))
    if not is_job_id(str(job_id)):
        raise InvalidCursorError("The cursor is not one that this service gave. Start without a cursor.")
    return JobPosition(int(submitted_at), str(job_id))


def _scope(wanted: JobFilter) -> str:
    statuses = ",".join(sorted(status.value for status in wanted.statuses))
    queue = "" if wanted.queue is None else f"{wanted.queue}|"
    return f"jobs|{statuses}|{wanted.submitted_after}|{wanted.submitted_before}|{queue}{wanted.name_prefix}"
