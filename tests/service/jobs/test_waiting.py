"""In which queue a job waits, and what for, as a client sees it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from service.broker.dispatch import Dispatcher, JobAnnouncer
from service.config.settings import Settings
from service.contract.enums import Mode, Queue
from service.contract.job import JobSpec
from service.jobs.known_jobs import JobKey, KnownJobs
from service.jobs.read_jobs import list_jobs
from service.jobs.submit_job import Submission, submit_job
from service.jobs.views import Job
from service.store import jobs, workers
from service.store.jobs import JobFilter
from service.store.session import Database
from service.store.tables import JobRow
from service.store.workers import WorkerFacts
from tests.support import lifecycle
from tests.support.lifecycle import SPEC, STREAM_TABLES, TENANT


def submit(database: Database, settings: Settings, /, kind: str = jobs.RUN, **changes: Any) -> Job:
    """The job, of which the workers have been told."""
    submission = Submission(TENANT, JobSpec.model_validate({**SPEC, **changes}), "", None, kind)
    with closing(JobAnnouncer(database, Dispatcher(settings))) as announcer:
        return submit_job(database, announcer, settings, submission).job


def messages(settings: Settings) -> list[str]:
    return sorted(path.name.split(".", 1)[1] for path in (settings.broker_dir / "messages").iterdir())


@pytest.mark.parametrize(
    ("given", "long_from", "queue"),
    [
        ("auto", "10GB", "short"),
        ("auto", "1", "long"),
        ("auto", "0", "long"),
        ("long", "10GB", "long"),
        ("short", "1", "short"),
    ],
)
def test_the_size_of_its_tables_decides_unless_it_says_so(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch, given: str, long_from: str, queue: str
) -> None:
    monkeypatch.setenv("EVENKEEL_API_LONG_JOB_BYTES", long_from)
    job = submit(database, Settings(), queue=given)
    assert (job.queue, job.spec["queue"]) == (queue, given)
    assert messages(settings) == ["evenkeel.msg" if queue == "short" else "evenkeel.long.msg"]
    with database.read() as session:
        row = session.get_one(JobRow, job.id)
    assert (row.queue, row.spec_version) == (queue, 3)
    # The first version, which knows no `queue`, can run a job that says nothing of it.
    assert row.spec.get("queue", "auto") == given
    assert ("queue" in row.spec) == (given != "auto")


def test_an_explanation_is_short(database: Database, settings: Settings) -> None:
    assert submit(database, settings, kind=jobs.EXPLAIN, queue="long").queue == "short"


@pytest.mark.parametrize(("kind", "isolated"), [(jobs.RUN, True), (jobs.EXPLAIN, False)])
def test_an_explanation_needs_no_driver_of_its_own(
    database: Database, settings: Settings, kind: str, isolated: bool
) -> None:
    job = submit(database, settings, kind=kind, settings={"isolation": "driver"})
    with database.read() as session:
        row = session.get_one(JobRow, job.id)
    assert (row.isolated, row.spec_version) == (isolated, 17)


def test_an_older_worker_leaves_the_job_to_newer_ones(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(database, settings, settings={"isolation": "driver"})
    with monkeypatch.context() as older:
        older.setattr("service.store.transitions.UNDERSTOOD", JobRow.spec_version <= 16)
        assert lifecycle.try_claim(database, job.id) is None
    claim = lifecycle.try_claim(database, job.id)
    assert claim is not None
    assert claim.isolated


def test_an_explanation_of_a_stream_is_none(database: Database, settings: Settings) -> None:
    job = submit(database, settings, kind=jobs.EXPLAIN, mode="continuous", tables=STREAM_TABLES)
    assert (job.queue, job.mode) == ("short", Mode.BATCH)
    # Workers of the version before do not know the words, though.
    with database.read() as session:
        assert session.get_one(JobRow, job.id).spec_version == 4


def test_who_must_come_is_told(database: Database, settings: Settings) -> None:
    job = submit(database, settings, queue="long")
    assert job.waiting_for == "worker"

    def waits_for() -> str | None:
        key = JobKey(TENANT, job.id)
        return KnownJobs().read(database, settings, {key})[key].waiting_for

    def beat(worker: str, queues: str | None) -> None:
        with database.write() as session:
            workers.record_heartbeat(session, worker, database.now(session), "1", WorkerFacts(queues=queues))

    beat("old", None)
    beat("short", "short")
    assert waits_for() == "worker", "nobody listens to the long queue"
    beat("both", "short,long")
    assert waits_for() == "slot"
    held = lifecycle.claim(database, job.id)
    assert waits_for() is None
    lifecycle.run(database, held)
    assert waits_for() is None


def test_a_list_of_one_queue(database: Database, settings: Settings) -> None:
    long = submit(database, settings, queue="long")
    short = submit(database, settings)

    def listed(queue: Queue | None) -> list[str]:
        page = list_jobs(database, settings, TENANT, JobFilter(queue=queue), "", 10)
        return [job.id for job in page.jobs]

    assert listed(Queue.LONG) == [long.id]
    assert listed(Queue.SHORT) == [short.id]
    assert sorted(listed(None)) == sorted([long.id, short.id])
