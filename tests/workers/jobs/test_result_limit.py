"""Results that exceed their limit while they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ByteSize

from service.config.settings import LimitSettings
from service.contract import problems
from service.store.attempts import Claim
from service.store.publication import Ending
from tests.support.bench import Bench, SharedDriver
from tests.support.drivers import Cancelled
from tests.support.processes import wait_for
from tests.support.tables import ENDLESS
from workers.jobs.attempt import Attempt, RunningAttempts, StopReason
from workers.jobs.outcome import verdict_of
from workers.jobs.results import ResultLimit, relative_path
from workers.process.job_runner import JobRunner


@pytest.fixture
def attempt() -> Attempt:
    claim = Claim("job-1", "default", "run", "a job", {}, 2, "w1", 0, 0, 0)
    attempt = Attempt(claim, 100.0)
    attempt.driver = Cancelled()  # type: ignore[assignment]
    return attempt


def looked(attempt: Attempt, results: Path, most_bytes: int) -> StopReason | None:
    running_attempts = RunningAttempts()
    with running_attempts.holding(attempt):
        ResultLimit(running_attempts, results, most_bytes).step()
    return attempt.reason


def write(results: Path, attempt: Attempt, run: int = 1, size: int = 100) -> None:
    part = results / relative_path(attempt.claim, run) / "_temporary" / "0" / "part-0"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * size)


def test_an_attempt_with_a_too_large_result_is_stopped(tmp_path: Path, attempt: Attempt) -> None:
    write(tmp_path, attempt)
    assert looked(attempt, tmp_path, 99) is StopReason.RESULT_TOO_LARGE
    assert attempt.driver.tags == [attempt.tag]  # type: ignore[union-attr]
    verdict = verdict_of(RuntimeError("cancelled"), attempt)
    assert isinstance(verdict, Ending)
    assert verdict.error == problems.result_too_large()


def test_both_runs_of_an_attempt_count(tmp_path: Path, attempt: Attempt) -> None:
    write(tmp_path, attempt)
    write(tmp_path, attempt, run=2)
    assert looked(attempt, tmp_path, 199) is StopReason.RESULT_TOO_LARGE


@pytest.mark.parametrize("most_bytes", [0, 100])
def test_an_attempt_with_a_result_within_the_limit_continues(tmp_path: Path, attempt: Attempt, most_bytes: int) -> None:
    write(tmp_path, attempt)
    assert looked(attempt, tmp_path, most_bytes) is None


def test_nothing_written_yet(tmp_path: Path, attempt: Attempt) -> None:
    assert looked(attempt, tmp_path, 1) is None


def test_streams_are_left_alone(tmp_path: Path, attempt: Attempt) -> None:
    write(tmp_path, attempt)
    attempt.streams = True
    assert looked(attempt, tmp_path, 1) is None


def looked_at(limit: ResultLimit, attempt: Attempt) -> StopReason | None:
    limit.step()
    return attempt.reason


def files_of(bench: Bench) -> list[Path]:
    return [path for path in bench.settings.results_dir.rglob("*") if path.is_file()]


@pytest.mark.spark
@pytest.mark.withstands(
    "a result that would fill the disk",
    kind="attack",
    how="more bytes than `EVENKEEL_LIMITS_RESULT_BYTES`",
    times=1,
    guaranteed="the job fails and its files are deleted",
)
def test_a_result_that_is_too_large_ends_its_job(bench: Bench) -> None:
    # One part is written soon, the other never: Spark holds rows of a file back until there are many.
    endless = "SELECT v, k AS w FROM a UNION ALL SELECT a.v AS v, b.v AS w FROM a JOIN b ON a.k = b.k"
    job_id = bench.submit({**ENDLESS, "sql": endless})
    limit = ResultLimit(bench.running_attempts, bench.settings.results_dir, 1_000)
    with bench.running(job_id) as attempt:
        # From then on its files may go at any time.
        wait_for("a result beyond the limit", lambda: looked_at(limit, attempt), 60)
        assert attempt.reason is StopReason.RESULT_TOO_LARGE
    job = bench.job(job_id)
    assert (job.status, job.error) == ("FAILED", problems.result_too_large().model_dump(mode="json"))
    assert job.result_path is None
    assert files_of(bench) == []


@pytest.mark.spark
def test_one_that_is_found_too_large_at_its_end_is_not_kept(bench: Bench) -> None:
    settings = bench.settings
    settings.limits = LimitSettings(result_bytes=ByteSize(1))
    runner = JobRunner(
        settings, bench.database, SharedDriver(bench.driver), bench.running_attempts, "w1", bench.announce
    )
    job_id = bench.submit({**ENDLESS, "sql": "SELECT a.v AS v FROM a LIMIT 1"})
    runner.run(job_id)
    job = bench.job(job_id)
    assert (job.status, job.error) == ("FAILED", problems.result_too_large().model_dump(mode="json"))
    assert files_of(bench) == []
