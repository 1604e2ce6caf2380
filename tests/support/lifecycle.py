"""Stores jobs and moves them through their states with the functions of the store, as a worker does."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import insert as insert_rows
from sqlalchemy import select

from service.contract.enums import JobStatus, Mode, Queue
from service.contract.problems import Problem
from service.contract.reports import PlanReport, PlanTree, Progress, RuleOutcome, RuleTrace, SkewReport, StageMetrics
from service.store import jobs, leases, publication, workers
from service.store.attempts import Claim
from service.store.jobs import NewJob
from service.store.publication import AttemptMetrics, Ending, PublishedResult
from service.store.session import Database
from service.store.tables import JobRow

TENANT = "default"
WORKER = "w1"
LEASE_MS = 30_000
_ROWS_PER_INSERT = 1_000

AddJob = Callable[..., str]
"""The type of the fixture `add_job`."""

SPEC: dict[str, Any] = {
    "name": "orders-per-user",
    "tables": {"orders": {"format": "parquet", "path": "orders.parquet"}},
    "sql": "SELECT uid, COUNT(*) AS orders FROM orders GROUP BY uid",
}
STREAM_TABLES = {"orders": {**SPEC["tables"]["orders"], "path": "arriving/"}}
"""The same table as a directory, for streams."""

REPORT = PlanReport(
    before=PlanTree(nodes=(), text="Scan orders"),
    after=PlanTree(nodes=(), text="Scan orders"),
    rules=(
        RuleTrace(
            rule="two_phase_aggregate", outcome=RuleOutcome.FIRED, node="Aggregate", reason="It reduces the rows."
        ),
    ),
    tables=(),
    keys=(),
    statistics_ms=3,
)
STAGE = StageMetrics(
    stage_id=0,
    stage_attempt=0,
    name="collect",
    status="COMPLETE",
    tasks=2,
    failed_tasks=0,
    wall_ms=12,
    input_rows=10,
    input_bytes=100,
    shuffle_read_rows=0,
    shuffle_read_bytes=0,
    shuffle_write_rows=0,
    shuffle_write_bytes=0,
    spilled_bytes=0,
    duration_ms=None,
    records=None,
    shuffle_bytes=None,
    spill_bytes=None,
)
DONE = Progress(stages_done=1, stages_total=1, tasks_done=2, tasks_total=2)
SKEW = SkewReport(skewed=False, keys=(), stages=(), lost_ms=0, advice="Nothing needs to change.")
FAILURE = Problem(
    type="/problems/engine_error", title="Engine error", status=422, detail="[DIVIDE_BY_ZERO]", code="engine_error"
)


def insert(
    database: Database,
    job_id: str | None = None,
    *,
    name: str = "job",
    kind: str = jobs.RUN,
    tenant: str = TENANT,
    spec: Mapping[str, Any] | None = None,
    max_attempts: int = 3,
    timeout_ms: int = 3_600_000,
    queue: Queue = Queue.SHORT,
    mode: Mode = Mode.BATCH,
    isolated: bool = False,
) -> str:
    """Stores a QUEUED job without checks and returns its id."""
    new = NewJob(
        id=job_id or str(uuid.uuid4()),
        tenant=tenant,
        kind=kind,
        name=name,
        spec={**SPEC, "name": name} if spec is None else dict(spec),
        request_id=None,
        max_attempts=max_attempts,
        timeout_ms=timeout_ms,
        queue=queue,
        mode=mode,
        isolated=isolated,
    )
    with database.write() as session:
        jobs.insert_jobs(session, [new], database.now(session))
    return new.id


def row_of(database: Database, job_id: str) -> JobRow:
    """Returns the row of a job."""
    with database.read() as session:
        return session.get_one(JobRow, job_id)


def try_claim(database: Database, job_id: str, worker: str = WORKER, *, lease_ms: int = LEASE_MS) -> Claim | None:
    """QUEUED -> PLANNING. Returns None if the job cannot be claimed."""
    with database.write() as session:
        return leases.claim(session, job_id, worker, database.now(session), lease_ms)


def claim(database: Database, job_id: str, worker: str = WORKER, *, lease_ms: int = LEASE_MS) -> Claim:
    """QUEUED -> PLANNING."""
    held = try_claim(database, job_id, worker, lease_ms=lease_ms)
    assert held is not None
    return held


def plan(database: Database, held: Claim, report: PlanReport = REPORT) -> None:
    """Stores a plan."""
    with database.write() as session:
        assert publication.save_plan(session, held, report, 7, database.now(session))


def run(database: Database, held: Claim) -> None:
    """PLANNING -> RUNNING, with some progress."""
    with database.write() as session:
        now = database.now(session)
        assert leases.mark_running(session, held, now)
        assert leases.save_progress(session, held, Progress(tasks_done=1, tasks_total=2), now)


def end(database: Database, held: Claim, ending: Ending) -> None:
    """Publishes the end of an attempt."""
    with database.write() as session:
        assert publication.publish(session, held, ending, database.now(session))


def fail(database: Database, held: Claim, error: Problem = FAILURE) -> None:
    """-> FAILED."""
    end(database, held, Ending(JobStatus.FAILED, error=error))


METRICS = AttemptMetrics(execution_ms=12, stages=(STAGE,), skew=SKEW, progress=DONE)


def succeed(
    database: Database, held: Claim, results: Path, table: pa.Table, files: int = 1, metrics: AttemptMetrics = METRICS
) -> None:
    """-> SUCCEEDED, with `table` as its result in this number of files."""
    path = f"{held.job_id}/attempt-{held.fence}"
    directory = results / path
    directory.mkdir(parents=True)
    rows_a_file = -(-table.num_rows // files) or 1
    for index in range(files):
        part = table.slice(index * rows_a_file, rows_a_file)
        pq.write_table(part, directory / f"part-{index:05}.parquet", row_group_size=3)
    size = sum(file.stat().st_size for file in directory.iterdir())
    end(
        database,
        held,
        Ending(
            JobStatus.SUCCEEDED,
            result=PublishedResult(path, table.num_rows, size),
            metrics=metrics,
        ),
    )


def run_whole(
    database: Database, job_id: str, results: Path, table: pa.Table, files: int = 1, metrics: AttemptMetrics = METRICS
) -> None:
    """QUEUED -> PLANNING -> RUNNING -> SUCCEEDED."""
    held = claim(database, job_id)
    plan(database, held)
    run(database, held)
    succeed(database, held, results, table, files, metrics)


def beat(database: Database) -> None:
    """Writes a worker's heartbeat."""
    with database.write() as session:
        workers.record_heartbeat(session, WORKER, database.now(session), "0.1.0")


