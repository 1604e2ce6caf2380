"""The command of a worker process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.cli.processes import worker_command
from service.cli.start import require_properties
from service.cli.terminal import CliError
from service.config.settings import Settings

ROOT = Path(__file__).parents[3]


def run(command: tuple[str, ...], directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "EVENKEEL_STATE_DIR": str(directory / "state"), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_current_directory_is_not_imported(tmp_path: Path) -> None:
    for package in ("workers", "service"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('somebody else')", encoding="utf-8")
    done = run((*worker_command(Settings()), "--help"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--concurrency" in done.stdout
    assert "somebody else" not in done.stdout + done.stderr


def test_celery_command_line_works(tmp_path: Path) -> None:
    done = run((sys.executable, "-m", "celery", "-A", "workers.celery_app", "worker", "--help"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--concurrency" in done.stdout


def test_reserved_spark_properties_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "spark.conf"
    monkeypatch.setenv("EVENKEEL_SPARK_PROPERTIES_FILE", str(path))
    path.write_text("spark.sql.extensions somebody.Else\n")
    with pytest.raises(CliError, match=r"line 1: spark\.sql\.extensions cannot be set"):
        require_properties(Settings())
    path.write_text("spark.jars.packages a:b:1\n")
    require_properties(Settings())
