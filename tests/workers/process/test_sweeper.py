"""The sweeper: one of many workers announces jobs after the commit, ends lost attempts and removes useless files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import update

from service.config.settings import LimitSettings, WorkerSettings
from service.contract.job import SPEC_VERSION
from service.data.posted_rows import hidden_path, stream_directory, write_hidden
from service.store import events, leases, workers
from service.store import input_streams as ingest
from service.store.jobs import effective_status
from service.store.session import Database
from service.store.tables import JobRow
from service.streams.manage_streams import declare_stream
from tests.support import lifecycle
from tests.support.clocks import ManualClock
from workers.jobs.attempt import Attempt, RunningAttempts
from workers.process.heartbeat import Heartbeat
from workers.process.maintenance import Sweeper

SETTINGS = WorkerSettings(lease_seconds=30, sweep_seconds=5, ring_again_seconds=10)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def add(database: Database, job_id: str = "job-1", *, kind: str = "run", max_attempts: int = 1) -> None:
    lifecycle.insert(database, job_id, kind=kind, max_attempts=max_attempts, timeout_ms=60_000)


def status(database: Database, job_id: str = "job-1") -> str | None:
    with database.read() as session:
        row = session.get(JobRow, job_id)
        return None if row is None else row.status


class Announcements:
    """Records the announced jobs; the broker does not accept the message of `refused`."""

    def __init__(self, refused: str = "") -> None:
        self.announced: list[str] = []
        self._refused = refused

    def __call__(self, job_id: str, _queue: str) -> bool:
        self.announced.append(job_id)
        return job_id != self._refused


def sweeper(database: Database, results: Path, announce: Callable[[str, str], bool], worker: str = "w1") -> Sweeper:
    def beat() -> None:
        with database.write() as session:
            workers.record_heartbeat(session, worker, database.now(session), "0")

    return Sweeper(database, worker, SETTINGS, results, announce, beat, connect_seconds=2)


def steps(own: Sweeper, clock: ManualClock, count: int) -> None:
    """As many, five seconds before each."""
    for _ in range(count):
        clock.ms += 5_000
        own.step()


def started(own: Sweeper, clock: ManualClock) -> Sweeper:
    """One that has waited for the others, as every new one does."""
    own.step()
    steps(own, clock, 3)
    return own


def test_a_lost_job_is_announced_after_the_commit(database: Database, clock: ManualClock, tmp_path: Path) -> None:
    add(database, max_attempts=2)
    lifecycle.claim(database, "job-1", "w9")
    seen: list[tuple[str, str | None]] = []

    def announce(job_id: str, _queue: str) -> bool:
        seen.append((job_id, status(database)))
        return True

    own = started(sweeper(database, tmp_path, announce), clock)
    assert seen == []
    steps(own, clock, 3)
    assert seen == [("job-1", "QUEUED")]


def test_a_job_without_attempts_left_leaves_no_files(database: Database, clock: ManualClock, tmp_path: Path) -> None:
    add(database)
    lifecycle.claim(database, "job-1", "w9")
    results = tmp_path / "results"
    (results / "job-1" / "attempt-1").mkdir(parents=True)
    (results / "job-2" / "attempt-1").mkdir(parents=True)
    announcements = Announcements()
    steps(started(sweeper(database, results, announcements), clock), clock, 3)
    assert (status(database), announcements.announced) == ("CRASHED", [])
    assert [path.name for path in results.iterdir()] == ["job-2"]


def test_rows_that_a_process_left_hidden_are_shown(database: Database, clock: ManualClock, tmp_path: Path) -> None:
    declare_stream(database, tmp_path, LimitSettings(), "default", "clicks", "uid INT")
    segment = write_hidden(tmp_path, pa.table({"uid": pa.array([7], pa.int32())}))
    os.utime(hidden_path(tmp_path, segment.id), (1, 1))
    with database.write() as session:
        stream = ingest.find_stream(session, "default", "clicks")
        assert stream is not None
        new = ingest.NewBatch("b", "0" * 64, segment.id, segment.rows, segment.bytes)
        ingest.insert_batch(session, stream, new, database.now(session))

    def sweeper_of(worker: str) -> Sweeper:
        beat = Heartbeat(database, worker, RunningAttempts(), 30_000).step
        return Sweeper(database, worker, SETTINGS, tmp_path, Announcements(), beat, streams=tmp_path)

    sweeper(database, tmp_path, Announcements(), "leader").step()
    sweeper_of("another").step()
    directory = stream_directory(tmp_path, "default", "clicks", stream.id)
    assert list(directory.iterdir()) == []
    clock.ms += 60_000
    sweeper_of("another").step()
    (file,) = directory.iterdir()
    assert pq.read_table(file).column("uid").to_pylist() == [7]


@pytest.mark.withstands(
    "the sweeping worker stops",
    how="its lease expires by the injected clock",
    times=1,
    guaranteed="another worker sweeps",
)
def test_one_sweeps_for_all_and_is_replaced(database: Database, clock: ManualClock, tmp_path: Path) -> None:
    add(database)
    announcements_of = {"w1": Announcements(), "w2": Announcements()}
    first, second = (
        sweeper(database, tmp_path, announcements, worker) for worker, announcements in announcements_of.items()
    )

    def step_both(seconds: int) -> tuple[int, int]:
        for _ in range(0, seconds, 5):
            clock.ms += 5_000
            first.step()
            second.step()
        return len(announcements_of["w1"].announced), len(announcements_of["w2"].announced)

    assert step_both(10) == (1, 0)
    first.resign()
    clock.ms += 5_000
    second.step()
    assert step_both(20) == (1, 1), "the second one leads until it falls silent"
    for _ in range(9):
        clock.ms += 5_000
        first.step()
    assert (len(announcements_of["w1"].announced), len(announcements_of["w2"].announced)) == (2, 1)


def test_a_new_worker_lets_others_renew_first(database: Database, clock: ManualClock, tmp_path: Path) -> None:
    add(database)
    with database.write() as session:
        claim = leases.claim(session, "job-1", "w9", clock.ms, 30_000)
    assert claim is not None
    # The database was away for longer than the lease and the term of who swept; a worker starts as it comes back.
    clock.ms += 40_000
    own = sweeper(database, tmp_path, Announcements())
    own.step()
    # Nine seconds later the one that has the job has found the database again.
    clock.ms += 5_000
    own.step()
    clock.ms += 4_000
    with database.write() as session:
        assert leases.renew(session, "w9", [claim], clock.ms, 30_000) == {claim}
    steps(own, clock, 5)
    assert status(database) == "PLANNING"
    steps(own, clock, 1)
    assert status(database) == "CRASHED", "it has not renewed since"


def test_a_new_worker_announces_what_waits_at_once(database: Database, clock: ManualClock, tmp_path: Path) -> None:
    add(database)
    clock.ms += 10_000
    announcements = Announcements()
    sweeper(database, tmp_path, announcements).step()
    assert announcements.announced == ["job-1"]


def test_after_a_pause_others_may_renew_first(database: Database, clock: ManualClock, tmp_path: Path) -> None:
    add(database)
    own = started(sweeper(database, tmp_path, Announcements()), clock)
    lifecycle.claim(database, "job-1", "w9")
    # The machine sleeps, and the worker that has the job sleeps with it.
    clock.ms += 3_600_000
    own.step()
    steps(own, clock, 2)
    assert status(database) == "PLANNING"
    steps(own, clock, 1)
    assert status(database) == "CRASHED"


@pytest.mark.not_quick
@pytest.mark.withstands(
    "the database's clock jumps",
    how="the injected clock jumps a day ahead and a day back during a job",
    times=2,
    guaranteed="the attempt of a live worker continues",
)
@pytest.mark.parametrize("jump", [86_400_000, -86_400_000])
def test_a_clock_that_jumps_ends_no_attempt_of_the_living(
    database: Database, clock: ManualClock, tmp_path: Path, jump: int
) -> None:
    add(database)
    own = started(sweeper(database, tmp_path, Announcements()), clock)
    with database.write() as session:
        claim = leases.claim(session, "job-1", "w9", clock.ms, 30_000)
    assert claim is not None
    clock.ms += jump
    own.step()
    for _ in range(20):
        clock.ms += 2_500
        own.step()
        with database.write() as session:
            assert leases.renew(session, "w9", [claim], clock.ms, 30_000) == {claim}
    assert status(database) == "PLANNING"


@pytest.mark.withstands(
    "the database's clock jumps and a worker dies",
    how="the injected clock jumps a day back while the sweeping worker dies with a job and another job's message is "
    "unsent",
    times=1,
    guaranteed="another worker sweeps within seconds: the lost job is announced again, and the message is sent",
)
def test_a_clock_that_goes_back_hides_nothing_that_was_lost(
    database: Database, clock: ManualClock, tmp_path: Path
) -> None:
    for job_id in ("job-1", "owed", "rung"):
        add(database, job_id, max_attempts=2)
    started(sweeper(database, tmp_path, Announcements(), "w9"), clock)
    lifecycle.claim(database, "job-1", "w9")
    with database.write() as session:
        events.add_message(session, job_id="owed", tenant="default", now=clock.ms)
    clock.ms -= 86_400_000
    announcements = Announcements()
    own = sweeper(database, tmp_path, announcements)
    own.step()
    assert set(announcements.announced) == {"owed", "rung"}
    with database.read() as session:
        row = session.get_one(JobRow, "job-1")
        assert (row.status, effective_status(row, clock.ms)) == ("PLANNING", "QUEUED")
    steps(own, clock, 4)
    assert (status(database), "job-1" in announcements.announced) == ("QUEUED", True)


def test_where_every_step_is_late_somebody_sweeps_all_the_same(
    database: Database, clock: ManualClock, tmp_path: Path
) -> None:
    add(database)
    own = started(sweeper(database, tmp_path, Announcements()), clock)
    lifecycle.claim(database, "job-1", "w9")
    for _ in range(3):
        clock.ms += 3_600_000
        own.step()
        assert status(database) == "PLANNING"
    clock.ms += 3_600_000
    own.step()
    assert status(database) == "CRASHED"


def test_after_a_failure_others_may_renew_first(database: Database, clock: ManualClock, tmp_path: Path) -> None:
    add(database)
    failing = False

    def beat() -> None:
        if failing:
            raise ConnectionError("no database")

    own = started(Sweeper(database, "w1", SETTINGS, tmp_path, Announcements(), beat, connect_seconds=2), clock)
    lifecycle.claim(database, "job-1", "w9")
    # Away twice: what came in between was no chance to renew.
    for _ in range(2):
        failing = True
        clock.ms += 30_000
        with pytest.raises(ConnectionError):
            own.step()
        failing = False
        own.step()
        steps(own, clock, 2)
        assert status(database) == "PLANNING"
    steps(own, clock, 1)
    assert status(database) == "CRASHED"


def test_its_own_leases_are_renewed_before_the_sweep(database: Database, clock: ManualClock, tmp_path: Path) -> None:
    add(database)
    with database.write() as session:
        claim = leases.claim(session, "job-1", "w1", clock.ms, 30_000)
    assert claim is not None
    running_attempts = RunningAttempts()
    heartbeat = Heartbeat(database, "w1", running_attempts, 8_000)
    with running_attempts.holding(Attempt(claim, 0.0)):
        own = started(Sweeper(database, "w1", SETTINGS, tmp_path, Announcements(), heartbeat.step), clock)
        # Its leases have run out each time, and no step is so late that it waits for others.
        for _ in range(5):
            clock.ms += 9_000
            own.step()
    assert status(database) == "PLANNING"


def test_no_more_jobs_are_announced_than_workers_have_slots(
    database: Database, clock: ManualClock, tmp_path: Path
) -> None:
    for number in range(12):
        add(database, f"job-{number:02}")
    clock.ms += 10_000
    with database.write() as session:
        workers.record_heartbeat(session, "w2", clock.ms, "0")
    announcements = Announcements()
    sweeper(database, tmp_path, announcements).step()
    assert len(announcements.announced) == 8, "two workers with four threads each"


def test_a_silent_broker_is_tried_once(database: Database, clock: ManualClock, tmp_path: Path) -> None:
    for number in range(3):
        add(database, f"job-{number}")
        with database.write() as session:
            events.add_message(session, job_id=f"job-{number}", tenant="default", now=clock.ms)
    clock.ms += 2_000
    announcements = Announcements(refused="job-1")
    sweeper(database, tmp_path, announcements).step()
    assert announcements.announced == ["job-0", "job-1"]
    assert status(database, "job-2") == "QUEUED", "it is announced like every job that nobody claims"


def test_forgotten_explanations_are_removed(database: Database, clock: ManualClock, tmp_path: Path) -> None:
    add(database, kind="explain")
    own = sweeper(database, tmp_path, Announcements())
    own.step()
    assert status(database) == "QUEUED"
    clock.ms += 11 * 60_000
    own.step()
    assert status(database) is None


def test_workers_that_fell_silent_are_forgotten(database: Database, clock: ManualClock, tmp_path: Path) -> None:
    with database.write() as session:
        workers.record_heartbeat(session, "gone", clock.ms, "0")
        clock.ms += workers.KEPT_MS
        workers.record_heartbeat(session, "silent", clock.ms - workers.KEPT_MS + 1, "0")
    clock.ms += 1
    sweeper(database, tmp_path, Announcements()).step()
    with database.read() as session:
        assert {row.id for row in workers.list_workers(session, 0)} == {"silent", "w1"}


def test_a_job_of_a_newer_version_is_announced_only_while_such_a_worker_lives(
    database: Database, clock: ManualClock, tmp_path: Path
) -> None:
    add(database)
    with database.write() as session:
        session.execute(update(JobRow).values(spec_version=SPEC_VERSION + 1))
    announcements, running_attempts = Announcements(), RunningAttempts()
    own = Sweeper(
        database, "w1", SETTINGS, tmp_path, announcements, Heartbeat(database, "w1", running_attempts, 30_000).step
    )
    for _ in range(30):
        clock.ms += 5_000
        own.step()
    assert (status(database), announcements.announced) == ("QUEUED", [])
    with database.write() as session:
        workers.record_heartbeat(session, "w2", clock.ms, "a newer one")
    clock.ms += 5_000
    own.step()
    assert (status(database), announcements.announced) == ("QUEUED", ["job-1"])
