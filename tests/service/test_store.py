"""Several processes that claim, beat, publish and sweep the same jobs at once, leases running out under them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select

from service.spec.status import AttemptStatus, JobStatus
from service.store.jobs import NewJob, insert_job
from service.store.session import Database
from service.store.tables import AttemptRow, JobEventRow, JobRow

ROOT = Path(__file__).parents[2]
PROCESSES = 3
JOBS = 200
SEED = 20261121


def insert_jobs(database: Database) -> list[str]:
    job_ids = [f"job-{number:03}" for number in range(JOBS)]
    with database.write() as session:
        now = database.now(session)
        for job_id in job_ids:
            new = NewJob(
                id=job_id,
                tenant="default",
                kind="run",
                name=job_id,
                spec={},
                request_id=None,
                max_attempts=1_000,
                timeout_ms=3_600_000,
            )
            insert_job(session, new, now)
    return job_ids


def contend(url: str) -> list[tuple[str, int]]:
    """What all processes say they have published."""
    pipe = subprocess.PIPE
    commands = [
        (sys.executable, "-m", "tests.support.contender", url, f"worker-{number}", str(SEED + number))
        for number in range(PROCESSES)
    ]
    processes = [subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) for command in commands]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES
    return [(job_id, fence) for text in told for job_id, fence in json.loads(text)]


@pytest.mark.not_quick
def test_every_job_ends_once(database_url: str) -> None:
    with closing(Database(database_url)) as database:
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
