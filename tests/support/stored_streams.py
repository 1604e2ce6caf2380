"""Steps of workers and clients on streaming jobs in a database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from service.store import jobs, leases, streaming_jobs, streaming_state
from service.store.attempts import Claim
from service.store.maintenance import Sweep, sweep
from service.store.session import Database
from service.store.streaming_jobs import BatchFacts
from service.store.streaming_state import Stream
from service.store.tables import JobRow
from tests.support import lifecycle
from tests.support.clocks import ManualClock

FACTS = BatchFacts(rows_in=10, rows_out=4, elapsed_ms=7, sink_version=3, metrics={"state_rows": 4})
T = TypeVar("T")


def writing(database: Database, step: Callable[[Session, int], T]) -> T:
    """Calls `step` with a write transaction and its time, and returns the result."""
    with database.write() as session:
        return step(session, database.now(session))


def opened(database: Database, job_id: str, worker: str = lifecycle.WORKER) -> Claim:
    """Claims the job, opens its stream and sets it to RUNNING."""
    claim = lifecycle.claim(database, job_id, worker)
    writing(database, lambda session, now: streaming_jobs.open_stream(session, claim, now))
    assert writing(database, lambda session, now: leases.mark_running(session, claim, now))
    return claim


def stream_of(database: Database, job_id: str) -> Stream:
    """Returns the stream's progress."""
    with database.read() as session:
        found = streaming_state.find_stream(session, job_id)
    assert found is not None
    return found


def begin(database: Database, held: Claim, batch_id: int, generation: int = 1) -> bool:
    """Starts a mini-batch; False if the attempt cannot."""
    return writing(database, lambda session, now: streaming_jobs.begin_batch(session, held, generation, batch_id, now))


def finish(database: Database, held: Claim, batch_id: int, generation: int = 1, facts: BatchFacts = FACTS) -> bool:
    """Commits a mini-batch; False if the attempt cannot."""
    return writing(
        database, lambda session, now: streaming_jobs.finish_batch(session, held, generation, batch_id, facts, now)
    )


def mark_stopped(database: Database, held: Claim, because: str = "stopped", **more: Any) -> bool:
    """Moves the job of a claim to STOPPED. Returns whether the claim still held."""
    return writing(
        database, lambda session, now: streaming_jobs.mark_stopped(session, held, now, reason=because, **more)
    )


def locked(session: Session, job_id: str) -> JobRow:
    """Returns the row of a job, locked for a change."""
    row = jobs.find_job(session, tenant="default", job_id=job_id, lock=True)
    assert row is not None
    return row


def stop(database: Database, job_id: str) -> None:
    """Requests a stop, as a client does."""
    writing(database, lambda session, now: streaming_jobs.request_stop(session, locked(session, job_id), now))


def resume(database: Database, job_id: str, *, from_scratch: bool = False) -> None:
    """Resumes the job, as a client does."""
    writing(
        database,
        lambda session, now: streaming_jobs.request_resume(
            session, locked(session, job_id), now, from_scratch=from_scratch
        ),
    )


def lose_lease(database: Database, clock: ManualClock) -> Sweep:
    """Lets every lease expire and returns the result of a sweep."""
    clock.ms += lifecycle.LEASE_MS
    return writing(database, lambda session, now: sweep(session, now, announce_again_ms=10_000, free={}))


def at_once(*steps: Callable[[], T]) -> list[T]:
    """Runs the steps in threads that start together and returns their results."""
    together = threading.Barrier(len(steps))

    def run(step: Callable[[], T]) -> T:
        together.wait()
        return step()

    with ThreadPoolExecutor(len(steps)) as pool:
        return list(pool.map(run, steps))
