"""A worker process: its parts, its threads, and how it stops."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection
from contextlib import suppress

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.config.settings import Settings
from service.contract.enums import SparkState
from service.data.roots import s3a_properties
from service.store import jobs
from service.store.session import Database
from workers.driver.cluster import SparkUnavailableError
from workers.driver.session import SparkRuntime
from workers.jobs.attempt import AttemptsAtHand
from workers.jobs.cancellation import CancellationWatch
from workers.jobs.planning import TooManyPlanningsError
from workers.jobs.results import ResultLimit
from workers.metrics import DriverCount, Resident, WorkerMetrics, resident
from workers.periodic import Loop
from workers.process.heartbeat import Facts, Heartbeat, ProgressReporter
from workers.process.job_runner import JobRunner
from workers.process.maintenance import RetentionStep, Sweeper
from workers.process.queue_consumer import HeldMessages
from workers.process.shutdown import Departure
from workers.process.watchdog import DriverWatch, StuckWork

_log = structlog.get_logger(__name__)

_WATCH_DRIVER_SECONDS = 1.0
_LOOP_SECONDS = 0.5
_THREADS_BESIDE = 10
_RETENTION_SECONDS = 60.0
_STREAMS_SECONDS = 0.5


class Worker:
    """Runs jobs that it is rung for, in as many threads as call `run`.

    Stopping has two parts, as Celery's has: `drain` when the order comes, `close` once no task runs any more; see
    `workers.process.shutdown`. Whoever receives messages tells `held` of each, and sets `listen` to what lets them flow
    or ends their flow; it is told every second.
    """

    def __init__(self, settings: Settings, ring: Callable[[str, str], bool]) -> None:
        self.id = f"{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(3)}"
        own = settings.worker
        self.held = HeldMessages()
        self.listen: Callable[[bool], object] = lambda _: None
        self._can_run = True
        self._ring = ring
        self._queues = settings.worker_queues
        self._warms_up = settings.spark.warm_up
        # One for each runner and each of the threads beside them that use it.
        self._database = Database(
            settings.database_url,
            # A stream's mini-batches note themselves on a thread of Spark's.
            connections=own.concurrency + own.streams + _THREADS_BESIDE,
            settings=settings.database,
        )
        self._at_hand = AttemptsAtHand(most_abandoned=own.concurrency)
        self._runtime = SparkRuntime(
            settings.spark,
            settings.state_dir / "spark",
            settings.results_dir,
            properties=s3a_properties(settings.data),
        )
        self._metrics = WorkerMetrics()
        self._metrics.watch(lambda: len(self._at_hand.all()), self._memory)
        self._metrics_address = (own.metrics_host, own.metrics_port)
        self._runner = JobRunner(
            settings,
            self._database,
            self._runtime,
            self._at_hand,
            self.id,
            ring,
            metrics=self._metrics,
            most_streams=own.streams,
        )
        self._departure = Departure(
            self.id,
            self._at_hand,
            own.drain_seconds,
            hand_back=self._runner.hand_back,
            kill_driver=self._kill_driver,
            stop_taking=self._stop_taking,
        )
        self._heartbeat = Heartbeat(
            self._database,
            self.id,
            self._at_hand,
            round(own.lease_seconds * 1000),
            facts=Facts(settings, lambda: self._runtime.condition, self._memory),
            drain=self._departure.ask,
        )
        self._sweeper = Sweeper(
            self._database,
            self.id,
            own,
            settings.results_dir,
            ring,
            self._heartbeat.step,
            connect_seconds=settings.database.connect_timeout_seconds,
            streams=settings.streams_dir,
        )
        progress = ProgressReporter(self._database, self._at_hand)
        watch = CancellationWatch(self._database, self._at_hand)
        driver = DriverWatch(self._runtime, self._at_hand, settings.spark.gateway_timeout_seconds)
        stuck = StuckWork(self._runtime, self._at_hand, settings.spark.task_kill_seconds, leave=self._departure.ask)
        result_limit = ResultLimit(self._at_hand, settings.results_dir, settings.limits.result_bytes)
        retention = RetentionStep(
            self._database,
            self.id,
            settings.retention,
            settings.results_dir,
            settings.streams_dir,
            lambda: not self._departure.told,
        )
        self._loops = (
            # These two must not be late when the database is back: leases run out meanwhile, clients wait.
            Loop("heartbeat", own.heartbeat_seconds, self._heartbeat.step, longest=own.heartbeat_seconds),
            Loop("cancellation", own.watch_seconds, watch.step, longest=1.0),
            Loop("time-limits", own.watch_seconds, watch.mark_overdue),
            Loop("spark-cancellation", own.watch_seconds, watch.cancel_spark_jobs, longest=1.0),
            Loop("progress", own.progress_seconds, progress.step),
            Loop("result-limit", own.progress_seconds, result_limit.step),
            Loop("streams", _STREAMS_SECONDS, self._runner.supervisor.step),
            Loop("driver-ping", _WATCH_DRIVER_SECONDS, driver.ping),
            Loop("driver-watch", _WATCH_DRIVER_SECONDS, driver.watch),
            Loop("stuck-work", _WATCH_DRIVER_SECONDS, stuck.step),
            Loop("stuck-plannings", _WATCH_DRIVER_SECONDS, stuck.look_at_plannings),
            Loop("spark", _WATCH_DRIVER_SECONDS, self._runtime.keep_ready),
            Loop("messages", _WATCH_DRIVER_SECONDS, self._watch_messages),
            Loop("driver-count", _WATCH_DRIVER_SECONDS, DriverCount(self._runtime, self._metrics).step),
            Loop("sweeper", own.sweep_seconds, self._sweeper.step),
            Loop("retention", _RETENTION_SECONDS, retention.step),
        )

    def start(self) -> None:
        """Starts the threads beside the runners."""
        self._departure.start()
        if self._warms_up:
            threading.Thread(target=self._warm_up, name="warm-up", daemon=True).start()
        for loop in self._loops:
            loop.start()
        host, port = self._metrics_address
        if port:
            self._metrics.serve(host, port)
        _log.info("worker_started", worker=self.id)

    def run(self, job_id: str) -> None:
        """Runs a job to its end, in the calling thread; returns at once where there is nothing to do.

        A worker that takes no more jobs passes the message on.
        """
        self.held.begun(job_id)
        with self._at_hand.taking():
            if not self._at_hand.closed:
                try:
                    self._runner.run(job_id)
                    # What waits is in the database, whatever became of its messages: one that comes wakes a thread,
                    # which then goes on for as long as there is something to do.
                    while self._runner.run_oldest(self._queues):
                        pass
                except (SparkUnavailableError, TooManyPlanningsError):
                    self._pass_on([job_id])
                    # Until this worker listens no more, the message could come back at once, over and over.
                    self._at_hand.wait_until_closed(_WATCH_DRIVER_SECONDS)
        if self._at_hand.closed:
            self._pass_on([job_id])
            # As above, where it was asked to leave; told to, Celery listens no more.
            self._departure.wait_for_order(_WATCH_DRIVER_SECONDS)

    def drain(self) -> None:
        """Takes no further job, and gives those at hand their time. Returns at once; safe in a signal handler."""
        self._departure.order()

    def close(self) -> None:
        """Stops threads and Spark and leaves the list of workers. To be called when no job runs any more."""
        self._departure.order()
        for loop in self._loops:
            loop.ask_to_stop()
        for loop in self._loops:
            loop.join(_LOOP_SECONDS)
        try:
            # Celery has dropped what still waited for a thread.
            self._pass_on(self.held.take_all())
            self._sweeper.resign()
            self._heartbeat.leave()
        except SQLAlchemyError:
            # Both lapse by themselves.
            _log.warning("worker_left_unnoticed", exc_info=True)
        self._runner.supervisor.close()
        self._runtime.stop()
        self._database.close()
        _log.info("worker_stopped", worker=self.id)
        self._departure.finish()

    def _warm_up(self) -> None:
        """Starts Spark before a job asks for it."""
        with suppress(SparkUnavailableError):  # it was logged, and is tried again
            self._runtime.driver()

    def _watch_messages(self) -> None:
        """A worker listens to nothing while its Spark is not available, or too many plannings that it has abandoned go
        on: others take what it cannot run.
        """
        state = self._runtime.condition.state
        if state is not SparkState.STARTING:
            self._can_run = state is SparkState.READY
        can_run = self._can_run and not self._at_hand.abandoned.are_too_many
        self.listen(can_run and not self._at_hand.closed)
        if not can_run:
            self._pass_on(self.held.take_all())

    def _stop_taking(self) -> None:
        self.listen(False)
        self._pass_on(self.held.take_all())

    def _pass_on(self, job_ids: Collection[str]) -> None:
        """Rings again for those of these jobs that still wait: the messages that this worker took are gone."""
        if not job_ids:
            return
        with self._database.read() as session:
            waiting = jobs.queues_of_waiting(session, job_ids)
        for job_id, queue in waiting:
            # Where the broker is away, the sweeper announces all of them again.
            if not self._ring(job_id, queue):
                return

    def _kill_driver(self) -> None:
        driver = self._runtime.current
        if driver is not None:
            driver.kill()
        else:
            # A thread may wait for it, and nobody needs it any more.
            self._runtime.kill_start()

    def _memory(self) -> Resident:
        driver = self._runtime.current
        return resident(None if driver is None else driver.process.pid)
