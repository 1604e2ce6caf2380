"""The supervisor of continuous streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.config.settings import Settings
from service.contract.enums import Mode, Queue
from service.store import leases
from service.store.attempts import Claim
from service.store.jobs import NewJob, insert_jobs
from service.store.session import Database
from service.store.streaming_state import StreamStopReason
from service.store.tables import JobRow
from tests.support.processes import start_python, wait_for
from workers.jobs.attempt import Attempt, RunningAttempts, StopReason
from workers.jobs.outcome import StreamStop, Verdict
from workers.process.job_runner import JobRunner
from workers.streams.attempt import StreamAttempt
from workers.streams.supervisor import StreamSupervisor

ROOT = Path(__file__).parents[3]
RESTS = StreamStop(StreamStopReason.STOPPED)


class Scripted:
    """A stream that does at each look what it is told to; the last thing over and over."""

    def __init__(self, number: int, *looks: Callable[[], Verdict | None]) -> None:
        claim = Claim(f"job-{number}", "default", "run", "a job", {}, 1, "w1", 0, 0, 0)
        self.attempt = Attempt(claim, float("inf"))
        self.looks = list(looks)
        self.looked = 0
        self.closed = 0

    def step(self) -> Verdict | None:
        """See `StreamAttempt`."""
        self.looked += 1
        return self.looks[min(self.looked, len(self.looks)) - 1]()

    def close(self) -> None:
        """See `StreamAttempt`."""
        self.closed += 1


def goes_on() -> None:
    """No verdict yet."""


def rests() -> Verdict:
    return RESTS


def fails() -> Verdict:
    raise OperationalError("UPDATE", None, ValueError("away"))


class Watched:
    """A supervisor of two streams at most, and what it published."""

    def __init__(self) -> None:
        self.running_attempts = RunningAttempts()
        self.ended: list[tuple[str, Verdict]] = []
        self.supervisor = StreamSupervisor(self.running_attempts, self._end, 2)

    def add(self, stream: Scripted) -> None:
        """Hands a stream over, as a runner's thread does."""
        with self.running_attempts.holding(stream.attempt):
            self.supervisor.watch(_as_stream(stream))

    def step_until(self, probe: Callable[[], Any]) -> None:
        """Looks at the streams until something holds."""

        def poll() -> Any:
            self.supervisor.step()
            return probe()

        wait_for("the supervisor", poll, 30)

    def _end(self, stream: StreamAttempt, verdict: Verdict) -> None:
        self.ended.append((stream.attempt.claim.job_id, verdict))


def _as_stream(stream: Scripted) -> StreamAttempt:
    return stream  # type: ignore[return-value]


@pytest.fixture
def watched() -> Iterator[Watched]:
    own = Watched()
    yield own
    own.supervisor.close()


def test_a_stream_is_supervised_until_its_verdict(watched: Watched) -> None:
    stream = Scripted(1, goes_on, goes_on, rests)
    watched.add(stream)
    assert watched.running_attempts.all() == (stream.attempt,), "its thread has left, and it is still at hand"
    watched.step_until(lambda: not watched.running_attempts.all())
    assert watched.ended == [("job-1", RESTS)]
    assert (stream.looked, stream.closed) == (3, 1)
    watched.supervisor.step()
    assert stream.looked == 3


def test_an_unavailable_database_ends_no_stream(watched: Watched) -> None:
    stream = Scripted(1, fails, fails, goes_on, rests)
    watched.add(stream)
    watched.step_until(lambda: not watched.running_attempts.all())
    assert (watched.ended, stream.looked) == ([("job-1", RESTS)], 4)


def test_a_stream_that_blocks_its_thread_does_not_delay_others(watched: Watched) -> None:
    go_on = threading.Event()

    def hangs() -> None:
        assert go_on.wait(30)

    slow, quick = Scripted(1, hangs, rests), Scripted(2, goes_on, rests)
    watched.add(slow)
    watched.add(quick)
    watched.step_until(lambda: watched.ended)
    assert watched.ended == [("job-2", RESTS)]
    assert slow.looked == 1, "nobody else looks at it meanwhile"
    go_on.set()
    watched.step_until(lambda: len(watched.ended) == 2)


def test_a_worker_takes_streams_up_to_its_limit(watched: Watched) -> None:
    streams = [Scripted(1, goes_on), Scripted(2, goes_on, rests)]
    for stream in streams:
        assert not watched.supervisor.is_full
        watched.add(stream)
    assert watched.supervisor.is_full
    watched.step_until(lambda: watched.ended)
    wait_for("its place", lambda: not watched.supervisor.is_full)


