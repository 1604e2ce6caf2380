"""What the use cases of streaming jobs have in common: which jobs they concern, and how settings change.

Asks for a job to be cancelled. A worker that runs it notices within moments; one that no worker has ends at once.

Ends jobs that are CANCELLING and that no worker has any more, while no worker is there to sweep.

What the last worker had is shown as QUEUED once its lease has run out: another worker may take it. Of a job that is
CANCELLING nothing but its end is left to do, and the API can do that itself. It does not wait for workers that may
have missed the database, as sweepers do: one that lives after all, and comes too late, is refused by its lease. Files
of such a job are left to the next purge, which knows whose they are.

Deletes a job at rest with its plan, metrics, events, result files and state.

Asks a streaming job to stop. Its worker ends it after the mini-batch at hand; one without a worker stops at once.

Lets a streaming job that rests go on: from its checkpoint, or from scratch.

Changes settings of a streaming job that rests; they hold from its next run on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import update
from sqlalchemy.orm import Session

from service.broker.dispatch import Doorbell
from service.config.settings import Settings
from service.contract import problems
from service.contract.enums import JobStatus, Mode, Queue
from service.contract.errors import (
    JobAlreadyFinishedError,
    JobNotFinishedError,
    NotAStreamError,
    NotStoppedError,
    StateNotCompatibleError,
)
from service.contract.job import JobSpec
from service.contract.options import Difference, patched, state_differences
from service.contract.problems import Issue
from service.data.roots import roots_of
from service.jobs.admission import check_job, posted_schemas, require_room_to_wait
from service.jobs.views import Job, Listening, require_job, state_for_change
from service.results.directories import remove_job_directory
from service.store import jobs, streaming_jobs
from service.store.jobs import end_abandoned_attempt
from service.store.maintenance import end_cancelled, is_any_to_end
from service.store.session import NO_SYNC, Database
from service.store.streaming_state import find_stream
from service.store.tables import JobRow
from service.store.transitions import NO_LEASE, move_locked_job


def require_streaming(
    session: Session, tenant: str, job_id: str, *, for_change: bool = False, with_spec: bool = False
) -> JobRow:
    """As `require_job`. Raises NotAStreamError too."""
    row = require_job(session, tenant, job_id, for_change=for_change, with_spec=with_spec)
    if row.mode == Mode.BATCH.value:
        raise NotAStreamError("The job reads its tables once: only jobs of the streaming modes stop and go on.")
    return row


def require_stopped(row: JobRow, now: int) -> None:
    """Raises NotStoppedError, with what to do, unless the job rests, and JobStateUnknownError."""
    status = state_for_change(row, now)
    if status is JobStatus.STOPPED:
        return
    if status is None:
        advice = "it has ended for good, submit it again."
    elif status in {JobStatus.STOPPING, JobStatus.CANCELLING}:
        advice = "wait until it has."
    else:
        advice = "stop it first (POST /v1/jobs/{id}/stop)."
    raise NotStoppedError(f"The job is {status or row.status}: {advice}")


def with_settings(spec: JobSpec, patch: Mapping[str, Any], *, has_state: bool) -> JobSpec:
    """The job with what a `SettingsPatch` changes. Raises StateNotCompatibleError with every setting that the state
    there is does not allow to change.
    """
    settings = patched(spec.settings, patch)
    differences = state_differences(spec.settings, settings) if has_state else []
    if differences:
        issues = [_issue(difference) for difference in differences]
        raise StateNotCompatibleError(" ".join(issue.detail for issue in issues), issues=issues)
    return spec.model_copy(update={"settings": settings})


def save_spec(session: Session, row: JobRow, spec: JobSpec, now: int) -> None:
    """Stores a changed job; `row` is locked and not refreshed."""
    session.execute(
        update(JobRow)
        .where(JobRow.id == row.id)
        .values(spec=spec.stored(), version=JobRow.version + 1, updated_at=now)
        .execution_options(**NO_SYNC)
    )


def check_settings(
    database: Database,
    settings: Settings,
    tenant: str,
    job_id: str,
    patch: Mapping[str, Any],
    *,
    from_scratch: bool,
) -> dict[str, Any]:
    """The stored job with which the changed settings were checked; the caller checks again if the job has changed
    when it stores them.

    Raises what `require_streaming`, `require_stopped`, `with_settings` and `check_job` do, and changes nothing. Files
    are looked at here, and not while the job is locked.
    """
    with database.read() as session:
        row = require_streaming(session, tenant, job_id, with_spec=True)
        require_stopped(row, database.now(session))
        has_state = not from_scratch and has_layout(session, job_id)
        spec = with_settings(JobSpec.model_validate(row.spec), patch, has_state=has_state)
    streams = posted_schemas(database, tenant, spec)
    check_job(spec, roots_of(settings), streams, is_accepted=True, goes_on=has_state)
    return row.spec


def has_layout(session: Session, job_id: str) -> bool:
    """Whether there is state that was laid out by the job's settings."""
    stream = find_stream(session, job_id)
    return stream is not None and stream.layout is not None


