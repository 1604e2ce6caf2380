"""The lock of a state directory, and the removal of abandoned directories of demos."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from service.cli.preparation import locked, remove_abandoned, temporary_state_dir
from service.cli.terminal import CliError

HOLD = """
import sys
from pathlib import Path
from service.cli.preparation import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
ROOT = Path(__file__).parents[3]


def holder(directory: Path) -> subprocess.Popen[str]:
    """Starts a process that locks the directory until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_lock_is_exclusive_and_released_when_the_process_is_killed(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with pytest.raises(CliError, match="another evenkeel is running"), locked(tmp_path):
            pass
        process.kill()
    with locked(tmp_path):
        pass


def test_next_demo_removes_the_directory_of_a_killed_demo(tmp_path: Path) -> None:
    killed, running, being_made, other = (
        tmp_path / name for name in ("evenkeel-demo-a", "evenkeel-demo-b", "evenkeel-demo-c", "another-program")
    )
    for directory in (killed, running, being_made, other):
        directory.mkdir()
    for directory in (killed, other):
        with locked(directory):
            (directory / "data").mkdir()
    with locked(running):
        remove_abandoned(tmp_path)
    assert [path.exists() for path in (killed, running, being_made, other)] == [False, True, True, True]


def test_kept_directory_is_not_removed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with temporary_state_dir(keep=True) as kept, locked(kept):
        pass
    with temporary_state_dir(keep=False) as gone, locked(gone):
        pass
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]
