"""A job's last attempt does not begin on the same driver as a job that may kill it, nor the other way round."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.contract import problems
from service.contract.enums import AttemptStatus, Mode, Queue
from service.store import leases, streaming_jobs
from service.store.attempts import Claim, is_isolated, is_on_last_attempt, is_suspect
from service.store.session import Database
from tests.support import lifecycle
from tests.support.processes import wait_for
from workers.jobs.attempt import Attempt, AttemptStopped, RunningAttempts, StopReason
from workers.jobs.claims import Suspects
from workers.jobs.planning import PlanningThreads

pytestmark = pytest.mark.one_database

LAST_CHANCES, ALL = (str(found & ~is_isolated()) for found in (is_on_last_attempt(), is_suspect()))


def claimed(
    database: Database, job_id: str, crashes: int, queue: Queue = Queue.SHORT, *, isolated: bool = False
) -> Claim:
    """A claim of a job of three attempts that lost some."""
    mode = Mode.CONTINUOUS if queue is Queue.STREAM else Mode.BATCH
    lifecycle.insert(database, job_id, timeout_ms=0, queue=queue, mode=mode, isolated=isolated)
    for _ in range(crashes):
        lost = lifecycle.claim(database, job_id)
        with database.write() as session:
            error = problems.driver_lost("w1")
            leases.hand_back(session, lost, database.now(session), status=AttemptStatus.CRASHED, error=error)
    return lifecycle.claim(database, job_id)


def asked(suspects: Suspects, database: Database) -> str | None:
    """What is kept apart, in words of SQL."""
    with database.read() as session:
        apart = suspects.excluded_jobs(session)
    return None if apart is None else str(apart)


@pytest.mark.parametrize(
    ("crashes", "queue", "apart"),
    [
        (0, Queue.SHORT, None),
        (1, Queue.SHORT, LAST_CHANCES),
        (2, Queue.SHORT, ALL),
        (0, Queue.STREAM, None),
        (1, Queue.STREAM, LAST_CHANCES),
        # It will be STOPPED, and may go on.
        (2, Queue.STREAM, LAST_CHANCES),
    ],
)
def test_a_suspect_excludes_other_jobs_until_it_has_ended(
    database: Database, crashes: int, queue: Queue, apart: str | None
) -> None:
    claim = claimed(database, "a", crashes, queue)
    suspects = Suspects(RunningAttempts())
    assert suspects.claim(lambda: claim) is claim
    # As soon as it is claimed, and until its thread has left it.
    assert asked(suspects, database) == apart
    with suspects.running(claim):
        assert asked(suspects, database) == apart
    assert asked(suspects, database) is None


@pytest.mark.parametrize("gets_on", [True, False])
def test_a_stream_excludes_other_jobs_until_progress_or_end(database: Database, *, gets_on: bool) -> None:
    claim = claimed(database, "s", 1, Queue.STREAM)
    running_attempts = RunningAttempts()
    suspects = Suspects(running_attempts)
    suspects.claim(lambda: claim)
    attempt = Attempt(claim, float("inf"))
    with suspects.running(claim), running_attempts.holding(attempt):
        running_attempts.keep(attempt)
    assert asked(suspects, database) == LAST_CHANCES
    if gets_on:
        with database.write() as session:
            assert streaming_jobs.mark_steady(session, claim, database.now(session))
    else:
        running_attempts.release(attempt)
    assert asked(suspects, database) is None


def test_an_abandoned_planning_excludes_other_jobs_until_it_ends(database: Database) -> None:
    claim = claimed(database, "a", 2)
    running_attempts, release = RunningAttempts(), threading.Event()
    suspects = Suspects(running_attempts)
    suspects.claim(lambda: claim)
    attempt = Attempt(claim, float("inf"))
    with suspects.running(claim), running_attempts.holding(attempt):
        attempt.stop(StopReason.CANCELLED)
        with pytest.raises(AttemptStopped):
            PlanningThreads(running_attempts.abandoned).run(attempt, release.wait)
    assert asked(suspects, database) == ALL
    release.set()
    wait_for("the planning to end", lambda: not running_attempts.abandoned.all())
    assert asked(suspects, database) is None


def test_without_a_claim_any_job_may_begin(database: Database) -> None:
    suspects = Suspects(RunningAttempts())
    assert suspects.claim(lambda: None) is None
    assert asked(suspects, database) is None


def test_of_threads_that_claim_at_once_each_sees_what_the_others_took(database: Database) -> None:
    suspects = Suspects(RunningAttempts())
    last = [claimed(database, f"last-{number}", 2) for number in range(8)]

    def take(claim: Claim) -> Claim | None:
        def choose() -> Claim | None:
            with database.read() as session:
                return claim if suspects.excluded_jobs(session) is None else None

        return suspects.claim(choose)

    with ThreadPoolExecutor(8) as pool:
        assert len([taken for taken in pool.map(take, last) if taken is not None]) == 1


def test_a_job_with_a_driver_of_its_own_is_no_suspect(database: Database) -> None:
    suspects = Suspects(RunningAttempts())
    own = claimed(database, "own", 2, isolated=True)
    assert suspects.claim(lambda: own) is own
    with suspects.running(own):
        assert asked(suspects, database) is None
    assert asked(suspects, database) is None
