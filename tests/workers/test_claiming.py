"""Claims on PostgreSQL whose commit nobody answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import event, select
from sqlalchemy.engine import Connection

from service.store.faults import CommitUnknownError
from service.store.leases import Claim
from service.store.session import Database
from service.store.tables import JobRow
from tests.support import lifecycle
from tests.support.databases import PostgresDatabases
from workers.claiming import claim_job


@pytest.fixture
def database(postgres_databases: PostgresDatabases) -> Iterator[Database]:
    with postgres_databases.new() as url, closing(Database(url)) as database:
        yield database


def lose_the_answer(database: Database, *, done: bool) -> None:
    """The connection breaks at the next commit, after the server made it or before."""

    def lose(connection: Connection) -> None:
        if done:
            connection.connection.commit()
        connection.connection.dbapi_connection.close()  # type: ignore[union-attr]

    event.listen(database.engine, "commit", lose, once=True)


def claim(database: Database, job_id: str) -> Claim | None:
    return claim_job(database, lambda _: job_id, "w1", 30_000)


def job(database: Database, job_id: str) -> JobRow:
    with database.read() as session:
        return session.scalars(select(JobRow).where(JobRow.id == job_id)).one()


def test_a_claim_that_was_done_is_the_workers_own(database: Database) -> None:
    job_id = lifecycle.insert(database)
    lose_the_answer(database, done=True)
    taken = claim(database, job_id)
    assert taken is not None
    assert (taken.job_id, taken.fence, taken.worker) == (job_id, 1, "w1")
    assert (job(database, job_id).status, job(database, job_id).fence) == ("PLANNING", 1)


def test_a_claim_that_was_not_done_leaves_the_job(database: Database) -> None:
    job_id = lifecycle.insert(database)
    lose_the_answer(database, done=False)
    with pytest.raises(CommitUnknownError):
        claim(database, job_id)
    assert job(database, job_id).status == "QUEUED"
    assert claim(database, job_id) is not None


def test_nothing_to_claim(database: Database) -> None:
    assert claim(database, "unknown") is None
    assert claim_job(database, lambda _: None, "w1", 30_000) is None