def _issue(difference: Difference) -> Issue:
    return Issue(
        code=StateNotCompatibleError.code,
        detail=f"'{difference.setting}' was {json.dumps(difference.old)} when the state was made. Leave it as it was, "
        'or give it when you resume with {"from": "scratch"}: all input that is still there is then read again.',
        pointer="/" + difference.setting.replace(".", "/"),
    )


def cancel_job(database: Database, settings: Settings, tenant: str, job_id: str) -> Job:
    """The job, CANCELLED or CANCELLING. Asking again while it is CANCELLING changes nothing.

    Raises JobNotFoundError, JobStateUnknownError and, for a finished job, JobAlreadyFinishedError.
    """
    with database.write() as session:
        now = database.now(session)
        row = require_job(session, tenant, job_id, for_change=True, with_spec=True)
        status = state_for_change(row, now)
        if status is None:
            raise JobAlreadyFinishedError(f"The job is {row.status}: there is nothing left to cancel.")
        if status in {JobStatus.QUEUED, JobStatus.STOPPED}:
            _end(session, row, now)
        elif status is not JobStatus.CANCELLING:
            move_locked_job(session, row, JobStatus.CANCELLING, now, {"cancel_requested_at": now})
        session.refresh(row)
        return Job.of(row, now, Listening(session, settings, now))


def _end(session: Session, row: JobRow, now: int) -> None:
    """No worker holds the job: there is nobody to wait for. One that lost its lease changes nothing any more."""
    end_abandoned_attempt(session, row, now)
    error = problems.cancelled().model_dump(mode="json")
    ended = {**NO_LEASE, "cancel_requested_at": now, "finished_at": now, "next_run_at": None, "error": error}
    move_locked_job(session, row, JobStatus.CANCELLED, now, ended)


_log = structlog.get_logger(__name__)

_LOOK_SECONDS = 2.0


class CancelledJobs:
    """Looks for such jobs now and then. Start it in the event loop of a process; any number of processes may look."""

    def __init__(self, database: Database, look_seconds: float = _LOOK_SECONDS) -> None:
        self._database = database
        self._look_seconds = look_seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to look."""
        self._task = asyncio.create_task(self._look(), name="cancelled-jobs")

    async def stop(self) -> None:
        """Ends looking."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def step(self) -> None:
        """Ends those that are there now. Raises what the database raises."""
        with self._database.read() as session:
            if not is_any_to_end(session, self._database.now(session)):
                return
        with self._database.write() as session:
            ended = end_cancelled(session, self._database.now(session))
        for job_id in ended:
            _log.warning("cancelled_job_ended", job_id=job_id)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                await asyncio.to_thread(self.step)
            except Exception as error:  # noqa: BLE001 - the next look may do
                _log.warning("cancelled_jobs_not_ended", error=type(error).__name__)


