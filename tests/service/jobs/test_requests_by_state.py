"""Requests that change a job, in each of its states: the state afterwards, or the code of the refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from service.broker.dispatch import JobAnnouncer
from service.config.settings import Settings
from service.contract.enums import TERMINAL, JobStatus, Mode
from service.contract.errors import ServiceError
from service.jobs.lifecycle import ResumeFrom, cancel_job, delete_job, resume_job, stop_job
from service.store import streaming_jobs
from service.store.attempts import attempts_of
from service.store.session import Database
from service.store.tables import Base, JobRow
from tests.support import lifecycle
from tests.support.lifecycle import SPEC, STREAM_TABLES, TENANT

Request = Callable[[str], object]

LIVE, LOST, NONE, DUE = "live", "lost", "none", "due"
STATES: dict[str, tuple[str, str]] = {
    "QUEUED": ("QUEUED", NONE),
    **{
        f"{status}, {lease}": (status, lease)
        for status in ("PLANNING", "RUNNING", "CANCELLING", "STOPPING")
        for lease in (LIVE, LOST)
    },
    "STOPPED": ("STOPPED", NONE),
    "STOPPED, due": ("STOPPED", DUE),
    **{status.value: (status.value, NONE) for status in sorted(TERMINAL)},
    "PAUSED": ("PAUSED", LIVE),
    "PAUSED, finished": ("PAUSED", NONE),
}
"""Stored status and lease; a job that rests may be due for its next run. PAUSED is a state that only a newer version
knows."""

FINISHED = (*sorted(status.value for status in TERMINAL), "PAUSED, finished")
UNCHANGED = "unchanged"

EXPECTED: dict[str, dict[str, str]] = {
    "cancel": {
        "QUEUED": "CANCELLED",
        "PLANNING, live": "CANCELLING",
        "PLANNING, lost": "CANCELLED",
        "RUNNING, live": "CANCELLING",
        "RUNNING, lost": "CANCELLED",
        "CANCELLING, live": UNCHANGED,
        "CANCELLING, lost": UNCHANGED,
        "STOPPING, live": "CANCELLING",
        "STOPPING, lost": "CANCELLED",
        "STOPPED": "CANCELLED",
        "STOPPED, due": "CANCELLED",
        **dict.fromkeys(FINISHED, "job_already_finished"),
    },
    "stop": {
        "QUEUED": "STOPPED",
        "PLANNING, live": "STOPPING",
        "PLANNING, lost": "STOPPED",
        "RUNNING, live": "STOPPING",
        "RUNNING, lost": "STOPPED",
        "CANCELLING, live": UNCHANGED,
        "CANCELLING, lost": UNCHANGED,
        "STOPPING, live": UNCHANGED,
        "STOPPING, lost": "STOPPED",
        "STOPPED": UNCHANGED,
        "STOPPED, due": "STOPPED",
        **dict.fromkeys(FINISHED, "job_already_finished"),
    },
    "resume": {
        **dict.fromkeys((*STATES, *FINISHED), "not_stopped"),
        "STOPPING, lost": "QUEUED",
        "STOPPED": "QUEUED",
        "STOPPED, due": "QUEUED",
    },
    "delete": {
        **dict.fromkeys(STATES, "job_not_finished"),
        **dict.fromkeys((*FINISHED, "STOPPED", "STOPPED, due"), "deleted"),
    },
}
for _expected in EXPECTED.values():
    _expected["PAUSED"] = "job_state_unknown"


def in_state(database: Database, status: str, lease: str) -> str:
    """Stores a continuous job in this state and returns its id. Its last attempt was ended where it has no lease."""
    spec = {**SPEC, "mode": "continuous", "tables": STREAM_TABLES}
    job_id = lifecycle.insert(database, mode=Mode.CONTINUOUS, timeout_ms=0, spec=spec)
    held = lifecycle.claim(database, job_id)
    with database.write() as session:
        now = database.now(session)
        if lease in {NONE, DUE}:
            next_run_at = now + 60_000 if lease == DUE else None
            assert streaming_jobs.mark_stopped(session, held, now, reason="caught_up", next_run_at=next_run_at)
        values: dict[str, Any] = {"status": status}
        if lease == LOST:
            values["lease_expires_at"] = now
        if lease == NONE and status not in {"QUEUED", "STOPPED"}:
            values["finished_at"] = now
        session.execute(update(JobRow).where(JobRow.id == job_id).values(**values))
    return job_id


def stored(database: Database) -> list[Any]:
    """Returns all rows of all tables but the outbox, whose messages the announcer removes in a thread of its own."""
    with database.read() as session:
        return [
            {"table": table.name, **row}
            for table in Base.metadata.sorted_tables
            if table.name != "outbox"
            for row in session.execute(select(table).order_by(*table.primary_key)).mappings()
        ]


def of_others(rows: list[Any], job_id: str) -> list[Any]:
    """Returns those of the rows that are not about this job."""
    return [row for row in rows if job_id not in {row.get("job_id"), row.get("id")}]


def outcome(database: Database, request: Request, job_id: str) -> str:
    """Returns the state of the job after a request, or the code of its refusal, which must change nothing."""
    before = stored(database)
    try:
        request(job_id)
    except ServiceError as error:
        assert stored(database) == before
        return error.code
    after = stored(database)
    assert of_others(after, job_id) == of_others(before, job_id)
    if after == before:
        return UNCHANGED
    with database.read() as session:
        row = session.get(JobRow, job_id)
        if row is None:
            return "deleted"
        # What no worker has, has no lease, no progress, and no attempt that goes on.
        if row.status in {"QUEUED", "STOPPED", "CANCELLED"}:
            assert (row.lease_owner, row.lease_expires_at, row.progress, row.next_run_at) == (None, None, None, None)
            assert {attempt.status for attempt in attempts_of(session, job_id)} <= {"STOPPED", "CRASHED"}
        assert (row.finished_at is not None) == (row.status == JobStatus.CANCELLED)
        assert (row.error or {}).get("code") == ("cancelled" if row.status == JobStatus.CANCELLED else None)
        assert (row.cancel_requested_at is not None) == (row.status in {"CANCELLING", "CANCELLED"})
        assert (row.stop_requested_at is not None) == (row.status in {"STOPPING", "STOPPED"})
        return row.status


@pytest.mark.parametrize("name", EXPECTED)
def test_every_state_has_its_answer(
    database: Database, settings: Settings, announcer: JobAnnouncer, tmp_path: Path, name: str
) -> None:
    requests: dict[str, Request] = {
        "cancel": lambda job_id: cancel_job(database, settings, TENANT, job_id),
        "stop": lambda job_id: stop_job(database, settings, TENANT, job_id),
        "resume": lambda job_id: resume_job(database, announcer, settings, TENANT, job_id, ResumeFrom.CHECKPOINT, {}),
        "delete": lambda job_id: delete_job(database, tmp_path / "results", tmp_path / "streams", TENANT, job_id),
    }
    jobs = {state: in_state(database, *how) for state, how in STATES.items()}
    directories = [tmp_path / kind / job_id for kind in ("results", "streams") for job_id in jobs.values()]
    for directory in directories:
        directory.mkdir(parents=True)
    found = {state: outcome(database, requests[name], job_id) for state, job_id in jobs.items()}
    assert found == EXPECTED[name]
    deleted = {jobs[state] for state, became in found.items() if became == "deleted"}
    assert [path for path in directories if path.exists() is (path.name in deleted)] == []
