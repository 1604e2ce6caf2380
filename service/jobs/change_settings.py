"""Changes settings of a streaming job that rests; they hold from its next run on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from service.store.session import Database


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
