"""Scratch directories go with their process, and those of dead ones are swept."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil

from workers.scratch import make_scratch


def test_what_dead_processes_left_is_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(30)
    host = socket.gethostname()
    started = int(psutil.Process().create_time() * 1000)
    left = tmp_path / f"{host}-{gone.pid}-1000"
    reused = tmp_path / f"{host}-{os.getpid()}-{started - 5000}"
    elsewhere = tmp_path / f"other-{host}-{gone.pid}-1000"
    foreign = tmp_path / "notes"
    for directory in (left, reused, elsewhere, foreign):
        (directory / "local").mkdir(parents=True)

    own = make_scratch(tmp_path)

    assert sorted(tmp_path.iterdir()) == sorted([own, elsewhere, foreign])
    assert own.stat().st_mode & 0o777 == 0o700
    assert make_scratch(tmp_path) == own
