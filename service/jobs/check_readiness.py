"""Tells whether jobs posted now would run: database, schema, broker, workers."""

from __future__ import annotations

from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError

from service.broker import broker_fault
from service.errors import NotReadyError
from service.settings import Settings
from service.spec.errors import Issue
from service.spec.model import Frozen
from service.store import workers
from service.store.migrate import SchemaMismatchError, require_current
from service.store.session import Database


class Readiness(Frozen):
    """Every part is there."""

    status: str = Field(examples=["ready"])
    workers: int = Field(description="Workers that gave a sign of life lately.")


def worker_silence_ms(settings: Settings) -> int:
    """A worker that was not heard of for so long does not count: as long as its leases last."""
    return round(settings.worker.lease_seconds * 1000)


def check_readiness(database: Database, settings: Settings) -> Readiness:
    """Raises NotReadyError with one issue a missing part."""
    issues = []
    alive = 0
    try:
        require_current(database)
        with database.read() as session:
            alive = workers.count_alive(session, database.now(session) - worker_silence_ms(settings))
    except SchemaMismatchError as error:
        issues.append(Issue(code="schema", detail=str(error)))
    except SQLAlchemyError as error:
        issues.append(Issue(code="database", detail=f"The database does not answer: {type(error).__name__}."))
    fault = broker_fault(settings)
    if fault is not None:
        issues.append(Issue(code="broker", detail=f"{fault.detail} {fault.advice}"))
    if alive == 0 and not issues:
        issues.append(Issue(code="worker", detail="No worker has given a sign of life lately. Start one."))
    if issues:
        raise NotReadyError("; ".join(issue.detail for issue in issues), issues=issues)
    return Readiness(status="ready", workers=alive)
