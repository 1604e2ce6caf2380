"""The supervisor, with small programs as children."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from service.cli.processes import Backoff, Exit, Program, Supervisor, group_members, tail
from tests.support.processes import is_running, start_python, wait_for, wait_until_gone

SLEEP = "import time; print('up', flush=True); time.sleep(120)"
IGNORES_SIGTERM = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(120)"
)
WITH_GRANDCHILD = (
    "import subprocess, sys, time; g = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(120)']); "
    "print(g.pid, flush=True); time.sleep(120)"
)


def program(directory: Path, code: str, name: str = "child") -> Program:
    return Program(
        name=name,
        command=(sys.executable, "-P", "-c", code),
        environment={**os.environ, "EVENKEEL_PARENT_PID": str(os.getpid())},
        directory=directory,
        log=directory / "logs" / f"{name}.log",
    )


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervisor]]:
    started: list[Supervisor] = []

    def start(*programs: Program, backoff: Backoff | None = None) -> Supervisor:
        supervisor = Supervisor(programs, backoff=backoff or Backoff(first=0.01, most=0.05))
        started.append(supervisor)
        supervisor.start()
        return supervisor

    yield start
    for supervisor in started:
        supervisor.kill()


def log_of(child: Program) -> Path:
    """Returns the file that has the child's output."""
    assert child.log is not None
    return child.log


def said(supervised: Program, text: str = "up") -> None:
    wait_for(f"{supervised.name} to say {text!r}", lambda: text in tail(log_of(supervised)))


def test_children_are_started_and_stopped(tmp_path: Path, supervise: Callable[..., Supervisor]) -> None:
    one, two = program(tmp_path, SLEEP, "one"), program(tmp_path, SLEEP, "two")
    supervisor = supervise(one, two)
    said(one)
    said(two)
    pids = supervisor.pids()
    assert sorted(pids) == ["one", "two"]
    assert supervisor.check() == ()
    began = time.monotonic()
    supervisor.stop(seconds=20)
    assert time.monotonic() - began < 10
    wait_until_gone(list(pids.values()), 1)
    assert supervisor.pids() == {}
    assert supervisor.check() == ()
    assert supervisor.pids() == {}, "a stopped supervisor starts nothing again"


def test_each_child_has_its_own_session(tmp_path: Path, supervise: Callable[..., Supervisor]) -> None:
    pid = supervise(program(tmp_path, SLEEP)).pids()["child"]
    assert os.getsid(pid) == pid != os.getsid(0)


def test_ended_child_is_reported_once_and_restarted(tmp_path: Path, supervise: Callable[..., Supervisor]) -> None:
    child = program(tmp_path, SLEEP)
    supervisor = supervise(child)
    said(child)
    first = supervisor.pids()["child"]
    os.kill(first, signal.SIGKILL)
    exits = wait_for("the exit", supervisor.check)
    assert exits == (Exit("child", first, -9, 0.01),)
    assert exits[0].how == "SIGKILL"
    again = wait_for("the restart", lambda: supervisor.check() or supervisor.pids().get("child"))
    assert again != first


def test_backoff_doubles_and_is_reset_after_a_steady_run(tmp_path: Path) -> None:
    now = 0.0
    failing = program(tmp_path, "raise SystemExit(3)")
    supervisor = Supervisor([failing], backoff=Backoff(first=1, most=4, steady=60), now=lambda: now)
    supervisor.start()
    waits = []
    for lasted in (0, 0, 0, 0, 61):
        now += lasted
        (exit_,) = wait_for("the exit", supervisor.check)
        assert exit_.how == "exit code 3"
        waits.append(exit_.restart_in)
        assert supervisor.check() == ()
        assert supervisor.pids() == {}, "not before its time"
        now += exit_.restart_in
        supervisor.check()
    supervisor.kill()
    assert waits == [1, 2, 4, 4, 1]


