"""Killing a JVM and the scripts that start it, with processes of the same structure."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.processes import is_running
from workers.driver.session import await_end, kill_all, kill_jvms


class Processes:
    """Starts processes, and gives them as psutil sees them."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str) -> psutil.Process:
        """A process that has said a line, unless it has ended at once."""
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return psutil.Process(process.pid)

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait(10)
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.end()


@pytest.mark.not_quick
def test_a_script_and_its_children_are_killed(processes: Processes, tmp_path: Path) -> None:
    script = processes.start("sh", "-c", "sleep 600 & echo begun; wait", "sh", f"spark.local.dir={tmp_path}")
    (launcher,) = script.children()
    other = processes.start("sh", "-c", "echo begun; sleep 600; :", "sh", "spark.local.dir=/elsewhere")
    killed = kill_jvms(tmp_path)
    assert [process.pid for process in killed] == [script.pid, launcher.pid]
    await_end(killed)
    # Not even a zombie.
    assert script.pid not in {child.pid for child in psutil.Process().children()}
    assert not is_running(launcher.pid)
    assert is_running(other.pid)
    kill_all(other.children(recursive=True))


def test_a_process_that_has_ended_does_not_protect_the_others(processes: Processes) -> None:
    ended = processes.start("true")
    ended.wait(10)
    other = processes.start("sh", "-c", "echo begun; exec sleep 600")
    kill_all([ended, other])
    await_end([ended, other])
    assert not is_running(other.pid)


def test_nothing_to_end(tmp_path: Path) -> None:
    assert kill_jvms(tmp_path) == []
    await_end([])
