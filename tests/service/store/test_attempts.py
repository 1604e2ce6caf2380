"""Attempts: numbered by their fencing token, and ended once."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import select

from service.contract import problems
from service.contract.enums import AttemptStatus
from service.store.attempts import (
    attempts_of,
    claim_of,
    crashed_attempts,
    end_attempt,
    mark_attempt_running,
    start_attempt,
)
from service.store.session import Database
from service.store.tables import JobEventRow, JobRow
from tests.support.clocks import ManualClock


def test_an_attempt_ends_once(database: Database, clock: ManualClock, job_id: str) -> None:
    with database.write() as session:
        held = claim_of(session.get_one(JobRow, job_id), "w1", clock.ms)
        start_attempt(session, held)
        mark_attempt_running(session, held)
        for status in (AttemptStatus.CRASHED, AttemptStatus.SUCCEEDED):
            end_attempt(session, held, status, problems.lease_lost("w1"), 5)
    with database.read() as session:
        (attempt,) = attempts_of(session, job_id)
        events = session.scalars(select(JobEventRow.data).where(JobEventRow.type == "attempt").order_by(JobEventRow.id))
        told = [(data["attempt"], data["status"]) for data in events]
    assert (attempt.status, attempt.finished_at) == ("CRASHED", 5)
    assert told == [(0, "PLANNING"), (0, "CRASHED")]


def test_only_crashes_are_counted(database: Database, clock: ManualClock, job_id: str) -> None:
    statuses = [AttemptStatus.CRASHED, AttemptStatus.CANCELLED, AttemptStatus.CRASHED, AttemptStatus.FAILED]
    with database.write() as session:
        held = claim_of(session.get_one(JobRow, job_id), "w1", clock.ms)
        for fence, status in zip((4, 2, 3, 1), statuses, strict=True):
            attempt = replace(held, fence=fence)
            start_attempt(session, attempt)
            end_attempt(session, attempt, status, None, clock.ms)
        assert crashed_attempts(session, job_id) == 2
        assert [row.fence for row in attempts_of(session, job_id)] == [1, 2, 3, 4]
