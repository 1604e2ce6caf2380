"""The Spark driver of a worker, in separate processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import wait_until_gone

ROOT = Path(__file__).parents[3]


def run(scenario: str, scratch: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.support.spark_process", scenario, str(scratch)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def found_by(scenario: str, scratch: Path) -> dict[str, Any]:
    done = run(scenario, scratch)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.not_quick
def test_session(tmp_path: Path) -> None:
    # A blank in the path must not end an option of the JVM.
    found = found_by("session", tmp_path / "spark scratch")
    assert found["same_driver"]
    assert (found["further"], found["secret_in_title"]) == ("hush # hush", False)
    assert (found["time_zone"], found["shuffle_partitions"]) == ("UTC", "4")
    assert found["views_of_the_other"] == []
    assert "SQL_RESTRICTED_MODE" in found["reflect"]
    assert "TABLE_OR_VIEW_NOT_FOUND" in found["file"]
    assert found["listens_on"] == ["127.0.0.1"]
    assert found["left_by_shuffles"] == []
    assert found["scheduling"] == "FAIR"
    assert found["cancel"]["error"] == "Py4JJavaError"
    assert found["cancel"]["ended"]
    assert found["labels_after"] == [None, None, []]
    assert (found["other_driver"], found["rows_after_kill"]) == (True, 10)
    assert found["reasons"] == ["driver_lost", None]
    assert found["left_by_killed"] == [True, []]
    assert found["left_in_scratch"] == []


@pytest.mark.slow
@pytest.mark.not_quick
@pytest.mark.withstands(
    "a Spark driver hangs",
    how="SIGSTOP of the JVM",
    times=1,
    guaranteed="the driver is terminated and replaced",
)
def test_a_driver_that_hangs_is_replaced(tmp_path: Path) -> None:
    found = found_by("hang", tmp_path)
    assert (found["kept_in_time"], found["kept_once"], found["given_up"]) == (True, True, True)
    assert found["reason"] == "driver_lost"
    assert found["ping_returned"]
    assert found["rows_after"] == 7


@pytest.mark.withstands(
    "a Spark driver dies while it starts",
    how="`kill -9` of the JVM before the driver is ready",
    times=1,
    guaranteed="the next start succeeds",
)
@pytest.mark.slow
def test_a_jvm_lost_while_it_starts_is_replaced(tmp_path: Path) -> None:
    found = found_by("starts", tmp_path)
    assert (found["killed"], found["hung"], found["given_up_in_time"]) == (1, 1, False)
    assert (found["rows_after"], found["starting"]) == (7, None)
    assert (found["stopped"], found["left_running"], found["left_in_scratch"]) == (1, [], [])


@pytest.mark.slow
@pytest.mark.not_quick
def test_a_start_that_stop_did_not_wait_for_launches_no_jvm(tmp_path: Path) -> None:
    found = found_by("late", tmp_path / "scratch")
    assert found["waiting"]
    assert found["errors"] == ["spark_stopped: This worker's Spark has been stopped."]
    assert (found["launched"], found["left_in_scratch"]) == (False, [])


@pytest.mark.not_quick
def test_a_start_after_the_scratch_directory_was_removed_makes_another(tmp_path: Path) -> None:
    found = found_by("swept", tmp_path / "scratch")
    assert (found["launches"], found["owned"]) == ([1, 2, 3], [[True], [True], [True]])
    assert found["left_in_scratch"] == []


@pytest.mark.slow
@pytest.mark.not_quick
@pytest.mark.withstands(
    "a worker dies without its JVM",
    how="`kill -9` of the worker process only",
    times=1,
    guaranteed="the JVM exits too",
)
def test_the_driver_ends_with_a_killed_worker(tmp_path: Path) -> None:
    done = run("orphan", tmp_path)
    assert done.returncode == -9
    wait_until_gone([json.loads(done.stdout.splitlines()[-1])["jvm"]])
