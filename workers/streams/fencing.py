"""What the database says of a stream's mini-batches: whether the attempt may go on, and that one is done."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy.orm import Session

from service.store import streaming_jobs
from service.store.session import Database
from service.store.streaming_jobs import BatchFacts
from workers.engine.streaming.micro_batch import BatchDone
from workers.engine.streaming.sinks.base import FenceLostError
from workers.jobs.attempt import Attempt
from workers.jobs.lease import patiently_aside


class StreamGuard:
    """For one attempt; called on the stream's own thread. Waits for a database that is away."""

    def __init__(
        self, database: Database, attempt: Attempt, generation: int, pause: Callable[[float], object] = time.sleep
    ) -> None:
        self._database = database
        self._attempt = attempt
        self._claim = attempt.claim
        self._generation = generation
        self._pause = pause

    def begin(self, batch_id: int) -> None:
        """See `BatchGuard`."""
        self._require(
            lambda session, now: streaming_jobs.begin_batch(session, self._claim, self._generation, batch_id, now)
        )

    def finish(self, done: BatchDone) -> None:
        """See `BatchGuard`. What Spark alone knows of it is measured later."""
        facts = BatchFacts(0, done.rows or 0, done.elapsed_ms, done.sink_version, {})
        self._require(
            lambda session, now: streaming_jobs.finish_batch(
                session, self._claim, self._generation, done.batch_id, facts, now
            )
        )

    def _require(self, write: Callable[[Session, int], bool]) -> None:
        def try_once() -> bool:
            with self._database.write() as session:
                return write(session, self._database.now(session))

        # Whoever stops the stream waits for this thread.
        if not patiently_aside(self._attempt, try_once, self._pause):
            raise FenceLostError(
                f"Attempt {self._claim.fence} of job {self._claim.job_id} has lost its lease: another one goes on."
            )
