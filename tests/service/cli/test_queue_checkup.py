"""The queue check of `evenkeel doctor`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.doctor_checks import Finding, Level, check_queues
from service.cli.main import app
from service.cli.preparation import read_settings
from service.store import workers
from service.store.session import Database
from service.store.workers import WorkerFacts

Say = Callable[[str, str | None], None]


@pytest.fixture
def say(state_dir: Path, sqlite_database: Database) -> Say:
    """A function that stores a worker's heartbeat, with the queues it listens to."""

    def beat(worker: str, queues: str | None) -> None:
        with sqlite_database.write() as session:
            workers.record_heartbeat(session, worker, sqlite_database.now(session), "1", WorkerFacts(queues=queues))

    return beat


def found() -> list[Finding]:
    return check_queues(read_settings())


def test_no_finding_without_workers(say: Say) -> None:
    assert found() == []


def test_no_finding_without_database(say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", f"sqlite:///{tmp_path / 'empty.db'}")
    assert found() == []
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", "postgresql+psycopg://127.0.0.1:1/x")
    assert found() == []


def test_queue_without_worker_is_a_warning(say: Say) -> None:
    say("old", None)
    (finding,) = found()
    assert finding.level is Level.WARN
    assert "listens to the queue long" in finding.detail
    assert "with long in EVENKEEL_WORKER_QUEUES" in finding.advice
    say("new", "long")
    assert [finding.level for finding in found()] == [Level.OK]


def test_doctor_prints_the_warning(say: Say) -> None:
    say("w1", "short")
    printed = json.loads(CliRunner().invoke(app, ["doctor", "--json", "--api-only"]).stdout)
    assert [finding["level"] for finding in printed if finding["name"] == "queues"] == ["WARN"]
