"""Lets a streaming job that rests go on: from its checkpoint, or from scratch."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from service.jobs.doorbell import Doorbell
from service.jobs.room import require_room_to_wait
from service.jobs.streaming import (
    check_settings,
    has_layout,
    require_stopped,
    require_streaming,
    save_spec,
    with_settings,
)
from service.jobs.views import Job
from service.jobs.waiting import Listening
from service.settings import Settings
from service.spec.job import JobSpec
from service.spec.queues import Queue
from service.store import stream_orders
from service.store.session import Database


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
            stream_orders.request_resume(session, row, now, from_scratch=from_scratch)
            session.refresh(row)
            job = Job.of(row, now, Listening(session, settings, now))
    doorbell.ring(job_id, Queue(row.queue))
    return job
