"""Results that outgrow their limit while they are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from service.spec import ends
from service.store.leases import Claim
from service.store.publication import Ending
from workers.attempt import Attempt, AttemptsAtHand, StopReason
from workers.failures import verdict_of
from workers.result_files import relative_path
from workers.result_limit import ResultLimit


@dataclass
class Cancelled:
    """A driver that notes whose Spark jobs it was to cancel."""

    tags: list[str] = field(default_factory=list)

    def cancel(self, tag: str) -> None:
        """See `Driver`."""
        self.tags.append(tag)


@pytest.fixture
def attempt() -> Attempt:
    claim = Claim("job-1", "default", "run", "a job", {}, 2, "w1", 0, 0, 0)
    attempt = Attempt(claim, 100.0)
    attempt.driver = Cancelled()  # type: ignore[assignment]
    return attempt


def looked(attempt: Attempt, results: Path, most_bytes: int) -> StopReason | None:
    at_hand = AttemptsAtHand()
    with at_hand.holding(attempt):
        ResultLimit(at_hand, results, most_bytes).step()
    return attempt.reason


def write(results: Path, attempt: Attempt, run: int = 1, size: int = 100) -> None:
    part = results / relative_path(attempt.claim, run) / "_temporary" / "0" / "part-0"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * size)


@pytest.mark.withstands(
    "a result that fills the disk",
    kind="attack",
    how="more bytes than `EVENKEEL_LIMITS_RESULT_BYTES`",
    times=1,
    guaranteed="the job fails and its files go",
)
def test_a_result_that_is_too_large_ends_its_job(tmp_path: Path, attempt: Attempt) -> None:
    write(tmp_path, attempt)
    assert looked(attempt, tmp_path, 99) is StopReason.RESULT_TOO_LARGE
    assert attempt.driver.tags == [attempt.tag]  # type: ignore[union-attr]
    verdict = verdict_of(RuntimeError("cancelled"), attempt)
    assert isinstance(verdict, Ending)
    assert verdict.error == ends.result_too_large()


def test_both_runs_of_an_attempt_count(tmp_path: Path, attempt: Attempt) -> None:
    write(tmp_path, attempt)
    write(tmp_path, attempt, run=2)
    assert looked(attempt, tmp_path, 199) is StopReason.RESULT_TOO_LARGE


@pytest.mark.parametrize("most_bytes", [0, 100])
def test_one_that_fits_goes_on(tmp_path: Path, attempt: Attempt, most_bytes: int) -> None:
    write(tmp_path, attempt)
    assert looked(attempt, tmp_path, most_bytes) is None


def test_nothing_written_yet(tmp_path: Path, attempt: Attempt) -> None:
    assert looked(attempt, tmp_path, 1) is None


def test_streams_are_left_alone(tmp_path: Path, attempt: Attempt) -> None:
    write(tmp_path, attempt)
    attempt.streams = True
    assert looked(attempt, tmp_path, 1) is None
