"""Streaming jobs on real Spark: successive runs, stops, refusals, explanations and repairs."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, update

from service.contract.enums import AttemptStatus, JobStatus
from service.contract.job import JobSpec
from service.data.roots import roots_of
from service.jobs.check_job import check_job
from service.jobs.lifecycle import with_settings
from service.store import jobs, streaming_jobs
from service.store.attempts import attempts_of
from service.store.jobs import EXPLAIN
from service.store.publication import report_of
from service.store.streaming_state import StreamStopReason, find_stream
from service.store.tables import JobRow, PlanRow
from tests.support.bench import Bench, SharedDriver
from tests.support.hanging import Hang, HangInJvm, LoopInPython, LoopWithChecks, WaitInPython
from tests.support.processes import wait_for
from tests.support.stream_runs import FIRST, PER_USER, add_orders, resume, rows, run, stream, supervised
from tests.support.tables import USERS, parquet
from workers.engine.streaming.engine import PlannedStream, StreamEngine
from workers.engine.streaming.query import RunningStream
from workers.engine.streaming.sinks.managed import ManagedSink
from workers.jobs.attempt import StopReason
from workers.process.job_runner import JobRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark


def test_one_run_after_the_other_uses_the_same_session(bench: Bench) -> None:
    before = len(bench.driver.idle_sessions)
    job_id = bench.submit(PER_USER)
    run(bench, job_id)
    resume(bench, job_id)
    run(bench, job_id)
    # Spark would keep a listener for each.
    assert len(bench.driver.idle_sessions) == max(1, before)


def test_an_incremental_job_counts_new_rows_each_time(bench: Bench) -> None:
    job_id = bench.submit(PER_USER)
    job = run(bench, job_id)
    assert (job.status, job.error, job.lease_owner) == (JobStatus.STOPPED, None, None)
    assert stream(bench, job_id).stopped_because == StreamStopReason.CAUGHT_UP
    assert rows(bench, job_id) == FIRST
    assert stream(bench, job_id).rows_in == 10_000
    done = stream(bench, job_id).last_batch
    metrics = stream(bench, job_id).metrics
    assert metrics is not None
    # The plan reads the table twice, and each time takes its files.
    nothing = {"files": 0, "rows": None, "bytes": 0, "oldest_seconds": None}
    assert metrics["backlog"]["tables"] == {"orders": nothing}
    assert [state["operator"] for state in metrics["state"]] == ["stateStoreSave", "dedupe"]
    for state in metrics["state"]:
        assert state["partitions"] == 2
        assert 0 < state["largest_changed_bytes"] < state["changed_bytes"] < 100_000
        assert 1 <= state["skew"] < 2
        # RocksDB has written no files yet: all changes since the first mini-batch are the state.
        assert state["state_bytes"] == state["changed_bytes"]

    resume(bench, job_id)
    assert run(bench, job_id).status == JobStatus.STOPPED
    assert (rows(bench, job_id), stream(bench, job_id).last_batch) == (FIRST, done)

    add_orders(bench, "part-9.parquet", [1, 1, 2], "new")
    resume(bench, job_id)
    assert run(bench, job_id).status == JobStatus.STOPPED
    assert rows(bench, job_id) == [[0, 100, 7], [1, 102, 8], [2, 101, 8]]
    assert stream(bench, job_id).rows_in == 10_003
    for state, first in zip((stream(bench, job_id).metrics or {})["state"], metrics["state"], strict=True):
        assert state["state_bytes"] == first["state_bytes"] + state["changed_bytes"]
    with bench.database.read() as session:
        assert [attempt.status for attempt in attempts_of(session, job_id)] == [AttemptStatus.STOPPED] * 3
    assert bench.running_attempts.all() == ()
    assert bench.announced == []


def test_a_job_that_is_resumed_from_scratch_counts_everything_again(bench: Bench) -> None:
    job_id = bench.submit(PER_USER)
    run(bench, job_id)
    resume(bench, job_id, from_scratch=True)
    assert run(bench, job_id).status == JobStatus.STOPPED
    assert (stream(bench, job_id).generation, stream(bench, job_id).rows_in) == (2, 10_000)
    assert rows(bench, job_id) == FIRST


@pytest.mark.parametrize(("lost", "code"), [("checkpoint", "checkpoint_missing"), ("result", "result_missing")])
def test_a_missing_checkpoint_or_result_is_an_error(bench: Bench, lost: str, code: str) -> None:
    job_id = bench.submit(PER_USER)
    run(bench, job_id)
    shutil.rmtree(bench.settings.streams_dir / job_id / "g1" / lost)
    add_orders(bench, "part-9.parquet", [1, 1, 2], "new")
    resume(bench, job_id)
    job = run(bench, job_id)
    assert (job.status, (job.error or {})["code"]) == (JobStatus.STOPPED, code)
    assert stream(bench, job_id).stopped_because == StreamStopReason.FAILED

    resume(bench, job_id, from_scratch=True)
    assert run(bench, job_id).error is None
    assert rows(bench, job_id) == [[0, 100, 7], [1, 102, 8], [2, 101, 8]]
    # What was thrown away takes no room.
    assert sorted(path.name for path in (bench.settings.streams_dir / job_id).glob("g*")) == ["g2"]


def test_a_state_above_its_limit_stops_the_job_before_the_next_mini_batch(bench: Bench) -> None:
    def limit_state(most: str) -> None:
        with bench.database.write() as session:
            row = session.get_one(JobRow, job_id)
            row.spec_version = 4
            session.flush()
            spec = with_settings(JobSpec.model_validate(row.spec), {"state": {"limit": most}}, has_state=True)
            jobs.save_spec(session, row, spec.stored(), spec.needs_version, bench.database.now(session))

    job_id = bench.submit(PER_USER)
    assert run(bench, job_id).error is None
    done = stream(bench, job_id).last_batch
    limit_state("1KB")
    assert bench.job(job_id).spec_version == 22
    add_orders(bench, "part-9.parquet", [1, 1, 2], "new")
    resume(bench, job_id)
    job = run(bench, job_id)
    assert (job.status, (job.error or {})["code"]) == (JobStatus.STOPPED, "state_limit_exceeded")
    assert "more than 'state.limit', 1KB" in (job.error or {})["detail"]
    assert (stream(bench, job_id).stopped_because, stream(bench, job_id).last_batch) == (StreamStopReason.FAILED, done)
    assert rows(bench, job_id) == FIRST
    limit_state("1GB")
    resume(bench, job_id)
    assert run(bench, job_id).error is None
    assert rows(bench, job_id) == [[0, 100, 7], [1, 102, 8], [2, 101, 8]]


def test_a_scheduled_run_records_when_it_runs_again(bench: Bench) -> None:
    job_id = bench.submit({**PER_USER, "schedule": {"every": "1h"}})
    job = run(bench, job_id)
    assert job.next_run_at is not None
    assert job.next_run_at - job.updated_at == 3_600_000


def test_a_continuous_job_continues_without_its_thread(bench: Bench) -> None:
    quick = {"mini_batch": {"allow_latency": "50ms"}, "state": {"partitions": 2}}
    job_id = bench.submit({**PER_USER, "mode": "continuous", "settings": quick})
    assert run(bench, job_id).status == JobStatus.RUNNING
    (attempt,) = bench.running_attempts.all()
    supervised(bench, lambda: stream(bench, job_id).rows_in == 10_000)
    add_orders(bench, "part-9.parquet", [1, 1, 2], "new")
    supervised(bench, lambda: stream(bench, job_id).rows_in == 10_003)
    assert (stream(bench, job_id).metrics or {})["busy"] > 0
    assert rows(bench, job_id) == [[0, 100, 7], [1, 102, 8], [2, 101, 8]]
    with bench.database.write() as session:
        streaming_jobs.request_stop(session, session.get_one(JobRow, job_id), bench.database.now(session))
    assert bench.job(job_id).status == JobStatus.STOPPING
    attempt.stop(StopReason.STOP_REQUESTED)
    supervised(bench, lambda: not bench.running_attempts.all())
    job = bench.job(job_id)
    assert (job.status, job.error, stream(bench, job_id).stopped_because) == ("STOPPED", None, StreamStopReason.STOPPED)


@pytest.mark.parametrize("directory", ["orders/", "orders_eu/"])
def test_rows_of_two_tables_are_counted_by_table(bench: Bench, directory: str) -> None:
    data = bench.settings.state_dir / "data"
    shutil.copytree(data / "orders", data / "orders_eu")
    # The plan reads the first table once for its rows and once for its distinct values, the second one once.
    job_id = bench.submit(
        {
            "mode": "incremental",
            "tables": {
                "o": parquet("orders") | {"role": "stream"},
                "e": parquet("orders") | {"role": "stream", "path": directory},
            },
            "sql": "SELECT o.uid, COUNT(*) AS n, COUNT(DISTINCT o.category) AS c FROM o JOIN e ON o.uid = e.uid "
            "GROUP BY o.uid",
            "settings": {"state": {"partitions": 2}, "distinct_method": "branches"},
        }
    )
    assert run(bench, job_id).error is None
    assert stream(bench, job_id).rows_in == 20_000


def test_a_rate_table_delivers_rows_until_the_job_is_stopped(bench: Bench) -> None:
    job_id = bench.submit(
        {
            "mode": "continuous",
            "tables": {"r": {"format": "rate", "rows_per_second": 1000}},
            "sql": "SELECT value % 2 AS k, COUNT(*) AS n, MAX(value) AS newest FROM r GROUP BY value % 2",
            "settings": {"mini_batch": {"allow_latency": "50ms"}, "state": {"partitions": 1}},
        }
    )
    assert run(bench, job_id).status == JobStatus.RUNNING
    (attempt,) = bench.running_attempts.all()
    supervised(bench, lambda: stream(bench, job_id).rows_in)
    seen = sum(n for _, n, _ in rows(bench, job_id))
    supervised(bench, lambda: sum(n for _, n, _ in rows(bench, job_id)) > seen)
    with bench.database.write() as session:
        streaming_jobs.request_stop(session, session.get_one(JobRow, job_id), bench.database.now(session))
    attempt.stop(StopReason.STOP_REQUESTED)
    supervised(bench, lambda: not bench.running_attempts.all())
    assert bench.job(job_id).status == JobStatus.STOPPED
    # They count from 0, and each came once.
    found = rows(bench, job_id)
    assert sum(n for _, n, _ in found) == max(newest for _, _, newest in found) + 1 == stream(bench, job_id).rows_in


@pytest.mark.parametrize("mode", ["continuous", "incremental"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_stream_that_is_stopped_during_planning_does_not_start(bench: Bench, mode: str, *, cancelled: bool) -> None:
    from workers.driver.driver import Driver

    job_id = bench.submit({**PER_USER, "mode": mode})

    class Telling(Driver):
        def session_for_stream(self) -> SparkSession:
            with bench.database.write() as session:
                streaming_jobs.request_stop(session, session.get_one(JobRow, job_id), bench.database.now(session))
                if cancelled:
                    session.execute(update(JobRow).values(status="CANCELLING", cancel_requested_at=1))
            return super().session_for_stream()

    known = {each.name: getattr(bench.driver, each.name) for each in fields(Driver) if each.init}
    runner = JobRunner(
        bench.settings, bench.database, SharedDriver(Telling(**known)), bench.running_attempts, "w1", bench.announce
    )
    assert runner.run(job_id)
    assert bench.job(job_id).status == (JobStatus.CANCELLED if cancelled else JobStatus.STOPPED)
    assert bench.running_attempts.all() == ()
    assert stream(bench, job_id).last_batch is None


def test_a_cancelled_stream_ends(bench: Bench) -> None:
    job_id = bench.submit({**PER_USER, "mode": "continuous"})
    run(bench, job_id)
    (attempt,) = bench.running_attempts.all()
    with bench.database.write() as session:
        session.execute(update(JobRow).values(status="CANCELLING", cancel_requested_at=1))
    attempt.stop(StopReason.CANCELLED)
    supervised(bench, lambda: not bench.running_attempts.all())
    assert bench.job(job_id).status == JobStatus.CANCELLED


def test_a_stream_is_explained_without_state(bench: Bench) -> None:
    job_id = bench.submit({**PER_USER, "mode": "continuous"}, kind=EXPLAIN)
    job = run(bench, job_id)
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, None)
    with bench.database.read() as session:
        assert find_stream(session, job_id) is None
        report = report_of(session.scalars(select(PlanRow)).one())
    assert [trace.rule for trace in report.rules] == ["stream_shape", "stream_state"]
    assert not (bench.settings.streams_dir / job_id).exists()


def test_another_layout_stops_the_job_before_it_changes_anything(bench: Bench) -> None:
    job_id = bench.submit(PER_USER)
    run(bench, job_id)
    changed = {**bench.job(job_id).spec}
    changed["settings"] = {**changed["settings"], "state": {"provider": "memory", "partitions": 2}}
    resume(bench, job_id, spec=changed)
    job = run(bench, job_id)
    assert job.status == JobStatus.STOPPED
    assert job.error is not None
    assert job.error["code"] == "state_not_compatible"
    assert "state.provider was rocksdb" in json.dumps(job.error)
    assert stream(bench, job_id).stopped_because == StreamStopReason.FAILED
    resume(bench, job_id, from_scratch=True)
    assert run(bench, job_id).error is None
    assert rows(bench, job_id) == FIRST
    # Of a state in memory Spark tells keys and size.
    for state in (stream(bench, job_id).metrics or {})["state"]:
        assert state["rows"] == state["updated"] > 0
        assert state["state_bytes"] > 0
        assert state["skew"] >= 1


def add_text(directory: Path, name: str, text: str) -> None:
    hidden = directory / f".{name}"
    hidden.write_text(text)
    hidden.rename(directory / name)


@pytest.mark.parametrize(("mended", "bad"), [(True, "many"), (False, "2.5")])
def test_an_invalid_file_stops_the_job_until_it_is_replaced_or_removed(bench: Bench, bad: str, *, mended: bool) -> None:
    directory = bench.settings.state_dir / "data" / "text"
    directory.mkdir()
    add_text(directory, "1.csv", "a,1\nb,2\n")
    posted = {
        **PER_USER,
        "tables": {"t": {"path": "text/", "header": False}},
        "sql": "SELECT k, SUM(_c1) AS s FROM (SELECT _c0 AS k, _c1 FROM t) q GROUP BY k",
    }
    # Nobody declared the columns: they are what the first file says, whatever comes later.
    stored = check_job(JobSpec.model_validate(posted), roots_of(bench.settings)).spec.stored()
    job_id = bench.submit(stored)
    run(bench, job_id)
    add_text(directory, "2.csv", f"a,10\nb,{bad}\n")
    add_text(directory, "3 [é]+%20.csv", "c,3\n")
    for _ in range(2):
        resume(bench, job_id)
        job = run(bench, job_id)
        assert job.status == JobStatus.STOPPED
        assert job.error is not None
        assert "2.csv" in job.error["detail"], job.error
    assert rows(bench, job_id) == [["a", 1], ["b", 2]]
    if mended:
        add_text(directory, "2.csv", "a,10\nb,20\n")
    else:
        (directory / "2.csv").unlink()
    resume(bench, job_id)
    job = run(bench, job_id)
    assert (job.status, job.error) == (JobStatus.STOPPED, None)
    assert rows(bench, job_id) == ([["a", 11], ["b", 22], ["c", 3]] if mended else [["a", 1], ["b", 2], ["c", 3]])
    # However a name is spelled in Spark's log, it is known as taken.
    assert ((stream(bench, job_id).metrics or {})["backlog"]["tables"]["t"] or {})["files"] == 0


def test_a_static_table_is_joined_as_it_is(bench: Bench) -> None:
    job_id = bench.submit(
        {
            **PER_USER,
            "tables": {"o": {**parquet("orders"), "role": "stream"}, "u": {**USERS, "role": "static"}},
            "sql": "SELECT u.name, COUNT(*) AS n FROM o JOIN u ON o.uid = u.uid WHERE u.uid < 2 GROUP BY u.name",
        }
    )
    assert run(bench, job_id).error is None
    assert rows(bench, job_id) == [["user 0", 100], ["user 1", 100]]


def test_a_damaged_state_is_an_internal_error(bench: Bench) -> None:
    job_id = bench.submit(PER_USER)
    run(bench, job_id)
    damaged = [
        path
        for path in (bench.settings.streams_dir / job_id / "g1" / "checkpoint" / "state").rglob("*.*")
        if path.suffix in {".zip", ".changelog", ".delta"}
    ]
    for path in damaged:
        path.unlink()
    assert damaged
    add_orders(bench, "part-9.parquet", [1, 1, 2], "new")
    resume(bench, job_id)
    job = run(bench, job_id)
    assert (job.status, (job.error or {})["code"]) == (JobStatus.STOPPED, "internal_error")
    resume(bench, job_id, from_scratch=True)
    assert run(bench, job_id).error is None


@pytest.fixture(params=[LoopWithChecks, LoopInPython, HangInJvm, WaitInPython], ids=["checks", "loop", "jvm", "sink"])
def hang(request: pytest.FixtureRequest, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    """The first start of a stream does not get on: with its plan, or with the preparation of its sink."""
    own: Hang = request.param(bench.driver)
    plan, prepare = StreamEngine.plan, ManagedSink.prepare

    def plan_hangs(engine: StreamEngine, *given: Any, check: Callable[[], None], **named: Any) -> PlannedStream:
        if not isinstance(own, WaitInPython):
            own.once(check)
        return plan(engine, *given, check=check, **named)

    def sink_hangs(sink: ManagedSink) -> None:
        if isinstance(own, WaitInPython):
            own.once(lambda: None)
        prepare(sink)

    monkeypatch.setattr(StreamEngine, "plan", plan_hangs)
    monkeypatch.setattr(ManagedSink, "prepare", sink_hangs)
    yield own
    own.release()
    wait_for("the planning to end", lambda: not bench.running_attempts.abandoned.all())


@pytest.mark.parametrize(
    ("mode", "reason", "status"),
    [
        ("incremental", StopReason.CANCELLED, "CANCELLED"),
        ("continuous", StopReason.STOP_REQUESTED, "STOPPED"),
        ("incremental", StopReason.WORKER_STOPPING, "QUEUED"),
        ("continuous", StopReason.LEASE_LOST, "PLANNING"),
    ],
)
def test_a_stop_does_not_wait_for_the_start_of_the_stream(
    bench: Bench, hang: Hang, mode: str, reason: StopReason, status: str
) -> None:
    job_id = bench.submit({**PER_USER, "mode": mode})
    runner = threading.Thread(target=bench.runner.run, args=(job_id,), daemon=True)
    runner.start()
    assert hang.begun.wait(60)
    (attempt,) = bench.running_attempts.all()
    attempt.stop(reason)
    runner.join(15)
    assert not runner.is_alive()
    assert (bench.job(job_id).status, bench.running_attempts.all()) == (status, ())
    version = bench.job(job_id).version
    hang.release()
    wait_for("the planning to end", lambda: not bench.running_attempts.abandoned.all())
    assert (bench.job(job_id).version, stream(bench, job_id).last_batch) == (version, None)
    if status in {"STOPPED", "QUEUED"}:
        # The next attempt goes on from there.
        if status == "STOPPED":
            resume(bench, job_id)
        assert run(bench, job_id).status == ("RUNNING" if mode == "continuous" else "STOPPED")
        for one in bench.running_attempts.all():
            one.stop(StopReason.STOP_REQUESTED)
        supervised(bench, lambda: not bench.running_attempts.all())


def test_an_explanation_of_a_stream_ends_while_it_is_planned(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    hang = LoopInPython(bench.driver)
    monkeypatch.setattr(StreamEngine, "plan", lambda *_, check, **__: hang.once(check))
    job_id = bench.submit({**PER_USER, "mode": "continuous"}, kind=EXPLAIN)
    runner = threading.Thread(target=bench.runner.run, args=(job_id,), daemon=True)
    runner.start()
    assert hang.begun.wait(60)
    (attempt,) = bench.running_attempts.all()
    attempt.stop(StopReason.TIMED_OUT)
    runner.join(15)
    assert bench.job(job_id).status == "TIMED_OUT"
    hang.release()
    wait_for("the planning to end", lambda: not bench.running_attempts.abandoned.all())


class Leftovers:
    """Sinks that were not closed, and whether the sessions of streams were given back."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sessions = bench.driver.idle_sessions
        self._before = len(self._sessions)
        self.open: list[ManagedSink] = []
        prepare, close = ManagedSink.prepare, ManagedSink.close

        def opens(sink: ManagedSink) -> None:
            self.open.append(sink)
            prepare(sink)

        def closes(sink: ManagedSink) -> None:
            self.open.remove(sink)
            close(sink)

        monkeypatch.setattr(ManagedSink, "prepare", opens)
        monkeypatch.setattr(ManagedSink, "close", closes)

    def assert_none(self) -> None:
        assert self.open == []
        assert len(self._sessions) == max(1, self._before)
        assert len({id(session) for session in self._sessions}) == len(self._sessions)


