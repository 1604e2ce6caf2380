"""The findings of `doctor` about a real cluster."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.cli.doctor_checks import Finding, Level, check_cluster
from service.config.settings import Settings
from tests.support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def environment(tmp_path: Path, spark_cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's settings for the cluster, with a data root that holds a table."""
    given = {
        "EVENKEEL_STATE_DIR": str(tmp_path / "state"),
        "EVENKEEL_SPARK_MASTER": spark_cluster.url,
        "EVENKEEL_SPARK_DRIVER_MEMORY": "512m",
        "EVENKEEL_SPARK_EXECUTOR_MEMORY": "512m",
        "EVENKEEL_SPARK_MASTER_UI_PORT": str(spark_cluster.web_port),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    table = tmp_path / "state" / "data" / "orders"
    table.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), table / "part.parquet")


def findings() -> dict[str, Finding]:
    return {finding.name: finding for finding in check_cluster(Settings(), os.environ)}


def test_shared_directories_and_python_of_executors(
    environment: None, tmp_path: Path, spark_cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A Python that reports another version to Spark.
    other = tmp_path / "other-python"
    program = (
        "import runpy, sys; import pyspark.daemon, pyspark.worker; sys.argv = sys.argv[1:]; "
        "sys.version_info = (3, 1, 0); "
        'runpy.run_module(sys.argv[0], run_name="__main__")'
    )
    other.write_text(f"#!/bin/sh\nshift\nexec {sys.executable} -c '{program}' \"$@\"\n")
    other.chmod(0o755)
    monkeypatch.setenv("EVENKEEL_SPARK_PYTHON", str(other))
    found = findings()
    assert (found["cluster"].level, found["data on the cluster"].level) == (Level.OK, Level.OK), found
    # It waits for the first alone.
    assert re.search("(1|2) executors with (1|2) cores, which share", found["cluster"].detail)
    assert found["data on the cluster"].detail.endswith("orders/part.parquet")
    assert found["Python on the cluster"].level is Level.WARN
    assert "PYTHON_VERSION_MISMATCH" in found["Python on the cluster"].detail
    assert "EVENKEEL_SPARK_PYTHON" in found["Python on the cluster"].advice
    # Everything was given back.
    assert spark_cluster.applications() == []
    assert list((tmp_path / "state" / "results").iterdir()) == []


def test_executors_with_another_directory_of_results(environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sys.platform == "linux", "Run the tests on Linux: it alone has a path that each process sees its own way."
    monkeypatch.setenv("EVENKEEL_DATA_RESULTS", "/proc/self/cwd/results")
    (found,) = findings().values()
    assert (found.level, found.detail) == (Level.FAIL, "results_not_shared")
    assert "Executors and this worker do not share /proc/self/cwd/results" in found.advice
    assert "Mount one file system at that path" in found.advice
