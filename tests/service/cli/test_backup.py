"""The commands `backup` and `restore`."""

from __future__ import annotations

import fcntl
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from service.cli.main import app
from service.config.settings import Settings
from service.store import streaming_jobs
from service.store.migrate import head_revision
from service.store.session import Database
from tests.support import lifecycle


@pytest.fixture
def environment(settings: Settings, sqlite_database: Database) -> Mapping[str, str]:
    """The environment of an installation with one job that has a result."""
    job_id = lifecycle.insert(sqlite_database)
    lifecycle.run_whole(sqlite_database, job_id, settings.results_dir, pa.table({"uid": [1, 2]}))
    return {"EVENKEEL_STATE_DIR": str(settings.state_dir)}


def run(environment: Mapping[str, str], *arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=environment)


def test_backup_and_restore(environment: Mapping[str, str], tmp_path: Path) -> None:
    copy, other = tmp_path / "copy", {"EVENKEEL_STATE_DIR": str(tmp_path / "other")}
    made = run(environment, "backup", copy)
    assert made.exit_code == 0, made.output
    assert made.output.startswith("Copied 1 job and 1 result (")
    assert f"at revision {head_revision()} (sqlite 3." in made.output
    checked = run(other, "restore", "--check", copy)
    assert (checked.exit_code, checked.output[:23]) == (0, "The backup is complete:")
    assert not (tmp_path / "other").exists()
    back = run(other, "restore", copy)
    assert back.exit_code == 0, back.output
    assert back.output.startswith("Restored 1 job and 1 result (")
    results = sorted(path.relative_to(tmp_path / "other") for path in (tmp_path / "other").rglob("*.parquet"))
    assert results == sorted(path.relative_to(tmp_path / "state") for path in (tmp_path / "state").rglob("*.parquet"))


def test_state_of_streams_is_not_copied(
    environment: Mapping[str, str], sqlite_database: Database, tmp_path: Path
) -> None:
    assert "streaming" not in run(environment, "backup", tmp_path / "before").output
    held = lifecycle.claim(sqlite_database, lifecycle.insert(sqlite_database))
    with sqlite_database.write() as session:
        streaming_jobs.open_stream(session, held, sqlite_database.now(session))
    kept = tmp_path / "state" / "streams" / held.job_id
    kept.mkdir(parents=True)
    (kept / "part.parquet").write_text("state")
    made = run(environment, "backup", tmp_path / "copy")
    assert "State and results of 1 streaming job were not copied" in made.output
    assert not list((tmp_path / "copy").rglob("part.parquet"))


def test_errors_have_advice(environment: Mapping[str, str], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert run(environment, "backup", copy).exit_code == 0
    again = run(environment, "backup", copy)
    assert (again.exit_code, "Use a new directory" in again.output) == (3, True)
    full = run(environment, "restore", copy)
    assert (full.exit_code, "--force" in full.output) == (3, True)
    assert run(environment, "restore", "--force", copy).exit_code == 0
    (copy / "database.sqlite").write_bytes(b"")
    damaged = run(environment, "restore", "--force", copy)
    assert (damaged.exit_code, "database.sqlite has changed" in damaged.output) == (1, True)
    assert run(environment, "restore", "--check", copy).exit_code == 1
    nothing = run(environment, "restore", tmp_path / "nowhere")
    assert (nothing.exit_code, "no complete backup" in nothing.output) == (1, True)


def test_missing_results_are_a_failure(environment: Mapping[str, str], tmp_path: Path) -> None:
    elsewhere = {**environment, "EVENKEEL_DATA_RESULTS": str(tmp_path / "nowhere")}
    result = run(elsewhere, "backup", tmp_path / "unmounted")
    assert (result.exit_code, "cannot be read" in result.output) == (3, True)
    (tmp_path / "nowhere").mkdir()
    result = run(elsewhere, "backup", tmp_path / "another one")
    assert (result.exit_code, "1 result of jobs not found in" in result.output) == (1, True)


def test_restore_is_refused_while_the_service_runs(environment: Mapping[str, str], tmp_path: Path) -> None:
    assert run(environment, "backup", tmp_path / "copy").exit_code == 0
    with (tmp_path / "state" / "evenkeel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        running = run(environment, "restore", "--force", tmp_path / "copy")
    assert (running.exit_code, "another evenkeel is running" in running.output) == (3, True)


def test_unwritable_directory_is_an_error(environment: Mapping[str, str]) -> None:
    result = run(environment, "backup", "/proc/copy")
    assert result.exit_code == 3
    assert "/proc/copy" in result.output
    assert "Traceback" not in result.output


def test_empty_database_cannot_be_backed_up(tmp_path: Path) -> None:
    result = run({"EVENKEEL_STATE_DIR": str(tmp_path / "state")}, "backup", tmp_path / "copy")
    assert (result.exit_code, "nothing to back up" in result.output) == (3, True)
