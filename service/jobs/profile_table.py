"""Profiles keys of a table: a worker plans a query that groups by them, on the way that every explanation takes."""

from __future__ import annotations

import asyncio

from service.jobs.check_readiness import worker_silence_ms
from service.jobs.doorbell import Doorbell
from service.jobs.explain_job import ExplainFailedError, explain_job
from service.jobs.key_profile import profile_of
from service.jobs.profile_query import as_posted, job_of
from service.jobs.submissions import Submissions
from service.jobs.submit_job import Submission
from service.jobs.watch import JobWatcher
from service.settings import Settings
from service.spec.errors import SpecError
from service.spec.profiles import ProfileReport, ProfileRequest
from service.store import workers
from service.store.jobs import EXPLAIN
from service.store.session import Database


async def profile_table(
    database: Database,
    watcher: JobWatcher,
    doorbell: Doorbell,
    settings: Settings,
    submissions: Submissions,
    request: ProfileRequest,
    tenant: str,
    request_id: str | None,
) -> ProfileReport:
    """What a sample tells of the keys. Nothing of it is kept.

    Raises SpecError for columns that are not there and tables that cannot be read, TooManyExplanationsError where the
    tenant waits for as many as it may, and WorkerUnavailableError where no worker answered in time.
    """
    try:
        submission = Submission(tenant, job_of(request), "", request_id, kind=EXPLAIN)
        plan = await explain_job(database, watcher, doorbell, settings, submissions, submission)
    except SpecError as error:
        raise SpecError([as_posted(issue) for issue in error.issues]) from None
    except ExplainFailedError as error:
        errors = tuple(as_posted(issue) for issue in error.problem.errors)
        raise ExplainFailedError(error.problem.model_copy(update={"errors": errors})) from None
    if request.slots is not None:
        return profile_of(request, plan, request.slots)
    return profile_of(request, plan, await asyncio.to_thread(_largest_worker, database, settings))


def _largest_worker(database: Database, settings: Settings) -> int:
    """Slots of the live worker that has most of them; 1 where none tells."""
    with database.read() as session:
        silent_before = database.now(session) - worker_silence_ms(settings)
        return max((row.slots or 1 for row in workers.list_workers(session, silent_before)), default=1)
