"""Fences a stream: before and after each mini-batch, the database confirms that the attempt has its lease."""

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
from workers.jobs.lease import retry_attempt_write


class StreamGuard:
    """The `BatchGuard` of one attempt, called on the stream's own thread. Waits for an unavailable database."""

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
        """See `BatchGuard`. The figures that only Spark has are stored later."""
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

        # A thread that stops the stream waits for this thread, so the attempt must not count as unresponsive.
        if not retry_attempt_write(self._attempt, try_once, self._pause):
            raise FenceLostError(
                f"Attempt {self._claim.fence} of job {self._claim.job_id} has lost its lease; another one continues."
            )
