"""A job's last attempt does not begin beside one that may kill the driver, nor that beside it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from service.store.leases import Claim
from service.store.suspects import is_at_last_chance, is_suspect
from workers.suspects import Suspects


def claim_of(job_id: str, crashes: int, queue: str = "short") -> Claim:
    return Claim(
        job_id, "default", "run", "a job", {}, crashes + 1, "w1", 0, 0, 0, queue, crashes=crashes, max_attempts=3
    )


def asked(suspects: Suspects) -> str | None:
    """What is kept apart, in words of SQL."""
    apart = suspects.apart()
    return None if apart is None else str(apart)


@pytest.mark.parametrize(
    ("claim", "apart"),
    [
        (claim_of("fresh", 0), None),
        (claim_of("stream", 1, "stream"), None),
        (claim_of("suspect", 1), str(is_at_last_chance())),
        (claim_of("last", 2), str(is_suspect())),
    ],
)
def test_what_is_at_hand_keeps_others_away_until_it_has_ended(claim: Claim, apart: str | None) -> None:
    suspects = Suspects()
    assert suspects.claim(lambda: claim) is claim
    with suspects.running(claim):
        assert asked(suspects) == apart
    assert asked(suspects) is None


def test_nothing_claimed_keeps_nobody_away() -> None:
    suspects = Suspects()
    assert suspects.claim(lambda: None) is None
    assert asked(suspects) is None


def test_of_threads_that_claim_at_once_each_sees_what_the_others_took() -> None:
    suspects = Suspects()
    last = [claim_of(f"last-{number}", 2) for number in range(8)]

    def take(claim: Claim) -> Claim | None:
        return suspects.claim(lambda: claim if suspects.apart() is None else None)

    with ThreadPoolExecutor(8) as pool:
        assert len([taken for taken in pool.map(take, last) if taken is not None]) == 1
