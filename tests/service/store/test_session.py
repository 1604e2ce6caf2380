"""Connections: the size of the pool, their options, faults, and JSON columns."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import QueuePool

from service.config.settings import DatabaseSettings
from service.store.session import (
    CommitUnknownError,
    Database,
    DatabaseUrlError,
    Fault,
    connect_options,
    fault_of,
    json_text,
)
from tests.support.databases import PostgresDatabases
from tests.support.servers import PostgresServer


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


SETTINGS = DatabaseSettings(statement_timeout_seconds=1.5, lock_timeout_seconds=2, connect_timeout_seconds=3)


def test_postgresql_connections_have_time_limits() -> None:
    options = connect_options(make_url("postgresql+psycopg://db/evenkeel"), SETTINGS)
    assert (options["connect_timeout"], options["keepalives"]) == (3, 1)
    assert options["options"] == "-c statement_timeout=1500 -c lock_timeout=2000"


def test_options_in_the_url_have_precedence() -> None:
    options = connect_options(make_url("postgresql+psycopg://db/evenkeel?connect_timeout=60"), SETTINGS)
    assert "connect_timeout" not in options
    assert "options" in options


def test_time_limits_hold(database_url: str) -> None:
    with closing(Database(database_url, settings=SETTINGS)) as database:
        if database.engine.dialect.name == "postgresql":
            with pytest.raises(OperationalError, match="statement timeout") as caught, database.read() as session:
                session.execute(text("SELECT pg_sleep(60)"))
            assert fault_of(caught.value) is Fault.BUSY
        else:
            with database.read() as session:
                assert session.execute(text("PRAGMA busy_timeout")).scalar_one() == 2000


@pytest.mark.parametrize("url", ["sqlite:///{}/evenkeel.db", "postgresql+psycopg://nobody@127.0.0.1:1/evenkeel"])
def test_the_pool_has_a_connection_for_each_thread(tmp_path: Path, url: str) -> None:
    database = Database(url.format(tmp_path), connections=37)
    assert isinstance(database.engine.pool, QueuePool)
    assert database.engine.pool.size() == 37
    database.close()


def test_another_database_is_refused() -> None:
    with pytest.raises(DatabaseUrlError, match="begins with mysql:"):
        Database("mysql://db/evenkeel")


def test_broken_connections_are_replaced(postgres: PostgresServer, database_url: str) -> None:
    with closing(Database(database_url)) as database:
        with database.read() as session:
            session.execute(text("SELECT 1"))
        if database.engine.dialect.name == "postgresql":
            postgres.end_connections(database.engine.url.database or "")
        with database.read() as session:
            assert session.execute(text("SELECT 1")).scalar_one() == 1


@pytest.mark.parametrize("in_memory", [False, True])
def test_errors_contain_no_stored_values(database_url: str, in_memory: bool) -> None:
    with closing(Database("sqlite://" if in_memory else database_url)) as database:
        with pytest.raises(DBAPIError) as caught, database.write() as session:
            session.execute(text("INSERT INTO no_such_table VALUES (:sql)"), {"sql": "SELECT 'confidential'"})
        assert "no_such_table" in str(caught.value)
        assert "confidential" not in f"{caught.value!r} {caught.value}"


class TestPostgresql:
    """A connection that breaks under a transaction."""

    @pytest.fixture
    def database(self, postgres: PostgresServer, postgres_databases: PostgresDatabases) -> Iterator[Database]:
        with postgres_databases.new() as url, closing(Database(url)) as database:
            yield database

    def write_and_lose(self, postgres: PostgresServer, database: Database, *, before_commit: bool) -> None:
        with database.write() as session:
            session.execute(text("INSERT INTO leaders VALUES ('sweep', 'me', 1)"))
            postgres.end_connections(database.engine.url.database or "")
            if before_commit:
                session.execute(text("SELECT 1"))

    def test_a_connection_lost_before_the_commit_changes_nothing(
        self, postgres: PostgresServer, database: Database
    ) -> None:
        with pytest.raises(OperationalError) as caught:
            self.write_and_lose(postgres, database, before_commit=True)
        assert not isinstance(caught.value, CommitUnknownError)
        assert fault_of(caught.value) is Fault.LOST
        with database.read() as session:
            assert session.execute(text("SELECT count(*) FROM leaders")).scalar_one() == 0

    def test_a_connection_lost_during_the_commit_is_unknown(self, postgres: PostgresServer, database: Database) -> None:
        with pytest.raises(CommitUnknownError) as caught:
            self.write_and_lose(postgres, database, before_commit=False)
        assert fault_of(caught.value) is Fault.LOST

    def test_connections_to_a_standby_are_closed(self, postgres: PostgresServer, database: Database) -> None:
        name = database.engine.url.database or ""
        with database.write() as session:
            session.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
        database.close()
        with pytest.raises(DBAPIError) as caught, database.write() as session:
            session.execute(text("INSERT INTO leaders VALUES ('sweep', 'me', 1)"))
        assert fault_of(caught.value) is Fault.LOST
        assert caught.value.connection_invalidated

    def test_a_deadlock_is_a_conflict(self, database: Database) -> None:
        with database.write() as session:
            session.execute(text("INSERT INTO leaders VALUES ('a', 'me', 1), ('b', 'me', 1)"))
        both_hold = threading.Barrier(2)

        def cross(first: str, second: str) -> Fault | None:
            change = text("UPDATE leaders SET expires_at = 2 WHERE task = :task")
            try:
                with database.write() as session:
                    session.execute(change, {"task": first})
                    both_hold.wait(30)
                    session.execute(change, {"task": second})
            except OperationalError as error:
                return fault_of(error)
            return None

        with ThreadPoolExecutor(2) as threads:
            faults = list(threads.map(cross, "ab", "ba"))
        assert sorted(faults, key=str) == [None, Fault.CONFLICT]
