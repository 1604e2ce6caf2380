"""Keys are kept for a day, each for its tenant."""

from __future__ import annotations

from collections.abc import Callable

from service.store.idempotency import KEPT_MS, find_key, remember_key
from service.store.session import Database


def test_a_key_is_found_for_a_day_and_then_given_anew(database: Database, add_job: Callable[..., str]) -> None:
    first, second = add_job("a"), add_job("b")
    with database.write() as session:
        remember_key(session, tenant="t", key="k", payload_sha256="1", job_id=first, now=1000)
    with database.write() as session:
        known = find_key(session, tenant="t", key="k", now=999 + KEPT_MS)
        assert known is not None
        assert known.job_id == first
        assert find_key(session, tenant="other", key="k", now=1000) is None
        assert find_key(session, tenant="t", key="k", now=1000 + KEPT_MS) is None
    with database.write() as session:
        remember_key(session, tenant="t", key="k", payload_sha256="2", job_id=second, now=1000 + KEPT_MS)
    with database.read() as session:
        again = find_key(session, tenant="t", key="k", now=1000 + KEPT_MS)
        assert again is not None
        assert again.job_id == second
