"""A worker process: its parts, its threads, and how it stops."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.settings import Settings
from service.spec import ends
from service.spec.status import AttemptStatus
from service.store import workers
from service.store.session import Database
from workers.attempt import AttemptsAtHand, StopReason
from workers.cancellation import CancellationWatch, cancel_stopped
from workers.failures import HandBack
from workers.heartbeat import Heartbeat, ProgressReporter
from workers.loops import Loop
from workers.retention import RetentionStep
from workers.runner import JobRunner
from workers.spark_session import SparkRuntime
from workers.sweeper import Sweeper
from workers.watchdog import DriverWatch

_log = structlog.get_logger(__name__)

_WATCH_DRIVER_SECONDS = 1.0
_HAND_BACK_SECONDS = 3.0
_LOOP_SECONDS = 0.5
_EXIT_SECONDS = 15.0
_THREADS_BESIDE = 6
_RETENTION_SECONDS = 60.0


class Worker:
    """Runs jobs that it is rung for, in as many threads as call `run`.

    Stopping has two parts, as Celery's has: `drain` when the order comes, `close` once no task runs any more. A job
    that does not end within the drain time is handed back to the queue; its attempt does not count against it.
    """

    def __init__(self, settings: Settings, ring: Callable[[str, str], bool]) -> None:
        self.id = f"{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(3)}"
        own = settings.worker
        self._drain_seconds = own.drain_seconds
        self._warms_up = settings.spark.warm_up
        # One for each runner and each of the threads beside them that use it.
        self._database = Database(settings.database_url, connections=own.concurrency + _THREADS_BESIDE)
        self._at_hand = AttemptsAtHand()
        self._runtime = SparkRuntime(settings.spark, settings.state_dir / "spark")
        self._runner = JobRunner(settings, self._database, self._runtime, self._at_hand, self.id, ring)
        heartbeat = Heartbeat(self._database, self.id, self._at_hand, round(own.lease_seconds * 1000))
        self._sweeper = Sweeper(self._database, self.id, own, settings.results_dir, ring, heartbeat.step)
        progress = ProgressReporter(self._database, self._at_hand)
        watch = CancellationWatch(self._database, self._at_hand)
        driver = DriverWatch(self._runtime, self._at_hand, settings.spark.gateway_timeout_seconds)
        retention = RetentionStep(
            self._database, self.id, settings.retention, settings.results_dir, lambda: not self._draining.is_set()
        )
        self._loops = (
            # These two must not be late when the database is back: leases run out meanwhile, clients wait.
            Loop("heartbeat", own.heartbeat_seconds, heartbeat.step, longest=own.heartbeat_seconds),
            Loop("cancellation", own.watch_seconds, watch.step, longest=1.0),
            Loop("time-limits", own.watch_seconds, watch.mark_overdue),
            Loop("progress", own.progress_seconds, progress.step),
            Loop("driver-ping", _WATCH_DRIVER_SECONDS, driver.ping),
            Loop("driver-watch", _WATCH_DRIVER_SECONDS, driver.watch),
            Loop("sweeper", own.sweep_seconds, self._sweeper.step),
            Loop("retention", _RETENTION_SECONDS, retention.step),
        )
        self._draining = threading.Event()
        self._closed = threading.Event()

    def start(self) -> None:
        """Starts the threads beside the runners."""
        threading.Thread(target=self._drain_when_told, name="drain", daemon=True).start()
        if self._warms_up:
            threading.Thread(target=self._warm_up, name="warm-up", daemon=True).start()
        for loop in self._loops:
            loop.start()
        _log.info("worker_started", worker=self.id)

    def run(self, job_id: str) -> None:
        """Runs a job to its end, in the calling thread; returns at once where there is nothing to do."""
        self._runner.run(job_id)

    def drain(self) -> None:
        """Takes no further job, and gives those at hand their time. Returns at once; safe in a signal handler."""
        self._draining.set()

    def close(self) -> None:
        """Stops threads and Spark and leaves the list of workers. To be called when no job runs any more."""
        self._draining.set()
        for loop in self._loops:
            loop.ask_to_stop()
        for loop in self._loops:
            loop.join(_LOOP_SECONDS)
        try:
            self._sweeper.resign()
            with self._database.write() as session:
                workers.leave(session, self.id)
        except SQLAlchemyError:
            # Both lapse by themselves.
            _log.warning("worker_left_unnoticed", exc_info=True)
        self._runtime.stop()
        self._database.close()
        _log.info("worker_stopped", worker=self.id)
        self._closed.set()

    def _warm_up(self) -> None:
        """Starts Spark before a job asks for it. What is wrong with it is told again, by every job that needs it."""
        try:
            self._runtime.driver()
        except Exception:  # noqa: BLE001 - the first job finds out the same
            _log.exception("spark_not_started")

    def _drain_when_told(self) -> None:
        self._draining.wait()
        self._at_hand.close()
        if self._at_hand.wait_until_empty(self._drain_seconds):
            self._exit_at_last()
            return
        for attempt in self._at_hand.all():
            attempt.stop(StopReason.WORKER_STOPPING)
        cancel_stopped(self._at_hand.all())
        if not self._at_hand.wait_until_empty(_HAND_BACK_SECONDS):
            self._hand_back_what_is_left()
        self._exit_at_last()

    def _hand_back_what_is_left(self) -> None:
        """For runners that do not listen: planning in Python, or a driver that hangs."""
        for attempt in self._at_hand.all():
            if attempt.reason is StopReason.WORKER_STOPPING:
                given = HandBack(AttemptStatus.CANCELLED, ends.handed_back(self.id))
                try:
                    self._runner.hand_back(attempt.claim, given)
                except SQLAlchemyError:
                    _log.warning("hand_back_failed", job_id=attempt.claim.job_id, exc_info=True)
        driver = self._runtime.current
        if driver is not None:
            driver.kill()

    def _exit_at_last(self) -> None:
        """A process that was told to end does end, even where one of its threads does not."""
        if not self._closed.wait(_EXIT_SECONDS):
            _log.error("worker_exit_forced", worker=self.id)
            os._exit(1)
