"""Copies of databases: SQLite's online backup, and PostgreSQL's `pg_dump` and `pg_restore`.

The programs are searched on PATH or in a configured directory, and must not be older than the server.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo
from sqlalchemy.engine import URL, Engine
from sqlalchemy.orm import Session

from service.backup.manifest import BackupError
from service.store.installation import TABLES

_LOCK_TIMEOUT_SECONDS = 10
DUMP, RESTORE = "pg_dump", "pg_restore"
_SECRET = ("password", "sslpassword")
_VERSION = re.compile(r"\(PostgreSQL\) (\d+)\S*")
_COPY = re.compile(rb"COPY .+ FROM stdin;")
_END_OF_ROWS = b"\\."
_PSQL_COMMAND = b"\\"
_UNSUPPORTED_SETTING = b"SET transaction_timeout"
"""Written by pg_restore 17 and newer. Older servers do not support it, and no restored row depends on it."""
_COMMON_OPTIONS = ("--no-password", "--no-owner", "--no-privileges")
_UNCHANGED = "No partial changes were made."


def database_file(engine: Engine) -> Path:
    """Returns the path of the database. Raises BackupError for a database in memory."""
    name = engine.url.database
    if not name or name == ":memory:":
        raise BackupError("an in-memory database can neither be copied nor restored")
    return Path(name)


def copy_database(source: Path, target: Path) -> None:
    """Copies `source` to `target` in one transaction; other connections see all of it or nothing."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with (
            closing(sqlite3.connect(source, timeout=_LOCK_TIMEOUT_SECONDS)) as read,
            closing(sqlite3.connect(target, timeout=_LOCK_TIMEOUT_SECONDS)) as written,
        ):
            # In one step: readers do not block writers, and a copy in several steps restarts after each change.
            read.backup(written, pages=-1)
    except sqlite3.Error as error:
        raise BackupError(f"the database cannot be copied: {error}") from None


def leave_wal_mode(copy: Path) -> None:
    """Switches a copy out of WAL mode, so that it consists of one file."""
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")


class PostgresTool:
    """One of the two programs, for the engine's database."""

    def __init__(self, name: str, engine: Engine, directory: Path | None) -> None:
        """Searches for it in `directory`, or on PATH. Raises BackupError if it is missing or does not run."""
        self._name = name
        self._connection, self._password = _connection_of(engine)
        found = shutil.which(name, path=None if directory is None else str(directory))
        if found is None:
            where = "on PATH" if directory is None else f"in {directory}"
            raise BackupError(
                f"{name} was not found {where}",
                "Install PostgreSQL's client programs, or set EVENKEEL_BACKUP_POSTGRESQL_BIN to their directory.",
            )
        self._path = found
        self.version = self._read_version()

    @property
    def label(self) -> str:
        """For example `pg_dump 16`."""
        return f"{self._name} {self.version}"

    def require(self, version: int, what: str) -> None:
        """Raises BackupError if the program is older than this major version: it could not read the newer format."""
        if self.version < version:
            raise BackupError(
                f"{self.label} is older than {what} ({version})",
                f"Install the client programs of PostgreSQL {version} or newer, or set "
                "EVENKEEL_BACKUP_POSTGRESQL_BIN to their directory.",
            )

    def dump(self, target: Path, snapshot: str) -> None:
        """Writes our tables, as `snapshot` sees them, to a file in PostgreSQL's custom format."""
        tables = [f"--table={name}" for name in TABLES]
        self._run("--format=custom", f"--snapshot={snapshot}", f"--file={target}", *tables)

    def restore(self, source: Path, session: Session) -> None:
        """Creates the tables of the file with their rows, in the session's transaction: completely, or not at all.

        Raises BackupError if the program cannot read the file, and psycopg.Error if the server refuses it.
        """
        driver = session.connection().connection.driver_connection
        assert isinstance(driver, psycopg.Connection)  # noqa: S101 - the only driver that URLs may name
        command = (self._path, "--no-owner", "--no-privileges", "--file=-", str(source))
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(  # noqa: S603 - the program that was found, with arguments of ours
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            ) as program,
            driver.cursor() as cursor,
        ):
            assert program.stdout is not None  # noqa: S101 - a pipe, as asked
            try:
                run_script(cursor, program.stdout)
            finally:
                # Before waiting for its end: it may still be writing.
                program.stdout.close()
            if program.wait() != 0:
                errors.seek(0)
                raise BackupError(
                    f"{self._name} failed: {_error_line(errors.read().decode(errors='replace'))}", _UNCHANGED
                )
            # The script sets options of the connection, which returns to the pool.
            cursor.execute("RESET ALL")

    def _run(self, *arguments: str) -> None:
        command = (self._path, *_COMMON_OPTIONS, f"--dbname={self._connection}", *arguments)
        # The password is passed in the environment, since every user of the machine can read command lines.
        environment = {**os.environ, **({"PGPASSWORD": self._password} if self._password else {})}
        done = _run(command, environment)
        if done.returncode != 0:
            raise BackupError(f"{self._name} failed: {_error_line(done.stderr)}", _UNCHANGED)

    def _read_version(self) -> int:
        try:
            output = _run((self._path, "--version"), dict(os.environ)).stdout
        except OSError as error:
            raise BackupError(f"{self._path} does not run: {error.strerror}") from None
        match = _VERSION.search(output)
        if match is None:
            raise BackupError(f"{self._path} does not print its version", "It is not PostgreSQL's own program.")
        return int(match.group(1))


def run_script(cursor: psycopg.Cursor, lines: Iterable[bytes]) -> None:
    """Runs the output of `pg_restore`, which is a `psql` script: statements, and rows after each COPY. Raises
    psycopg.Error.
    """
    statements: list[bytes] = []
    rest = iter(lines)
    for line in rest:
        if _COPY.fullmatch(line.rstrip(b"\n")):
            _execute(cursor, statements)
            with cursor.copy(line) as copy:
                for row in rest:
                    if row.rstrip(b"\n") == _END_OF_ROWS:
                        break
                    copy.write(row)
        elif line.strip() and not line.startswith((b"--", _PSQL_COMMAND, _UNSUPPORTED_SETTING)):
            statements.append(line)
    _execute(cursor, statements)


def _execute(cursor: psycopg.Cursor, statements: list[bytes]) -> None:
    if statements:
        cursor.execute(b"".join(statements))
        statements.clear()


def _run(command: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - the program that was found, with arguments of ours
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _connection_of(engine: Engine) -> tuple[str, str]:
    """Returns the engine's connection parameters for libpq without the password, and the password."""
    url: URL = engine.url
    _, given = engine.dialect.create_connect_args(url)
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    parts = {name: value for name, value in given.items() if name in known and name not in _SECRET}
    return make_conninfo(**parts), str(given.get("password") or "")


def _error_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # The first line is the error; the others are its context.
    return lines[0].removeprefix(f"{DUMP}: ").removeprefix(f"{RESTORE}: ") if lines else "it gave no reason"