def add_finished(database: Database, like: str, number: int) -> list[str]:
    """Stores copies of a job as SUCCEEDED jobs, submitted a second apart, and returns their ids."""
    with database.write() as session:
        found = session.execute(select(JobRow.__table__).where(JobRow.id == like)).mappings().one()
        row = {column.key: found[column] for column in JobRow.__table__.columns}
        ended = {**row, "status": "SUCCEEDED", "version": 5, "fence": 1, "started_at": row["submitted_at"]}
        jobs = [
            {**ended, "id": str(uuid.uuid4()), "submitted_at": at, "finished_at": at + 500, "updated_at": at + 500}
            for at in (row["submitted_at"] - 1_000 * (number - place) for place in range(number))
        ]
        for start in range(0, number, _ROWS_PER_INSERT):
            session.execute(insert_rows(JobRow), jobs[start : start + _ROWS_PER_INSERT])
    return [job["id"] for job in jobs]


def write_attempts(results: Path, job_id: str, *fences: int) -> None:
    """Writes a directory with one file for each of these attempts of a job."""
    for fence in fences:
        directory = results / job_id / f"attempt-{fence}"
        directory.mkdir(parents=True)
        (directory / "part-0.parquet").write_bytes(b"rows")


def attempts_left(results: Path) -> list[str]:
    """Returns the paths in the directories of jobs, relative to `results`."""
    return sorted(str(path.relative_to(results)) for path in results.glob("*/*"))
