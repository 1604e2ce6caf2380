"""The fence of a stream in the database, and waiting for an unavailable database."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.store import leases
from service.store.attempts import Claim
from service.store.session import Database
from service.store.tables import StreamBatchRow
from tests.support.stored_streams import stream_of
from workers.engine.streaming.query import BatchDone
from workers.engine.streaming.sinks.base import FenceLostError
from workers.jobs.attempt import Attempt
from workers.streams.fencing import StreamFence

LEASE_MS = 30_000


def batch(database: Database, batch_id: int) -> StreamBatchRow | None:
    with database.read() as session:
        return session.get(StreamBatchRow, ("job-1", 1, batch_id))


def lose(database: Database, held: Claim) -> None:
    """Another worker has the job now."""
    with database.write() as session:
        now = database.now(session)
        standing = leases.claim_states(session, [held])[held]
        leases.requeue_or_end(session, held, standing, now)
        assert leases.claim(session, held.job_id, "w2", now, LEASE_MS) is not None


def test_a_mini_batch_begins_and_ends(database: Database, held: Claim) -> None:
    guard = StreamFence(database, Attempt(held, math.inf), 1)
    guard.begin(0)
    begun = batch(database, 0)
    assert begun is not None
    assert (begun.fence, begun.committed_at) == (1, None)
    guard.finish(BatchDone(0, 4, 7, 3))
    done = batch(database, 0)
    assert done is not None
    assert done.committed_at is not None
    assert (done.rows_out, done.elapsed_ms, done.sink_version) == (4, 7, 3)
    assert (
        stream_of(database, "job-1").last_batch,
        stream_of(database, "job-1").rows_out,
        stream_of(database, "job-1").steady_fence,
    ) == (0, 4, 1)


def test_a_mini_batch_that_the_sink_had_is_recorded_once(database: Database, held: Claim) -> None:
    guard = StreamFence(database, Attempt(held, math.inf), 1)
    for rows in (4, None):
        guard.begin(0)
        guard.finish(BatchDone(0, rows, 7, 3))
    assert (stream_of(database, "job-1").last_batch, stream_of(database, "job-1").rows_out) == (0, 4)


def test_an_attempt_without_its_lease_can_neither_begin_nor_finish(database: Database, held: Claim) -> None:
    guard = StreamFence(database, Attempt(held, math.inf), 1)
    guard.begin(0)
    lose(database, held)
    with pytest.raises(FenceLostError, match="Attempt 1 of job job-1"):
        guard.finish(BatchDone(0, 4, 7, 3))
    with pytest.raises(FenceLostError):
        guard.begin(1)
    assert stream_of(database, "job-1").last_batch is None
    assert batch(database, 1) is None


def test_an_attempt_of_an_older_generation_can_neither_begin_nor_finish(database: Database, held: Claim) -> None:
    with pytest.raises(FenceLostError):
        StreamFence(database, Attempt(held, math.inf), 2).begin(0)


class Away(Database):
    """Does nothing so many times."""

    left = 3

    @contextmanager
    def write(self) -> Iterator[Session]:
        if self.left:
            self.left -= 1
            raise OperationalError("UPDATE", None, ValueError("away"))
        with super().write() as session:
            yield session


def test_an_unavailable_database_is_waited_for(database: Database, held: Claim, database_url: str) -> None:
    pauses: list[float] = []
    with closing(Away(database_url)) as away:
        StreamFence(away, Attempt(held, math.inf), 1, pauses.append).begin(0)
    assert pauses == [0.5, 1.0, 2.0]
    assert batch(database, 0) is not None
