"""Tells whether jobs posted now would run: database, schema, broker, workers, and who listens to which queue."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service import __version__
from service.broker.configuration import broker_fault
from service.config.settings import Settings
from service.contract.enums import EXPECTED, Queue, WorkerStatus
from service.contract.errors import NotReadyError
from service.contract.model import Frozen
from service.contract.problems import Issue
from service.store import workers
from service.store.migrate import SchemaMismatchError, require_current
from service.store.session import Database
from service.store.tables import WorkerRow
from service.store.workers import deaf_workers, queues_listened_to

LISTEN_TO_IT = "Start a worker with {} in EVENKEEL_WORKER_QUEUES."
"""What to do about a queue without a listener."""

RESTART_IT = "See that its EVENKEEL_BROKER_URL is that of the API, then restart it."
"""What to do about a worker that no message reaches."""

_UNHEARD_RINGS = 12
"""A job that waits is announced again after ten times the setting at the latest, and then at the next sweep."""

_TAKES_JOBS = (WorkerStatus.STARTING, WorkerStatus.READY)


class Readiness(Frozen):
    """Every part is there."""

    status: str = Field(examples=["ready"])
    workers: int = Field(description="Workers that gave a sign of life lately.")
    warnings: tuple[Issue, ...] = Field(
        default=(),
        description="What does not keep the service from its work: code `queue` for one without a listener, `worker` "
        "for a worker that lives and takes nothing although jobs wait.",
    )


_TOLD_TO_STRANGERS = {
    "database": "The database does not answer.",
    "schema": "The database's schema is that of another version.",
    "broker": "The broker cannot be used.",
    "worker": "No worker takes jobs.",
    "cluster": "No worker has a Spark that could run a job.",
}
"""By the codes of issues: no name, address or version."""

_SHOW_A_KEY = "Show an API key to be told more."


def for_strangers(error: NotReadyError) -> NotReadyError:
    """The same, without anything about how the service is built."""
    issues = [Issue(code=issue.code, detail=_TOLD_TO_STRANGERS[issue.code]) for issue in error.issues]
    return NotReadyError(" ".join((*(issue.detail for issue in issues), _SHOW_A_KEY)), issues=issues)


def worker_silence_ms(settings: Settings) -> int:
    """A worker that was not heard of for so long does not count: as long as its leases last."""
    return round(settings.worker.lease_seconds * 1000)


def deaf_here(session: Session, settings: Settings, now: int) -> Sequence[str]:
    """Workers, by id, that live and take nothing although jobs wait for them: longer than the slowest announcement of a
    job takes to come again.
    """
    patience_ms = round(settings.worker.ring_again_seconds * 1000 * _UNHEARD_RINGS)
    heard_since = now - worker_silence_ms(settings)
    return deaf_workers(session, __version__, heard_since, now - patience_ms, settings.limits.running_jobs)


def check_readiness(database: Database, settings: Settings) -> Readiness:
    """Raises NotReadyError with one issue a missing part.

    A worker whose Spark is still starting counts as there: it takes the job, which then waits for a moment.

    A queue that no worker listens to is a warning, while one takes jobs at all. Answering 503 would take the API from
    every client for the sake of one queue, whose jobs lose nothing but time; and it would do so in each upgrade from
    a version whose workers know the short queue alone.
    """
    issues = []
    alive: Sequence[WorkerRow] = ()
    silent_before = 0
    heard: frozenset[str] = frozenset()
    deaf: Sequence[str] = ()
    try:
        require_current(database)
        with database.read() as session:
            now = database.now(session)
            silent_before = now - worker_silence_ms(settings)
            alive = workers.list_workers(session, silent_before)
            heard = queues_listened_to(session, silent_before)
            deaf = deaf_here(session, settings, now)
    except SchemaMismatchError as error:
        issues.append(Issue(code="schema", detail=str(error)))
    except SQLAlchemyError as error:
        issues.append(Issue(code="database", detail=f"The database does not answer: {type(error).__name__}."))
    fault = broker_fault(settings)
    if fault is not None:
        issues.append(Issue(code="broker", detail=f"{fault.detail} {fault.advice}"))
    fault_of_workers = None if issues else _fault_of_workers(alive, silent_before)
    if fault_of_workers is not None:
        issues.append(fault_of_workers)
    if issues:
        raise NotReadyError("; ".join(issue.detail for issue in issues), issues=issues)
    warnings = tuple(_unheard(queue) for queue in EXPECTED if queue not in heard)
    return Readiness(status="ready", workers=len(alive), warnings=(*warnings, *map(_deaf, deaf)))


def _unheard(queue: Queue) -> Issue:
    detail = f"No worker that takes jobs listens to the queue {queue}: its jobs wait. {LISTEN_TO_IT.format(queue)}"
    return Issue(code="queue", detail=detail)


def _deaf(worker: str) -> Issue:
    detail = f"Worker {worker} lives and takes nothing although jobs wait for it: no message reaches it. {RESTART_IT}"
    return Issue(code="worker", detail=detail)


def _fault_of_workers(alive: Sequence[WorkerRow], silent_before: int) -> Issue | None:
    """Why none of these workers would run a job; None where one would."""
    by_status = {workers.worker_status(row, silent_before): row for row in reversed(alive)}
    if not by_status:
        return Issue(code="worker", detail="No worker has given a sign of life lately. Start one.")
    if any(status in by_status for status in _TAKES_JOBS):
        return None
    unavailable = by_status.get(WorkerStatus.UNAVAILABLE)
    if unavailable is None:
        return Issue(code="worker", detail="Every worker is draining and takes no more jobs. Start another.")
    fault = unavailable.spark_fault or "Its log tells why."
    return Issue(code="cluster", detail=f"No worker has a Spark that could run a job. Worker {unavailable.id}: {fault}")