def fails(*_: object, **__: object) -> None:
    raise OSError("it is away")


@pytest.mark.parametrize(
    "where",
    [(StreamEngine, "plan"), (ManagedSink, "committed"), (RunningStream, "start")],
    ids=["plan", "sink", "start"],
)
def test_a_stream_that_cannot_be_started_leaves_nothing_open(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: tuple[type, str]
) -> None:
    leftovers = Leftovers(bench, monkeypatch)
    job_id = bench.submit(PER_USER)
    with monkeypatch.context() as patch:
        patch.setattr(*where, fails)
        assert bench.runner.run(job_id)
    assert bench.running_attempts.all() == ()
    assert stream(bench, job_id).last_batch is None
    leftovers.assert_none()


@pytest.mark.parametrize(
    ("values", "status"),
    [({"fence": 9}, "PLANNING"), ({"status": "CANCELLING", "cancel_requested_at": 1}, "CANCELLED")],
    ids=["lease", "cancelled"],
)
@pytest.mark.parametrize("where", [(StreamEngine, "plan"), (ManagedSink, "committed")], ids=["plan", "sink"])
def test_a_stream_that_must_not_start_leaves_nothing_open(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    where: tuple[type, str],
    values: dict[str, object],
    status: str,
) -> None:
    leftovers = Leftovers(bench, monkeypatch)
    job_id = bench.submit(PER_USER)
    call = getattr(*where)

    def changes(*given: object, **named: object) -> object:
        with bench.database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(**values))
        return call(*given, **named)

    monkeypatch.setattr(*where, changes)
    assert bench.runner.run(job_id)
    assert bench.job(job_id).status == status
    leftovers.assert_none()