def delete_job(database: Database, results: Path, streams: Path, tenant: str, job_id: str) -> None:
    """Removes the job, then every file below `results` and `streams` that its attempts wrote.

    Raises JobNotFoundError, JobStateUnknownError and, while the job may still change, JobNotFinishedError.
    """
    with database.write() as session:
        row = require_job(session, tenant, job_id, for_change=True)
        if row.status != JobStatus.STOPPED.value and state_for_change(row, database.now(session)) is not None:
            raise JobNotFinishedError(f"The job is {row.status}: cancel it first, and delete it when it has ended.")
        jobs.delete_job(session, row.id)
    # After the commit: files without a job are garbage, a job without its files would be a broken promise.
    remove_job_directory(results, job_id)
    remove_job_directory(streams, job_id)


def stop_job(database: Database, settings: Settings, tenant: str, job_id: str) -> Job:
    """The job, STOPPING or STOPPED; CANCELLING where that was asked for. Asking again changes nothing.

    Raises JobNotFoundError, NotAStreamError, JobStateUnknownError and, for a finished job, JobAlreadyFinishedError.
    """
    with database.write() as session:
        now = database.now(session)
        row = require_streaming(session, tenant, job_id, for_change=True, with_spec=True)
        if state_for_change(row, now) is None:
            raise JobAlreadyFinishedError(f"The job is {row.status}: there is nothing left to stop.")
        streaming_jobs.request_stop(session, row, now)
        session.refresh(row)
        return Job.of(row, now, Listening(session, settings, now))


class ResumeFrom(StrEnum):
    """Where a job goes on: behind the last mini-batch, with its state; or at the beginning, without any."""

    CHECKPOINT = "checkpoint"
    SCRATCH = "scratch"


def resume_job(
    database: Database,
    doorbell: Doorbell,
    settings: Settings,
    tenant: str,
    job_id: str,
    begin: ResumeFrom,
    patch: Mapping[str, Any],
) -> Job:
    """The job, QUEUED, with the settings that `patch` changes, and workers rung for it.

    Raises JobNotFoundError, NotAStreamError, NotStoppedError, StateNotCompatibleError where a changed setting does not
    go with state that is kept, TooManyJobsError where as many jobs of the tenant wait as may (by the same count as for
    those that it submits, and no more exact), and what `check_job` raises where the query cannot follow one.
    """
    from_scratch = begin is ResumeFrom.SCRATCH
    job = None
    while job is None:
        checked: Mapping[str, Any] = {}
        if patch:
            checked = check_settings(database, settings, tenant, job_id, patch, from_scratch=from_scratch)
        with database.write() as session:
            now = database.now(session)
            row = require_streaming(session, tenant, job_id, for_change=True, with_spec=True)
            require_stopped(row, now)
            require_room_to_wait(session, settings.limits, tenant)
            if patch:
                if row.spec != checked:
                    continue
                has_state = not from_scratch and has_layout(session, row.id)
                spec = with_settings(JobSpec.model_validate(row.spec), patch, has_state=has_state)
                save_spec(session, row, spec, now)
            streaming_jobs.request_resume(session, row, now, from_scratch=from_scratch)
            session.refresh(row)
            job = Job.of(row, now, Listening(session, settings, now))
    doorbell.ring(job_id, Queue(row.queue))
    return job


def change_settings(database: Database, settings: Settings, tenant: str, job_id: str, patch: Mapping[str, Any]) -> Job:
    """The job with what a `SettingsPatch` changes.

    Raises JobNotFoundError, NotAStreamError, NotStoppedError, StateNotCompatibleError, and what `check_job` raises
    where the query cannot follow a setting.
    """
    while True:
        checked = check_settings(database, settings, tenant, job_id, patch, from_scratch=False)
        with database.write() as session:
            now = database.now(session)
            row = require_streaming(session, tenant, job_id, for_change=True, with_spec=True)
            require_stopped(row, now)
            if row.spec != checked:
                continue
            spec = JobSpec.model_validate(row.spec)
            changed = with_settings(spec, patch, has_state=has_layout(session, row.id))
            if changed != spec:
                save_spec(session, row, changed, now)
                session.refresh(row)
            return Job.of(row, now, Listening(session, settings, now))
