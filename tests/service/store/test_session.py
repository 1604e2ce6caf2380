"""Connections: how many, what they are told, and what JSON they store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import make_url
from sqlalchemy.pool import QueuePool

from service.store.session import Database, connect_options, json_text


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("a\0b", "a\ufffdb"),
        ("\0\0", "\ufffd\ufffd"),
        ("\\\0", "\\\ufffd"),
        # Not U+0000 but a backslash and five characters.
        ("\\u0000", "\\u0000"),
        ("\\\\u0000", "\\\\u0000"),
        ("plain é", "plain é"),
    ],
)
def test_json_has_no_nul(value: str, stored: str) -> None:
    assert json.loads(json_text({value: [value]})) == {stored: [stored]}


def test_postgresql_connections_have_time_limits() -> None:
    options = connect_options(make_url("postgresql+psycopg://db/evenkeel"))
    assert (options["connect_timeout"], options["keepalives"]) == (5, 1)
    assert options["options"] == "-c statement_timeout=30000 -c lock_timeout=10000"


def test_the_url_has_the_last_word() -> None:
    options = connect_options(make_url("postgresql+psycopg://db/evenkeel?connect_timeout=60"))
    assert "connect_timeout" not in options
    assert "options" in options


def test_other_drivers_are_told_nothing() -> None:
    assert connect_options(make_url("postgresql+asyncpg://db/evenkeel")) == {}


@pytest.mark.parametrize("url", ["sqlite:///{}/evenkeel.db", "postgresql+psycopg://nobody@127.0.0.1:1/evenkeel"])
def test_the_pool_has_a_connection_for_each_thread(tmp_path: Path, url: str) -> None:
    database = Database(url.format(tmp_path), connections=37)
    assert isinstance(database.engine.pool, QueuePool)
    assert database.engine.pool.size() == 37
    database.close()
