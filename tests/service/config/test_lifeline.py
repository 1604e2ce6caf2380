"""A child ends with its parent, however the parent ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from service.config.processes import PARENT_PID, die_with_parent
from tests.support.processes import is_running, start_python, wait_for, wait_until_gone

CHILD = """
import time
from service.config.processes import die_with_parent
die_with_parent()
print("ready", flush=True)
time.sleep(120)
"""
PARENT = f"""
import os, subprocess, sys, time
child = subprocess.Popen(
    [sys.executable, "-P", "-c", {CHILD!r}],
    env={{**os.environ, "EVENKEEL_PARENT_PID": str(os.getpid())}},
    stdout=subprocess.PIPE,
    start_new_session=True,
)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(120)
"""


def test_the_child_of_a_killed_parent_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "parent.log"
    parent = start_python(["-c", PARENT], log=log, cwd=tmp_path)
    try:
        child = int(wait_for("the child's pid", log.read_text))
        assert is_running(child)
    finally:
        parent.kill()
        parent.wait()
    wait_until_gone([child], 5)


def test_a_child_whose_parent_has_ended_ends_at_once() -> None:
    # The process id given is not the parent's, as it is when the parent died before the child came to look.
    child = subprocess.run(
        [sys.executable, "-P", "-c", CHILD], env={**os.environ, PARENT_PID: str(os.getppid())}, timeout=20, check=False
    )
    assert child.returncode == -9


def test_without_the_variable_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PARENT_PID, raising=False)
    die_with_parent()


def test_a_variable_that_is_no_process_id_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PARENT_PID, "init")
    with pytest.raises(ValueError, match="must be a process id"):
        die_with_parent()


def test_outside_the_main_thread_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PARENT_PID, str(os.getppid()))
    raised: list[BaseException] = []

    def call() -> None:
        try:
            die_with_parent()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])
