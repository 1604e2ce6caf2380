"""SQLite's online backup: a whole copy, whoever reads and writes meanwhile."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy.engine import Engine

from service.backup.errors import BackupError

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
