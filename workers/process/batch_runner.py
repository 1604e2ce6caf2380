"""Runs one attempt of a batch job on a driver, from its planning to the verdict about its end.

The attempt may run in the process of its worker, or in one of its own (`workers.isolated`). What it stores before its
end, it stores itself, on condition that its claim holds. The worker publishes the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import structlog
from sqlalchemy.orm import Session

from service.config.settings import Settings
from service.contract import problems
from service.contract.enums import JobStatus
from service.contract.job import JobSpec
from service.data.roots import roots_of
from service.store import jobs, leases, publication
from service.store.leases import ClaimState
from service.store.publication import AttemptMetrics, Ending, PublishedResult
from service.store.session import Database
from workers.driver.driver import Driver
from workers.engine.spark.engine import Engine, LateStatistics, PlannedQuery, WrittenResult
from workers.engine.spark.error_mapping import is_lack_of_memory
from workers.engine.spark.sources import TableInput
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.jobs.attempt import Attempt, StopReason
from workers.jobs.claims import retry_attempt_write
from workers.jobs.outcome import LeaseLost, Success, Verdict, verdict_of
from workers.jobs.planning import PlannedJob, PlanningThreads, labelled, plan_batch_job, same_files
from workers.jobs.results import relative_path
from workers.jobs.run_metrics import first_metrics, measure

_log = structlog.get_logger(__name__)


class AttemptDurations(Protocol):
    """Records how long the parts of an attempt took, in milliseconds."""

    def planned(self, milliseconds: int) -> None:
        """Records the time of its planning."""

    def executed(self, milliseconds: int) -> None:
        """Records the time that its query ran."""


@dataclass(frozen=True)
class _Run:
    """The data of a run that its metrics need, whether it succeeds or fails."""

    planned: PlannedQuery
    tables: dict[str, TableInput]
    planning_ms: int
    started: float
    number: int = 1
    late: LateStatistics | None = None


class BatchRunner:
    """Runs attempts of batch jobs in the threads that call it, one at a time in each thread."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        plannings: PlanningThreads,
        durations: AttemptDurations,
        known_files: StatisticsCache,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._roots = roots_of(settings)
        self._results = settings.results_dir
        self._most_result_bytes = settings.limits.result_bytes
        self._database = database
        self._plannings = plannings
        self._durations = durations
        self._known_files = known_files
        self._clock = clock
        self._pause = pause

    def run(self, attempt: Attempt, driver: Driver, spec: JobSpec) -> Verdict:
        """Plans and runs the attempt on the driver. Raises what the planning raises; see `verdict_of`."""
        attempt.driver = driver
        started = self._clock()
        job = self._plannings.run(
            attempt, lambda: plan_batch_job(attempt, driver, spec, self._roots, self._known_files)
        )
        with closing(job.engine):
            return self._run_planned(attempt, driver, job, round((self._clock() - started) * 1000))

    def _run_planned(self, attempt: Attempt, driver: Driver, job: PlannedJob, planning_ms: int) -> Verdict:
        self._durations.planned(planning_ms)
        attempt.check()
        is_explain = attempt.claim.kind == jobs.EXPLAIN
        store = partial(self._save_plan, attempt, job.planned, planning_ms, begins=not is_explain)
        if not retry_attempt_write(attempt, store, self._pause):
            return LeaseLost()
        if is_explain:
            return Ending(JobStatus.SUCCEEDED)
        run = _Run(job.planned, job.tables, planning_ms, self._clock())
        with labelled(attempt, driver):
            return self._execute(attempt, driver, job.engine, run)

    def _save_plan(self, attempt: Attempt, planned: PlannedQuery, planning_ms: int, *, begins: bool = False) -> bool:
        """Stores the plan; if the run `begins`, also that the job is running. Returns False if the lease is lost."""
        with self._database.write() as session:
            now = self._database.now(session)
            if not publication.save_plan(session, attempt.claim, planned.report, planning_ms, now):
                return False
            state = self._state_unless_marked(session, attempt, now) if begins else None
        return state is None or self._has_begun(attempt, state)

    def mark_running(self, attempt: Attempt) -> bool:
        """Stores that the attempt runs. Returns False if its lease is lost. Raises AttemptStopped, and sets the reason
        to stop it, if its end was requested.
        """
        with self._database.write() as session:
            state = self._state_unless_marked(session, attempt, self._database.now(session))
        return state is None or self._has_begun(attempt, state)

    @staticmethod
    def _state_unless_marked(session: Session, attempt: Attempt, now: int) -> ClaimState | LeaseLost | None:
        """Marks the job as running and returns None. If it cannot be marked, returns its state."""
        if leases.mark_running(session, attempt.claim, now):
            return None
        return leases.claim_states(session, [attempt.claim]).get(attempt.claim, LeaseLost())

    @staticmethod
    def _has_begun(attempt: Attempt, state: ClaimState | LeaseLost) -> bool:
        if isinstance(state, LeaseLost):
            return False
        if state.status is JobStatus.RUNNING and not state.cancel_requested:
            # An earlier try was committed although its answer was lost.
            return True
        # The lease is held and the job does not start: its cancellation or stop was just requested.
        is_stop = state.status is JobStatus.STOPPING and not state.cancel_requested
        attempt.stop(StopReason.STOP_REQUESTED if is_stop else StopReason.CANCELLED)
        attempt.check()
        return False

    def _execute(self, attempt: Attempt, driver: Driver, engine: Engine, run: _Run) -> Verdict:
        # The run after a fallback continues to use the statistics thread of the first run.
        run = replace(run, late=run.late or engine.late_statistics(run.planned, run.tables))
        try:
            written = self._written(attempt, engine, run)
        except Exception as error:  # noqa: BLE001 - every end of a job is reported to the client
            execution_ms = round((self._clock() - run.started) * 1000)
            verdict = verdict_of(error, attempt)
            if not isinstance(verdict, Ending):
                return verdict
            if verdict.status is JobStatus.FAILED and is_lack_of_memory(error):
                safer = self._fallback_plan(attempt, driver, engine, run, error, execution_ms)
                if safer is not None:
                    self._durations.executed(execution_ms)
                    return self._execute_again(attempt, driver, engine, replace(run, planned=safer))
            return Ending(verdict.status, verdict.error, metrics=self._measure(attempt, driver, run))
        if self._most_result_bytes and written.bytes > self._most_result_bytes:
            # The limit was exceeded between two checks of `ResultLimit`.
            metrics = self._measure(attempt, driver, run, written)
            return Ending(JobStatus.FAILED, problems.result_too_large(), metrics=metrics)
        # A complete result is published even if the attempt was stopped meanwhile.
        execution_ms = self._ended(run)
        ending = Ending(
            JobStatus.SUCCEEDED,
            result=PublishedResult(relative_path(attempt.claim, run.number), written.rows, written.bytes),
            metrics=first_metrics(driver.monitor, attempt.run_tag, execution_ms),
        )
        return Success(
            ending,
            partial(measure, driver.monitor, attempt.run_tag, run.planned, run.tables, execution_ms, run.late, written),
        )

    def _written(self, attempt: Attempt, engine: Engine, run: _Run) -> WrittenResult:
        """Executes the run and returns what it wrote. Raises what Spark and `same_files` raise."""
        with same_files(run.tables, run.planned.plan, attempt):
            return engine.execute(run.planned, self._results / relative_path(attempt.claim, run.number))

    def _fallback_plan(
        self, attempt: Attempt, driver: Driver, engine: Engine, run: _Run, error: Exception, execution_ms: int
    ) -> PlannedQuery | None:
        """Returns the plan to run after `error`, from `Engine.fall_back`; None if there is none."""

        def plan() -> PlannedQuery | None:
            with labelled(attempt, driver):
                return engine.fall_back(run.planned, run.tables, error, execution_ms, attempt.check)

        return self._plannings.run(attempt, plan)

    def _execute_again(self, attempt: Attempt, driver: Driver, engine: Engine, run: _Run) -> Verdict:
        """Runs the plan that needs less memory. There is no further fallback."""
        _log.warning("query_fell_back", to="sort-merge")
        if not retry_attempt_write(
            attempt, lambda: self._save_plan(attempt, run.planned, run.planning_ms), self._pause
        ):
            return LeaseLost()
        attempt.check()
        # With its own tag and directory, so that nothing of the failed run is measured or published.
        attempt.run_tag = f"{attempt.tag}-2"
        driver.add_tag(attempt.run_tag)
        return self._execute(attempt, driver, engine, replace(run, number=2, started=self._clock()))

    def _measure(
        self, attempt: Attempt, driver: Driver, run: _Run, written: WrittenResult | None = None
    ) -> AttemptMetrics:
        execution_ms = self._ended(run)
        return measure(driver.monitor, attempt.run_tag, run.planned, run.tables, execution_ms, run.late, written)

    def _ended(self, run: _Run) -> int:
        """Records the time of the run, and returns it in milliseconds."""
        execution_ms = round((self._clock() - run.started) * 1000)
        self._durations.executed(execution_ms)
        return execution_ms
