"""The cluster check of `evenkeel doctor`: how it reads the output of its process. `tests/workers` runs that process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from service.cli.doctor_checks import Finding, Level, check_cluster, check_properties
from service.config.settings import Settings


@pytest.fixture
def cluster_settings(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("EVENKEEL_SPARK_MASTER", "spark://127.0.0.1:7077")
    return Settings()


def says(settings: Settings, program: str) -> list[Finding]:
    return check_cluster(settings, {}, (sys.executable, "-c", program))


def test_findings_are_read_from_the_last_line(cluster_settings: Settings) -> None:
    program = """print('a warning of Java'); print('[{"name": "a", "level": "WARN", "detail": "b", "advice": "c"}]')"""
    assert says(cluster_settings, program) == [Finding("a", Level.WARN, "b", "c")]


@pytest.mark.parametrize(
    ("program", "detail"),
    [
        ("raise SystemExit('no module')", "the check ended with exit code 1: no module"),
        ("pass", "the check ended with exit code 0: no output"),
        ("print('[{}]')", "the check ended with exit code 0: [{}]"),
    ],
)
def test_failure_of_the_process_is_a_finding(cluster_settings: Settings, program: str, detail: str) -> None:
    (found,) = says(cluster_settings, program)
    assert (found.level, found.detail) == (Level.FAIL, detail)
    assert "python -P" not in found.advice
    assert "-m workers.driver.diagnostics" in found.advice


def test_local_mode_has_no_cluster_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVENKEEL_SPARK_MASTER", raising=False)
    assert check_cluster(Settings(), {}, ("/nonexistent",)) == []


def test_spark_properties_are_checked(
    tmp_path: Path, cluster_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_properties(cluster_settings) == []
    path = tmp_path / "spark.conf"
    monkeypatch.setenv("EVENKEEL_SPARK_PROPERTIES_FILE", str(path))
    path.write_text("spark.hadoop.fs.s3a.endpoint http://127.0.0.1:9000\n")
    (found,) = check_properties(Settings())
    assert (found.level, found.detail) == (Level.OK, f"1 in {path}")
    path.write_text("spark.sql.ansi.enabled false\n")
    (found,) = check_properties(Settings())
    assert found.level is Level.FAIL
    assert "spark.sql.ansi.enabled cannot be set" in found.detail
