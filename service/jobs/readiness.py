"""Checks whether new jobs would run: database, schema, broker, workers, and the listeners of each queue."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service import __version__
from service.broker.configuration import broker_fault
from service.config.settings import Settings
from service.contract.enums import EXPECTED_QUEUES, Queue, WorkerStatus
from service.contract.errors import NotReadyError
from service.contract.model import Frozen
from service.contract.problems import Issue
from service.store import workers
from service.store.migrate import SchemaMismatchError, require_current
from service.store.session import Database
from service.store.tables import WorkerRow
from service.store.workers import queues_listened_to, unresponsive_workers

QUEUE_ADVICE = "Start a worker with {} in EVENKEEL_WORKER_QUEUES."
"""Advice for a queue without a listener."""
WORKER_ADVICE = "Check that its EVENKEEL_BROKER_URL is the same as the API's, then restart it."
"""Advice for a worker that receives no messages."""
_UNRESPONSIVE_AFTER_PERIODS = 12
"""An idle worker counts as unresponsive after this many periods of `ring_again_seconds`. A waiting job is announced
again after at most ten periods, at the next sweep.
"""
_ACCEPTING_STATUSES = (WorkerStatus.STARTING, WorkerStatus.READY)
_PUBLIC_DETAILS = {
    "database": "The database does not answer.",
    "schema": "The database schema is of another version.",
    "broker": "The broker cannot be used.",
    "worker": "No worker accepts jobs.",
    "cluster": "No worker has a usable Spark.",
}
"""Details for unauthenticated callers, by issue code. They contain no name, address or version."""
_SEND_KEY_HINT = "Send an API key for details."


class Readiness(Frozen):
    """The service is ready."""

    status: str = Field(examples=["ready"])
    workers: int = Field(description="Number of workers with a recent heartbeat.")
    warnings: tuple[Issue, ...] = Field(
        default=(),
        description="Problems that do not make the service unavailable: code `queue` for a queue without a listener, "
        "`worker` for a worker that is alive but receives no jobs although some are queued.",
    )


def without_details(error: NotReadyError) -> NotReadyError:
    """Returns the error without details about the installation."""
    issues = [Issue(code=issue.code, detail=_PUBLIC_DETAILS[issue.code]) for issue in error.issues]
    return NotReadyError(" ".join((*(issue.detail for issue in issues), _SEND_KEY_HINT)), issues=issues)


def worker_silence_ms(settings: Settings) -> int:
    """Returns the time in ms without a heartbeat after which a worker counts as lost: the duration of its leases."""
    return round(settings.worker.lease_seconds * 1000)


def find_unresponsive_workers(session: Session, settings: Settings, now: int) -> Sequence[str]:
    """Returns the ids of workers that are alive but have received no job for longer than the slowest repeated
    announcement takes, although jobs are queued for them.
    """
    timeout_ms = round(settings.worker.ring_again_seconds * 1000 * _UNRESPONSIVE_AFTER_PERIODS)
    alive_since = now - worker_silence_ms(settings)
    return unresponsive_workers(session, __version__, alive_since, now - timeout_ms, settings.limits.running_jobs)


def check_readiness(database: Database, settings: Settings) -> Readiness:
    """Raises NotReadyError with one issue for each missing part.

    A worker whose Spark is still starting counts as ready: it accepts jobs, which then wait a moment.

    A queue without a listener is only a warning if some worker accepts jobs. A response of 503 would make the whole API
    unavailable because of one queue, whose jobs only wait longer. It would also do so in each upgrade from a version
    whose workers listen to the short queue only.
    """
    issues = []
    alive: Sequence[WorkerRow] = ()
    silent_before = 0
    listened_to: frozenset[str] = frozenset()
    unresponsive: Sequence[str] = ()
    try:
        require_current(database)
        with database.read() as session:
            now = database.now(session)
            silent_before = now - worker_silence_ms(settings)
            alive = workers.list_workers(session, silent_before)
            listened_to = queues_listened_to(session, silent_before)
            unresponsive = find_unresponsive_workers(session, settings, now)
    except SchemaMismatchError as error:
        issues.append(Issue(code="schema", detail=str(error)))
    except SQLAlchemyError as error:
        issues.append(Issue(code="database", detail=f"The database does not answer: {type(error).__name__}."))
    fault = broker_fault(settings)
    if fault is not None:
        issues.append(Issue(code="broker", detail=f"{fault.detail} {fault.advice}"))
    worker_fault = None if issues else _find_worker_fault(alive, silent_before)
    if worker_fault is not None:
        issues.append(worker_fault)
    if issues:
        raise NotReadyError("; ".join(issue.detail for issue in issues), issues=issues)
    warnings = tuple(_queue_issue(queue) for queue in EXPECTED_QUEUES if queue not in listened_to)
    return Readiness(status="ready", workers=len(alive), warnings=(*warnings, *map(_worker_issue, unresponsive)))


def _queue_issue(queue: Queue) -> Issue:
    detail = f"No worker that accepts jobs listens to the queue {queue}, so its jobs wait. {QUEUE_ADVICE.format(queue)}"
    return Issue(code="queue", detail=detail)


def _worker_issue(worker: str) -> Issue:
    detail = f"Worker {worker} is alive but receives no jobs although some are queued for it. {WORKER_ADVICE}"
    return Issue(code="worker", detail=detail)


def _find_worker_fault(alive: Sequence[WorkerRow], silent_before: int) -> Issue | None:
    """Returns the reason why none of these workers would run a job; None if one would."""
    by_status = {workers.worker_status(row, silent_before): row for row in reversed(alive)}
    if not by_status:
        return Issue(code="worker", detail="No worker has sent a heartbeat recently. Start one.")
    if any(status in by_status for status in _ACCEPTING_STATUSES):
        return None
    unavailable = by_status.get(WorkerStatus.UNAVAILABLE)
    if unavailable is None:
        return Issue(code="worker", detail="Every worker is draining and accepts no more jobs. Start another.")
    fault = unavailable.spark_fault or "See the worker's log."
    return Issue(code="cluster", detail=f"No worker has a usable Spark. Worker {unavailable.id}: {fault}")
