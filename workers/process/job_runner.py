"""Runs one attempt, from the claim to the publication of its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from datetime import timedelta

import structlog
from sqlalchemy import ColumnElement, or_
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.config.settings import Settings
from service.contract import problems
from service.contract.enums import JobStatus, Mode, Queue
from service.contract.job import JobSpec
from service.store import accounts, jobs, streaming_jobs
from service.store.accounts import Quota
from service.store.attempts import Claim, is_true_for
from service.store.publication import AttemptMetrics, Ending, add_metrics, publish_or_retry
from service.store.session import Database, fault_of
from service.store.streaming_state import StreamStopReason
from workers.driver.driver import Driver, DriverSource
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.isolated.driver_processes import DriverProcesses
from workers.jobs.attempt import Attempt, RunningAttempts, StopReason
from workers.jobs.claims import ExplanationSlots, Suspects, claim_job, hand_back_job, retry_on_database_fault
from workers.jobs.outcome import HandBack, LeaseLost, StreamStop, Success, Verdict, verdict_of
from workers.jobs.planning import PlanningThreads, TooManyPlanningsError
from workers.jobs.results import remove_attempt, remove_older_attempts
from workers.jobs.slots import IsolatedSlots, JobSlots
from workers.metrics import WorkerMetrics
from workers.process.batch_runner import BatchRunner
from workers.streams.attempt import StreamAttempt, stream_verdict
from workers.streams.runner import HandedOver, StreamRunner
from workers.streams.supervisor import Place, StreamSupervisor

_log = structlog.get_logger(__name__)

_TRANSIENT = frozenset({"storage_unavailable", "disk_full", "files_changed", "timed_out"})
"""Problems after which the next run of an incremental job may succeed."""


class JobRunner:
    """Runs jobs in the threads that call it, one at a time in each thread."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        drivers: DriverSource,
        running_attempts: RunningAttempts,
        worker: str,
        announce: Callable[[str, str], object],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
        metrics: WorkerMetrics | None = None,
        most_streams: int = 8,
        isolated: DriverProcesses | None = None,
    ) -> None:
        """`isolated` runs the jobs that ask for a driver of their own; by default, as the settings say."""
        self._results = settings.results_dir
        self._max_running_jobs_of_tenant = settings.limits.running_jobs
        self._slots = JobSlots(settings.worker.concurrency)
        self._isolated_slots = IsolatedSlots(settings.worker.isolated_drivers)
        self._explanations = ExplanationSlots(
            settings.worker.concurrency, settings.limits.explanations, running_attempts.abandoned
        )
        self._lease_ms = round(settings.worker.lease_seconds * 1000)
        self._database = database
        self._drivers = drivers
        self._running_attempts = running_attempts
        self._worker = worker
        self._announce = announce
        self._clock = clock
        self._pause = pause
        self._metrics = metrics or WorkerMetrics()
        self._isolated = isolated or DriverProcesses(settings, self._metrics)
        known_files = StatisticsCache()
        self._suspects = Suspects(running_attempts)
        plannings = PlanningThreads(running_attempts.abandoned)
        self._batch = BatchRunner(settings, database, plannings, self._metrics, known_files, clock, pause)
        self._streams = StreamRunner(
            settings, database, plannings, self._metrics, self._batch.mark_running, clock, pause, known_files
        )
        self.supervisor = StreamSupervisor(running_attempts, self._end_stream, most_streams)

    def run(self, job_id: str) -> bool:
        """Claims the job and runs it to its end, or hands it back for another attempt.

        Returns False if there is nothing to claim: a message may come twice, or late. Raises SparkUnavailableError and
        TooManyPlanningsError before it claims anything, and otherwise only errors of the database.
        """
        return self._run(lambda session, place: self._job_if_eligible(session, job_id, place))

    def run_next(self, queues: Collection[str]) -> bool:
        """As `run`, for the job in these queues whose turn it is: see `service.store.turns`."""
        return self._run(lambda session, place: self._next(session, queues, place))

    def _next(self, session: Session, queues: Collection[str], place: Place) -> str | None:
        others = [queue for queue in queues if queue != Queue.STREAM.value]
        excluded = self._excluded_jobs(session)
        eligible = others if self.supervisor.is_full else queues
        quota = self._quota()
        job_id = self._slots.next_waiting(session, eligible, quota, excluded)
        if job_id is None:
            return None
        if not self._has_place(session, job_id, place):
            # Meanwhile another thread has reserved the last slot for streams.
            job_id = self._slots.next_waiting(session, others, quota, excluded)
        return job_id if job_id is not None and accounts.has_room(session, job_id, quota) else None

    def _job_if_eligible(self, session: Session, job_id: str, place: Place) -> str | None:
        excluded = self._excluded_jobs(session)
        if excluded is not None and is_true_for(session, job_id, excluded):
            return None
        if not self._slots.allow(session, job_id):
            return None
        # If the tenant has reached its limit of running jobs, the job waits until one of them ends. The slot is
        # reserved last, since it is not released before the end of the claim.
        has_room = accounts.has_room(session, job_id, self._quota())
        return job_id if has_room and self._has_place(session, job_id, place) else None

    def _excluded_jobs(self, session: Session) -> ColumnElement[bool] | None:
        """Returns the condition on jobs that must not begin now; None if any may begin."""
        found = (self._suspects.excluded_jobs(session), self._isolated_slots.excluded_jobs())
        conditions = [condition for condition in found if condition is not None]
        return or_(*conditions) if conditions else None

    def _quota(self) -> Quota:
        return Quota(self._max_running_jobs_of_tenant, self._explanations.tenants_at_limit())

    def _has_place(self, session: Session, job_id: str, place: Place) -> bool:
        """Reserves a slot if the job is a stream. Returns False if this worker has reached its limit of streams: the
        job then waits for another worker, or for a free slot.
        """
        # Whatever its status: a job may be handed back just before it is claimed.
        return jobs.queue_of(session, job_id) != Queue.STREAM.value or self.supervisor.take(place)

    def _run(self, choose: Callable[[Session, Place], str | None]) -> bool:
        # Before the claim: a worker that cannot run the job must not use up an attempt of it.
        driver = self._drivers.driver()
        if self._running_attempts.closed:
            return False
        if self._running_attempts.abandoned.are_too_many:
            raise TooManyPlanningsError
        if not self._slots.may_claim(self._database):
            return False
        with self.supervisor.starting() as place:
            claim = self._suspects.claim(lambda: self._count(self._claimed(lambda session: choose(session, place))))
            if claim is not None:
                with (
                    self._slots.working(),
                    self._isolated_slots.working(claim),
                    self._suspects.running(claim),
                    self._explanations.working(claim),
                ):
                    self._run_claimed(claim, driver, place)
        return claim is not None

    def _count(self, claim: Claim | None) -> Claim | None:
        return self._explanations.count(self._isolated_slots.take(self._slots.take(claim)))

    def _claimed(self, choose: Callable[[Session], str | None]) -> Claim | None:
        return claim_job(self._database, choose, self._worker, self._lease_ms, pause=self._pause)

    def _run_claimed(self, claim: Claim, driver: Driver, place: Place) -> None:
        attempt = Attempt(claim, self._clock() + claim.remaining_ms / 1000, self._clock)
        with (
            structlog.contextvars.bound_contextvars(job_id=claim.job_id, attempt=claim.fence),
            self._running_attempts.holding(attempt),
        ):
            _log.info("attempt_started", tenant=claim.tenant, kind=claim.kind)
            self._metrics.claimed(claim)
            verdict = self._work(attempt, driver)
            if isinstance(verdict, HandedOver):
                self.supervisor.watch(verdict.stream, place)
            else:
                self._end(attempt, verdict)

    def _end_stream(self, stream: StreamAttempt, verdict: Verdict) -> None:
        try:
            self._end(stream.attempt, verdict)
        except Exception:  # noqa: BLE001 - the other streams continue
            # The lease expires, and another attempt follows.
            _log.exception("stream_end_not_published")

    def _work(self, attempt: Attempt, driver: Driver) -> Verdict | HandedOver:
        try:
            if attempt.deadline <= self._clock():
                attempt.stop(StopReason.TIMED_OUT)
            attempt.check()
            if attempt.claim.isolated:
                return self._isolated.run(attempt)
            spec = JobSpec.model_validate(attempt.claim.spec)
            if spec.mode.is_streaming:
                return self._streams.work(attempt, driver, spec)
            return self._batch.run(attempt, driver, spec)
        except Exception as error:  # noqa: BLE001 - every end of a job is reported to the client
            keeps_state = attempt.claim.kind == jobs.RUN and attempt.claim.spec.get("mode", Mode.BATCH) != Mode.BATCH
            return stream_verdict(error, attempt) if keeps_state else verdict_of(error, attempt)

    def _end(self, attempt: Attempt, verdict: Verdict) -> None:
        attempt.settle()
        claim = attempt.claim
        if isinstance(verdict, LeaseLost):
            _log.warning("attempt_lost_its_lease")
            self._metrics.lease_lost()
            remove_attempt(self._results, claim)
        elif isinstance(verdict, HandBack):
            remove_attempt(self._results, claim)
            self.hand_back(claim, verdict)
        elif isinstance(verdict, StreamStop):
            self._stop_stream(claim, verdict)
        elif isinstance(verdict, Success):
            self._publish(claim, verdict.ending)
            self._add_metrics(claim, verdict.measure())
        else:
            self._publish(claim, verdict)

    def hand_back(self, claim: Claim, given: HandBack, seconds: float = math.inf) -> None:
        """Hands a job back for another attempt, and announces it at once.

        Waits for an unavailable database, at most about `seconds`, and then raises its error.
        """
        target = hand_back_job(self._database, claim, given, seconds=seconds, pause=self._pause)
        _log.warning(
            "attempt_handed_back", reason=given.error.code, job_status=None if target is None else target.value
        )
        if target is None:
            self._metrics.lease_lost()
            return
        self._metrics.handed_back(given.error.code)
        if target is JobStatus.QUEUED:
            self._announce(claim.job_id, claim.queue)
        else:
            self._metrics.ended(claim, target)

    def _stop_stream(self, claim: Claim, given: StreamStop) -> None:
        schedule = JobSpec.model_validate(claim.spec).schedule

        def try_once(tried: int) -> bool:
            with self._database.write() as session:
                now = self._database.now(session)
                is_transient = given.error is not None and given.error.code in _TRANSIENT
                runs_again = given.because is StreamStopReason.CAUGHT_UP or is_transient
                due = None
                if runs_again and schedule is not None:
                    due = now + schedule.every // timedelta(milliseconds=1)
                return streaming_jobs.mark_stopped(
                    session, claim, now, reason=given.because, error=given.error, next_run_at=due
                ) or (tried > 0 and streaming_jobs.is_stopped(session, claim))

        if retry_on_database_fault(try_once, pause=self._pause):
            self._metrics.ended(claim, JobStatus.STOPPED)
            _log.info("stream_stopped", because=given.because.value, code=given.error.code if given.error else None)
            return
        # Its cancellation was requested at the same time, or the lease is lost.
        _log.info("stream_stop_refused")
        self._publish(claim, Ending(JobStatus.CANCELLED, problems.cancelled()))

    def _publish(self, claim: Claim, ending: Ending) -> None:
        try:
            became = self._publish_with_retries(claim, ending)
        except Exception as error:
            if fault_of(error) is not None:
                raise
            _log.error("publication_impossible", exc_info=error)
            ending = Ending(JobStatus.FAILED, problems.internal_error(claim.job_id, claim.fence))
            became = self._publish_with_retries(claim, ending, last=True)
        if became is None:
            _log.warning("publication_refused", status=ending.status.value)
        if became is None or ending.result is None:
            remove_attempt(self._results, claim)
        if became is not None:
            if became.is_terminal:
                self._metrics.ended(claim, became)
            remove_older_attempts(self._results, claim, None if ending.result is None else ending.result.path)
            _log.info(
                "attempt_ended",
                status=ending.status.value,
                job_status=became.value,
                code=None if ending.error is None else ending.error.code,
                rows=None if ending.result is None else ending.result.rows,
            )

    def _add_metrics(self, claim: Claim, metrics: AttemptMetrics) -> None:
        try:
            with self._database.write() as session:
                add_metrics(session, claim, metrics)
        except SQLAlchemyError:
            # The job has succeeded without them.
            _log.warning("metrics_not_stored", exc_info=True)

    def _publish_with_retries(self, claim: Claim, ending: Ending, *, last: bool = False) -> JobStatus | None:
        """Publishes the end, with retries for a minute while the database is unavailable."""

        def publish(tried: int) -> JobStatus | None:
            with self._database.write() as session:
                return publish_or_retry(session, claim, ending, self._database.now(session), again=tried > 0, last=last)

        return retry_on_database_fault(publish, pause=self._pause)
