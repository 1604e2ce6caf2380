"""Makes a backup while the service runs.

The database is copied first, as it is at one moment; then the results that this copy names. Each of them was complete
before its job named it, and no file of a result changes, so all of them are there, but for those that are removed
between the two: by retention, or with their jobs. These are counted, and a restored job whose result is missing
answers as one whose files are gone. A result that is missing while the database still names it was removed by nobody:
it is lost, or the directory is not the right one. Results of jobs that end meanwhile are not named, and not copied.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from service import __version__
from service.backup.errors import BackupError
from service.backup.manifest import (
    DATABASE_FILES,
    RESULTS,
    Manifest,
    SumsWriter,
    copy_with_sum,
    sum_of,
    write_manifest,
)
from service.backup.postgres import DUMP, PostgresTool
from service.backup.sqlite import as_one_file, copy_database, database_file
from service.store import contents
from service.store.migrate import current_revision, is_known
from service.store.publication import published_paths
from service.store.session import Database


def make_backup(database: Database, results: Path, directory: Path, postgresql_bin: Path | None) -> Manifest:
    """Copies database and results into `directory`, which must be empty or new.

    Raises BackupError, DatabaseError and OSError; what was written until then has no manifest and counts as nothing.
    """
    kind = database.engine.dialect.name
    revision = current_revision(database)
    if revision is None:
        raise BackupError("the database has no tables yet: there is nothing to back up")
    if not is_known(revision):
        # What this version does not know of, it would leave out.
        raise BackupError(
            f"the database is at revision {revision}, which this version does not know",
            "Make the backup with the version of Evenkeel that migrated it.",
        )
    tool = None if kind == "sqlite" else PostgresTool(DUMP, database.engine, postgresql_bin)
    _prepare(directory)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as paths:
        copy = directory / DATABASE_FILES[kind]
        rows = _copy_sqlite(database, copy, paths) if tool is None else _dump(database, tool, copy, paths)
        sums = SumsWriter(directory)
        sums.add(copy.name, sum_of(copy))
        paths.seek(0)
        copied = _Copied(database)
        for path in paths:
            if not copied.results + copied.missing:
                _require_listable(results)
            copied.take(results, path.rstrip("\n"), directory / RESULTS, sums)
    manifest = Manifest(
        version=__version__,
        database="sqlite" if tool is None else "postgresql",
        revision=revision,
        tool=f"sqlite {sqlite3.sqlite_version}" if tool is None else tool.label,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        rows=rows,
        results=copied.results,
        results_missing=copied.missing,
        results_lost=copied.lost,
        results_bytes=copied.bytes,
        sums_sha256=sums.close(),
    )
    write_manifest(directory, manifest)
    return manifest


class _Copied:
    """Results copied so far."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.results = 0
        self.missing = 0
        self.lost = 0
        self.bytes = 0

    def take(self, results: Path, path: str, target: Path, sums: SumsWriter) -> None:
        """Copies one result whole, or nothing of it where it has been removed."""
        files = _files_of(results / path)
        own = target / path
        own.mkdir(mode=0o700, parents=True)
        try:
            copied = [(file.name, *copy_with_sum(file, own / file.name)) for file in files]
        except FileNotFoundError:
            copied = []
        if not copied:
            self.missing += 1
            self.lost += self._is_named(path)
            shutil.rmtree(own.parent)
            return
        self.results += 1
        for name, sha256, size in copied:
            self.bytes += size
            sums.add(f"{RESULTS}/{path}/{name}", sha256)

    def _is_named(self, path: str) -> bool:
        # Rows go before files do: what the database names now was not removed before.
        job_id = path.partition("/")[0]
        with self._database.read() as session:
            return published_paths(session, [job_id]).get(job_id) == path


def _files_of(result: Path) -> list[Path]:
    # Not by a pattern, which finds nothing in what may not be read: that must be told.
    with suppress(FileNotFoundError), os.scandir(result) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.name.endswith(".parquet"))
    return []


def _require_listable(results: Path) -> None:
    try:
        os.scandir(results).close()
    except OSError as error:
        raise BackupError(
            f"the results directory {results} cannot be read: {error.strerror}",
            "Set EVENKEEL_DATA_RESULTS as the service has it, mount the share, and run as the service's user.",
        ) from None


def _prepare(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise BackupError(f"{directory} is not empty", "Give a new directory for each backup.")
    # The copy is for nobody else to read, whatever the directory was made for.
    try:
        directory.chmod(0o700)
    except PermissionError:
        raise BackupError(
            f"{directory} belongs to another user, who may let others read it", "Give a new directory inside it."
        ) from None


def _copy_sqlite(database: Database, target: Path, paths: TextIO) -> dict[str, int]:
    copy_database(database_file(database.engine), target)
    as_one_file(target)
    engine = create_engine(f"sqlite:///{target}")
    try:
        with closing(Session(engine)) as session:
            return _note(session, paths)
    finally:
        engine.dispose()


def _dump(database: Database, tool: PostgresTool, target: Path, paths: TextIO) -> dict[str, int]:
    # pg_dump reads the very moment that is counted here; the transaction ends before files are copied, since for as
    # long as it is open, nothing that is deleted is cleaned up.
    with database.read() as session:
        snapshot, server = contents.export_snapshot(session)
        tool.require(server, "the server")
        tool.dump(target, snapshot)
        return _note(session, paths)


def _note(session: Session, paths: TextIO) -> dict[str, int]:
    """Writes the path of every result that the copy names, a line each; gives the rows of each table."""
    paths.writelines(_lines(contents.published_results(session)))
    return contents.count_rows(session)


def _lines(paths: Iterable[str]) -> Iterator[str]:
    return (f"{path}\n" for path in paths)