def test_child_that_may_end_is_restarted_immediately(tmp_path: Path) -> None:
    now = 0.0
    drained = replace(program(tmp_path, "raise SystemExit(0)"), may_end=True)
    supervisor = Supervisor([drained], backoff=Backoff(first=1000), now=lambda: now)
    supervisor.start()
    try:
        for _ in range(2):
            (exit_,) = wait_for("the exit", supervisor.check)
            assert (exit_.planned, exit_.code, exit_.restart_in) == (True, 0, 0.0)
            supervisor.check()
        assert supervisor.pids() or supervisor.check(), "no clock moved, and it runs or has ended again"
    finally:
        supervisor.kill()


@pytest.mark.parametrize(("code", "may_end"), [(0, False), (3, True)])
def test_other_exits_are_failures(tmp_path: Path, code: int, may_end: bool) -> None:
    failing = replace(program(tmp_path, f"raise SystemExit({code})"), may_end=may_end)
    supervisor = Supervisor([failing], backoff=Backoff(first=30))
    supervisor.start()
    try:
        (exit_,) = wait_for("the exit", supervisor.check)
        assert (exit_.planned, exit_.restart_in) == (False, 30)
    finally:
        supervisor.kill()


def test_child_that_ignores_sigterm_is_killed_after_the_timeout(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    unresponsive = program(tmp_path, IGNORES_SIGTERM)
    supervisor = supervise(unresponsive)
    said(unresponsive)
    pid = supervisor.pids()["child"]
    supervisor.stop(seconds=0.3)
    assert not is_running(pid)


def test_kill_now_skips_the_wait(tmp_path: Path, supervise: Callable[..., Supervisor]) -> None:
    unresponsive = program(tmp_path, IGNORES_SIGTERM)
    supervisor = supervise(unresponsive)
    said(unresponsive)
    pid = supervisor.pids()["child"]
    began = time.monotonic()
    supervisor.stop(seconds=60, kill_now=lambda: True)
    assert time.monotonic() - began < 5
    assert not is_running(pid)


@pytest.mark.parametrize("how", ["stop", "death"])
def test_process_group_ends_with_the_child(tmp_path: Path, supervise: Callable[..., Supervisor], how: str) -> None:
    child = program(tmp_path, WITH_GRANDCHILD)
    supervisor = supervise(child)
    grandchild = int(wait_for("the grandchild", lambda: tail(log_of(child)).strip()))
    pid = supervisor.pids()["child"]
    assert sorted(group_members(pid)) == sorted([pid, grandchild])
    if how == "stop":
        supervisor.stop(seconds=0.5, kill_now=lambda: True)
    else:
        os.kill(pid, signal.SIGKILL)
        wait_for("the exit", supervisor.check)
    wait_until_gone([pid, grandchild], 5)


def test_previous_log_is_kept_and_restarts_append(tmp_path: Path) -> None:
    child = program(tmp_path, "print('line', flush=True)")
    for _ in range(2):
        supervisor = Supervisor([child], backoff=Backoff(first=0))
        supervisor.start()
        for _ in range(2):
            wait_for("an exit", supervisor.check)
            supervisor.check()
        supervisor.kill()
    assert log_of(child).with_name("child.log.1").read_text().startswith("line\nline\n")
    assert tail(log_of(child)).startswith("line\nline")


def test_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert tail(log) == ""
    log.write_text("\n".join(str(number) for number in range(100)))
    assert tail(log, lines=2) == "98\n99"


def test_children_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    supervisor = start_python(
        [
            "-c",
            "import os, sys, time; from pathlib import Path; from service.cli.processes import Program, Supervisor\n"
            "here = Path(sys.argv[1])\n"
            "code = 'from service.config.processes import die_with_parent as tie; tie(); import time; time.sleep(99)'\n"
            "env = {**os.environ, 'EVENKEEL_PARENT_PID': str(os.getpid())}\n"
            "s = Supervisor([Program('c', (sys.executable, '-P', '-c', code), env, here, here / 'c.log')])\n"
            "s.start()\n"
            "time.sleep(120)",
            str(tmp_path),
        ],
        cwd=tmp_path,
    )
    try:
        (child,) = wait_for("the child", lambda: psutil.Process(supervisor.pid).children())
    finally:
        supervisor.kill()
        supervisor.wait()
    wait_until_gone([child.pid], 5)
