"""Starts streams: plans a stream, opens its state and its sink, and hands it over to the supervisor.

`StreamRunner.work` runs an incremental job until it stops. A continuous job continues without the calling thread.
`make_sink` chooses the sink for a job's result.
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
from service.contract.job import VALUES_VERSION, JobSpec
from service.contract.job import DeltaSink as DeltaSpec
from service.contract.job import ManagedSink as ManagedSpec
from service.contract.job import PostgresSink as PostgresSpec
from service.contract.options import Toggle
from service.contract.problems import SpecError
from service.contract.tables import StreamTable
from service.data.posted_rows import stream_directory
from service.data.roots import find_sink_directory, outside, roots_of
from service.sql.compile import visible_schemas
from service.sql.failed_expressions import QueryExpressions
from service.store import input_streams, jobs, publication, streaming_jobs
from service.store.publication import Ending
from service.store.session import Database
from service.store.streaming_state import Stream
from workers.driver.driver import Driver
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.engine.streaming.engine import PlannedStream, StreamEngine
from workers.engine.streaming.query import BatchFunction, RunningStream, Stage, Trigger
from workers.engine.streaming.sinks.append import AppendingSink, FileFormat
from workers.engine.streaming.sinks.base import OF_CHANGE_LOG, OfNothing, Sink, SinkError, SinkTarget
from workers.engine.streaming.sinks.delta import DeltaSink
from workers.engine.streaming.sinks.managed import ManagedSink
from workers.engine.streaming.sinks.postgres import PostgresSink
from workers.jobs.attempt import Attempt
from workers.jobs.claims import retry_attempt_write, retry_on_database_fault
from workers.jobs.outcome import LeaseLost, StreamErrorTexts, Verdict, verdict_of
from workers.jobs.planning import PlanningThreads, labelled
from workers.metrics import WorkerMetrics
from workers.streams.attempt import Following, Opened, StreamAttempt, stream_verdict
from workers.streams.backlog import BacklogWatch, watched
from workers.streams.batch_metrics import StreamMetrics
from workers.streams.fencing import StreamFence
from workers.streams.inputs import Posted, StreamPlans, check_layout, confined_reading, find_inputs, state_of
from workers.streams.lookup_table_polling import MAX_COPIES, FollowedTable, TableChecks
from workers.streams.lookup_table_versions import BatchVersions, TableVersions, directory_name
from workers.streams.lookup_tables import LookupTables, VersionFence, Versions
from workers.streams.state_limit import StateLimit

_URL = "EVENKEEL_SINK_{}_URL"

_POLL_SECONDS = 0.2
"""The time between two checks of an incremental stream."""


def make_sink(
    spec: JobSpec,
    target: SinkTarget,
    result: Path,
    roots: Sequence[Path],
    of_nothing: OfNothing | None,
    environment: Mapping[str, str] = os.environ,
) -> Sink:
    """Returns the sink that `spec` names. `result` is the directory of a managed result; `roots` are the directories
    below which file sinks may write. Writes nothing.

    Raises SinkError for a connection that is not configured, and for a path outside the roots.
    """
    sink = spec.sink
    if isinstance(sink, ManagedSpec):
        return ManagedSink(result, target, of_nothing)
    if isinstance(sink, PostgresSpec):
        name = _URL.format(sink.connection.upper())
        url = environment.get(name)
        if not url:
            raise SinkError(f"The connection '{sink.connection}' is not configured: {name} is not set on the worker.")
        return PostgresSink(url.replace("+psycopg://", "://", 1), sink.table, target, of_nothing)
    if not roots:
        raise SinkError("No directory is configured for sinks. Set EVENKEEL_DATA_SINK_ROOTS.")
    path = find_sink_directory(sink.path, roots)
    if path is None:
        raise SinkError(outside(sink.path))
    if isinstance(sink, DeltaSpec):
        return DeltaSink(path, target, of_nothing)
    if target.weight is not None:
        raise SinkError(f"The rows of this result may be removed again, and the sink '{sink.kind}' removes none.")
    return AppendingSink(path, target, FileFormat(sink.kind))


@dataclass(frozen=True)
class HandedOver:
    """The stream has started and continues without the thread that started it."""

    stream: StreamAttempt


class StreamRunner:
    """Plans and starts streams. The threads of a worker that run jobs share it."""

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
        self._copy_slots = threading.BoundedSemaphore(MAX_COPIES)

    def work(self, attempt: Attempt, driver: Driver, spec: JobSpec) -> Verdict | HandedOver:
        """Runs an incremental job until it stops; starts a continuous one. Returns every error as a verdict."""
        attempt.streams = True
        texts = StreamErrorTexts(self._settings.streams_dir)
        try:
            attempt.driver = driver
            started = self._started(attempt, driver, spec, texts)
            if not isinstance(started, StreamAttempt):
                return started
            return HandedOver(started) if spec.mode is Mode.CONTINUOUS else self._to_its_end(started)
        except Exception as error:  # noqa: BLE001 - every end of a job is reported to the client
            explained = attempt.claim.kind == jobs.EXPLAIN
            return verdict_of(error, attempt, texts) if explained else stream_verdict(error, attempt, texts)

    def _to_its_end(self, stream: StreamAttempt) -> Verdict:
        def pause(seconds: float) -> None:
            with stream.attempt.waiting_for_database():
                self._pause(seconds)

        try:
            while True:
                verdict = retry_on_database_fault(lambda _: stream.step(), pause=pause)
                if verdict is not None:
                    retry_on_database_fault(lambda _: stream.close(), pause=pause)
                    return verdict
                stream.wait(_POLL_SECONDS)
        except BaseException:
            stream.abandon()
            raise

    def _started(
        self, attempt: Attempt, driver: Driver, spec: JobSpec, texts: StreamErrorTexts
    ) -> StreamAttempt | Verdict:
        begun = self._clock()
        attempt.check()
        explained = attempt.claim.kind == jobs.EXPLAIN
        stream = None if explained else retry_attempt_write(attempt, lambda: self._open(attempt), self._pause)
        posted = self._posted(attempt.claim.tenant, spec)
        current = self._plannings.run(
            attempt,
            lambda: self._planned(attempt, driver, spec, stream, posted, texts),
            discard=lambda unused: unused.release_session(),
        )
        planning_ms = round((self._clock() - begun) * 1000)
        self._metrics.planned(planning_ms)
        with ExitStack() as unless_opened:
            unless_opened.callback(current.release_session)
            if not self._keep_plan(attempt, stream, current.planned, planning_ms):
                return LeaseLost()
            if stream is None:
                return Ending(JobStatus.SUCCEEDED)
            # From here on `_opened` returns the session if it fails.
            unless_opened.pop_all()
        opened = self._plannings.run(
            attempt, lambda: self._opened(attempt, driver, spec, stream, current), discard=_discard
        )
        with ExitStack() as unless_started:
            unless_started.callback(_discard, opened)
            if not retry_attempt_write(attempt, lambda: self._mark_running(attempt), self._pause):
                return LeaseLost()
            started = StreamAttempt(attempt, replace(opened, redact=texts), self._database, self._clock)
            unless_started.pop_all()
        return started

    def _keep_plan(self, attempt: Attempt, stream: Stream | None, planned: PlannedStream, planning_ms: int) -> bool:
        """Stores the plan and the layout of the stream's state. Returns False if the attempt has lost its lease."""
        attempt.check()
        if not retry_attempt_write(attempt, lambda: self._save_plan(attempt, planned, planning_ms), self._pause):
            return False
        if stream is None:
            return True
        check_layout(stream.layout, planned)
        attempt.check()
        # Before the sink is opened: the next attempt must use the layout that the sink was opened for.
        return retry_attempt_write(attempt, lambda: self._keep_layout(attempt, planned), self._pause)

    def _planned(
        self,
        attempt: Attempt,
        driver: Driver,
        spec: JobSpec,
        stream: Stream | None,
        posted: Mapping[str, Posted],
        texts: StreamErrorTexts,
    ) -> _Planned:
        """Finds the tables of the job and plans it. Called in a thread that may be abandoned."""
        lookup_tables = None if stream is None else self._lookup_tables(attempt, spec, stream)
        if lookup_tables is not None:
            texts.with_own_names = lookup_tables.with_own_names
        versions = {} if lookup_tables is None else lookup_tables.of_next_batch()
        followed = {} if lookup_tables is None else lookup_tables.inputs(versions)
        attempt.check()
        inputs = find_inputs(spec, self._roots, posted, followed)
        attempt.expressions = QueryExpressions(spec, visible_schemas(spec, inputs.schemas))
        attempt.check()
        with labelled(attempt, driver), ExitStack() as unless_planned:
            attempt.check()
            session = driver.session_for_job() if stream is None else driver.session_for_stream()
            if stream is not None:
                unless_planned.callback(driver.return_session, session)
            engine = StreamEngine(session, driver.slots, self._known_files)
            plans = StreamPlans(spec, engine, inputs, state_of(spec, stream, driver.slots))
            planned = plans.plan(None if stream is None else stream.layout, check=attempt.check)
            # From here on the caller returns the session.
            release_session = unless_planned.pop_all().close
        return _Planned(plans, planned, versions, lookup_tables, release_session)

    def _lookup_tables(self, attempt: Attempt, spec: JobSpec, stream: Stream) -> LookupTables | None:
        """Returns the lookup tables that the job follows, with their newest versions; None if it follows none."""
        if not spec.refreshed:
            return None
        directory = self._directory(stream)
        tables = []
        checks = TableChecks(attempt.check, self._copy_slots)
        for name, source in spec.refreshed.items():
            versions = TableVersions(directory / "dimensions" / directory_name(name), name, attempt.claim.fence)
            tables.append(FollowedTable(name, source, self._roots, versions, checks.check, self._clock))
        decided = BatchVersions(directory / "versions", attempt.claim.fence)
        every = self._settings.worker.follow_seconds
        lookup_tables = LookupTables(tables, decided, directory / "checkpoint", every, checks, self._clock)
        lookup_tables.open(self._pause)
        return lookup_tables

    def _directory(self, stream: Stream) -> Path:
        """Returns the directory of one generation of a job."""
        return self._settings.streams_dir / stream.job_id / f"g{stream.generation}"

    def _posted(self, tenant: str, spec: JobSpec) -> dict[str, Posted]:
        """Returns the input streams that the job names and that exist, by name."""
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
            now = self._database.now(session)
            needs_version = VALUES_VERSION if planned.plan.changes is not None and planned.plan.changes.form > 1 else 0
            return streaming_jobs.save_layout(session, attempt.claim, planned.layout, now, needs_version=needs_version)

    def _opened(
        self,
        attempt: Attempt,
        driver: Driver,
        spec: JobSpec,
        stream: Stream,
        current: _Planned,
    ) -> Opened:
        """Opens the sink and the directories of the job. Called in a thread that may be abandoned. What an abandoned
        thread changes does no more harm than an attempt without a lease: the fencing token of the next attempt
        excludes both.
        """
        claim, planned = attempt.claim, current.planned
        plan = planned.plan
        with ExitStack() as unless_opened:
            unless_opened.callback(current.release_session)
            attempt.check()
            directory = self._directory(stream)
            directory.mkdir(parents=True, exist_ok=True)
            logged = (*plan.output, *OF_CHANGE_LOG)
            target = SinkTarget(
                app=f"evenkeel/{claim.job_id}/{stream.generation}",
                fence=claim.fence,
                columns=logged if spec.has_change_log else plan.columns,
                output=logged if spec.has_change_log else plan.output,
                keys=plan.keys,
                final=plan.final,
                weight=plan.weight,
            )
            sink = make_sink(spec, target, directory / "result", self._settings.sink_roots, planned.of_nothing)
            unless_opened.callback(sink.close)
            sink.prepare()
            attempt.check()
            opened = self._with_sink(attempt, driver, spec, stream, current, sink)
            unless_opened.pop_all()
        return opened

    def _with_sink(
        self, attempt: Attempt, driver: Driver, spec: JobSpec, stream: Stream, current: _Planned, sink: Sink
    ) -> Opened:
        claim, lookup_tables, directory = attempt.claim, current.lookup_tables, self._directory(stream)
        if lookup_tables is not None:
            lookup_tables.set_committed(sink.committed())
        _check_together(stream, sink.committed(), directory / "checkpoint")
        _remove_older(directory)
        stage = Stage(directory / "stage", claim.fence, is_log=spec.has_change_log)
        stage.clear_older()
        fence = StateLimit(
            StreamFence(self._database, attempt, stream.generation, self._pause),
            (directory / "checkpoint", directory / "changes"),
            spec.settings.state.limit,
            self._settings.limits.free_bytes,
        )
        trigger = _trigger(spec)
        reading = confined_reading(spec, self._roots, directory / "checkpoint", lambda: current.plans.inputs)

        def start() -> RunningStream:
            # A stream keeps the job tags and local properties of the thread that started it.
            with labelled(attempt, driver):
                if lookup_tables is not None:
                    current.follow(lookup_tables)
                batch_fence = fence if lookup_tables is None else VersionFence(fence, lookup_tables, current.versions)
                planned = current.planned
                staged = replace(stage, collects=planned.collects)
                changes = planned.changes
                computing = None if changes is None else changes.of_attempt(directory / "changes", claim.fence)
                batch = BatchFunction(staged, sink, batch_fence, reading=reading, computing=computing)
                return RunningStream.start(planned.frame, planned.output, directory / "checkpoint", trigger, batch)

        following = None if lookup_tables is None else Following(lookup_tables, lambda: current.versions)
        tables = watched(spec, current.plans.inputs, self._roots, claim.tenant)
        sources = [read.table for read in current.planned.reads]
        backlog = BacklogWatch(tables, directory / "checkpoint", self._database, sources)
        metrics = StreamMetrics(directory / "checkpoint", backlog, trigger.every, self._metrics)
        ends = spec.mode is Mode.INCREMENTAL
        return Opened(
            sink,
            stream.generation,
            lambda: current.planned.reads,
            start,
            metrics,
            ends=ends,
            following=following,
            release_session=current.release_session,
            check_at_end=reading.check_at_end,
        )


