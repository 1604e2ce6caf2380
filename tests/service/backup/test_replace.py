"""What a restore replaces, and what it never does, whatever it is told; and which installation comes of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text, update

from service.backup.backup import make_backup, restore_backup
from service.backup.manifest import BackupError
from service.store import installation
from service.store.installation import count_jobs
from service.store.migrate import check_drift, current_revision, downgrade, head_revision, upgrade
from service.store.session import Database
from service.store.tables import WorkerRow
from tests.support import lifecycle
from tests.support.installation import Installation


def restored(copy: Path, target: Installation, *, replace: bool = False) -> None:
    restore_backup(copy, target.database, target.results, target.tools, silence_ms=30_000, replace=replace)


def execute(own: Installation, *statements: str) -> None:
    with own.database.write() as session:
        for statement in statements:
            session.execute(text(statement))


def number(own: Installation, query: str) -> int:
    with own.database.read() as session:
        return int(session.execute(text(query)).scalar_one())


def id_of(own: Installation) -> str:
    with own.database.write() as session:
        return installation.ensure_id(session)


@pytest.fixture
def copy(here: Installation, tmp_path: Path) -> Path:
    make_backup(here.database, here.results, tmp_path / "copy", here.tools)
    with here.database.write() as session:
        session.execute(update(WorkerRow).values(heartbeat_at=1))
    return tmp_path / "copy"


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("names", [("plans",), ("jobs", "alembic_version"), ("alembic_version",)])
def test_tables_of_another_application_with_names_of_ours_stay(
    copy: Path, elsewhere: Installation, names: tuple[str, ...], replace: bool
) -> None:
    for name in names:
        execute(elsewhere, f"CREATE TABLE {name} (version_num VARCHAR(32))", f"INSERT INTO {name} VALUES ('0001')")
    with pytest.raises(BackupError, match="another application's"):
        restored(copy, elsewhere, replace=replace)
    for name in names:
        assert number(elsewhere, f"SELECT count(*) FROM {name}") == 1


@pytest.mark.one_database
@pytest.mark.parametrize("replace", [False, True])
def test_a_file_with_tables_of_others_stays(copy: Path, elsewhere: Installation, replace: bool) -> None:
    """SQLite's file is replaced whole."""
    execute(elsewhere, "CREATE TABLE customers (a INTEGER)", "INSERT INTO customers VALUES (7)")
    with pytest.raises(BackupError, match="not Evenkeel's: customers"):
        restored(copy, elsewhere, replace=replace)
    assert number(elsewhere, "SELECT a FROM customers") == 7


@pytest.mark.parametrize("replace", [False, True])
def test_a_database_of_a_newer_version_stays(copy: Path, here: Installation, replace: bool) -> None:
    execute(here, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(BackupError, match="revision 9999"):
        restored(copy, here, replace=replace)
    assert number(here, "SELECT count(*) FROM jobs") == 5


@pytest.mark.not_quick
@pytest.mark.parametrize("revision", [None, "0001", "base"])
def test_empty_ones_of_any_revision_are_taken(copy: Path, elsewhere: Installation, revision: str | None) -> None:
    upgrade(elsewhere.database)
    if revision is not None:
        downgrade(elsewhere.database, revision)
    restored(copy, elsewhere)
    assert number(elsewhere, "SELECT count(*) FROM jobs") == 5
    assert current_revision(elsewhere.database) == head_revision()
    assert check_drift(elsewhere.database) == []


def test_a_copy_is_another_installation_and_a_way_back_the_same(
    here: Installation, elsewhere: Installation, tmp_path: Path
) -> None:
    before = id_of(here)
    make_backup(here.database, here.results, tmp_path / "copy", here.tools)
    restored(tmp_path / "copy", elsewhere)
    assert id_of(elsewhere) != before
    with here.database.write() as session:
        session.execute(update(WorkerRow).values(heartbeat_at=1))
    restored(tmp_path / "copy", here, replace=True)
    assert id_of(here) == before


def test_values_of_every_kind_come_back(here: Installation, elsewhere: Installation, tmp_path: Path) -> None:
    name = "tab\\t \\N \\. \n\\.\n;-- SET 'x' \u20ac"
    lifecycle.insert(here.database, name=name)
    make_backup(here.database, here.results, tmp_path / "copy", here.tools)
    restored(tmp_path / "copy", elsewhere)
    with elsewhere.database.read() as session:
        told = session.execute(text("SELECT count(*) FROM jobs WHERE name = :name"), {"name": name}).scalar_one()
    assert told == 1


def test_all_or_nothing_where_something_is_in_the_way(
    copy: Path, here: Installation, request: pytest.FixtureRequest
) -> None:
    """A view of an operator's on one of our tables, on PostgreSQL; SQLite's replaces nothing beside the tables."""
    if here.tools is None:
        return
    lifecycle.insert(here.database)
    execute(here, "CREATE VIEW mine AS SELECT status, count(*) AS jobs FROM jobs GROUP BY status")
    with pytest.raises(BackupError, match=r"does not accept the backup.*other objects depend"):
        restored(copy, here, replace=True)
    assert number(here, "SELECT sum(jobs) FROM mine") == 6
    execute(here, "DROP VIEW mine")
    restored(copy, here, replace=True)
    url = here.database.engine.url.render_as_string(hide_password=False)
    with closing(Database(url)) as again, again.read() as session:
        assert count_jobs(session) == 5
    with here.database.read() as session:
        assert session.execute(text("SHOW search_path")).scalar_one() != ""
        assert session.execute(text("SHOW statement_timeout")).scalar_one() != "0"
