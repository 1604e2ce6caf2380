"""A worker process: creates its parts, starts its threads, runs jobs, and stops."""

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
from workers.isolated.driver_processes import DriverProcesses
from workers.jobs.attempt import RunningAttempts
from workers.jobs.cancellation import CancellationWatch
from workers.jobs.planning import TooManyPlanningsError
from workers.jobs.results import ResultLimit
from workers.jobs.warm_up import warm_up
from workers.metrics import DriverCount, Resident, WorkerMetrics, resident
from workers.periodic import Loop
from workers.process.heartbeat import Facts, Heartbeat, ProgressReporter
from workers.process.job_runner import JobRunner
from workers.process.maintenance import RetentionStep, Sweeper
from workers.process.preemption import Preemption
from workers.process.queue_consumer import HeldMessages
from workers.process.shutdown import Shutdown
from workers.process.watchdog import DriverWatch, StuckWork

_log = structlog.get_logger(__name__)

_WATCH_DRIVER_SECONDS = 1.0
_LOOP_JOIN_SECONDS = 0.5
_BACKGROUND_THREADS = 10
_RETENTION_SECONDS = 60.0
_STREAMS_SECONDS = 0.5
_PREEMPTION_SECONDS = 0.1


class Worker:
    """Runs the jobs that are announced to it, in the threads that call `run`.

    Like Celery, it stops in two steps: `drain` when the shutdown is ordered, `close` when no task runs any more; see
    `workers.process.shutdown`. The consumer of messages adds each job to `held`, and sets `listen` to the function that
    starts or stops the consumption. The worker calls `listen` every second.
    """

    def __init__(self, settings: Settings, announce: Callable[[str, str], bool]) -> None:
        """`announce` sends a job's message and returns whether the broker accepted it."""
        self.id = f"{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(3)}"
        own = settings.worker
        self.held = HeldMessages()
        self.listen: Callable[[bool], object] = lambda _: None
        self._can_run = True
        self._announce = announce
        self._queues = settings.worker_queues
        self._warms_up = settings.spark.warm_up
        self._results = settings.results_dir
        # One connection for each thread that runs a job, each stream, and each background thread that uses the
        # database.
        self._database = Database(
            settings.database_url,
            # A stream records its mini-batches in a thread of Spark.
            connections=own.threads + own.streams + _BACKGROUND_THREADS,
            settings=settings.database,
        )
        self._running_attempts = RunningAttempts(most_abandoned=own.concurrency)
        self._runtime = SparkRuntime(
            settings.spark,
            settings.state_dir / "spark",
            settings.results_dir,
            properties=s3a_properties(settings.data),
        )
        self._metrics = WorkerMetrics()
        self._metrics.watch(lambda: len(self._running_attempts.all()), self._memory)
        self._metrics_address = (own.metrics_host, own.metrics_port)
        self._isolated = DriverProcesses(settings, self._metrics, self._remove_leftovers)
        self._runner = JobRunner(
            settings,
            self._database,
            self._runtime,
            self._running_attempts,
            self.id,
            announce,
            metrics=self._metrics,
            most_streams=own.streams,
            isolated=self._isolated,
        )
        self._shutdown = Shutdown(
            self.id,
            self._running_attempts,
            own.drain_seconds,
            hand_back=self._runner.hand_back,
            kill_driver=self._kill_driver,
            stop_taking=self._stop_taking,
        )
        self._heartbeat = Heartbeat(
            self._database,
            self.id,
            self._running_attempts,
            round(own.lease_seconds * 1000),
            facts=Facts(settings, lambda: self._runtime.condition, self._memory),
            drain=self._shutdown.request,
        )
        self._sweeper = Sweeper(
            self._database,
            self.id,
            own,
            settings.results_dir,
            announce,
            self._heartbeat.step,
            connect_seconds=settings.database.connect_timeout_seconds,
            streams=settings.streams_dir,
        )
        progress = ProgressReporter(self._database, self._running_attempts)
        watch = CancellationWatch(self._database, self._running_attempts)
        driver = DriverWatch(self._runtime, self._running_attempts, settings.spark.gateway_timeout_seconds)
        stuck = StuckWork(
            self._runtime, self._running_attempts, settings.spark.task_kill_seconds, drain=self._shutdown.request
        )
        preemption = Preemption(lambda: self._runtime.current, self._running_attempts, settings.spark.preempt_seconds)
        result_limit = ResultLimit(self._running_attempts, settings.results_dir, settings.limits.result_bytes)
        retention = RetentionStep(
            self._database,
            self.id,
            settings.retention,
            settings.results_dir,
            settings.streams_dir,
            lambda: not self._shutdown.is_requested,
        )
        self._loops = (
            # After an outage of the database, these two must run again soon: leases expire, and clients wait.
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
            Loop("stuck-plannings", _WATCH_DRIVER_SECONDS, stuck.check_plannings),
            Loop("preemption", _PREEMPTION_SECONDS, preemption.step),
            Loop("spark", _WATCH_DRIVER_SECONDS, self._runtime.keep_ready),
            Loop("messages", _WATCH_DRIVER_SECONDS, self._watch_messages),
            Loop("driver-count", _WATCH_DRIVER_SECONDS, DriverCount(self._runtime, self._metrics).step),
            Loop("sweeper", own.sweep_seconds, self._sweeper.step),
            Loop("retention", _RETENTION_SECONDS, retention.step),
        )

    def start(self) -> None:
        """Starts the background threads."""
        self._shutdown.start()
        if self._warms_up:
            threading.Thread(target=self._warm_up, name="warm-up", daemon=True).start()
        for loop in self._loops:
            loop.start()
        host, port = self._metrics_address
        if port:
            self._metrics.serve(host, port)
        _log.info("worker_started", worker=self.id)

    def run(self, job_id: str) -> None:
        """Runs a job to its end in the calling thread, and then the jobs that wait. Returns at once if there are none.

        A worker that accepts no more jobs announces the job again, for other workers.
        """
        self.held.begun(job_id)
        with self._running_attempts.taking():
            if not self._running_attempts.closed:
                try:
                    self._runner.run(job_id)
                    # Waiting jobs are in the database, even if their messages were lost. A message wakes a thread,
                    # which then continues as long as jobs wait.
                    while self._runner.run_next(self._queues):
                        pass
                except (SparkUnavailableError, TooManyPlanningsError):
                    self._announce_again([job_id])
                    # Until this worker stops consuming, it could receive the same message again and again.
                    self._running_attempts.wait_until_closed(_WATCH_DRIVER_SECONDS)
        if self._running_attempts.closed:
            self._announce_again([job_id])
            # For the same reason, after a request. After an order, Celery has already stopped consuming.
            self._shutdown.wait_for_order(_WATCH_DRIVER_SECONDS)

    def drain(self) -> None:
        """Accepts no further jobs; the running ones have `drain_seconds`. Returns at once; safe in a signal handler."""
        self._shutdown.order()

    def close(self) -> None:
        """Stops the threads and Spark, and removes the worker from the list. To be called when no job runs any more."""
        self._shutdown.order()
        for loop in self._loops:
            loop.ask_to_stop()
        for loop in self._loops:
            loop.join(_LOOP_JOIN_SECONDS)
        try:
            # Celery has dropped the messages that waited for a thread.
            self._announce_again(self.held.take_all())
            self._sweeper.resign()
            self._heartbeat.leave()
        except SQLAlchemyError:
            # The election and the heartbeat both expire.
            _log.warning("worker_not_removed", exc_info=True)
        self._runner.supervisor.close()
        self._runtime.stop()
        self._database.close()
        _log.info("worker_stopped", worker=self.id)
        self._shutdown.finish()

    def _warm_up(self) -> None:
        """Starts Spark before the first job needs it, and runs a query if no job waits for Spark."""
        with suppress(SparkUnavailableError):  # it was logged, and `keep_ready` tries again
            driver = self._runtime.driver()
            if self._running_attempts.wait_until_empty(0):
                warm_up(driver, self._results)

    def _watch_messages(self) -> None:
        """Stops consuming while Spark is unavailable or too many abandoned plannings run, so that other workers get the
        jobs; resumes afterwards.
        """
        state = self._runtime.condition.state
        if state is not SparkState.STARTING:
            self._can_run = state is SparkState.READY
        can_run = self._can_run and not self._running_attempts.abandoned.are_too_many
        self.listen(can_run and not self._running_attempts.closed)
        if not can_run:
            self._announce_again(self.held.take_all())

    def _stop_taking(self) -> None:
        self.listen(False)
        self._announce_again(self.held.take_all())

    def _announce_again(self, job_ids: Collection[str]) -> None:
        """Announces those of the jobs that are still queued, since this worker has acknowledged their messages."""
        if not job_ids:
            return
        with self._database.read() as session:
            waiting = jobs.queues_of_waiting(session, job_ids)
        for job_id, queue in waiting:
            # If the broker is unavailable, the sweeper announces all of them later.
            if not self._announce(job_id, queue):
                return

    def _kill_driver(self) -> None:
        driver = self._runtime.current
        if driver is not None:
            driver.kill()
        else:
            # A thread may wait for the start, which is not needed any more.
            self._runtime.kill_start()

    def _memory(self) -> Resident:
        driver = self._runtime.current
        return resident(None if driver is None else driver.process.pid, self._isolated.memory())

    def _remove_leftovers(self) -> None:
        with suppress(OSError):  # the next worker that starts removes them
            self._runtime.remove_leftovers()
