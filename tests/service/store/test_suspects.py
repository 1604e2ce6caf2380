"""Jobs that lost attempts."""

from __future__ import annotations

from service.contract import problems
from service.contract.enums import AttemptStatus, Mode, Queue
from service.store import leases, streaming_jobs
from service.store.attempts import is_on_last_attempt, is_suspect, is_true_for
from service.store.session import Database
from tests.support import lifecycle
from tests.support.clocks import ManualClock
from tests.support.lifecycle import AddJob

QUEUES = ("short", "long", "stream")


def lose(database: Database, job_id: str, status: AttemptStatus = AttemptStatus.CRASHED) -> None:
    """Ends an attempt of the job without a result."""
    claim = lifecycle.claim(database, job_id, "w")
    with database.write() as session:
        now = database.now(session)
        leases.hand_back(session, claim, now, status=status, error=problems.driver_lost("w"))


def told(database: Database, job_id: str) -> tuple[bool, bool]:
    """Returns whether the job is a suspect, and on its last attempt. Other jobs must be neither."""
    with database.read() as session:
        for other in ("unharmed", "gone"):
            assert not is_true_for(session, other, is_suspect())
        return is_true_for(session, job_id, is_suspect()), is_true_for(session, job_id, is_on_last_attempt())


def test_a_job_is_a_suspect_after_a_loss_and_then_on_its_last_attempt(database: Database, add_job: AddJob) -> None:
    add_job("a", max_attempts=3)
    add_job("unharmed", max_attempts=1)
    assert told(database, "a") == (False, False)
    lose(database, "a", AttemptStatus.CANCELLED)
    assert told(database, "a") == (False, False)
    lose(database, "a")
    assert told(database, "a") == (True, False)
    lose(database, "a")
    assert told(database, "a") == (True, True)


def test_a_stream_is_a_suspect_until_it_makes_progress_and_never_on_its_last_attempt(
    database: Database, add_job: AddJob
) -> None:
    add_job("s", max_attempts=2, queue=Queue.STREAM, mode=Mode.CONTINUOUS)
    lose(database, "s")
    assert told(database, "s") == (True, False)
    claim = lifecycle.claim(database, "s", "w")
    with database.write() as session:
        assert streaming_jobs.mark_steady(session, claim, database.now(session))
    assert told(database, "s") == (False, False)


def test_excluded_jobs_wait_and_younger_ones_do_not(database: Database, clock: ManualClock, add_job: AddJob) -> None:
    for job_id in ("last", "suspect", "fresh"):
        add_job(job_id, max_attempts=3)
        clock.ms += 1
    for job_id in ("last", "last", "suspect"):
        lose(database, job_id)

    with database.write() as session:
        assert leases.oldest_waiting(session, QUEUES) == "last"
        assert leases.oldest_waiting(session, QUEUES, excluded=is_on_last_attempt()) == "suspect"
        assert leases.oldest_waiting(session, QUEUES, excluded=is_suspect()) == "fresh"
