"""The worker's side of a process that runs an attempt, with processes that do what they should not, or end early."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from service.config.settings import Settings
from service.contract import problems
from service.contract.enums import AttemptStatus, JobStatus
from service.store.publication import Ending
from service.store.session import Database
from tests.support import lifecycle
from tests.support.processes import wait_until_gone
from workers.isolated import driver_processes
from workers.isolated.driver_processes import DriverProcesses
from workers.jobs.attempt import Attempt, StopReason
from workers.jobs.outcome import HandBack, LeaseLost, Verdict

pytestmark = [pytest.mark.one_database, pytest.mark.not_quick]

LOST = HandBack(AttemptStatus.CRASHED, problems.driver_lost(lifecycle.WORKER))
READS = "import subprocess, sys, time\nclaim = sys.stdin.readline()\n"
WAITS = "time.sleep(1000)\n"


class Recorded:
    """The durations that processes reported. Cancels an attempt, if given, when its plan is made."""

    def __init__(self, cancelled: Attempt | None = None) -> None:
        self.found: list[tuple[str, int]] = []
        self.cancelled = cancelled

    def planned(self, milliseconds: int) -> None:
        self.found.append(("planned", milliseconds))
        if self.cancelled is not None:
            self.cancelled.stop(StopReason.CANCELLED)

    def executed(self, milliseconds: int) -> None:
        self.found.append(("executed", milliseconds))


@pytest.fixture
def attempt(database: Database) -> Attempt:
    job_id = lifecycle.insert(database, isolated=True)
    return Attempt(lifecycle.claim(database, job_id), float("inf"))


def run(
    monkeypatch: pytest.MonkeyPatch, attempt: Attempt, program: str, durations: Recorded | None = None
) -> tuple[Verdict, list[str]]:
    """Runs an attempt in a process of this program. Returns the verdict, and what was done at the end."""
    monkeypatch.setattr(driver_processes, "_COMMAND", (sys.executable, "-c", READS + program))
    done: list[str] = []
    processes = DriverProcesses(Settings(), durations or Recorded(), lambda: done.append("files removed"))
    verdict = processes.run(attempt)
    assert processes.memory() == 0
    return verdict, done


@pytest.mark.parametrize(
    "program",
    ["sys.exit(3)\n", "print('Spark says something', flush=True)\n" + WAITS, "print('{}')\n"],
    ids=["ends", "prints no message", "ends after a message"],
)
def test_a_process_without_a_verdict_is_a_lost_driver(
    monkeypatch: pytest.MonkeyPatch, attempt: Attempt, program: str
) -> None:
    assert run(monkeypatch, attempt, program) == (LOST, ["files removed"])


def test_a_process_that_cannot_be_started_is_a_lost_driver(
    monkeypatch: pytest.MonkeyPatch, attempt: Attempt, tmp_path: Path
) -> None:
    monkeypatch.setattr(driver_processes, "_COMMAND", (str(tmp_path / "missing"),))
    assert DriverProcesses(Settings(), Recorded()).run(attempt) == LOST


def test_a_process_that_sends_nothing_is_ended(monkeypatch: pytest.MonkeyPatch, attempt: Attempt) -> None:
    monkeypatch.setenv("EVENKEEL_WORKER_LEASE_SECONDS", "1")
    assert run(monkeypatch, attempt, "print('{}', flush=True)\n" + WAITS) == (LOST, ["files removed"])


def test_its_durations_are_recorded_and_its_verdict_counts(monkeypatch: pytest.MonkeyPatch, attempt: Attempt) -> None:
    durations = Recorded()
    program = """print('{"planning_ms": 5}\\n{}\\n{"execution_ms": 7}\\n{"lease_lost": true}', flush=True)\n"""
    verdict, _ = run(monkeypatch, attempt, program, durations)
    assert verdict == LeaseLost()
    assert durations.found == [("planned", 5), ("executed", 7)]


def test_a_running_query_is_asked_to_stop(monkeypatch: pytest.MonkeyPatch, attempt: Attempt, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    program = f"""
print('{{"planning_ms": 1}}', flush=True)
open({str(asked)!r}, "w").write(sys.stdin.readline())
print('{{"ending": {{"status": "CANCELLED"}}}}', flush=True)
"""
    verdict, _ = run(monkeypatch, attempt, program, Recorded(attempt))
    assert verdict == Ending(JobStatus.CANCELLED)
    assert asked.read_text() == "cancelled\n"


def test_a_query_that_does_not_stop_is_ended(monkeypatch: pytest.MonkeyPatch, attempt: Attempt, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENKEEL_SPARK_TASK_KILL_SECONDS", "1")
    asked = tmp_path / "asked"
    program = f"""
print('{{"planning_ms": 1}}', flush=True)
open({str(asked)!r}, "w").write(sys.stdin.readline())
"""
    verdict, _ = run(monkeypatch, attempt, program + WAITS, Recorded(attempt))
    # The worker's own verdict, without metrics.
    assert verdict == Ending(JobStatus.CANCELLED, problems.cancelled())
    assert asked.read_text() == "cancelled\n"


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [
        (StopReason.CANCELLED, Ending(JobStatus.CANCELLED, problems.cancelled())),
        (StopReason.LEASE_LOST, LeaseLost()),
        (StopReason.WORKER_STOPPING, HandBack(AttemptStatus.CANCELLED, problems.handed_back(lifecycle.WORKER))),
    ],
)
def test_a_process_that_must_stop_before_its_query_runs_is_ended(
    monkeypatch: pytest.MonkeyPatch, attempt: Attempt, reason: StopReason, verdict: Verdict
) -> None:
    attempt.stop(reason)
    assert run(monkeypatch, attempt, "print('{}', flush=True)\n" + WAITS)[0] == verdict


def test_what_the_process_has_started_ends_with_it(
    monkeypatch: pytest.MonkeyPatch, attempt: Attempt, tmp_path: Path
) -> None:
    started = tmp_path / "pid"
    program = f"""
child = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
open({str(started)!r}, "w").write(str(child.pid))
"""
    assert run(monkeypatch, attempt, program)[0] == LOST
    wait_until_gone([int(started.read_text())])
