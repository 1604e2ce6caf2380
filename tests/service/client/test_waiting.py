"""Waiting for jobs: exit codes and interruptions."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from service.cli.connection import Connection
from service.cli.operations import Service
from service.cli.terminal import ExitCode
from service.cli.waiting import exit_code, follow
from service.client.responses import Job
from service.contract.enums import JobStatus
from service.store.publication import Ending
from tests.support import lifecycle
from tests.support.processes import end, wait_for
from tests.support.served import Evenkeel, Served

RESULT = pa.table({"uid": pa.array([1, 2], pa.int64())})


def ended(served: Served, status: JobStatus) -> str:
    job_id = lifecycle.insert(served.database)
    held = lifecycle.claim(served.database, job_id)
    lifecycle.run(served.database, held)
    lifecycle.end(served.database, held, Ending(status, error=lifecycle.FAILURE))
    return job_id


def test_exit_codes_of_states(served: Served, evenkeel: Evenkeel, subtests: pytest.Subtests) -> None:
    cases: list[tuple[JobStatus, int]] = [
        (JobStatus.FAILED, 1),
        (JobStatus.CANCELLED, 5),
        (JobStatus.TIMED_OUT, 6),
        (JobStatus.CRASHED, 7),
    ]
    for status, code in cases:
        with subtests.test(status=status, code=code):
            result = evenkeel("job", ended(served, status), "--wait", "--json")
            assert (result.exit_code, json.loads(result.stdout)["status"]) == (code, status)
            assert "[engine_error]" in result.stderr


def test_follow_until_the_end(served: Served) -> None:
    job_id = lifecycle.insert(served.database)
    seen: list[str] = []
    begun = threading.Event()

    def see(job: Job) -> None:
        seen.append(job.status)
        begun.set()

    def work() -> None:
        begun.wait(20)
        lifecycle.run_whole(served.database, job_id, served.settings.results_dir, RESULT)

    worker = threading.Thread(target=work)
    worker.start()
    with Connection(served.url) as connection:
        document = follow(Service(connection), job_id, see)
    worker.join()
    assert (document["status"], document["result"]["rows"]) == ("SUCCEEDED", 2)
    assert (seen[0], seen[-1]) == ("QUEUED", "SUCCEEDED")


def test_exit_codes_of_stopped_jobs_and_unknown_states(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], ExitCode]] = [
        ({"status": "STOPPED"}, ExitCode.OK),
        ({"status": "STOPPED", "error": lifecycle.FAILURE}, ExitCode.FAILED),
        ({"status": "SUCCEEDED"}, ExitCode.OK),
        ({"status": "BORED"}, ExitCode.FAILED),
    ]
    for job, code in cases:
        with subtests.test(job=job, code=code):
            assert exit_code(Job(id="1", finished=True, **job)) == code


def waiting(served: Served, tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts a command as a process and returns it once it waits."""
    errors = tmp_path / "errors"
    with errors.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.cli", *arguments], stdout=subprocess.PIPE, stderr=sink, text=True
        )
    try:
        wait_for("the first state", lambda: "QUEUED" in errors.read_text() or process.poll() is not None)
    except AssertionError:
        end(process)  # type: ignore[arg-type]
        raise
    return process


def test_job_continues_after_an_interruption(served: Served, tmp_path: Path) -> None:
    job_id = lifecycle.insert(served.database)
    process = waiting(served, tmp_path, "job", job_id, "--wait")
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (130, "")
    printed = (tmp_path / "errors").read_text()
    assert f"evenkeel job {job_id} --wait" in printed
    assert f"evenkeel cancel {job_id}" in printed
    assert "Traceback" not in printed
    with Connection(served.url) as connection:
        assert Service(connection).job(job_id)["status"] == "QUEUED"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_cancels_the_job_on_request(served: Served, tmp_path: Path, number: signal.Signals) -> None:
    job_id = lifecycle.insert(served.database)
    process = waiting(served, tmp_path, "job", job_id, "--wait", "--cancel-on-interrupt", "--json")
    process.send_signal(number)
    stdout, _ = process.communicate(timeout=30)
    assert (process.returncode, json.loads(stdout)["status"]) == (5, "CANCELLED")
