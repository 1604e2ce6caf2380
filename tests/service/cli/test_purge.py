"""`evenkeel purge`: what it removes, counts with --dry-run, and refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import update
from typer.testing import CliRunner, Result

from service.cli.main import app
from service.config.settings import Settings
from service.store.session import Database
from service.store.tables import JobRow
from tests.support import lifecycle

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def environment(settings: Settings, sqlite_database: Database) -> Mapping[str, str]:
    """The environment of an installation with two jobs, which ended 20 and 40 days ago."""
    for days in (20, 40):
        job_id = lifecycle.insert(sqlite_database)
        lifecycle.run_whole(sqlite_database, job_id, settings.results_dir, pa.table({"uid": [1, 2]}))
        with sqlite_database.write() as session:
            ended = JobRow.finished_at - days * DAY_MS
            session.execute(update(JobRow).where(JobRow.id == job_id).values(finished_at=ended))
    return {"EVENKEEL_STATE_DIR": str(settings.state_dir)}


def purge(environment: Mapping[str, str], *options: str) -> Result:
    return CliRunner().invoke(app, ["purge", *options], env=environment)


def counts(environment: Mapping[str, str], *options: str) -> dict[str, Any]:
    result = purge(environment, "--json", *options)
    assert result.exit_code == 0, result.output
    printed: dict[str, Any] = json.loads(result.output)
    assert printed.pop("bytes") > 0 or not printed["results"]
    return printed


def expected_counts(jobs: int, results: int, *, dry_run: bool = False) -> dict[str, Any]:
    return {"jobs": jobs, "results": results, "keys": 0, "leftovers": 0, "dry_run": dry_run}


def test_retention_settings_are_the_default(environment: Mapping[str, str]) -> None:
    assert counts(environment, "--dry-run") == expected_counts(0, 1, dry_run=True)
    assert counts(environment) == expected_counts(0, 1)
    assert counts(environment) == expected_counts(0, 0)
    assert counts({**environment, "EVENKEEL_RETENTION_JOBS_DAYS": "10"}, "--results-only") == expected_counts(0, 0)
    assert counts({**environment, "EVENKEEL_RETENTION_JOBS_DAYS": "10"}) == expected_counts(2, 1)


def test_older_than(environment: Mapping[str, str]) -> None:
    assert counts(environment, "--older-than", "30d", "--dry-run") == expected_counts(1, 1, dry_run=True)
    assert counts(environment, "--older-than", "480h", "--results-only") == expected_counts(0, 2)
    assert counts(environment, "--older-than", "30d") == expected_counts(1, 0)


def test_summary_in_words(environment: Mapping[str, str]) -> None:
    result = purge(environment, "--older-than", "1d", "--dry-run")
    assert result.output.startswith("Would remove 2 jobs, 2 results, 0 leftover directories (")
    assert result.output.endswith(") and 0 expired keys.\n")


def test_warnings_are_not_part_of_the_json(environment: Mapping[str, str]) -> None:
    results = Path(environment["EVENKEEL_STATE_DIR"]) / "results"
    (results / ".evenkeel-installation").write_text("another")
    result = purge(environment, "--json")
    assert json.loads(result.stdout)["results"] == 0
    assert "results_of_another_installation" in result.stderr


def test_number_without_unit_is_refused(environment: Mapping[str, str]) -> None:
    result = purge(environment, "--older-than", "30")
    assert result.exit_code == 2
    assert "a whole number and a unit" in result.output


def test_empty_database_is_refused(tmp_path: Path) -> None:
    result = purge({"EVENKEEL_STATE_DIR": str(tmp_path / "empty")})
    assert result.exit_code == 3
    assert "evenkeel migrate" in result.output
