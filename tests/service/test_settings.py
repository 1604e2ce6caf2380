"""Configuration from the environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kombu import Connection
from pydantic import ValidationError
from redis import ConnectionPool
from sqlalchemy.engine import make_url

from service.settings import GROUPS, Settings


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("EVENKEEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path))


def test_everything_lives_in_the_state_directory_by_default(tmp_path: Path) -> None:
    settings = Settings()
    assert settings.database_url == f"sqlite:///{tmp_path / 'evenkeel.db'}"
    assert settings.broker_url == "filesystem://"
    assert settings.data_roots == (tmp_path / "data",)
    assert settings.results_dir == tmp_path / "results"


def test_data_roots_are_a_path_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_DATA_ROOTS", os.pathsep.join(["/a", "", "/b"]))
    assert Settings().data_roots == (Path("/a"), Path("/b"))


def test_data_roots_may_be_uris(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_DATA_ROOTS", "s3a://data/in, ~/x,hdfs://namenode:8020/y")
    assert Settings().data_root_names == ("s3a://data/in", Path.home() / "x", "hdfs://namenode:8020/y")
    assert Settings().data_roots == (Path.home() / "x",)
    monkeypatch.setenv("EVENKEEL_DATA_ROOTS", "gs://bucket")
    with pytest.raises(ValidationError, match="scheme 'gs' is not known"):
        Settings()


def test_an_empty_variable_is_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_API_PORT", "")
    assert Settings().api.port == 8080


def test_a_value_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_API_PORT", "65536")
    with pytest.raises(ValidationError):
        Settings()


def test_passwords_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", "postgresql+psycopg://user:hunter2@db/evenkeel")
    settings = Settings()
    assert "hunter2" not in repr(settings.database)
    assert "hunter2" in settings.database_url


@pytest.mark.parametrize("password", ["plain", "p@ss:w/rd#1?%25 ü&=+"])
def test_passwords_of_their_own_need_no_encoding(monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", "postgresql+psycopg://evenkeel:old@db:5432/jobs?sslmode=disable")
    monkeypatch.setenv("EVENKEEL_DATABASE_PASSWORD", password)
    monkeypatch.setenv("EVENKEEL_BROKER_URL", "redis://redis:6379/0")
    monkeypatch.setenv("EVENKEEL_BROKER_PASSWORD", password)
    settings = Settings()
    url = make_url(settings.database_url)
    assert (url.username, url.password, url.host, url.port) == ("evenkeel", password, "db", 5432)
    assert (url.database, dict(url.query)) == ("jobs", {"sslmode": "disable"})
    for parts in (
        ConnectionPool.from_url(settings.broker_url).connection_kwargs,
        Connection(settings.broker_url).info(),
    ):
        assert (parts["password"], parts.get("host") or parts["hostname"], parts["port"]) == (password, "redis", 6379)
    assert password not in repr(settings.database) + repr(settings.broker)


def test_a_password_for_a_sqlite_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", "sqlite:////var/lib/evenkeel/jobs.db")
    monkeypatch.setenv("EVENKEEL_DATABASE_PASSWORD", "hunter2")
    with pytest.raises(ValidationError, match="a SQLite file has no password: leave this variable out") as caught:
        Settings()
    assert caught.value.errors()[0]["loc"] == ("password",)
    assert "hunter2" not in str(caught.value)


def test_every_setting_says_what_it_is() -> None:
    assert all(field.description for group in GROUPS for field in group.model_fields.values())
