"""Migrations: complete, repeatable, safe to run at once, and clear about a schema of another version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import inspect, text

from service.store import migrate
from service.store.session import Database
from service.store.tables import Base


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(f"sqlite:///{tmp_path / 'store.db'}")


def test_upgrade_makes_the_declared_tables(database: Database) -> None:
    migrate.upgrade(database)
    assert migrate.current_revision(database) == migrate.head_revision()
    assert migrate.check_drift(database) == []
    migrate.require_current(database)


def test_upgrade_is_repeatable(database: Database) -> None:
    migrate.upgrade(database)
    migrate.upgrade(database)
    migrate.require_current(database)


def test_a_missing_index_is_drift(database: Database) -> None:
    migrate.upgrade(database)
    with database.write() as session:
        session.execute(text("DROP INDEX ix_outbox_job_id"))
    assert len(migrate.check_drift(database)) == 1


def test_downgrade_leaves_nothing(database: Database) -> None:
    migrate.upgrade(database)
    with database.write() as session:
        config = migrate.alembic_config(session.connection())
        command.downgrade(config, "base")
    assert set(inspect(database.engine).get_table_names()).isdisjoint(Base.metadata.tables)


def test_an_empty_database_is_refused_with_what_to_do(database: Database) -> None:
    with pytest.raises(migrate.SchemaMismatchError, match="run `evenkeel migrate`"):
        migrate.require_current(database)


def test_a_newer_database_is_refused(database: Database) -> None:
    migrate.upgrade(database)
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(migrate.SchemaMismatchError, match="newer version"):
        migrate.require_current(database)
    with pytest.raises(migrate.SchemaMismatchError, match="newer version"):
        migrate.upgrade(database)


def test_two_processes_upgrade_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    script = (
        "import sys; from service.store.migrate import upgrade; from service.store.session import Database;"
        "database = Database(sys.argv[1]); upgrade(database)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, url], stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    outcomes = [(process.communicate(timeout=60)[1], process.returncode) for process in processes]
    assert [code for _, code in outcomes] == [0, 0, 0], outcomes
    migrate.require_current(Database(url))
