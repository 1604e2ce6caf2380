"""Handing back while the database is unavailable, and after a commit without an answer."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError

from service.config.settings import Settings
from service.contract import problems
from service.contract.enums import AttemptStatus, JobStatus
from service.store import leases
from service.store.attempts import Claim, attempts_of
from service.store.maintenance import sweep
from service.store.session import Database
from service.store.tables import JobRow
from tests.support import lifecycle
from tests.support.databases import PostgresDatabases, lose_answer_of_commit
from tests.support.servers import running_postgres
from workers.jobs.attempt import RunningAttempts
from workers.jobs.claims import hand_back_job
from workers.jobs.outcome import HandBack
from workers.process.job_runner import JobRunner

if TYPE_CHECKING:
    from workers.driver.driver import Driver

STOPPING = HandBack(AttemptStatus.CANCELLED, problems.handed_back("w1"))
LOST = HandBack(AttemptStatus.CRASHED, problems.driver_lost("w1"))


class NoDriver:
    """Nothing here runs a query."""

    def driver(self) -> Driver:
        """Never asked for."""
        raise AssertionError


def claim(database: Database, worker: str = "w1", lease_ms: int = 30_000) -> Claim:
    return lifecycle.claim(database, lifecycle.insert(database), worker, lease_ms=lease_ms)


def ended(database: Database, claimed: Claim) -> list[tuple[str, str]]:
    """Status and code of the job's attempts."""
    with database.read() as session:
        return [(row.status, (row.error or {}).get("code", "")) for row in attempts_of(session, claimed.job_id)]


@pytest.mark.not_quick
def test_a_database_that_restarts_is_waited_for(tmp_path: Path) -> None:
    with (
        running_postgres(tmp_path) as server,
        PostgresDatabases(server).new() as url,
        closing(Database(url)) as database,
    ):
        claimed = claim(database)
        server.stop()
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:
                server.start()

        assert hand_back_job(database, claimed, STOPPING, seconds=60, pause=pause) is JobStatus.QUEUED
        assert pauses == [0.5, 1.0]
        assert ended(database, claimed) == [("CANCELLED", "handed_back")]


@pytest.mark.parametrize("given", [STOPPING, LOST])
def test_a_committed_hand_back_without_an_answer_counts_and_is_announced(
    settings: Settings, postgres_database: Database, given: HandBack
) -> None:
    claimed = claim(postgres_database)
    announced: list[tuple[str, str]] = []
    runner = JobRunner(
        settings,
        postgres_database,
        NoDriver(),
        RunningAttempts(),
        "w1",
        announce=lambda job_id, queue: announced.append((job_id, queue)),
        pause=lambda _: None,
    )
    lose_answer_of_commit(postgres_database)
    runner.hand_back(claimed, given)
    assert announced == [(claimed.job_id, claimed.queue)]
    assert ended(postgres_database, claimed) == [(given.status.value, given.error.code)]
    with postgres_database.read() as session:
        assert session.get_one(JobRow, claimed.job_id).status == "QUEUED"


def test_one_that_another_took_meanwhile_was_handed_back(postgres_database: Database) -> None:
    claimed = claim(postgres_database)
    lose_answer_of_commit(postgres_database)

    def take(_: float) -> None:
        with postgres_database.write() as session:
            assert leases.claim(session, claimed.job_id, "w2", postgres_database.now(session), 30_000) is not None

    assert hand_back_job(postgres_database, claimed, STOPPING, seconds=60, pause=take) is JobStatus.QUEUED


def test_an_attempt_that_the_sweeper_ended_was_not_handed_back(postgres_database: Database) -> None:
    claimed = claim(postgres_database, lease_ms=0)
    with postgres_database.write() as session:
        sweep(session, postgres_database.now(session), announce_again_ms=10_000, free={})
    failing = [OperationalError("UPDATE", None, ValueError("away"))]

    def fail(_: Connection) -> None:
        if failing:
            raise failing.pop()

    event.listen(postgres_database.engine, "commit", fail)
    assert hand_back_job(postgres_database, claimed, LOST, seconds=60, pause=lambda _: None) is None
