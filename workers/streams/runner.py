"""Which sink a job's result goes to.

Starts streams: plans them, opens their state and their sink, and hands them over to the supervisor.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from service.config.settings import Settings
from service.contract.enums import JobStatus, Mode
from service.contract.job import DeltaSink as DeltaSpec
from service.contract.job import JobSpec, StreamTable
from service.contract.job import ManagedSink as ManagedSpec
from service.contract.job import PostgresSink as PostgresSpec
from service.contract.options import Toggle
from service.contract.problems import SpecError
from service.data.posted_rows import stream_directory
from service.data.roots import find_sink_directory, outside, roots_of
from service.store import input_streams, jobs, publication, streaming_jobs
from service.store.publication import Ending
from service.store.session import Database
from service.store.streaming_state import Stream
from workers.driver.driver import Driver
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.engine.streaming.engine import PlannedStream, StreamEngine
from workers.engine.streaming.micro_batch import BatchFunction, Stage
from workers.engine.streaming.query import RunningStream, Trigger
from workers.engine.streaming.sinks.append import AppendingSink
from workers.engine.streaming.sinks.base import OfNothing, Sink, SinkError, SinkTarget
from workers.engine.streaming.sinks.delta import DeltaSink
from workers.engine.streaming.sinks.managed import ManagedSink
from workers.engine.streaming.sinks.postgres import PostgresSink
from workers.jobs.attempt import Attempt
from workers.jobs.lease import patiently, patiently_aside
from workers.jobs.outcome import LeaseLost, StreamTexts, Verdict, verdict_of
from workers.jobs.planning import PlanningThreads, labelled
from workers.metrics import WorkerMetrics
from workers.streams.attempt import Following, Opened, StreamAttempt, resting_verdict
from workers.streams.backlog import BacklogWatch, watched
from workers.streams.batch_metrics import StreamMeasuring
from workers.streams.fencing import StreamGuard
from workers.streams.inputs import Posted, confined_reading, find_inputs
from workers.streams.lookup_table_polling import AT_ONCE, FollowedTable, TableLooks
from workers.streams.lookup_table_versions import BatchVersions, DimensionVersions, directory_name
from workers.streams.lookup_tables import Dimensions, VersionGuard, Versions
from workers.streams.planning import StreamPlans, check_layout, state_of

_URL = "EVENKEEL_SINK_{}_URL"


def make_sink(
    spec: JobSpec,
    target: SinkTarget,
    result: Path,
    roots: Sequence[Path],
    of_nothing: OfNothing | None,
    environment: Mapping[str, str] = os.environ,
) -> Sink:
    """The sink that `spec` names; `result` is where a managed one is kept, `roots` are where others may write. Nothing
    is written yet.

    Raises SinkError for a connection that is not set up, and a path outside the roots.
    """
    sink = spec.sink
    if isinstance(sink, ManagedSpec):
        return ManagedSink(result, target, of_nothing)
    if isinstance(sink, PostgresSpec):
        name = _URL.format(sink.connection.upper())
        url = environment.get(name)
        if not url:
            raise SinkError(f"The connection '{sink.connection}' is not set up: its worker has no {name}.")
        return PostgresSink(url.replace("+psycopg://", "://", 1), sink.table, target, of_nothing)
    if not roots:
        raise SinkError("No directory is set up that sinks may write to: EVENKEEL_DATA_SINK_ROOTS.")
    path = find_sink_directory(sink.path, roots)
    if path is None:
        raise SinkError(outside(sink.path))
    return DeltaSink(path, target, of_nothing) if isinstance(sink, DeltaSpec) else AppendingSink(path, target)


_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class HandedOver:
    """The stream goes on without its task."""

    stream: StreamAttempt


class StreamRunner:
    """For the threads of a worker's runners."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        plannings: PlanningThreads,
        metrics: WorkerMetrics,
        mark_running: Callable[[Attempt], bool],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
        known_files: StatisticsCache | None = None,
    ) -> None:
        self._settings = settings
        self._known_files = StatisticsCache() if known_files is None else known_files
        self._roots = roots_of(settings)
        self._database = database
        self._plannings = plannings
        self._metrics = metrics
        self._mark_running = mark_running
        self._clock = clock
        self._pause = pause
        self._look_places = threading.BoundedSemaphore(AT_ONCE)

    def work(self, attempt: Attempt, driver: Driver, spec: JobSpec) -> Verdict | HandedOver:
        """Runs an incremental job until it rests, and starts a continuous one."""
        attempt.streams = True
        texts = StreamTexts(self._settings.streams_dir)
        try:
            attempt.driver = driver
            started = self._started(attempt, driver, spec, texts)
            if not isinstance(started, StreamAttempt):
                return started
            return HandedOver(started) if spec.mode is Mode.CONTINUOUS else self._to_its_end(started)
        except Exception as error:  # noqa: BLE001 - every end of a job is told to the client
            explained = attempt.claim.kind == jobs.EXPLAIN
            return verdict_of(error, attempt, texts) if explained else resting_verdict(error, attempt, texts)

    def _to_its_end(self, stream: StreamAttempt) -> Verdict:
        def pause(seconds: float) -> None:
            with stream.attempt.aside():
                self._pause(seconds)

        try:
            while True:
                verdict = patiently(lambda _: stream.step(), pause=pause)
                if verdict is not None:
                    patiently(lambda _: stream.close(), pause=pause)
                    return verdict
                stream.wait(_LOOK_SECONDS)
        except BaseException:
            stream.abandon()
            raise

    def _started(self, attempt: Attempt, driver: Driver, spec: JobSpec, texts: StreamTexts) -> StreamAttempt | Verdict:
        begun = self._clock()
        attempt.check()
        explained = attempt.claim.kind == jobs.EXPLAIN
        stream = None if explained else patiently_aside(attempt, lambda: self._open(attempt), self._pause)
        posted = self._posted(attempt.claim.tenant, spec)
        at_hand = self._plannings.run(
            attempt,
            lambda: self._planned(attempt, driver, spec, stream, posted, texts),
            discard=lambda unused: unused.let_go(),
        )
        planning_ms = round((self._clock() - begun) * 1000)
        self._metrics.planned(planning_ms)
        with ExitStack() as unless_opened:
            unless_opened.callback(at_hand.let_go)
            if not self._keep_plan(attempt, stream, at_hand.planned, planning_ms):
                return LeaseLost()
            if stream is None:
                return Ending(JobStatus.SUCCEEDED)
            # From here on `_opened` gives the session back where it fails.
            unless_opened.pop_all()
        opened = self._plannings.run(
            attempt, lambda: self._opened(attempt, driver, spec, stream, at_hand), discard=_discard
        )
        with ExitStack() as unless_started:
            unless_started.callback(_discard, opened)
            if not patiently_aside(attempt, lambda: self._mark_running(attempt), self._pause):
                return LeaseLost()
            started = StreamAttempt(attempt, replace(opened, told=texts), self._database, self._clock)
            unless_started.pop_all()
        return started

    def _keep_plan(self, attempt: Attempt, stream: Stream | None, planned: PlannedStream, planning_ms: int) -> bool:
        """Stores the plan, and the layout of the stream's state; whether the attempt still has its lease."""
        attempt.check()
        if not patiently_aside(attempt, lambda: self._save_plan(attempt, planned, planning_ms), self._pause):
            return False
        if stream is None:
            return True
        check_layout(stream.layout, planned)
        attempt.check()
        # Before the sink is opened: the next attempt must use the layout that the sink was opened for.
        return patiently_aside(attempt, lambda: self._keep_layout(attempt, planned), self._pause)

    def _planned(
        self,
        attempt: Attempt,
        driver: Driver,
        spec: JobSpec,
        stream: Stream | None,
        posted: Mapping[str, Posted],
        texts: StreamTexts,
    ) -> _Planned:
        """Finds the tables of the job and plans it; called in a thread that may be abandoned."""
        dimensions = None if stream is None else self._dimensions(attempt, spec, stream)
        if dimensions is not None:
            texts.of_copies = dimensions.of_own_files
        versions = {} if dimensions is None else dimensions.of_next_batch()
        followed = {} if dimensions is None else dimensions.inputs(versions)
        attempt.check()
        inputs = find_inputs(spec, self._roots, posted, followed)
        attempt.check()
        with labelled(attempt, driver), ExitStack() as unless_planned:
            attempt.check()
            session = driver.session_for_job() if stream is None else driver.session_for_stream()
            if stream is not None:
                unless_planned.callback(driver.give_back, session)
            engine = StreamEngine(session, driver.slots, self._known_files)
            plans = StreamPlans(spec, engine, inputs, state_of(spec, stream, driver.slots))
            planned = plans.plan(None if stream is None else stream.layout, check=attempt.check)
            # The caller gives the session back.
            let_go = unless_planned.pop_all().close
        return _Planned(plans, planned, versions, dimensions, let_go)

    def _dimensions(self, attempt: Attempt, spec: JobSpec, stream: Stream) -> Dimensions | None:
        """The tables that the job follows, with their newest versions."""
        if not spec.followed:
            return None
        directory = self._directory(stream)
        tables = []
        looks = TableLooks(attempt.check, self._look_places)
        for name, source in spec.followed.items():
            versions = DimensionVersions(directory / "dimensions" / directory_name(name), name, attempt.claim.fence)
            tables.append(FollowedTable(name, source, self._roots, versions, looks.check, self._clock))
        decided = BatchVersions(directory / "versions", attempt.claim.fence)
        every = self._settings.worker.follow_seconds
        dimensions = Dimensions(tables, decided, directory / "checkpoint", every, looks, self._clock)
        dimensions.open(self._pause)
        return dimensions

    def _directory(self, stream: Stream) -> Path:
        """Where a job keeps all of one generation."""
        return self._settings.streams_dir / stream.job_id / f"g{stream.generation}"

    def _posted(self, tenant: str, spec: JobSpec) -> dict[str, Posted]:
        """The streams of posted rows that the job names, those that are there."""
        names = [table.stream for table in spec.tables.values() if isinstance(table, StreamTable)]
        if not names:
            return {}
        with self._database.read() as session:
            found = [
                stream for name in names if (stream := input_streams.find_stream(session, tenant, name)) is not None
            ]
        directory = self._settings.streams_dir
        return {
            stream.name: Posted(stream_directory(directory, tenant, stream.name, stream.id), stream.schema)
            for stream in found
        }

    def _open(self, attempt: Attempt) -> Stream:
        with self._database.write() as session:
            return streaming_jobs.open_stream(session, attempt.claim, self._database.now(session))

    def _save_plan(self, attempt: Attempt, planned: PlannedStream, planning_ms: int) -> bool:
        with self._database.write() as session:
            now = self._database.now(session)
            return publication.save_plan(session, attempt.claim, planned.report, planning_ms, now)

    def _keep_layout(self, attempt: Attempt, planned: PlannedStream) -> bool:
        with self._database.write() as session:
            return streaming_jobs.save_layout(session, attempt.claim, planned.layout, self._database.now(session))

    def _opened(
        self,
        attempt: Attempt,
        driver: Driver,
        spec: JobSpec,
        stream: Stream,
        at_hand: _Planned,
    ) -> Opened:
        """Opens the sink and the directories of the job; called in a thread that may be abandoned. What it changes then
        is the same as what an attempt changes that has lost its lease: the fencing token of the next attempt makes up
        for it.
        """
        claim, planned = attempt.claim, at_hand.planned
        plan = planned.plan
        with ExitStack() as unless_opened:
            unless_opened.callback(at_hand.let_go)
            attempt.check()
            directory = self._directory(stream)
            directory.mkdir(parents=True, exist_ok=True)
            target = SinkTarget(
                app=f"evenkeel/{claim.job_id}/{stream.generation}",
                fence=claim.fence,
                columns=plan.columns,
                output=plan.output,
                keys=plan.keys,
                final=plan.final,
            )
            sink = make_sink(spec, target, directory / "result", self._settings.sink_roots, planned.of_nothing)
            unless_opened.callback(sink.close)
            sink.prepare()
            attempt.check()
            opened = self._with_sink(attempt, driver, spec, stream, at_hand, sink)
            unless_opened.pop_all()
        return opened

    def _with_sink(
        self, attempt: Attempt, driver: Driver, spec: JobSpec, stream: Stream, at_hand: _Planned, sink: Sink
    ) -> Opened:
        claim, dimensions, directory = attempt.claim, at_hand.dimensions, self._directory(stream)
        if dimensions is not None:
            dimensions.agree_with(sink.committed())
        _check_together(stream, sink.committed(), directory / "checkpoint")
        _remove_older(directory)
        stage = Stage(directory / "stage", claim.fence)
        stage.clear_older()
        guard = StreamGuard(self._database, attempt, stream.generation, self._pause)
        trigger = _trigger(spec)
        reading = confined_reading(spec, self._roots, directory / "checkpoint", lambda: at_hand.plans.inputs)

        def start() -> RunningStream:
            # What the thread carries that starts a stream, the stream carries all its life.
            with labelled(attempt, driver):
                if dimensions is not None:
                    at_hand.follow(dimensions)
                guarded = guard if dimensions is None else VersionGuard(guard, dimensions, at_hand.versions)
                batch = BatchFunction(stage, sink, guarded, reading=reading)
                frame, output = at_hand.planned.frame, at_hand.planned.output
                return RunningStream.start(frame, output, directory / "checkpoint", trigger, batch)

        following = None if dimensions is None else Following(dimensions, lambda: at_hand.versions)
        tables = watched(spec, at_hand.plans.inputs, self._roots, claim.tenant)
        sources = [read.table for read in at_hand.planned.reads]
        backlog = BacklogWatch(tables, directory / "checkpoint", self._database, sources)
        measuring = StreamMeasuring(directory / "checkpoint", backlog, trigger.every, self._metrics)
        ends = spec.mode is Mode.INCREMENTAL
        return Opened(
            sink,
            stream.generation,
            lambda: at_hand.planned.reads,
            start,
            ends,
            following,
            at_hand.let_go,
            measuring,
            check_at_end=reading.check_at_end,
        )


