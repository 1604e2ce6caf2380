"""SQLite's online backup: a whole copy, whoever reads and writes meanwhile.

PostgreSQL's own programs: `pg_dump` and `pg_restore`, found where they are and old enough to be told.
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

_PATIENCE_SECONDS = 10


def database_file(engine: Engine) -> Path:
    """Where the database is. Raises BackupError for one in memory."""
    name = engine.url.database
    if not name or name == ":memory:":
        raise BackupError("a database in memory can neither be copied nor restored")
    return Path(name)


def copy_database(source: Path, target: Path) -> None:
    """Makes `target` a copy of `source` in one transaction; others who have either open see all of it or nothing."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with (
            closing(sqlite3.connect(source, timeout=_PATIENCE_SECONDS)) as read,
            closing(sqlite3.connect(target, timeout=_PATIENCE_SECONDS)) as written,
        ):
            # In one step: readers do not keep writers waiting, and a copy in parts begins anew after each change.
            read.backup(written, pages=-1)
    except sqlite3.Error as error:
        raise BackupError(f"the database cannot be copied: {error}") from None


def as_one_file(copy: Path) -> None:
    """Lets a copy need no second file beside it, as databases in use do."""
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")


DUMP, RESTORE = "pg_dump", "pg_restore"

_SECRET = ("password", "sslpassword")
_VERSION = re.compile(r"\(PostgreSQL\) (\d+)\S*")
_COPY = re.compile(rb"COPY .+ FROM stdin;")
_END_OF_ROWS = b"\\."
_OF_PSQL = b"\\"
_NOT_EVERYWHERE = b"SET transaction_timeout"
"""Written by pg_restore 17 and newer; an older server knows nothing of it, and no restored row depends on it."""
_SAME_FOR_BOTH = ("--no-password", "--no-owner", "--no-privileges")


_UNCHANGED = "Nothing was left half done."


class PostgresTool:
    """One of the two programs, which works on the engine's database."""

    def __init__(self, name: str, engine: Engine, directory: Path | None) -> None:
        """Looks for it in `directory`, or on PATH. Raises BackupError where it is missing or does not run."""
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
        self.version = self._ask_version()

    @property
    def label(self) -> str:
        """Such as `pg_dump 16`."""
        return f"{self._name} {self.version}"

    def require(self, version: int, what: str) -> None:
        """Raises BackupError unless it is at least of this major version: an older one cannot read what is newer."""
        if self.version < version:
            raise BackupError(
                f"{self.label} is older than {what} ({version})",
                f"Install the client programs of PostgreSQL {version} or newer, or set "
                "EVENKEEL_BACKUP_POSTGRESQL_BIN to their directory.",
            )

    def dump(self, target: Path, snapshot: str) -> None:
        """Writes our tables, as `snapshot` sees them, to a file in PostgreSQL's own format."""
        tables = [f"--table={name}" for name in TABLES]
        self._run("--format=custom", f"--snapshot={snapshot}", f"--file={target}", *tables)

    def restore(self, source: Path, session: Session) -> None:
        """Makes the tables of the file, with their rows, in the session's transaction: all of it, or nothing.

        Raises BackupError where the program cannot read the file, and psycopg.Error where the server does not take it.
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
                # Before the wait for its end: it may be writing still.
                program.stdout.close()
            if program.wait() != 0:
                errors.seek(0)
                raise BackupError(
                    f"{self._name} failed: {_last_line(errors.read().decode(errors='replace'))}", _UNCHANGED
                )
            # The script sets options for the whole connection, which goes back to the pool.
            cursor.execute("RESET ALL")

    def _run(self, *arguments: str) -> None:
        command = (self._path, *_SAME_FOR_BOTH, f"--dbname={self._connection}", *arguments)
        # The password goes by the environment: every user of the machine may read command lines.
        environment = {**os.environ, **({"PGPASSWORD": self._password} if self._password else {})}
        done = _run(command, environment)
        if done.returncode != 0:
            raise BackupError(f"{self._name} failed: {_last_line(done.stderr)}", _UNCHANGED)

    def _ask_version(self) -> int:
        try:
            told = _run((self._path, "--version"), dict(os.environ)).stdout
        except OSError as error:
            raise BackupError(f"{self._path} does not run: {error.strerror}") from None
        match = _VERSION.search(told)
        if match is None:
            raise BackupError(f"{self._path} does not say its version", "It is not PostgreSQL's own.")
        return int(match.group(1))


def run_script(cursor: psycopg.Cursor, lines: Iterable[bytes]) -> None:
    """Runs what `pg_restore` writes for `psql`: statements, and rows after each COPY. Raises psycopg.Error."""
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
        elif line.strip() and not line.startswith((b"--", _OF_PSQL, _NOT_EVERYWHERE)):
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
    """What the engine's URL tells libpq, without the password, and the password."""
    url: URL = engine.url
    _, given = engine.dialect.create_connect_args(url)
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    parts = {name: value for name, value in given.items() if name in known and name not in _SECRET}
    return make_conninfo(**parts), str(given.get("password") or "")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # What came first is what went wrong; the rest says where.
    return lines[0].removeprefix(f"{DUMP}: ").removeprefix(f"{RESTORE}: ") if lines else "it did not say why"
