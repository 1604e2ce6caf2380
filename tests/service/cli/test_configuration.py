"""Settings and environment of commands, the state directory, and the check for S3 jars."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.cli.doctor_checks import is_s3a_missing
from service.cli.preparation import child_environment, isolate, prepare_directories, read_settings, without_client_key
from service.cli.terminal import CliError, ExitCode
from service.config.settings import Settings


def test_invalid_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_API_PORT", "70000")
    with pytest.raises(CliError, match=r"^EVENKEEL_API_PORT: .*65535") as raised:
        read_settings()
    assert raised.value.code is ExitCode.USAGE


def test_demo_ignores_the_configured_service(tmp_path: Path) -> None:
    isolated = isolate(
        {
            "PATH": "/bin",
            "EVENKEEL_DATABASE_URL": "postgresql://production",
            "EVENKEEL_BROKER_URL": "rediss://production",
            "EVENKEEL_BROKER_TLS_CA_FILE": "/production",
            "EVENKEEL_DATA_ROOTS": "/production",
            "EVENKEEL_DATA_RESULTS": "/production",
            "EVENKEEL_API_HOST": "0.0.0.0",
            "EVENKEEL_STATE_DIR": "/production",
            "EVENKEEL_SPARK_DRIVER_MEMORY": "1g",
            "EVENKEEL_LOG_LEVEL": "DEBUG",
        },
        tmp_path,
    )
    assert isolated == {
        "PATH": "/bin",
        "EVENKEEL_STATE_DIR": str(tmp_path),
        "EVENKEEL_API_PORT": "0",
        "EVENKEEL_SPARK_DRIVER_MEMORY": "1g",
        "EVENKEEL_LOG_LEVEL": "DEBUG",
    }


def test_children_get_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVENKEEL_STATE_DIR", "state")
    monkeypatch.setenv("EVENKEEL_DATA_ROOTS", f"one{os.pathsep}two")
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", "sqlite:///jobs.db")
    monkeypatch.setenv("EVENKEEL_SPARK_PROPERTIES_FILE", "spark.conf")
    monkeypatch.setenv("EVENKEEL_BROKER_URL", "rediss://redis")
    for name in ("CA", "CERTIFICATE", "KEY"):
        monkeypatch.setenv(f"EVENKEEL_BROKER_TLS_{name}_FILE", f"{name}.pem")
    child = child_environment(read_settings(), {"PATH": "/bin"})
    assert child["EVENKEEL_SPARK_PROPERTIES_FILE"] == str(tmp_path / "spark.conf")
    for name in ("CA", "CERTIFICATE", "KEY"):
        assert child[f"EVENKEEL_BROKER_TLS_{name}_FILE"] == str(tmp_path / f"{name}.pem")
    assert child["EVENKEEL_STATE_DIR"] == str(tmp_path / "state")
    assert child["EVENKEEL_DATA_ROOTS"] == f"{tmp_path / 'one'}{os.pathsep}{tmp_path / 'two'}"
    assert child["EVENKEEL_DATA_RESULTS"] == str(tmp_path / "state" / "results")
    assert child["EVENKEEL_DATA_STREAMS"] == str(tmp_path / "state" / "streams")
    assert child["EVENKEEL_DATABASE_URL"] == f"sqlite:///{tmp_path / 'jobs.db'}"
    assert child["EVENKEEL_PARENT_PID"] == str(os.getpid())
    assert child["PATH"] == "/bin"


def test_other_database_urls_are_unchanged(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    for url in ("sqlite:////var/jobs.db", "sqlite:///:memory:", "postgresql+psycopg://u:p@h/d"):
        with subtests.test(url=url):
            monkeypatch.setenv("EVENKEEL_DATABASE_URL", url)
            assert child_environment(read_settings(), {})["EVENKEEL_DATABASE_URL"] == url


def test_user_without_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("EVENKEEL_STATE_DIR", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(CliError, match="home directory") as raised:
        read_settings()
    assert "EVENKEEL_STATE_DIR" in raised.value.advice


def test_contradicting_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_SPARK_EXECUTOR_MEMORY", "2g")
    with pytest.raises(CliError, match=r"^EVENKEEL_SPARK_MASTER is local\[\*\], which has no executors"):
        read_settings()


def test_children_do_not_get_the_api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_API_KEY", "ek_secret")
    assert "ek_secret" not in child_environment(read_settings(), dict(os.environ)).values()
    assert "ek_secret" not in without_client_key(os.environ).values()


@pytest.mark.parametrize("name", ["a?b", "a,b", 'a"b', "a#b", "a%20b"])
def test_path_with_special_characters_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path / name))
    with pytest.raises(CliError, match="the path of the state directory contains"):
        prepare_directories(read_settings())
    assert not list(tmp_path.iterdir())


def test_bucket_requires_an_s3_jar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path))
    assert not is_s3a_missing(Settings())
    monkeypatch.setenv("EVENKEEL_DATA_ROOTS", "hdfs://namenode:8020/x")
    assert not is_s3a_missing(Settings())
    monkeypatch.setenv("EVENKEEL_DATA_ROOTS", "s3a://bucket")
    assert is_s3a_missing(Settings())
    properties = tmp_path / "spark.properties"
    properties.write_text("spark.executor.logs.rolling.maxSize 1000\n")
    monkeypatch.setenv("EVENKEEL_SPARK_PROPERTIES_FILE", str(properties))
    assert is_s3a_missing(Settings())
    properties.write_text("spark.jars.packages org.apache.hadoop:hadoop-aws:3.4.2\n")
    assert not is_s3a_missing(Settings())