@dataclass
class _Planned:
    """The plan at hand, and the versions of followed tables that it reads. `let_go` gives the session of a stream back;
    that of an explanation is not used again.
    """

    plans: StreamPlans
    planned: PlannedStream
    versions: Versions
    dimensions: Dimensions | None
    let_go: Callable[[], None]

    def follow(self, dimensions: Dimensions) -> None:
        """Plans anew where the next mini-batch runs with other versions. Raises as `StreamPlans.plan`, and SpecError
        where the new plan cannot go on from the state of the one before.
        """
        versions = dimensions.of_next_batch()
        if versions == self.versions:
            return
        layout = self.planned.layout
        planned = self.plans.plan(layout, dimensions.inputs(versions))
        check_layout(layout, planned)
        self.planned, self.versions = planned, versions


def _discard(opened: Opened) -> None:
    """Closes the sink of a stream that was not started, and gives its session back."""
    try:
        opened.sink.close()
    finally:
        opened.let_go()


def _check_together(stream: Stream, committed: int | None, checkpoint: Path) -> None:
    """Raises SpecError where the checkpoint or the sink's rows are gone: a stream that went on all the same would leave
    out what is in the other one alone.
    """
    begun = any((checkpoint / "offsets").glob("[0-9]*"))
    newest = stream.last_batch if committed is None else committed
    if not begun and newest is not None:
        raise SpecError.of(
            "checkpoint_missing",
            f"The checkpoint of the job is gone, which had come to mini-batch {newest}. Do all workers share "
            'EVENKEEL_DATA_STREAMS? Put it back, or resume with {"from": "scratch"}.',
        )
    if committed is None and stream.rows_out > 0:
        raise SpecError.of(
            "result_missing",
            f"The sink has lost the {stream.rows_out} rows that it was given. Put them back, or resume with "
            '{"from": "scratch"}, which makes them anew.',
        )


def _remove_older(directory: Path) -> None:
    """Removes what is left of the states that were thrown away."""
    own = int(directory.name.removeprefix("g"))
    for path in directory.parent.glob("g[0-9]*"):
        if path.name.removeprefix("g").isdecimal() and int(path.name.removeprefix("g")) < own:
            shutil.rmtree(path, ignore_errors=True)


def _trigger(spec: JobSpec) -> Trigger:
    if spec.mode is Mode.INCREMENTAL:
        return Trigger(None)
    gathers = spec.settings.mini_batch.enabled is not Toggle.FALSE
    return Trigger(spec.settings.mini_batch.allow_latency if gathers else Trigger.AT_ONCE)
