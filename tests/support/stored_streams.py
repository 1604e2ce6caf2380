"""Streaming jobs in a database, step by step as workers and clients take them."""

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
    """What `step` gives, called with a transaction and its time."""
    with database.write() as session:
        return step(session, database.now(session))


def opened(database: Database, job_id: str, worker: str = lifecycle.WORKER) -> Claim:
    """The job, claimed, its stream opened and RUNNING."""
    claim = lifecycle.claim(database, job_id, worker)
    writing(database, lambda session, now: streaming_jobs.open_stream(session, claim, now))
    assert writing(database, lambda session, now: leases.mark_running(session, claim, now))
    return claim


def stream_of(database: Database, job_id: str) -> Stream:
    """How far it is."""
    with database.read() as session:
        found = streaming_state.find_stream(session, job_id)
    assert found is not None
    return found


def begin(database: Database, held: Claim, batch_id: int, generation: int = 1) -> bool:
    """Whether the attempt may begin a mini-batch."""
    return writing(database, lambda session, now: streaming_jobs.begin_batch(session, held, generation, batch_id, now))


def finish(database: Database, held: Claim, batch_id: int, generation: int = 1, facts: BatchFacts = FACTS) -> bool:
    """Whether the attempt could note a mini-batch as done."""
    return writing(
        database, lambda session, now: streaming_jobs.finish_batch(session, held, generation, batch_id, facts, now)
    )


def mark_stopped(database: Database, held: Claim, because: str = "stopped", **more: Any) -> bool:
    """Moves the job of a claim to STOPPED. Returns whether the claim still held."""
    return writing(
        database, lambda session, now: streaming_jobs.mark_stopped(session, held, now, reason=because, **more)
    )


def locked(session: Session, job_id: str) -> JobRow:
    """The row of a job, for a change."""
    row = jobs.find_job(session, tenant="default", job_id=job_id, lock=True)
    assert row is not None
    return row


def stop(database: Database, job_id: str) -> None:
    """Asks for a stop, as a client does."""
    writing(database, lambda session, now: streaming_jobs.request_stop(session, locked(session, job_id), now))


def resume(database: Database, job_id: str, *, from_scratch: bool = False) -> None:
    """Queues it again, as a client does."""
    writing(
        database,
        lambda session, now: streaming_jobs.request_resume(
            session, locked(session, job_id), now, from_scratch=from_scratch
        ),
    )


def lose_lease(database: Database, clock: ManualClock) -> Sweep:
    """What a sweep finds once every lease is over."""
    clock.ms += lifecycle.LEASE_MS
    return writing(database, lambda session, now: sweep(session, now, announce_again_ms=10_000, free={}))


def at_once(*steps: Callable[[], T]) -> list[T]:
    """Runs the steps from threads that start together."""
    together = threading.Barrier(len(steps))

    def run(step: Callable[[], T]) -> T:
        together.wait()
        return step()

    with ThreadPoolExecutor(len(steps)) as pool:
        return list(pool.map(run, steps))
