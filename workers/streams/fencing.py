"""Fences a stream: of several attempts at a job, only the one with the newest fencing token may write.

`StreamFence` asks the database before and after each mini-batch whether the attempt has its lease. Between the two, an
attempt that has lost it may still be running. So everything that it writes to has its own fence:

    sink managed, delta        `FencedTable` of `workers/engine/streaming/sinks/delta.py`: a transaction of the table
    sink parquet, json         `workers/engine/streaming/sinks/append.py`: files in `_evenkeel/fences`
    sink postgres              `workers/engine/streaming/sinks/postgres.py`: the table `evenkeel_batches`
    staged rows                `Stage` of `workers/engine/streaming/query.py`: a directory for each token
    checkpoint                 Spark: two attempts cannot commit the same offsets, and state files have unique names
    lookup table versions      `TableVersions` and `BatchVersions` of `workers/streams/lookup_table_versions.py`
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy.orm import Session

from service.store import streaming_jobs
from service.store.session import Database
from service.store.streaming_jobs import BatchFacts
from workers.engine.streaming.query import BatchDone
from workers.engine.streaming.sinks.base import FenceLostError
from workers.jobs.attempt import Attempt
from workers.jobs.claims import retry_attempt_write


class StreamFence:
    """The `BatchFence` of one attempt. Called on the stream's own thread; waits for an unavailable database."""

    def __init__(
        self, database: Database, attempt: Attempt, generation: int, pause: Callable[[float], object] = time.sleep
    ) -> None:
        self._database = database
        self._attempt = attempt
        self._claim = attempt.claim
        self._generation = generation
        self._pause = pause

    def begin(self, batch_id: int) -> None:
        """See `BatchFence`."""
        self._require(
            lambda session, now: streaming_jobs.begin_batch(session, self._claim, self._generation, batch_id, now)
        )

    def finish(self, done: BatchDone) -> None:
        """See `BatchFence`. The figures that only Spark has are stored later."""
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
