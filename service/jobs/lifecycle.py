"""Cancels, stops, resumes and deletes jobs, and changes the settings of stopped streaming jobs.

A worker that runs a job notices a cancel or stop request within seconds; a job without a worker ends at once.

Resuming and changing check new settings against the query and the columns of the tables first, without a lock, because
that reads files. They check again if the job has changed by the time they store the settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from service.broker.dispatch import JobAnnouncer
from service.config.settings import Settings
from service.contract import problems
from service.contract.enums import JobStatus, Mode, Queue
from service.contract.errors import (
    JobAlreadyFinishedError,
    JobNotFinishedError,
    JobStateUnknownError,
    NotAStreamError,
    NotStoppedError,
    StateNotCompatibleError,
)
from service.contract.job import ONLY_SHARED, JobSpec
from service.contract.options import Difference, Isolation, patched, state_differences
from service.contract.problems import Issue, SpecError
from service.data.roots import roots_of
from service.jobs.check_job import check_job, posted_schemas
from service.jobs.limits import Room
from service.jobs.views import Job, QueueListeners, require_job, state_for_change
from service.results.directories import remove_job_directory
from service.store import jobs, streaming_jobs
from service.store.attempts import end_abandoned_attempt
from service.store.session import Database
from service.store.streaming_state import find_stream
from service.store.tables import JobRow
from service.store.transitions import NO_LEASE, move_locked_job


def require_streaming(
    session: Session, tenant: str, job_id: str, *, for_change: bool = False, with_spec: bool = False
) -> JobRow:
    """As `require_job`, for a streaming job. Also raises NotAStreamError."""
    row = require_job(session, tenant, job_id, for_change=for_change, with_spec=with_spec)
    if row.mode == Mode.BATCH.value:
        raise NotAStreamError("The job is a batch job: only streaming jobs can be stopped and resumed.")
    return row


def cancel_job(database: Database, settings: Settings, tenant: str, job_id: str) -> Job:
    """Cancels a job and returns it, CANCELLED or CANCELLING. A job that is already CANCELLING does not change.

    Raises JobNotFoundError, JobStateUnknownError and, for a finished job, JobAlreadyFinishedError.
    """
    with database.write() as session:
        now = database.now(session)
        row = require_job(session, tenant, job_id, for_change=True, with_spec=True)
        status = state_for_change(row, now)
        if status is None:
            raise JobAlreadyFinishedError(f"The job is {row.status} and cannot be cancelled.")
        if status in {JobStatus.QUEUED, JobStatus.STOPPED}:
            _cancel_unheld_job(session, row, now)
        elif status is not JobStatus.CANCELLING:
            move_locked_job(session, row, JobStatus.CANCELLING, now, {"cancel_requested_at": now})
        session.refresh(row)
        return Job.of(row, now, QueueListeners(session, settings, now))


def _cancel_unheld_job(session: Session, row: JobRow, now: int) -> None:
    """Cancels a job that no worker holds. A worker that lost its lease cannot change the job any more."""
    end_abandoned_attempt(session, row, now)
    error = problems.cancelled().model_dump(mode="json")
    ended = {**NO_LEASE, "cancel_requested_at": now, "finished_at": now, "next_run_at": None, "error": error}
    move_locked_job(session, row, JobStatus.CANCELLED, now, ended)


def delete_job(database: Database, results: Path, streams: Path, tenant: str, job_id: str) -> None:
    """Deletes a finished or stopped job, then every file below `results` and `streams` that its attempts wrote.

    Raises JobNotFoundError, JobStateUnknownError and, while the job may still change, JobNotFinishedError.
    """
    with database.write() as session:
        row = require_job(session, tenant, job_id, for_change=True)
        if row.status != JobStatus.STOPPED.value and state_for_change(row, database.now(session)) is not None:
            raise JobNotFinishedError(f"The job is {row.status}: cancel it first, and delete it after it has ended.")
        jobs.delete_job(session, row.id)
    # After the commit: a purge removes files without a job, but a job without its files could not serve its result.
    remove_job_directory(results, job_id)
    remove_job_directory(streams, job_id)


def stop_job(database: Database, settings: Settings, tenant: str, job_id: str) -> Job:
    """Requests a stop and returns the job: STOPPING or STOPPED, or CANCELLING if a cancel was requested.

    The worker stops the job after the current mini-batch. A repeated request changes nothing. Raises JobNotFoundError,
    NotAStreamError, JobStateUnknownError and, for a finished job, JobAlreadyFinishedError.
    """
    with database.write() as session:
        now = database.now(session)
        row = require_streaming(session, tenant, job_id, for_change=True, with_spec=True)
        if state_for_change(row, now) is None:
            raise JobAlreadyFinishedError(f"The job is {row.status} and cannot be stopped.")
        streaming_jobs.request_stop(session, row, now)
        session.refresh(row)
        return Job.of(row, now, QueueListeners(session, settings, now))


class ResumeFrom(StrEnum):
    """Where a job resumes: after its last mini-batch, with its state; or from scratch, without state."""

    CHECKPOINT = "checkpoint"
    SCRATCH = "scratch"


def resume_job(
    database: Database,
    announcer: JobAnnouncer,
    settings: Settings,
    tenant: str,
    job_id: str,
    start_from: ResumeFrom,
    patch: Mapping[str, Any],
) -> Job:
    """Resumes a stopped job: applies `patch` to its settings, queues it, notifies the workers, and returns the job.

    Raises JobNotFoundError, NotAStreamError, NotStoppedError, StateNotCompatibleError if a changed setting does not fit
    the state that is kept, TooManyJobsError if the tenant's limit of queued jobs is reached (checked as for
    submissions, without a lock), and what `check_job` raises if the query does not support a setting.
    """
    from_scratch = start_from is ResumeFrom.SCRATCH
    job = None
    while job is None:
        checked: Mapping[str, Any] = {}
        if patch:
            checked = check_settings(database, settings, tenant, job_id, patch, from_scratch=from_scratch)
        with database.write() as session:
            now = database.now(session)
            row = require_streaming(session, tenant, job_id, for_change=True, with_spec=True)
            require_stopped(row, now)
            Room(session, settings, partial(database.now, session)).take(tenant, jobs.RUN)
            if patch:
                if row.spec != checked:
                    continue
                has_state = not from_scratch and has_layout(session, row.id)
                spec = with_settings(stored_spec(row), patch, has_state=has_state)
                jobs.save_spec(session, row, spec.stored(), spec.needs_version, now)
            streaming_jobs.request_resume(session, row, now, from_scratch=from_scratch)
            session.refresh(row)
            job = Job.of(row, now, QueueListeners(session, settings, now))
    announcer.announce(job_id, Queue(row.queue))
    return job


def change_settings(database: Database, settings: Settings, tenant: str, job_id: str, patch: Mapping[str, Any]) -> Job:
    """Changes settings of a stopped streaming job from its next run on, and returns the job. `patch` is a
    `SettingsPatch`.

    Raises JobNotFoundError, NotAStreamError, NotStoppedError, StateNotCompatibleError, JobStateUnknownError, and what
    `check_job` raises if the query does not support a setting.
    """
    while True:
        checked = check_settings(database, settings, tenant, job_id, patch, from_scratch=False)
        with database.write() as session:
            now = database.now(session)
            row = require_streaming(session, tenant, job_id, for_change=True, with_spec=True)
            require_stopped(row, now)
            if row.spec != checked:
                continue
            spec = stored_spec(row)
            changed = with_settings(spec, patch, has_state=has_layout(session, row.id))
            if changed != spec:
                jobs.save_spec(session, row, changed.stored(), changed.needs_version, now)
                session.refresh(row)
            return Job.of(row, now, QueueListeners(session, settings, now))


def require_stopped(row: JobRow, now: int) -> None:
    """Raises NotStoppedError, with what to do, unless the job is STOPPED. Also raises JobStateUnknownError."""
    status = state_for_change(row, now)
    if status is JobStatus.STOPPED:
        return
    if status is None:
        advice = "it has finished. Submit it again."
    elif status in {JobStatus.STOPPING, JobStatus.CANCELLING}:
        advice = "wait until it has stopped or ended."
    else:
        advice = "stop it first (POST /v1/jobs/{id}/stop)."
    raise NotStoppedError(f"The job is {status or row.status}: {advice}")


def stored_spec(row: JobRow) -> JobSpec:
    """Returns the job as it is stored. Raises JobStateUnknownError if a newer version stored what this one does not
    support.
    """
    try:
        return JobSpec.model_validate(row.spec)
    except ValidationError as error:
        raise JobStateUnknownError(
            "A newer version of the service stored the job, and this version does not support all of its fields. Send "
            "the request again when every process of the service runs that version."
        ) from error


def with_settings(spec: JobSpec, patch: Mapping[str, Any], *, has_state: bool) -> JobSpec:
    """Returns the job with the changes of a `SettingsPatch` applied.

    Raises StateNotCompatibleError with every changed setting that the existing state does not allow to change, and
    SpecError for a streaming job that asks for a driver of its own.
    """
    settings = patched(spec.settings, patch)
    differences = state_differences(spec.settings, settings) if has_state else []
    if differences:
        issues = [_issue(difference) for difference in differences]
        raise StateNotCompatibleError(" ".join(issue.detail for issue in issues), issues=issues)
    if settings.isolation is not Isolation.SHARED:
        raise SpecError.of("isolation_not_for_streams", ONLY_SHARED, pointer="/isolation")
    return spec.model_copy(update={"settings": settings})


def check_settings(
    database: Database,
    settings: Settings,
    tenant: str,
    job_id: str,
    patch: Mapping[str, Any],
    *,
    from_scratch: bool,
) -> dict[str, Any]:
    """Checks a change of settings and returns the stored spec that was checked.

    The caller must check again if the spec has changed by the time it stores the settings. Raises what
    `require_streaming`, `require_stopped`, `with_settings` and `check_job` raise, and changes nothing. Files are read
    here, while the job is not locked.
    """
    with database.read() as session:
        row = require_streaming(session, tenant, job_id, with_spec=True)
        require_stopped(row, database.now(session))
        has_state = not from_scratch and has_layout(session, job_id)
        spec = with_settings(stored_spec(row), patch, has_state=has_state)
    streams = posted_schemas(database, tenant, spec)
    check_job(spec, roots_of(settings), streams, is_accepted=True, has_state=has_state)
    return row.spec


def has_layout(session: Session, job_id: str) -> bool:
    """Whether the job has state whose layout depends on its settings."""
    stream = find_stream(session, job_id)
    return stream is not None and stream.layout is not None


def _issue(difference: Difference) -> Issue:
    return Issue(
        code=StateNotCompatibleError.code,
        detail=f"'{difference.setting}' was {json.dumps(difference.old)} when the state was created. Keep that value, "
        'or change it when you resume with {"from": "scratch"}, which reads all input that still exists again.',
        pointer="/" + difference.setting.replace(".", "/"),
    )
