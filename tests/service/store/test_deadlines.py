"""A PostgreSQL that hangs: its connections stay open, and it does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from service.config.settings import DatabaseSettings
from service.store.session import CommitUnknownError, Database, Fault, fault_of, limit_answers, remove_time_limits
from tests.support.databases import PostgresDatabases
from tests.support.servers import PostgresServer, running_postgres

# An answer may take 2.1 s.
SETTINGS = DatabaseSettings(statement_timeout_seconds=0.1, connect_timeout_seconds=2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with running_postgres(tmp_path_factory.mktemp("stalled")) as server:
        yield server


@pytest.fixture
def database_with_deadline(server: PostgresServer) -> Iterator[Database]:
    """A database on a server that tests freeze for a while."""
    with closing(Database(server.url("postgres"), settings=SETTINGS)) as database:
        yield database


def one(database: Database) -> int:
    with database.read() as session:
        return int(session.execute(text("SELECT 1")).scalar_one())


def error_of(server: PostgresServer, ask: Callable[[], object]) -> OperationalError:
    """Returns the error of `ask`, which freezes the server."""
    with ThreadPoolExecutor(1) as thread:
        try:
            error = thread.submit(ask).exception(60)
        finally:
            server.thaw()
    assert isinstance(error, OperationalError)
    return error


@pytest.mark.not_quick
def test_a_pooled_connection_without_an_answer_is_closed(
    server: PostgresServer, database_with_deadline: Database
) -> None:
    def read() -> None:
        one(database_with_deadline)
        server.freeze()
        one(database_with_deadline)

    assert fault_of(error_of(server, read)) is Fault.LOST
    assert one(database_with_deadline) == 1


@pytest.mark.not_quick
def test_a_statement_without_an_answer_fails(server: PostgresServer, database_with_deadline: Database) -> None:
    def read() -> None:
        with database_with_deadline.read() as session:
            session.execute(text("SELECT 1"))
            server.freeze()
            session.execute(text("SELECT 1"))

    error = error_of(server, read)
    assert "the server did not answer for 2.1 s" in str(error)
    assert fault_of(error) is Fault.LOST


@pytest.mark.not_quick
def test_a_commit_without_an_answer_is_unknown(server: PostgresServer, database_with_deadline: Database) -> None:
    def write() -> None:
        with database_with_deadline.write() as session:
            session.execute(text("SELECT pg_current_xact_id()"))
            server.freeze()

    assert isinstance(error_of(server, write), CommitUnknownError)


def test_time_limits_can_be_removed(postgres_databases: PostgresDatabases) -> None:
    sleep = text("SELECT pg_sleep(1)")
    unlimited = DatabaseSettings(statement_timeout_seconds=0)
    with postgres_databases.new() as url, closing(Database(url, connections=1, settings=unlimited)) as database:
        limit_answers(database.engine, 0.3)
        with database.read() as session:
            remove_time_limits(session.connection())
            session.execute(sleep)
        with pytest.raises(OperationalError, match=r"did not answer for 0\.3 s"), database.read() as session:
            session.execute(sleep)
        with database.read() as session:
            session.execute(text("SELECT 1"))
