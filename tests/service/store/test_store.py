"""Several processes claim, renew, publish and sweep the same jobs at once, while leases expire."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import select

from service.contract.enums import AttemptStatus, JobStatus
from service.store.session import Database
from service.store.tables import AttemptRow, JobEventRow, JobRow
from tests.support import lifecycle
from tests.support.processes import outputs_at_once

ROOT = Path(__file__).parents[3]
PROCESSES = 3
JOBS = 200
SEED = 20261121


def insert_jobs(database: Database) -> list[str]:
    job_ids = [f"job-{number:03}" for number in range(JOBS)]
    for job_id in job_ids:
        lifecycle.insert(database, job_id, name=job_id, spec={}, max_attempts=1_000)
    return job_ids


def contend(url: str) -> list[tuple[str, int]]:
    """Returns what all processes have published."""
    commands = [
        (sys.executable, "-m", "tests.support.contender", url, f"worker-{number}", str(SEED + number))
        for number in range(PROCESSES)
    ]
    told = outputs_at_once(commands, ROOT, 300)
    return [(job_id, fence) for text in told for job_id, fence in json.loads(text)]


@pytest.mark.slow
def test_every_job_ends_once(database_url: str, database: Database) -> None:
    job_ids = insert_jobs(database)
    published = contend(database_url)
    assert sorted(job_id for job_id, _ in published) == job_ids, f"each once and none lost; seed {SEED}"
    with database.read() as session:
        jobs = session.scalars(select(JobRow)).all()
        attempts = session.scalars(select(AttemptRow).order_by(AttemptRow.id)).all()
        ends = session.scalars(select(JobEventRow).where(JobEventRow.type == "status")).all()
    assert {job.status for job in jobs} == {JobStatus.SUCCEEDED.value}
    assert {(job.id, job.fence) for job in jobs} == set(published)
    assert {job.result_path for job in jobs} == {f"{job_id}/{fence}" for job_id, fence in published}
    for job in jobs:
        own = [attempt for attempt in attempts if attempt.job_id == job.id]
        assert [attempt.fence for attempt in own] == list(range(1, job.fence + 1)), "tokens grow one by one"
        lost = [AttemptStatus.CRASHED.value] * (job.fence - 1)
        assert [attempt.status for attempt in own] == [*lost, AttemptStatus.SUCCEEDED.value]
    told = Counter(event.job_id for event in ends if event.data["status"] == JobStatus.SUCCEEDED.value)
    assert set(told.values()) == {1}
    assert len(told) == JOBS
    assert len(attempts) > JOBS, "some leases have run out"
    assert len({attempt.worker for attempt in attempts}) > 1, "they contended"
