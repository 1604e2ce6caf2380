"""A stream on real Spark, from its start to each way to end, and one whose driver is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JNetworkError

from service.contract.enums import AttemptStatus
from service.contract.problems import SpecError
from service.contract.tables import TableSource
from service.data.roots import StoreUnavailableError
from service.store.attempts import Claim
from service.store.session import Database
from service.store.streaming_state import StreamStopReason
from tests.support.processes import wait_for
from tests.support.stored_streams import stream_of
from workers.engine.streaming.sinks.base import FenceLostError, SinkError, Staged
from workers.engine.streaming.sources import SourceRead
from workers.jobs.attempt import Attempt, StopReason
from workers.jobs.outcome import HandBack, LeaseLost, StreamStop
from workers.metrics import WorkerMetrics
from workers.streams.attempt import Following, Opened, StreamAttempt
from workers.streams.backlog import BacklogWatch
from workers.streams.batch_metrics import StreamMetrics
from workers.streams.fencing import StreamFence
from workers.streams.lookup_table_polling import FollowedTable, TableChecks
from workers.streams.lookup_table_versions import BatchVersions, TableVersions
from workers.streams.lookup_tables import LookupTables

if TYPE_CHECKING:
    from workers.driver.driver import Driver
    from workers.engine.streaming.query import RunningStream

pytestmark = [pytest.mark.spark, pytest.mark.one_database]

OFTEN = timedelta(milliseconds=50)
SECONDS = 60


@dataclass
class Sunk:
    """A sink that counts rows; raises `failure` where that is given."""

    failure: Exception | None = None
    numbers: list[int] = field(default_factory=list)
    rows: int = 0
    closed: bool = False

    def prepare(self) -> None:
        """See `Sink`."""

    def committed(self) -> int | None:
        """See `Sink`."""
        return self.numbers[-1] if self.numbers else None

    def commit(self, batch_id: int, staged: Staged) -> None:
        """See `Sink`."""
        if self.failure is not None:
            raise self.failure
        self.rows += staged.rows
        self.numbers.append(batch_id)

    def tidy(self) -> None:
        """See `Sink`."""

    def close(self) -> None:
        """See `Sink`."""
        self.closed = True


def unmeasured(database: Database) -> StreamMetrics:
    """Metrics without a backlog."""
    backlog = BacklogWatch((), Path("missing"), database, ())
    return StreamMetrics(Path("missing"), backlog, None, WorkerMetrics())


class Lane:
    """A directory that is read as a stream, and all that an attempt at it needs."""

    def __init__(self, directory: Path, database: Database, driver: Driver, held: Claim) -> None:
        self.sink = Sunk()
        self.attempt = Attempt(held, float("inf"))
        self.attempt.streams = True
        self.attempt.driver = driver
        self.checkpoint = directory / "checkpoint"
        self._rows = directory / "rows"
        self._rows.mkdir()
        self._directory = directory
        self._database = database
        self._driver = driver
        self._files = 0

    def add(self, rows: int) -> None:
        """One more file."""
        self._files += 1
        hidden = self._rows / f".{self._files}.parquet"
        pq.write_table(pa.table({"v": list(range(rows))}), hidden)
        hidden.rename(self._rows / f"{self._files}.parquet")

    def start(self, every: timedelta | None) -> StreamAttempt:
        """An attempt that is under way."""
        opened = Opened(
            self.sink, 1, lambda: (SourceRead("rows", 1),), lambda: self._start(every), unmeasured(self._database)
        )
        return StreamAttempt(self.attempt, opened, self._database)

    def _start(self, every: timedelta | None) -> RunningStream:
        from service.contract.enums import OutputMode
        from service.contract.options import StateProvider
        from workers.engine.streaming.query import BatchFunction, RunningStream, Stage, Trigger
        from workers.engine.streaming.state import StateOptions, prepare_session

        session = self._driver.session_for_job()
        prepare_session(session, StateOptions(StateProvider.ROCKSDB, 1))
        frame = session.readStream.schema("v BIGINT").parquet(f"file://{self._rows}")
        batch = BatchFunction(
            Stage(self._directory / "stage", 1), self.sink, StreamFence(self._database, self.attempt, 1)
        )
        return RunningStream.start(frame, OutputMode.APPEND, self.checkpoint, Trigger(every), batch)


@pytest.fixture
def lane(tmp_path: Path, database: Database, driver: Driver, held: Claim) -> Iterator[Lane]:
    yield Lane(tmp_path, database, driver, held)
    for query in driver.root.streams.active:
        query.stop()


def verdict_of(started: StreamAttempt) -> Any:
    """Looks at it until there is a verdict."""
    return wait_for("a verdict", lambda: started.wait(0.05) and started.step(), SECONDS)


def step_until(started: StreamAttempt, probe: Callable[[], object]) -> None:
    def poll() -> object:
        assert started.step() is None
        return probe()

    wait_for("the stream to get on", poll, SECONDS)


def test_a_stream_that_has_caught_up_stops(lane: Lane, database: Database) -> None:
    lane.add(10)
    started = lane.start(None)
    assert verdict_of(started) == StreamStop(StreamStopReason.CAUGHT_UP)
    started.close()
    assert (lane.sink.rows, lane.sink.closed) == (10, True)
    assert (
        stream_of(database, "job-1").last_batch,
        stream_of(database, "job-1").rows_in,
        stream_of(database, "job-1").rows_out,
    ) == (0, 10, 10)
    metrics = stream_of(database, "job-1").metrics
    assert metrics is not None
    assert metrics["duration_ms"] > 0


def test_a_stream_runs_until_it_must_stop(lane: Lane, database: Database) -> None:
    started = lane.start(OFTEN)
    lane.add(3)
    step_until(started, lambda: stream_of(database, "job-1").rows_in == 3)
    lane.add(4)
    step_until(started, lambda: stream_of(database, "job-1").rows_in == 7)
    lane.attempt.stop(StopReason.STOP_REQUESTED)
    assert started.step() == StreamStop(StreamStopReason.STOPPED)
    assert started.wait(0.01)
    assert lane.sink.numbers == [0, 1]


def test_a_draining_worker_hands_its_stream_back_between_mini_batches(lane: Lane) -> None:
    lane.add(3)
    started = lane.start(OFTEN)
    step_until(started, lambda: lane.sink.numbers)
    lane.attempt.stop(StopReason.WORKER_STOPPING)
    verdict = started.step()
    assert isinstance(verdict, HandBack)
    assert verdict.status is AttemptStatus.CANCELLED
    assert started.wait(0.01)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (FenceLostError("Attempt 2 writes."), LeaseLost()),
        (SinkError("The table has another column."), "sink_failed"),
        (RuntimeError("a bug"), "internal_error"),
    ],
)
def test_what_a_mini_batch_raises_ends_the_stream(lane: Lane, failure: Exception, expected: object) -> None:
    lane.sink.failure = failure
    lane.add(3)
    verdict = verdict_of(lane.start(OFTEN))
    if isinstance(expected, str):
        assert verdict.because is StreamStopReason.FAILED
        assert verdict.error.code == expected
    else:
        assert verdict == expected


def test_an_interrupted_mini_batch_runs_again(lane: Lane) -> None:
    lane.sink.failure = SinkError("The table is away.")
    lane.add(3)
    assert isinstance(verdict_of(lane.start(None)), StreamStop)
    lane.sink.failure = None
    lane.add(4)
    assert verdict_of(lane.start(None)) == StreamStop(StreamStopReason.CAUGHT_UP)
    assert (lane.sink.numbers, lane.sink.rows) == ([0, 1], 7)


@pytest.mark.parametrize("log", ["sources/0", "offsets"])
def test_a_stream_runs_the_mini_batch_that_a_late_attempt_planned(lane: Lane, database: Database, log: str) -> None:
    lane.add(3)
    started = lane.start(OFTEN)
    # Nobody has measured it when the query ends, and is started again.
    wait_for("a mini-batch", (lane.checkpoint / "commits" / "0").exists, SECONDS)
    # What a late attempt writes that sees the next file first.
    version, *lines = (lane.checkpoint / log / "0").read_text().splitlines()
    planned = {
        "sources/0": [line.replace("/1.parquet", "/2.parquet").replace('"batchId":0', '"batchId":1') for line in lines],
        "offsets": [line.replace('{"logOffset":0}', '{"logOffset":1}') for line in lines],
    }[log]
    assert planned != lines
    (lane.checkpoint / log / "1").write_text("\n".join([version, *planned]))
    lane.add(4)
    assert started.wait(SECONDS)
    step_until(started, lambda: stream_of(database, "job-1").rows_in == 7)
    lane.add(5)
    step_until(started, lambda: stream_of(database, "job-1").rows_in == 12)
    assert (lane.sink.numbers, lane.sink.rows) == ([0, 1, 2], 12)


CHANGED = SpecError.of("files_changed", "The file has changed.")
AWAY = StoreUnavailableError("The store does not answer.", "Start it.")


@pytest.mark.parametrize(
    ("error", "reason", "check", "expected"),
    [
        (None, None, None, None),
        (None, None, CHANGED, "files_changed"),
        (None, None, AWAY, "storage_unavailable"),
        (None, StopReason.STOP_REQUESTED, CHANGED, "files_changed"),
        (SinkError("The table has another column."), None, CHANGED, "files_changed"),
        (SinkError("The table has another column."), None, AWAY, "sink_failed"),
    ],
)
def test_the_files_of_static_tables_are_checked_when_a_stream_ends(
    database: Database,
    held: Claim,
    error: Exception | None,
    reason: StopReason | None,
    check: Exception | None,
    expected: str | None,
) -> None:
    class Ended:
        """A query that has ended with the error."""

        is_active, has_ended = False, True

        def error(self) -> Exception | None:
            return error

        def stop_between_batches(self, _seconds: float, _clock: Callable[[], float]) -> None:
            """It is at nothing."""

    def check_at_end() -> None:
        if check is not None:
            raise check

    start: Any = Ended
    attempt = Attempt(held, float("inf"))
    if reason is not None:
        attempt.stop(reason)
    started = StreamAttempt(
        attempt, Opened(Sunk(), 1, tuple, start, unmeasured(database), check_at_end=check_at_end), database
    )
    verdict = started.step()
    assert isinstance(verdict, StreamStop)
    if expected is None:
        assert verdict == StreamStop(StreamStopReason.CAUGHT_UP)
    else:
        assert verdict.error is not None
        assert (verdict.because, verdict.error.code) == (StreamStopReason.FAILED, expected)


@pytest.mark.parametrize("error", [CHANGED, AWAY, SpecError.of("path_outside_data_roots", "It holds a link.")])
def test_files_that_ended_a_stream_are_not_checked_again(
    database: Database, held: Claim, error: SpecError | StoreUnavailableError
) -> None:
    class Ended:
        """A query that has ended with the error."""

        is_active, has_ended = False, True

        def error(self) -> Exception:
            return error

    start: Any = Ended
    checks: list[None] = []
    opened = Opened(Sunk(), 1, tuple, start, unmeasured(database), check_at_end=lambda: checks.append(None))
    verdict = StreamAttempt(Attempt(held, float("inf")), opened, database).step()
    assert isinstance(verdict, StreamStop)
    assert verdict.error is not None
    assert (verdict.error.code, checks) == (error.code, [])


def test_a_stop_does_not_wait_for_a_copy(tmp_path: Path, database: Database, held: Claim) -> None:
    class Endless:
        """A query that nothing comes of."""

        is_active = has_ended = True
        stops = 0

        def stop_between_batches(self, _seconds: float, _clock: Callable[[], float]) -> None:
            self.stops += 1

        def error(self) -> None:
            """None."""

        def progress(self, _after: int | None) -> tuple[()]:
            return ()

    (tmp_path / "roots" / "u").mkdir(parents=True)
    path = tmp_path / "roots" / "u" / "0.csv"
    path.write_text("1\n")
    begun, go_on = threading.Event(), threading.Event()
    attempt, sink, query = Attempt(held, float("inf")), Sunk(), Endless()
    attempt.streams = True

    def check() -> None:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            assert go_on.wait(60)
        attempt.check()

    looks = TableChecks(check, threading.BoundedSemaphore(1))
    source = TableSource.model_validate({"format": "csv", "path": "u/", "schema": "k INT"})
    table = FollowedTable("u", source, [tmp_path / "roots"], TableVersions(tmp_path / "u", "u", 1), looks.check)
    dimensions = LookupTables([table], BatchVersions(tmp_path / "versions", 1), tmp_path / "checkpoint", 0.0, looks)
    dimensions.open(lambda _: None)
    following = Following(dimensions, lambda: {"u": 1})
    start: Any = lambda: query  # noqa: E731
    started = StreamAttempt(
        attempt, Opened(sink, 1, tuple, start, unmeasured(database), ends=False, following=following), database
    )
    path.write_text("22\n")
    wait_for("the copy", lambda: started.step() is None and begun.is_set())
    assert started.step() is None
    attempt.stop(StopReason.STOP_REQUESTED)
    try:
        assert (started.step(), query.stops) == (StreamStop(StreamStopReason.STOPPED), 1)
    finally:
        go_on.set()
    started.close()
    assert (sink.closed, sorted(path.name for path in (tmp_path / "u").iterdir())) == (True, ["v1"])


def test_a_copy_of_one_table_does_not_delay_versions_of_others(tmp_path: Path, database: Database, held: Claim) -> None:
    class Quiet:
        """A query of which no mini-batch is under way."""

        is_active = has_ended = True

        def stop(self) -> None:
            """It is at nothing."""

        def end_between_batches(self, _seconds: float, _clock: Callable[[], float]) -> bool:
            return True

        def error(self) -> None:
            """None."""

        def progress(self, _after: int | None) -> tuple[()]:
            return ()

    go_on, planned = threading.Event(), []

    def check() -> None:
        if threading.current_thread() is not threading.main_thread() and any(tmp_path.glob("w/.draft-*")):
            assert go_on.wait(60)

    looks, tables = TableChecks(check, threading.BoundedSemaphore(1)), []
    for name in ("u", "w"):
        (tmp_path / "roots" / name).mkdir(parents=True)
        (tmp_path / "roots" / name / "0.csv").write_text("1\n")
        source = TableSource.model_validate({"format": "csv", "path": f"{name}/", "schema": "k INT"})
        versions = TableVersions(tmp_path / name, name, 1)
        tables.append(FollowedTable(name, source, [tmp_path / "roots"], versions, looks.check))
    dimensions = LookupTables(tables, BatchVersions(tmp_path / "versions", 1), tmp_path / "checkpoint", 0.0, looks)
    dimensions.open(lambda _: None)

    def start() -> Any:
        planned.append(dimensions.of_next_batch())
        return Quiet()

    following = Following(dimensions, lambda: planned[-1])
    attempt = Attempt(held, float("inf"))
    started = StreamAttempt(
        attempt, Opened(Sunk(), 1, tuple, start, unmeasured(database), ends=False, following=following), database
    )
    for name in ("u", "w"):
        (tmp_path / "roots" / name / "0.csv").write_text("22\n")
    try:
        step_until(started, lambda: len(planned) == 2)
    finally:
        go_on.set()
    step_until(started, lambda: len(planned) == 3)
    assert planned == [{"u": 1, "w": 1}, {"u": 2, "w": 1}, {"u": 2, "w": 2}]
    started.abandon()


def test_a_stream_whose_driver_is_lost_is_not_queried(lane: Lane) -> None:
    lane.add(3)
    started = lane.start(OFTEN)
    step_until(started, lambda: lane.sink.numbers)
    lane.attempt.stop(StopReason.DRIVER_LOST)
    verdict = started.step()
    assert isinstance(verdict, HandBack)
    assert verdict.status is AttemptStatus.CRASHED
    started.close()
    assert lane.sink.closed


def test_a_stop_succeeds_although_the_driver_has_ended(lane: Lane, database: Database) -> None:
    class Gone:
        """Whoever asks it gets what a JVM that is gone answers."""

        is_active = True
        has_ended = False

        def stop_between_batches(self, _seconds: float, _clock: Callable[[], float]) -> None:
            """Nobody is there to stop."""

        def error(self) -> None:
            raise Py4JNetworkError("gone")

        def progress(self, _after: int | None) -> None:
            raise Py4JNetworkError("gone")

    class Ended:
        def is_running(self) -> bool:
            return False

    lane.attempt.driver = Ended()  # type: ignore[assignment]
    opened = Opened(lane.sink, 1, tuple, Gone, unmeasured(database))  # type: ignore[arg-type]
    started = StreamAttempt(lane.attempt, opened, database)
    with pytest.raises(Py4JNetworkError):
        # Nothing is decided before the driver is given up.
        started.step()
    lane.attempt.stop(StopReason.STOP_REQUESTED)
    assert started.step() == StreamStop(StreamStopReason.STOPPED)
    started.close()
    assert lane.sink.closed
