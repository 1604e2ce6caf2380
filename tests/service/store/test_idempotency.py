"""Idempotency keys are stored for a day, for each tenant."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from service.config.settings import DatabaseSettings
from service.store.jobs import KEY_KEPT_MS, SubmissionKey, find_idempotency_key, save_idempotency_keys
from service.store.session import Database
from service.store.tables import IdempotencyKeyRow


def test_a_key_is_found_for_a_day_and_can_then_be_used_again(database: Database, add_job: Callable[..., str]) -> None:
    first, second = add_job("a"), add_job("b")
    with database.write() as session:
        save_idempotency_keys(session, [SubmissionKey("t", "k", "1", first)], now=1000)
    with database.write() as session:
        known = find_idempotency_key(session, tenant="t", key="k", now=999 + KEY_KEPT_MS)
        assert known is not None
        assert known.job_id == first
        assert find_idempotency_key(session, tenant="other", key="k", now=1000) is None
        assert find_idempotency_key(session, tenant="t", key="k", now=1000 + KEY_KEPT_MS) is None
    with database.write() as session:
        save_idempotency_keys(session, [SubmissionKey("t", "k", "2", second)], now=1000 + KEY_KEPT_MS)
    with database.read() as session:
        again = find_idempotency_key(session, tenant="t", key="k", now=1000 + KEY_KEPT_MS)
        assert again is not None
        assert again.job_id == second


def remember(database: Database, job_id: str, tenant: str, key: str, now: int) -> None:
    with database.write() as session:
        save_idempotency_keys(session, [SubmissionKey(tenant, key, "", job_id)], now=now)


def test_only_the_same_expired_key_is_replaced(database: Database, add_job: Callable[..., str]) -> None:
    """Workers remove the others, a limited number at a time."""
    job_id = add_job("a")
    kept = [("other", "k"), *(("t", f"k{number}") for number in range(20))]
    for tenant, key in (("t", "k"), *kept):
        remember(database, job_id, tenant, key, now=1)
    remember(database, job_id, "t", "k", now=1 + KEY_KEPT_MS)
    with database.read() as session:
        stored = session.execute(select(IdempotencyKeyRow.tenant, IdempotencyKeyRow.key, IdempotencyKeyRow.expires_at))
        expires = {(tenant, key): at for tenant, key, at in stored}
    assert expires == {**dict.fromkeys(kept, 1 + KEY_KEPT_MS), ("t", "k"): 1 + 2 * KEY_KEPT_MS}


def test_a_key_that_has_not_expired_is_refused(database: Database, add_job: Callable[..., str]) -> None:
    job_id = add_job("a")
    remember(database, job_id, "t", "k", now=1)
    with pytest.raises(IntegrityError):
        remember(database, job_id, "t", "k", now=KEY_KEPT_MS)


@pytest.mark.one_database("postgresql")
def test_submissions_at_once_do_not_wait_for_each_other(
    database: Database, database_url: str, add_job: Callable[..., str]
) -> None:
    job_id = add_job("a")
    for key in ("k1", "k2", "k3"):
        remember(database, job_id, "t", key, now=1)
    settings = DatabaseSettings(lock_timeout_seconds=1)
    with closing(Database(database_url, settings=settings)) as other, database.write() as session:
        now = 1 + KEY_KEPT_MS
        save_idempotency_keys(session, [SubmissionKey("t", "k1", "", job_id)], now=now)
        session.flush()
        # Raises where it waits for the transaction that is open here.
        remember(other, job_id, "t", "k2", now)


def test_one_of_two_at_once_gets_an_expired_key(database: Database, add_job: Callable[..., str]) -> None:
    first, *both = (add_job(name) for name in ("a", "b", "c"))
    remember(database, first, "t", "k", now=1)
    ready = threading.Barrier(2)
    taken: list[str] = []
    refused: list[IntegrityError] = []

    def take(job_id: str) -> None:
        ready.wait(30)
        try:
            remember(database, job_id, "t", "k", now=1 + KEY_KEPT_MS)
        except IntegrityError as error:
            refused.append(error)
        else:
            taken.append(job_id)

    threads = [threading.Thread(target=take, args=(job_id,)) for job_id in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(taken), len(refused)) == (1, 1)
    with database.read() as session:
        known = find_idempotency_key(session, tenant="t", key="k", now=1 + KEY_KEPT_MS)
        assert known is not None
        assert [known.job_id] == taken
