"""Scratch directories are removed with their workers, and never while their owner may be alive."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from workers.driver import scratch
from workers.driver.scratch import QUIET_SECONDS, STALE_LEGACY_SECONDS, STALE_SECONDS, Scratch

HOLD = "import sys; from pathlib import Path; from workers.driver.scratch import Scratch; "
HOLD += "print(Scratch(Path(sys.argv[1])).path, flush=True); sys.stdin.read()"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Scratch]:
    made = Scratch(tmp_path)
    yield made
    made.remove()


@contextmanager
def another_worker(root: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has a scratch directory of its own, with a file of Spark's in it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        directory = Path(process.stdout.readline().strip())
        (directory / "local" / "blocks").mkdir(parents=True)
        (directory / "local" / "blocks" / "shuffle.data").touch()
        yield process, directory
    finally:
        process.kill()
        process.communicate()


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(30)


def rewritten(directory: Path, **changed: object) -> None:
    """As if its owner had run elsewhere."""
    owner = directory / "owner.json"
    owner.write_text(json.dumps({**json.loads(owner.read_text()), **changed}))


def age(directory: Path, seconds: float) -> None:
    """The last sign of life is so old."""
    when = time.time() - seconds
    for path in (*directory.rglob("*"), directory):
        os.utime(path, (when, when))


def test_the_directory_of_a_killed_worker_is_removed_whatever_its_host_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with another_worker(tmp_path) as (process, directory):
        kill(process)
    # The container is made again, and has another name.
    monkeypatch.setattr(socket, "gethostname", lambda: "recreated")
    later = Scratch(tmp_path)
    assert list(tmp_path.iterdir()) == [later.path]
    assert later.path.stat().st_mode & 0o777 == 0o700
    later.remove()
    later.remove()
    assert not directory.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("elsewhere", [{"namespace": "pid:[1]"}, {"namespace": None}])
def test_the_directory_of_a_replaced_container_is_removed_soon(
    tmp_path: Path, own: Scratch, elsewhere: dict[str, object]
) -> None:
    with another_worker(tmp_path) as (process, directory):
        kill(process)
    rewritten(directory, **elsewhere)
    # Its lock is free here as well if the file system keeps locks of its mount from ours.
    age(directory, QUIET_SECONDS - 60)
    Scratch(tmp_path).remove()
    assert directory.exists()
    age(directory, QUIET_SECONDS + 60)
    Scratch(tmp_path).remove()
    assert list(tmp_path.iterdir()) == [own.path]


def test_a_process_number_that_was_given_again(tmp_path: Path, own: Scratch) -> None:
    with another_worker(tmp_path) as (process, directory):
        kill(process)
    mine = int(psutil.Process().create_time() * 1000)
    rewritten(directory, pid=os.getpid(), started=mine)
    Scratch(tmp_path).remove()
    assert directory.exists(), "its owner runs"
    rewritten(directory, started=mine - 5000)
    Scratch(tmp_path).remove()
    assert list(tmp_path.iterdir()) == [own.path]


def test_the_directory_of_a_running_worker_is_kept(tmp_path: Path) -> None:
    with another_worker(tmp_path) as (_, directory):
        # Its lock counts, though it gave no other sign of life for long.
        age(directory, 10 * STALE_SECONDS)
        Scratch(tmp_path).remove()
        assert (directory / "local" / "blocks" / "shuffle.data").exists()


@pytest.mark.parametrize("locked", [True, False])
def test_an_owner_on_another_host_is_gone_once_it_gave_no_sign_for_long(
    tmp_path: Path, own: Scratch, *, locked: bool
) -> None:
    # Its lock is not seen here, as on a network file system without locks.
    with another_worker(tmp_path) as (process, directory):
        kill(process)
    rewritten(directory, kernel="another", locked=locked)
    age(directory, STALE_SECONDS - 60)
    Scratch(tmp_path).remove()
    assert directory.exists()
    age(directory, STALE_SECONDS + 60)
    Scratch(tmp_path).remove()
    assert not directory.exists()
    assert own.path.exists()


def test_on_a_file_system_without_locks_signs_of_life_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(_descriptor: int, _operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    alive = Scratch(tmp_path)
    assert json.loads((alive.path / "owner.json").read_text())["locked"] is False
    Scratch(tmp_path).remove()
    assert alive.path.exists()
    age(alive.path, STALE_SECONDS + 60)
    alive.beat()
    Scratch(tmp_path).remove()
    assert alive.path.exists(), "it gave a sign of life"
    age(alive.path, STALE_SECONDS + 60)
    Scratch(tmp_path).remove()
    assert not alive.path.exists()
    alive.remove()


def test_ages_are_by_the_clock_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with another_worker(tmp_path) as (process, directory):
        kill(process)
    rewritten(directory, kernel="another")
    # A host whose clock is years ahead is not believed.
    monkeypatch.setattr(time, "time", lambda: 4e9)
    Scratch(tmp_path).remove()
    assert directory.exists()


def test_a_worker_that_runs_on_sweeps_too(tmp_path: Path, own: Scratch) -> None:
    with another_worker(tmp_path) as (process, directory):
        kill(process)
    assert directory.exists()
    for _ in range(scratch._SWEEP_EVERY):
        own.beat()
    assert not directory.exists()


def test_it_is_cleared_for_the_next_driver(tmp_path: Path, own: Scratch) -> None:
    (own.path / "local" / "blocks").mkdir(parents=True)
    (own.path / "further.properties").touch()
    (own.path / "link").symlink_to(tmp_path)
    own.clear()
    assert [path.name for path in own.path.iterdir()] == ["owner.json"]
    assert tmp_path.exists()


def test_the_next_sweep_tries_again_to_remove_a_directory(
    tmp_path: Path, own: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = Scratch(tmp_path)
    (busy.path / "local").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda _path, ignore_errors: None)
        busy.remove()
    assert (busy.path / "local").exists()
    age(busy.path, QUIET_SECONDS + 60)
    Scratch(tmp_path).remove()
    assert list(tmp_path.iterdir()) == [own.path]


def test_no_sign_of_life_comes_after_the_removal(tmp_path: Path, own: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda _path, ignore_errors: None)
        (own.path / "local").mkdir()
        own.remove()
    age(own.path, QUIET_SECONDS)
    before = (own.path / "owner.json").stat().st_mtime
    for _ in range(scratch._SWEEP_EVERY):
        own.beat()
    assert (own.path / "owner.json").stat().st_mtime == before


def test_a_removal_and_a_creation_that_were_cut_short(tmp_path: Path, own: Scratch) -> None:
    halves = [tmp_path / f"scratch-{'0' * 32}", tmp_path / f".new-{'0' * 32}"]
    for half in halves:
        half.mkdir()
    Scratch(tmp_path).remove()
    assert all(half.exists() for half in halves), "its owner may be about to lock it"
    for half in halves:
        age(half, STALE_SECONDS + 60)
    Scratch(tmp_path).remove()
    assert list(tmp_path.iterdir()) == [own.path]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"kernel": null, "locked": true}'])
def test_an_owner_that_is_not_readable_is_judged_by_its_age(tmp_path: Path, content: str) -> None:
    directory = tmp_path / f"scratch-{'0' * 32}"
    directory.mkdir()
    (directory / "owner.json").write_text(content)
    Scratch(tmp_path).remove()
    assert directory.exists()
    age(directory, STALE_SECONDS + 60)
    Scratch(tmp_path).remove()
    assert not directory.exists()


def test_directories_of_the_version_before(tmp_path: Path, own: Scratch) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(30)
    host = socket.gethostname()
    started = int(psutil.Process().create_time() * 1000)
    left = tmp_path / f"{host}-{gone.pid}-1000"
    reused = tmp_path / f"{host}-{os.getpid()}-{started - 5000}"
    running = tmp_path / f"{host}-{os.getpid()}-{started}"
    in_use = tmp_path / f"other-{host}-{gone.pid}-1000"
    old = tmp_path / f"3f2a-{gone.pid}-1000"
    foreign = tmp_path / "notes"
    for directory in (left, reused, running, in_use, old, foreign):
        (directory / "local").mkdir(parents=True)
        age(directory, STALE_LEGACY_SECONDS + 60)
    # Spark has written there since.
    (in_use / "local" / "shuffle.data").touch()

    Scratch(tmp_path).remove()

    assert sorted(tmp_path.iterdir()) == sorted([own.path, running, in_use, foreign])
