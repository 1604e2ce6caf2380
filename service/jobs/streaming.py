"""What the use cases of streaming jobs have in common: which jobs they concern, and how settings change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from service.datasets.roots import roots_of
from service.errors import NotAStreamError, NotStoppedError, StateNotCompatibleError
from service.jobs.check_job import check_job, posted_schemas
from service.jobs.find import require_job, state_for_change
from service.settings import Settings
from service.spec.errors import Issue
from service.spec.job import JobSpec
from service.spec.modes import Mode
from service.spec.settings_patch import Difference, patched, state_differences
from service.spec.status import JobStatus
from service.store.session import NO_SYNC, Database
from service.store.stream_state import find_stream
from service.store.tables import JobRow


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
