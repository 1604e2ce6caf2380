"""The query of a new driver runs, and leaves nothing but what Spark has loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from workers.driver.driver import Driver
from workers.jobs.warm_up import TAG, warm_up

pytestmark = pytest.mark.spark


def test_a_query_runs_and_leaves_no_files(driver: Driver, tmp_path: Path) -> None:
    with capture_logs() as logs:
        warm_up(driver, tmp_path)
    assert logs == []
    stages, _ = driver.monitor.outcome(TAG)
    assert stages
    assert list(tmp_path.iterdir()) == []
    assert not driver.context.getJobTags()


def test_an_error_is_left_to_the_first_job(driver: Driver, tmp_path: Path) -> None:
    file = tmp_path / "results"
    file.touch()
    with capture_logs() as logs:
        warm_up(driver, file)
    assert [entry["event"] for entry in logs] == ["warm_up_failed"]
