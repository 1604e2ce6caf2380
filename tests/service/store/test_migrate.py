"""Migrations on both databases: complete, repeatable, safe to run at once; and schemas of other versions."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import inspect, text
from sqlalchemy.exc import OperationalError

from service.store import migrate, workers
from service.store.migrate import SchemaMismatchError, SchemaState
from service.store.session import Database
from service.store.tables import Base
from tests.support import lifecycle
from tests.support.databases import SQLITE, PostgresDatabases
from tests.support.processes import outputs_at_once
from tests.support.servers import PostgresServer

ROOT = Path(__file__).parents[3]
NEXT = "9999"
_REVISION = """
import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade():
    op.add_column("jobs", sa.Column("made_up", sa.Integer(), nullable=True))
    {expand_or_contract}


def downgrade():
    op.drop_column("jobs", "made_up")
    op.execute("DELETE FROM compatible_revisions WHERE revision = '{head}'")
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables."""
    if request.param == SQLITE:
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    yield postgres.create_database("blank")
    postgres.drop_database("blank")


@pytest.fixture
def empty_database(url: str) -> Iterator[Database]:
    """A database of each kind, without tables."""
    with closing(Database(url)) as database:
        yield database


@pytest.fixture
def newer_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Database, bool], None]:
    """Upgrades a database as a newer release would, by one more revision that is compatible with this code, or not."""

    def upgrade(database: Database, serves: bool) -> None:
        head = migrate.head_revision()
        scripts = tmp_path / "newer"
        shutil.copytree(migrate._script_directory(), scripts, dirs_exist_ok=True)
        what = (
            f"op.execute(\"INSERT INTO compatible_revisions VALUES ('{head}')\")"
            if serves
            else 'op.execute("DELETE FROM compatible_revisions")'
        )
        (scripts / "versions" / "next.py").write_text(_REVISION.format(head=head, expand_or_contract=what))
        with monkeypatch.context() as patched:
            patched.setattr(migrate, "_script_directory", lambda: scripts)
            assert migrate.head_revision() == NEXT
            migrate.upgrade(database)

    return upgrade


def tables(database: Database) -> set[str]:
    return set(inspect(database.engine).get_table_names()) & set(Base.metadata.tables)


@pytest.mark.not_quick
def test_upgrade_makes_the_declared_tables(empty_database: Database) -> None:
    assert migrate.upgrade(empty_database).state is SchemaState.EMPTY
    assert migrate.read_schema(empty_database) == migrate.Schema(migrate.head_revision(), SchemaState.CURRENT)
    assert migrate.check_drift(empty_database) == []
    migrate.require_current(empty_database)


def test_upgrade_is_repeatable(empty_database: Database) -> None:
    migrate.upgrade(empty_database)
    assert migrate.upgrade(empty_database).state is SchemaState.CURRENT
    migrate.require_current(empty_database)


@pytest.mark.parametrize(
    "change",
    [
        "DROP INDEX ix_outbox_job_id",
        "ALTER TABLE jobs ADD COLUMN made_up INTEGER",
        "ALTER TABLE workers DROP COLUMN host",
        "CREATE TABLE made_up (id INTEGER PRIMARY KEY)",
    ],
)
def test_every_difference_is_drift(empty_database: Database, change: str) -> None:
    migrate.upgrade(empty_database)
    with empty_database.write() as session:
        session.execute(text(change))
    assert len(migrate.check_drift(empty_database)) == 1


@pytest.mark.not_quick
def test_each_revision_can_be_reverted_and_applied_again(empty_database: Database) -> None:
    migrate.upgrade(empty_database)
    for revision in migrate._older(migrate.head_revision()):
        migrate.downgrade(empty_database, revision)
        assert migrate.current_revision(empty_database) == (None if revision == "base" else revision)
        if revision == "base":
            assert tables(empty_database) == set()
        migrate.upgrade(empty_database)
        assert migrate.check_drift(empty_database) == []


def test_jobs_survive_a_downgrade_and_an_upgrade(empty_database: Database) -> None:
    migrate.upgrade(empty_database)
    job_id = lifecycle.insert(empty_database)
    lifecycle.plan(empty_database, lifecycle.claim(empty_database, job_id))
    migrate.downgrade(empty_database, "0001")
    migrate.upgrade(empty_database)
    with empty_database.read() as session:
        for table in ("jobs", "attempts", "plans"):
            assert session.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == 1, table
        assert session.execute(text("SELECT count(*) FROM job_events")).scalar_one() > 1
        assert session.execute(text("SELECT queue, spec_version FROM jobs")).one() == ("short", 1)


def test_a_downgrade_to_a_newer_revision_is_refused(empty_database: Database, subtests: pytest.Subtests) -> None:
    for revision in ("0009", "", "head", "0001; DROP TABLE jobs"):
        with subtests.test(revision=revision):
            migrate.upgrade(empty_database)
            with pytest.raises(SchemaMismatchError, match=r"Older revisions: .*0001, base"):
                migrate.downgrade(empty_database, revision)
            migrate.require_current(empty_database)


def test_an_empty_database_is_refused_with_what_to_do(empty_database: Database) -> None:
    with pytest.raises(SchemaMismatchError, match=r"has no tables yet.*run `evenkeel migrate`"):
        migrate.require_current(empty_database)
    with pytest.raises(SchemaMismatchError, match="cannot go back"):
        migrate.downgrade(empty_database, "base")


def test_an_older_database_is_refused_with_what_to_do(empty_database: Database) -> None:
    migrate.upgrade(empty_database)
    migrate.downgrade(empty_database, "0001")
    assert migrate.read_schema(empty_database).state is SchemaState.OUTDATED
    with pytest.raises(SchemaMismatchError, match=r"is at revision 0001.*run `evenkeel migrate`"):
        migrate.require_current(empty_database)


def test_a_newer_compatible_database_is_accepted(
    empty_database: Database, newer_release: Callable[[Database, bool], None]
) -> None:
    migrate.upgrade(empty_database)
    newer_release(empty_database, True)
    migrate.require_current(empty_database)
    assert migrate.upgrade(empty_database) == migrate.Schema(NEXT, SchemaState.COMPATIBLE)
    assert migrate.current_revision(empty_database) == NEXT
    job_id = lifecycle.insert(empty_database)
    lifecycle.claim(empty_database, job_id)
    with empty_database.read() as session:
        assert workers.list_workers(session, 0) == []


def test_a_newer_incompatible_database_is_refused(
    empty_database: Database, newer_release: Callable[[Database, bool], None]
) -> None:
    migrate.upgrade(empty_database)
    newer_release(empty_database, False)
    advice = f"Upgrade this installation, or .*--downgrade {migrate.head_revision()}"
    with pytest.raises(SchemaMismatchError, match=advice):
        migrate.require_current(empty_database)
    with pytest.raises(SchemaMismatchError, match=advice):
        migrate.upgrade(empty_database)
    with pytest.raises(SchemaMismatchError, match="only the newer version"):
        migrate.downgrade(empty_database, "0001")
    assert migrate.current_revision(empty_database) == NEXT


@pytest.mark.not_quick
def test_processes_upgrade_at_once(url: str) -> None:
    script = (
        "import sys; from service.store.migrate import upgrade; from service.store.session import Database;"
        "database = Database(sys.argv[1]); print('here', flush=True); sys.stdin.readline();"
        "print(upgrade(database).state)"
    )
    command = [sys.executable, "-c", script, url]
    found = sorted(each.strip() for each in outputs_at_once([command] * 2, ROOT, 60))
    assert found == ["current", "empty"]
    with closing(Database(url)) as database:
        migrate.require_current(database)
        assert migrate.check_drift(database) == []


@pytest.mark.parametrize("move", ["upgrade", "downgrade"])
def test_a_migration_that_waits_for_a_table_lets_others_use_it(
    postgres_databases: PostgresDatabases, monkeypatch: pytest.MonkeyPatch, move: str
) -> None:
    """Another transaction reads `jobs` for long, as `pg_dump` does."""
    monkeypatch.setattr(migrate, "_LOCK_MS", 100)
    with postgres_databases.new() as url, closing(Database(url)) as database:
        if move == "upgrade":
            migrate.downgrade(database, "0001")
        backup = database.engine.connect()
        backup.execute(text("SELECT count(*) FROM jobs"))
        counted: list[int] = []

        def let_others(_seconds: float) -> None:
            with database.read() as session:
                session.execute(text("SET LOCAL lock_timeout = 5000"))
                counted.append(session.execute(text("SELECT count(*) FROM jobs")).scalar_one())
            backup.close()

        if move == "upgrade":
            assert migrate.upgrade(database, pause=let_others).state is SchemaState.OUTDATED
            assert migrate.check_drift(database) == []
        else:
            migrate.downgrade(database, "0001", pause=let_others)
            assert migrate.current_revision(database) == "0001"
        assert counted == [0]


def test_a_migration_fails_if_it_cannot_lock_a_table(
    postgres_databases: PostgresDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "_LOCK_MS", 10)
    pauses: list[float] = []
    with postgres_databases.new() as url, closing(Database(url)) as database:
        with database.read() as session:
            session.execute(text("SELECT count(*) FROM jobs"))
            with pytest.raises(OperationalError, match="lock timeout"):
                migrate.downgrade(database, "0001", pause=pauses.append)
        assert migrate.current_revision(database) == migrate.head_revision()
    assert 240 < sum(pauses) < 480
