"""The checks of `evenkeel doctor`, each with a good and a bad configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from service.cli.database import upgrade_database
from service.cli.doctor_checks import Finding, Level, examine
from service.cli.preparation import listen, read_settings
from tests.support.object_store import ObjectStore

Examine = Callable[..., dict[str, Finding]]


@pytest.fixture
def findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Examine:
    """A function that runs all checks with EVENKEEL_ variables and returns the findings by name."""

    def run(**variables: str) -> dict[str, Finding]:
        for name, value in {"STATE_DIR": str(tmp_path / "state"), "API_PORT": "0", **variables}.items():
            monkeypatch.setenv(f"EVENKEEL_{name}", value)
        return {finding.name: finding for finding in examine(read_settings(), os.environ)}

    return run


def test_new_machine_has_no_failures(findings: Examine, tmp_path: Path) -> None:
    found = findings()
    assert [name for name, finding in found.items() if finding.level is Level.FAIL] == []
    assert list(found) == [
        *("Python", "Java", "pyspark", "memory", "state directory", "disk", "port"),
        *("database", "broker", "data root", "results"),
    ]
    assert not (tmp_path / "state").exists(), "the checks change nothing"


def test_existing_installation(findings: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path / "state"))
    upgrade_database(read_settings())
    found = findings()
    assert found["database"].level is Level.OK
    assert "at revision" in found["database"].detail
    assert found["broker"].level is Level.OK


def test_requirements_of_a_worker_can_be_skipped() -> None:
    names = [finding.name for finding in examine(read_settings(), {}, with_worker=False)]
    assert "Java" not in names
    assert "pyspark" not in names


def test_port_in_use_is_a_warning(findings: Examine) -> None:
    with listen(read_settings(), 0) as busy:
        finding = findings(API_PORT=str(busy.getsockname()[1]))["port"]
    assert finding.level is Level.WARN
    assert "--port 0" in finding.advice


def test_failures_have_advice(findings: Examine, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, str], str, Level, str]] = [
        ({"API_HOST": "0.0.0.0", "API_AUTHENTICATION": "off"}, "port", Level.FAIL, "not a loopback address"),
        ({"SPARK_DRIVER_MEMORY": "9000g"}, "memory", Level.FAIL, "the worker's JVM takes up to 9000.0 GiB"),
        ({"STATE_DIR": "/proc/evenkeel"}, "state directory", Level.FAIL, "/proc is not writable"),
        ({"DATA_ROOTS": "/nowhere"}, "data root", Level.FAIL, "/nowhere is not a readable directory"),
        ({"DATA_ROOTS": "file:///nowhere"}, "data root", Level.FAIL, "/nowhere is not a readable directory"),
        (
            {"DATA_ROOTS": "s3a://data", "DATA_S3_ENDPOINT": "http://127.0.0.1:1", "DATA_STORE_ATTEMPTS": "1"},
            "data root",
            Level.FAIL,
            "s3a://data: The store of a data root does not answer",
        ),
        ({"DATA_RESULTS": "/proc/results"}, "results", Level.FAIL, "/proc is not writable"),
        ({"BROKER_URL": "redis://127.0.0.1:1/0"}, "broker", Level.FAIL, "Redis cannot be reached"),
        (
            {"BROKER_URL": "rediss://127.0.0.1:1/0", "BROKER_TLS_CA_FILE": "/nowhere"},
            "broker",
            Level.FAIL,
            "EVENKEEL_BROKER_TLS_CA_FILE is not a file with certificates: No such file or directory",
        ),
        ({"DATABASE_URL": "sqlite:////proc/jobs.db"}, "database", Level.FAIL, "unable to open database file"),
        ({"DATABASE_URL": "postgresql+psycopg://127.0.0.1:1/x"}, "database", Level.FAIL, "Connection refused"),
    ]
    for variables, name, level, detail in cases:
        with subtests.test(variables=variables, name=name, level=level, detail=detail):
            finding = findings(**variables)[name]
            assert finding.level is level
            assert detail in finding.detail
            assert finding.advice


def test_missing_results_directory_is_a_warning(findings: Examine, tmp_path: Path) -> None:
    finding = findings(DATA_RESULTS=str(tmp_path / "share" / "results"))["results"]
    assert (finding.level, "does not exist" in finding.detail) == (Level.WARN, True)
    (tmp_path / "share" / "results").mkdir(parents=True)
    assert findings(DATA_RESULTS=str(tmp_path / "share" / "results"))["results"].level is Level.OK


def test_new_sqlite_database_needs_nothing(findings: Examine, tmp_path: Path) -> None:
    finding = findings(DATABASE_URL=f"sqlite:///{tmp_path / 'empty.db'}")["database"]
    assert finding.level is Level.OK
    assert "evenkeel migrate" in finding.detail


def test_missing_java_is_a_failure(tmp_path: Path) -> None:
    (java,) = [finding for finding in examine(read_settings(), {"PATH": str(tmp_path)}) if finding.name == "Java"]
    assert java.level is Level.FAIL
    assert "JAVA_HOME" in java.advice


def test_object_store_is_checked_for_each_root(findings: Examine, object_store: ObjectStore) -> None:
    object_store.make_bucket("doctor")
    object_store.put("doctor", {"in/orders.parquet": b"x"})
    lister = object_store.add_user("doctor-lister", ["s3:ListBucket"])
    unauthorized = object_store.add_user("doctor-unauthorized", ["ec2:*"])

    def root(name: str, keys: Mapping[str, str] | None = None) -> Finding:
        variables = object_store.variables(name, keys)
        return findings(**{key.removeprefix("EVENKEEL_"): value for key, value in variables.items()})["data root"]

    assert (root("s3a://doctor/in").level, root("s3a://doctor/in").detail) == (Level.OK, "s3a://doctor/in")
    assert findings()["Spark and S3"].level is Level.WARN
    assert root("s3a://doctor/nothing").level is Level.WARN
    missing = root("s3a://no-such-bucket")
    assert (missing.level, "does not exist" in missing.detail) == (Level.FAIL, True)
    object_store.require_credentials()
    try:
        assert root("s3a://doctor/in", lister).level is Level.OK
        denied = root("s3a://doctor/in", unauthorized)
        assert (denied.level, "s3:ListBucket" in denied.advice) == (Level.FAIL, True)
        wrong = root("s3a://doctor/in", {**lister, "aws_secret_access_key": "hunter2"})
        assert (wrong.level, "AWS default chain" in wrong.advice) == (Level.FAIL, True)
        assert "hunter2" not in f"{wrong}"
    finally:
        object_store.require_credentials(required=False)


def test_hdfs_without_hadoop(findings: Examine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HADOOP_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    finding = findings(DATA_ROOTS="hdfs://127.0.0.1:1/data")["data root"]
    assert (finding.level, "native client" in finding.detail) == (Level.FAIL, True)
    assert "HADOOP_HOME" in finding.advice
