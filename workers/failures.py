"""What a failed attempt means for its job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog
from py4j.protocol import Py4JError, Py4JJavaError
from sqlalchemy.exc import SQLAlchemyError

from service.causes import causes_of
from service.datasets.stores import StoreUnavailableError
from service.spec import ends
from service.spec.errors import SpecError
from service.spec.problem import Problem, problem_of_spec_error
from service.spec.status import AttemptStatus, JobStatus
from service.store.faults import fault_of
from service.store.publication import Ending
from service.store.stream_state import StoppedBecause
from workers.attempt import Attempt, AttemptStopped, StopReason, reason_of_loss
from workers.engine.spark.driver import Driver
from workers.engine.spark.errors import problem_of_spark_error

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
        return Ending(JobStatus.FAILED, ends.storage_unavailable(str(error)))
    problem = problem_of_spark_error(error, told)
    if problem is not None:
        # The client gets Spark's message; where that may not explain it, the log keeps the Java stack.
        is_known = problem.status < 500 and problem.code != "engine_error"
        _log.info("query_failed", code=problem.code, detail=problem.detail, exc_info=None if is_known else error)
        return Ending(JobStatus.FAILED, problem)
    _log.error("attempt_failed", exc_info=error)
    return Ending(JobStatus.FAILED, ends.internal_error(attempt.claim.job_id, attempt.claim.fence))


def _verdict_of_reason(reason: StopReason, attempt: Attempt) -> Verdict:
    claim = attempt.claim
    match reason:
        case StopReason.CANCELLED:
            return Ending(JobStatus.CANCELLED, ends.cancelled())
        case StopReason.TIMED_OUT:
            return Ending(JobStatus.TIMED_OUT, ends.timed_out(claim.timeout_ms))
        case StopReason.LEASE_LOST:
            return LeaseLost()
        case StopReason.DRIVER_LOST:
            return HandBack(AttemptStatus.CRASHED, ends.driver_lost(claim.worker))
        case StopReason.DRIVER_ENDED:
            return HandBack(AttemptStatus.CANCELLED, ends.driver_ended(claim.worker))
        case StopReason.WORKER_STOPPING:
            return HandBack(AttemptStatus.CANCELLED, ends.handed_back(claim.worker))
        case StopReason.RESULT_TOO_LARGE:
            return Ending(JobStatus.FAILED, ends.result_too_large())
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
