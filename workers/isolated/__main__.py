"""`python -P -m workers.isolated`: runs one attempt of a batch job in a Spark driver of its own.

A worker starts it, writes the claim to its standard input, and reads the verdict from its standard output. The process
ends with its worker. If memory is short, the kernel kills it and its JVM before the worker.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

import structlog
from pydantic_core import PydanticSerializationError

from service.config.processes import die_with_parent
from service.config.settings import Settings
from service.contract import problems
from service.contract.enums import AttemptStatus, JobStatus
from service.contract.job import JobSpec
from service.data.roots import s3a_properties
from service.monitoring.logs import configure_logging
from service.store.attempts import Claim
from service.store.publication import Ending
from service.store.session import Database
from workers.driver.cluster import SparkUnavailableError
from workers.driver.session import NOT_STARTED, SparkRuntime
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.isolated.messages import ALIVE_SECONDS, Message, claim_in, line_of, message_of
from workers.jobs.attempt import Attempt, RunningAttempts, StopReason
from workers.jobs.cancellation import CancellationWatch
from workers.jobs.outcome import HandBack, Verdict, verdict_of
from workers.jobs.planning import PlanningThreads, allow_deep_plans
from workers.periodic import Loop
from workers.process.batch_runner import BatchRunner
from workers.process.heartbeat import ProgressReporter
from workers.process.watchdog import DriverWatch

_WATCH_DRIVER_SECONDS = 1.0
_CONNECTIONS = 3
"""One for the attempt, one for its progress, and one more."""
_OOM_SCORE = 600
"""The kernel kills first what has the highest score: the part of the memory that a process uses, in thousandths, plus
this number."""

_log = structlog.get_logger(__name__)


class Channel:
    """Writes messages to the worker. Safe to share between threads."""

    def __init__(self) -> None:
        """Takes over the standard output. What this process and its JVM print from then on goes to the log."""
        self._descriptor = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Writes a message. Raises OSError if the worker has ended."""
        left = memoryview(line_of(message))
        with self._lock:
            while left:
                left = left[os.write(self._descriptor, left) :]

    def planned(self, milliseconds: int) -> None:
        """See `AttemptDurations`."""
        self.send(Message(planning_ms=milliseconds))

    def executed(self, milliseconds: int) -> None:
        """See `AttemptDurations`."""
        self.send(Message(execution_ms=milliseconds))


class IsolatedAttempt:
    """An attempt, its driver, and the threads that watch both. Runs once."""

    def __init__(self, settings: Settings, claim: Claim, channel: Channel) -> None:
        self._channel = channel
        # The worker measures the time limit.
        self._attempt = Attempt(claim, math.inf)
        self._attempts = RunningAttempts()
        self._database = Database(settings.database_url, connections=_CONNECTIONS, settings=settings.database)
        self._runtime = SparkRuntime(
            settings.spark.model_copy(update={"driver_memory": settings.worker.isolated_memory}),
            settings.state_dir / "spark",
            settings.results_dir,
            properties=s3a_properties(settings.data),
        )
        plannings = PlanningThreads(self._attempts.abandoned)
        self._runner = BatchRunner(settings, self._database, plannings, channel, StatisticsCache())
        own = settings.worker
        cancellation = CancellationWatch(self._database, self._attempts)
        progress = ProgressReporter(self._database, self._attempts)
        watch = DriverWatch(self._runtime, self._attempts, settings.spark.gateway_timeout_seconds)
        self._loops = (
            Loop("alive", ALIVE_SECONDS, lambda: channel.send(Message())),
            Loop("spark-cancellation", own.watch_seconds, cancellation.cancel_spark_jobs, longest=1.0),
            Loop("progress", own.progress_seconds, progress.step),
            Loop("driver-ping", _WATCH_DRIVER_SECONDS, watch.ping),
            Loop("driver-watch", _WATCH_DRIVER_SECONDS, watch.watch),
        )

    def run(self) -> None:
        """Runs the attempt, sends the verdict about it, and stops Spark."""
        for loop in self._loops:
            loop.start()
        with self._attempts.holding(self._attempt):
            verdict = self._verdict()
            self._attempt.settle()
        try:
            self._channel.send(message_of(verdict))
        except PydanticSerializationError as error:
            # The name of a file that is no UTF-8.
            self._channel.send(message_of(verdict_of(error, self._attempt)))
        for loop in self._loops:
            loop.ask_to_stop()
        self._runtime.stop()
        self._database.close()

    def stop_when_asked(self) -> None:
        """Reads reasons to stop the attempt from the standard input, until the worker has ended."""
        for line in sys.stdin.buffer:
            self._attempt.stop(StopReason(line.decode().strip()))

    def _verdict(self) -> Verdict:
        claim = self._attempt.claim
        try:
            driver = self._runtime.driver()
        except SparkUnavailableError as error:  # it was logged
            if error.code == NOT_STARTED:
                return HandBack(AttemptStatus.CRASHED, problems.driver_lost(claim.worker))
            # The cluster would give the next attempt nothing either.
            return Ending(JobStatus.FAILED, problems.driver_not_started())
        try:
            return self._runner.run(self._attempt, driver, JobSpec.model_validate(claim.spec))
        except Exception as error:  # noqa: BLE001 - every end of a job is reported to the client
            return verdict_of(error, self._attempt)


def main() -> None:
    """Runs the attempt whose claim is in the standard input."""
    die_with_parent()
    with suppress(OSError):  # there is no such file on other systems than Linux
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE), encoding="ascii")
    channel = Channel()
    allow_deep_plans()
    settings = Settings()
    configure_logging(settings.log)
    claim = claim_in(sys.stdin.buffer.readline())
    with structlog.contextvars.bound_contextvars(job_id=claim.job_id, attempt=claim.fence):
        _log.info("isolated_driver_starting", memory=settings.worker.isolated_memory)
        attempt = IsolatedAttempt(settings, claim, channel)
        threading.Thread(target=attempt.stop_when_asked, name="orders", daemon=True).start()
        attempt.run()
    # Threads of a driver that could not be stopped must not delay the end of the process.
    os._exit(0)


if __name__ == "__main__":
    main()
