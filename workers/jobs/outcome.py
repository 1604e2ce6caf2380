"""What a failed attempt means for its job.

What clients are told of errors of Spark's that name files of the service itself, which nobody else can see.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
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
from service.store.publication import Ending
from service.store.session import fault_of
from service.store.streaming_state import StoppedBecause
from workers.driver.driver import Driver
from workers.engine.spark.error_mapping import problem_of_spark_error
from workers.jobs.attempt import Attempt, AttemptStopped, StopReason, reason_of_loss

_log = structlog.get_logger(__name__)

_GRACE_SECONDS = 2.0


@dataclass(frozen=True)
class HandBack:
    """The attempt ends without an end of its job: another attempt may follow."""

    status: AttemptStatus
    error: Problem


@dataclass(frozen=True)
class LeaseLost:
    """Another attempt has the job, or will: there is nothing to tell."""


@dataclass(frozen=True)
class Rest:
    """A stream comes to rest, and may go on from there."""

    because: StoppedBecause
    error: Problem | None = None


Verdict = Ending | HandBack | LeaseLost | Rest
"""What becomes of an attempt's job."""


def verdict_of(error: Exception, attempt: Attempt, told: Callable[[str], str | None] = str) -> Verdict:
    """The meaning of what an attempt raised. The order to stop comes first: Spark reports its effect as any failure.
    `told` is as `problem_of_spark_error` takes it: what is not for clients is an `internal_error`.
    """
    if attempt.reason is None and attempt.driver is not None and _is_lost(error, attempt.driver):
        attempt.stop(reason_of_loss(attempt.driver))
    if attempt.reason is not None:
        return _verdict_of_reason(attempt.reason, attempt)
    if isinstance(error, SQLAlchemyError) and fault_of(error) is not None:
        # Whether the job is at fault is not known, and nobody could be told: its lease runs out, another one tries.
        _log.warning("database_lost", exc_info=error)
        return LeaseLost()
    if isinstance(error, SpecError):
        return Ending(JobStatus.FAILED, problem_of_spec_error(error))
    if isinstance(error, StoreUnavailableError):
        return Ending(JobStatus.FAILED, problems.storage_unavailable(str(error)))
    problem = problem_of_spark_error(error, told)
    if problem is not None:
        # The client gets Spark's message; where that may not explain it, the log keeps the Java stack.
        is_known = problem.status < 500 and problem.code != "engine_error"
        _log.info("query_failed", code=problem.code, detail=problem.detail, exc_info=None if is_known else error)
        return Ending(JobStatus.FAILED, problem)
    _log.error("attempt_failed", exc_info=error)
    return Ending(JobStatus.FAILED, problems.internal_error(attempt.claim.job_id, attempt.claim.fence))


def _verdict_of_reason(reason: StopReason, attempt: Attempt) -> Verdict:
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
            return Rest(StoppedBecause.STOPPED)


def _is_lost(error: Exception, driver: Driver) -> bool:
    """Whether the driver's end explains the error, not the query."""
    if isinstance(error, SpecError | AttemptStopped):
        return False
    if isinstance(error, Py4JJavaError):
        # The JVM answered, but Spark inside may be going down with everything that ran on it.
        return not driver.is_running() or driver.is_stopped()
    # PySpark makes some of them errors of its own: of a schema that was never told, one that it cannot parse.
    is_connection = any(isinstance(one, Py4JError | OSError) for one in causes_of(error))
    return driver.has_ended(_GRACE_SECONDS if is_connection else 0.0)


class StreamTexts:
    """For one attempt at a stream. `directory` is that of all streams; `of_copies` puts the names of tables' own files
    in the place of those of their copies, once the tables are known.
    """

    def __init__(self, directory: Path) -> None:
        self._own = path_pattern(directory)
        self.of_copies: Callable[[str], str] = lambda text: text

    def __call__(self, text: str) -> str | None:
        """The text as clients may see it; None where it is about files that are for the service to mend: its state, its
        checkpoint, rows that were posted.
        """
        told = self.of_copies(text)
        return None if self._own.search(told) else told


def path_pattern(path: Path) -> re.Pattern[str]:
    """Finds the path in a text of Spark's, as it is or escaped as in a URI, some of it or all; with its scheme."""
    return re.compile(f"(?:file:(?://)?)?{''.join(map(_spelled, str(path)))}(?![^/\\s'\",;:)\\]])")


def _spelled(character: str) -> str:
    escaped = quote(character, safe="/", errors="surrogateescape")
    return re.escape(character) if escaped == character else f"(?:{re.escape(character)}|(?i:{re.escape(escaped)}))"