@dataclass
class _Planned:
    """The current plan of a stream, and the versions of the followed tables that it reads. `release_session` returns
    the session of a stream for reuse. The session of an explanation is not reused.
    """

    plans: StreamPlans
    planned: PlannedStream
    versions: Versions
    lookup_tables: LookupTables | None
    release_session: Callable[[], None]

    def follow(self, lookup_tables: LookupTables) -> None:
        """Plans the stream again if the next mini-batch runs with other versions. Raises what `StreamPlans.plan`
        raises, and SpecError if the new plan cannot continue with the state of the previous plan.
        """
        versions = lookup_tables.of_next_batch()
        if versions == self.versions:
            return
        layout = self.planned.layout
        planned = self.plans.plan(layout, lookup_tables.inputs(versions))
        check_layout(layout, planned)
        self.planned, self.versions = planned, versions


def _discard(opened: Opened) -> None:
    """Closes the sink of a stream that was not started, and returns its session."""
    try:
        opened.sink.close()
    finally:
        opened.release_session()


def _check_together(stream: Stream, committed: int | None, checkpoint: Path) -> None:
    """Raises SpecError if the checkpoint or the sink's rows are missing. If only one of them exists, a stream that
    continues would lose rows.
    """
    begun = any((checkpoint / "offsets").glob("[0-9]*"))
    newest = stream.last_batch if committed is None else committed
    if not begun and newest is not None:
        raise SpecError.of(
            "checkpoint_missing",
            f"The checkpoint of the job is missing; its last mini-batch was {newest}. Check that all workers share "
            'EVENKEEL_DATA_STREAMS. Restore the checkpoint, or resume with {"from": "scratch"}.',
        )
    if committed is None and stream.rows_out > 0:
        raise SpecError.of(
            "result_missing",
            f"The {stream.rows_out} rows that the job wrote are missing from the sink. Restore them, or resume with "
            '{"from": "scratch"} to write them again.',
        )


def _remove_older(directory: Path) -> None:
    """Removes the directories of older generations."""
    own = int(directory.name.removeprefix("g"))
    for path in directory.parent.glob("g[0-9]*"):
        if path.name.removeprefix("g").isdecimal() and int(path.name.removeprefix("g")) < own:
            shutil.rmtree(path, ignore_errors=True)


def _trigger(spec: JobSpec) -> Trigger:
    if spec.mode is Mode.INCREMENTAL:
        return Trigger(None)
    gathers = spec.settings.mini_batch.enabled is not Toggle.FALSE
    return Trigger(spec.settings.mini_batch.allow_latency if gathers else Trigger.AT_ONCE)