def test_a_stream_that_is_being_started_occupies_a_slot(watched: Watched) -> None:
    watched.add(Scripted(1, goes_on))
    with watched.supervisor.starting() as place, watched.supervisor.starting() as other:
        take = watched.supervisor.take
        assert take(place)
        assert take(place), "it is its own"
        assert (take(other), watched.supervisor.is_full) == (False, True)
        started = Scripted(2, goes_on, rests)
        with watched.running_attempts.holding(started.attempt):
            watched.supervisor.watch(_as_stream(started), place)
        assert not take(other), "the stream is there in its stead"
        watched.step_until(lambda: watched.ended)
        wait_for("its place", lambda: take(other))
    assert not watched.supervisor.is_full, "what did not come to a stream is left"


HANGS = """
import threading
from tests.workers.streams.test_streams import Scripted, Watched

begun = threading.Event()

def hangs():
    begun.set()
    threading.Event().wait()

watched = Watched()
watched.add(Scripted(1, hangs))
watched.supervisor.step()
assert begun.wait(30)
watched.supervisor.close()
"""


@pytest.mark.not_quick
def test_a_step_that_hangs_does_not_delay_the_end_of_the_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start_python(["-c", HANGS], environment={"PYTHONPATH": str(ROOT)}, log=log, cwd=tmp_path)
    try:
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


class Planning:
    """A driver at which a stream comes no further than its planning, during which something else happens."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], None] = lambda: None

    def driver(self) -> Any:
        """See `DriverSource`."""
        return self

    @contextmanager
    def labelled(self, _tag: str, _pool: str, _description: str) -> Iterator[None]:
        """See `Driver`."""
        self.meanwhile()
        raise RuntimeError("no further")
        yield

    def has_ended(self, _seconds: float) -> bool:
        """See `Driver`."""
        return False


def test_streams_that_are_being_planned_count(
    settings: Settings, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, driver = sqlite_database, Planning()
    tables = {"t": {"format": "rate", "rows_per_second": 1}}
    spec = {"name": "j", "tables": tables, "sql": "SELECT value FROM t", "mode": "continuous"}
    with database.write() as session:
        for number, queue in enumerate((Queue.STREAM, Queue.STREAM, Queue.SHORT)):
            new = NewJob(f"job-{number}", "default", "run", "j", spec, None, 1, 0, queue=queue, mode=Mode.CONTINUOUS)
            insert_jobs(session, [new], number)

    def statuses() -> list[str]:
        with database.read() as session:
            return list(session.scalars(select(JobRow.status).order_by(JobRow.id)))

    runner = JobRunner(
        settings, database, driver, RunningAttempts(), "w1", lambda *_: None, pause=lambda _: None, most_streams=1
    )
    seen: list[object] = []
    claim = leases.claim

    def claim_handed_back(session: Session, job_id: str, *given: Any) -> Claim | None:
        session.execute(update(JobRow).where(JobRow.id == job_id).values(status="QUEUED"))
        return claim(session, job_id, *given)

    def handed_back_before_it_is_claimed(job_id: str) -> bool:
        with database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(status="PLANNING"))
        with monkeypatch.context() as patched:
            patched.setattr(leases, "claim", claim_handed_back)
            claimed = runner.run(job_id)
        with database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(status="QUEUED"))
        return claimed

    def meanwhile() -> None:
        driver.meanwhile = lambda: None
        seen.append(runner.run("job-1"))
        seen.append(handed_back_before_it_is_claimed("job-1"))
        seen.append(runner.run_next([queue.value for queue in Queue]))
        seen.append(runner.run_next([queue.value for queue in Queue]))
        seen.append(statuses())

    driver.meanwhile = meanwhile
    assert runner.run("job-0")
    # Nobody's place is taken by the job of another queue, which alone was run.
    assert seen == [False, False, True, False, ["PLANNING", "QUEUED", "STOPPED"]]
    assert runner.run("job-1"), "there is room again"


def test_a_stream_that_starts_on_a_draining_worker_stops_at_once(watched: Watched) -> None:
    early, late = Scripted(1, goes_on), Scripted(2, goes_on)
    watched.add(early)
    watched.running_attempts.refuse()
    assert early.attempt.reason is StopReason.WORKER_STOPPING
    watched.add(late)
    assert late.attempt.reason is StopReason.WORKER_STOPPING
