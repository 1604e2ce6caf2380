"""The gauges of a scrape, and that its statements read only indexes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import event, update

from service.contract.enums import JobStatus, Queue
from service.store import leases
from service.store.events import add_message
from service.store.session import Database
from service.store.tables import JobRow
from service.store.workers import JobGauges, read_gauges
from tests.support.clocks import ManualClock
from tests.support.lifecycle import AddJob


def gauges(database: Database, now: int) -> JobGauges:
    with database.read() as session:
        return read_gauges(session, now, recent_ms=1_000)


def non_zero(found: JobGauges) -> dict[tuple[str, str], int]:
    return {key: number for key, number in found.counts.items() if number}


def change(database: Database, job_id: str, **values: object) -> None:
    with database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == job_id).values(**values))


def test_a_job_with_an_expired_lease_counts_as_queued(database: Database, clock: ManualClock, add_job: AddJob) -> None:
    add_job("a")
    with database.write() as session:
        assert leases.claim(session, "a", "w", clock.ms, 1_000)
    held, lost = (gauges(database, clock.ms + after) for after in (999, 1_000))
    assert (non_zero(held), dict(held.oldest_queued_at), held.expired_leases) == ({("PLANNING", "short"): 1}, {}, 0)
    assert non_zero(lost) == {("QUEUED", "short"): 1}
    assert (dict(lost.oldest_queued_at), lost.expired_leases) == ({"short": clock.ms}, 1)
    change(database, "a", status=JobStatus.CANCELLING.value)
    lost = gauges(database, clock.ms + 1_000)
    assert (non_zero(lost), lost.expired_leases) == ({("CANCELLING", "short"): 1}, 1)


def test_the_oldest_of_each_queue(database: Database, clock: ManualClock, add_job: AddJob) -> None:
    for number, queue in enumerate(("short", "long", "short", "long")):
        change(database, add_job(f"{number}"), queue=queue, submitted_at=100 + number)
    add_job("an explanation", kind="explain")
    with database.write() as session:
        assert leases.claim(session, "0", "w", clock.ms, 1_000)
        add_message(session, job_id="1", tenant="default", now=clock.ms)
    found = gauges(database, clock.ms)
    assert non_zero(found) == {("PLANNING", "short"): 1, ("QUEUED", "short"): 1, ("QUEUED", "long"): 2}
    assert (dict(found.oldest_queued_at), found.outbox) == ({"short": 102, "long": 101}, 1)
    assert dict(gauges(database, clock.ms + 1_000).oldest_queued_at) == {"short": 100, "long": 101}


def test_a_job_that_pauses_after_a_failure_is_not_the_oldest_queued(
    database: Database, clock: ManualClock, add_job: AddJob
) -> None:
    change(database, add_job("paused"), next_run_at=clock.ms + 1_000)
    found = gauges(database, clock.ms)
    assert (non_zero(found), dict(found.oldest_queued_at)) == ({("QUEUED", "short"): 1}, {})


def test_a_stopping_stream_without_its_worker_counts_as_stopped(
    database: Database, add_job: AddJob, clock: ManualClock
) -> None:
    change(database, add_job("a", queue=Queue.STREAM), status="STOPPING", lease_expires_at=clock.ms)
    found = gauges(database, clock.ms)
    assert (non_zero(found), dict(found.oldest_queued_at)) == ({("STOPPED", "stream"): 1}, {})
    assert non_zero(gauges(database, clock.ms - 1)) == {("STOPPING", "stream"): 1}


def test_what_ended_recently(database: Database, add_job: AddJob) -> None:
    for number, (status, at) in enumerate(
        (("FAILED", 5_000), ("FAILED", 4_000), ("SUCCEEDED", 4_500), ("SUCCEEDED", 3_999))
    ):
        change(database, add_job(f"{number}"), status=status, finished_at=at)
    found = gauges(database, 5_000)
    assert dict(found.ended_recently) == {"FAILED": 2, "SUCCEEDED": 1}
    assert non_zero(found) == {("FAILED", "short"): 2, ("SUCCEEDED", "short"): 2}


def test_no_statement_reads_all_jobs(sqlite_database: Database) -> None:
    """On SQLite, whose plans depend on the tables alone."""
    seen: list[tuple[str, Any]] = []

    def listen(_connection: object, _cursor: object, statement: str, parameters: Any, *_rest: object) -> None:
        seen.append((statement, parameters))

    event.listen(sqlite_database.engine, "before_cursor_execute", listen)
    gauges(sqlite_database, 1_000)
    event.remove(sqlite_database.engine, "before_cursor_execute", listen)
    plans = []
    with sqlite_database.read() as session:
        for statement, parameters in seen:
            if "FROM jobs" in statement:
                explained = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
                plans.append(str(explained.first()[-1]))  # type: ignore[index]
    everything = "ix_jobs_kind_status_queue_submitted_at"
    assert plans == [
        f"SEARCH jobs USING COVERING INDEX {everything} (kind=?)",
        # In its order, up to the first job that does not pause.
        *[f"SEARCH jobs USING INDEX {everything} (kind=? AND status=? AND queue=?)"] * 3,
        plans[4],
        "SEARCH jobs USING INDEX ix_jobs_finished_at (finished_at>?)",
    ]
    assert plans[4].startswith("SEARCH jobs USING INDEX ")
    assert "status=?" in plans[4]
