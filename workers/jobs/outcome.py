"""Turns the error of an attempt into a verdict: what happens to its job.

`StreamErrorTexts` removes paths of the service's own files from Spark's messages, since clients cannot see these files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import structlog
from py4j.protocol import Py4JError, Py4JJavaError
from sqlalchemy.exc import SQLAlchemyError

from service.broker.transports import causes_of
from service.contract import problems
from service.contract.enums import AttemptStatus, JobStatus
from service.contract.problems import Problem, SpecError, problem_of_spec_error
from service.data.roots import StoreUnavailableError
from service.store.publication import AttemptMetrics, Ending
from service.store.session import fault_of
from service.store.streaming_state import StreamStopReason
from workers.driver.driver import Driver
from workers.engine.spark.error_mapping import problem_of_spark_error
from workers.jobs.attempt import Attempt, AttemptStopped, StopReason, reason_of_loss

_log = structlog.get_logger(__name__)

_GRACE_SECONDS = 2.0


@dataclass(frozen=True)
class HandBack:
    """The attempt ends and its job does not: another attempt may follow."""

    status: AttemptStatus
    error: Problem


@dataclass(frozen=True)
class LeaseLost:
    """Another attempt has the job, or will get it. Nothing is stored."""


@dataclass(frozen=True)
class StreamStop:
    """A stream stops, and can be resumed."""

    because: StreamStopReason
    error: Problem | None = None


@dataclass(frozen=True)
class Success:
    """The job ends as `ending` says. `measure` returns the metrics of its run, which are stored after the end, so that
    clients need not wait for them. Its metrics until then are the run time and the progress.
    """

    ending: Ending
    measure: Callable[[], AttemptMetrics]

    def measured(self) -> Ending:
        """Returns the end with all metrics."""
        first, metrics = self.ending.metrics, self.measure()
        return replace(self.ending, metrics=replace(metrics, progress=first.progress) if first else metrics)


Verdict = Ending | Success | HandBack | LeaseLost | StreamStop
"""What happens to the job of an attempt."""


def verdict_of(error: Exception, attempt: Attempt, redact: Callable[[str], str | None] = str) -> Verdict:
    """Returns the verdict for an error of an attempt. The reason to stop takes precedence: a query that was stopped
    fails like any other. `redact` returns the message for clients, as in `problem_of_spark_error`; if it returns None,
    the problem is an `internal_error`.
    """
    if attempt.reason is None and attempt.driver is not None and _is_lost(error, attempt.driver):
        attempt.stop(reason_of_loss(attempt.driver))
    if attempt.reason is not None:
        return verdict_of_reason(attempt.reason, attempt)
    if isinstance(error, SQLAlchemyError) and fault_of(error) is not None:
        # The database cannot store any verdict. The lease expires, and another attempt follows.
        _log.warning("database_lost", exc_info=error)
        return LeaseLost()
    if isinstance(error, SpecError):
        return Ending(JobStatus.FAILED, problem_of_spec_error(error))
    if isinstance(error, StoreUnavailableError):
        return Ending(JobStatus.FAILED, problems.storage_unavailable(str(error)))
    problem = problem_of_spark_error(error, redact, attempt.expressions, attempt.columns)
    if problem is not None:
        # The client gets Spark's message. If that may not suffice, the log has the Java stack.
        is_known = problem.status < 500 and problem.code != "engine_error"
        _log.info("query_failed", code=problem.code, detail=problem.detail, exc_info=None if is_known else error)
        return Ending(JobStatus.FAILED, problem)
    if attempt.driver is not None and attempt.driver.has_ended(_GRACE_SECONDS):
        # The JVM ended after it had raised the error, so it could not be asked for the error's cause.
        attempt.stop(reason_of_loss(attempt.driver))
        return verdict_of_reason(attempt.reason or reason_of_loss(attempt.driver), attempt)
    _log.error("attempt_failed", exc_info=error)
    return Ending(JobStatus.FAILED, problems.internal_error(attempt.claim.job_id, attempt.claim.fence))


def verdict_of_reason(reason: StopReason, attempt: Attempt) -> Verdict:
    """Returns the verdict for an attempt that had to stop, without metrics."""
    claim = attempt.claim
    match reason:
        case StopReason.CANCELLED:
            return Ending(JobStatus.CANCELLED, problems.cancelled())
        case StopReason.TIMED_OUT:
            return Ending(JobStatus.TIMED_OUT, problems.timed_out(claim.timeout_ms))
        case StopReason.LEASE_LOST:
            return LeaseLost()
        case StopReason.DRIVER_LOST:
            return HandBack(AttemptStatus.CRASHED, problems.driver_lost(claim.worker))
        case StopReason.DRIVER_ENDED:
            return HandBack(AttemptStatus.CANCELLED, problems.driver_ended(claim.worker))
        case StopReason.WORKER_STOPPING:
            return HandBack(AttemptStatus.CANCELLED, problems.handed_back(claim.worker))
        case StopReason.RESULT_TOO_LARGE:
            return Ending(JobStatus.FAILED, problems.result_too_large())
        case StopReason.STOP_REQUESTED:
            return StreamStop(StreamStopReason.STOPPED)


def _is_lost(error: Exception, driver: Driver) -> bool:
    """Whether the end of the driver caused the error, and not the query."""
    if isinstance(error, SpecError | AttemptStopped):
        return False
    if isinstance(error, Py4JJavaError):
        # The JVM answered, but Spark in it may be stopping, which ends all queries.
        return not driver.is_running() or driver.is_stopped()
    # PySpark wraps some connection errors: a schema that it did not receive becomes a parse error.
    is_connection = any(isinstance(one, Py4JError | OSError) for one in causes_of(error))
    return driver.has_ended(_GRACE_SECONDS if is_connection else 0.0)


class StreamErrorTexts:
    """Removes internal paths from the messages of one attempt at a stream. `directory` is that of all streams.
    `with_own_names` replaces the paths of copies by those of the tables' own files; it is set once the tables are
    known.
    """

    def __init__(self, directory: Path) -> None:
        self._own = path_pattern(directory)
        self.with_own_names: Callable[[str], str] = lambda text: text

    def __call__(self, text: str) -> str | None:
        """Returns the text for clients; None if it names the service's own files: state, checkpoint or posted rows."""
        shown = self.with_own_names(text)
        return None if self._own.search(shown) else shown


def path_pattern(path: Path) -> re.Pattern[str]:
    """Returns a pattern of the path in a message of Spark, with or without a scheme, plain or escaped as in a URI."""
    return re.compile(f"(?:file:(?://)?)?{''.join(map(_pattern_of, str(path)))}(?![^/\\s'\",;:)\\]])")


def _pattern_of(character: str) -> str:
    escaped = quote(character, safe="/", errors="surrogateescape")
    return re.escape(character) if escaped == character else f"(?:{re.escape(character)}|(?i:{re.escape(escaped)}))"
