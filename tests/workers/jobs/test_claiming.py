"""Claims on PostgreSQL whose commit is not answered."""

from __future__ import annotations

import pytest

from service.store.attempts import Claim
from service.store.session import CommitUnknownError, Database
from tests.support import lifecycle
from tests.support.databases import lose_answer_of_commit
from tests.support.lifecycle import row_of
from workers.jobs.claims import claim_job


def claim(database: Database, job_id: str) -> Claim | None:
    return claim_job(database, lambda _: job_id, "w1", 30_000)


def test_a_claim_that_was_done_is_the_workers_own(postgres_database: Database) -> None:
    job_id = lifecycle.insert(postgres_database)
    lose_answer_of_commit(postgres_database, done=True)
    taken = claim(postgres_database, job_id)
    assert taken is not None
    assert (taken.job_id, taken.fence, taken.worker) == (job_id, 1, "w1")
    assert (row_of(postgres_database, job_id).status, row_of(postgres_database, job_id).fence) == ("PLANNING", 1)


def test_a_claim_that_was_not_done_leaves_the_job(postgres_database: Database) -> None:
    job_id = lifecycle.insert(postgres_database)
    lose_answer_of_commit(postgres_database, done=False)
    with pytest.raises(CommitUnknownError):
        claim(postgres_database, job_id)
    assert row_of(postgres_database, job_id).status == "QUEUED"
    assert claim(postgres_database, job_id) is not None


def test_nothing_to_claim(postgres_database: Database) -> None:
    assert claim(postgres_database, "unknown") is None
    assert claim_job(postgres_database, lambda _: None, "w1", 30_000) is None
