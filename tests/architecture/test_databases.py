"""Test that a test gets a clean database, whatever an earlier test did to its own."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.databases import PostgresDatabases
from tests.support.servers import PostgresServer


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def contents(connection: psycopg.Connection) -> list[object]:
    """Returns rows and columns of some tables, the schemas, and the next event id."""
    found: list[object] = []
    for query in (
        b"SELECT * FROM leaders",
        b"SELECT * FROM compatible_revisions",
        b"SELECT * FROM alembic_version",
        b"SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' ORDER BY nspname",
        b"SELECT nextval(pg_get_serial_sequence('job_events', 'id'))",
    ):
        answer = connection.execute(query)
        found.append((answer.fetchall(), [column.name for column in answer.description or ()]))
    return found


@pytest.mark.parametrize(
    "damage",
    [
        "INSERT INTO leaders VALUES ('sweep', 'me', 1)",
        "DELETE FROM compatible_revisions",
        "UPDATE alembic_version SET version_num = 'other'",
        "DROP TABLE leaders CASCADE",
        "ALTER TABLE leaders ADD COLUMN more INTEGER",
        "CREATE SCHEMA more",
        "DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = elsewhere', current_database()); END$$",
    ],
)
def test_changes_to_a_database_are_undone(
    postgres: PostgresServer, postgres_databases: PostgresDatabases, damage: str
) -> None:
    with postgres_databases.new() as first, postgres.connect(name_of(first)) as connection:
        before = contents(connection)
        connection.execute(damage.encode())
    with postgres_databases.new() as second, postgres.connect(name_of(second)) as connection:
        assert second != first
        assert contents(connection) == before
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        postgres.connect(name_of(first))