@pytest.mark.parametrize("where", [(StreamEngine, "plan"), (ManagedSink, "committed")], ids=["plan", "sink"])
def test_what_an_abandoned_start_returns_leaves_nothing_open(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: tuple[type, str]
) -> None:
    leftovers = Leftovers(bench, monkeypatch)
    hang, call = WaitInPython(bench.driver), getattr(*where)

    def hangs(*given: object, **named: object) -> object:
        found = call(*given, **named)
        hang.once(lambda: None)
        return found

    monkeypatch.setattr(*where, hangs)
    job_id = bench.submit(PER_USER)
    runner = threading.Thread(target=bench.runner.run, args=(job_id,), daemon=True)
    runner.start()
    assert hang.begun.wait(60)
    (attempt,) = bench.running_attempts.all()
    attempt.stop(StopReason.CANCELLED)
    runner.join(15)
    assert bench.job(job_id).status == "CANCELLED"
    hang.release()
    wait_for("the planning to end", lambda: not bench.running_attempts.abandoned.all())
    leftovers.assert_none()


def test_an_explanation_gives_no_session_to_streams(bench: Bench) -> None:
    before = len(bench.driver.idle_sessions)
    run(bench, bench.submit(PER_USER, kind=EXPLAIN))
    assert len(bench.driver.idle_sessions) == before
