"""Makes a backup while the service runs.

The database is copied first, as it is at one moment; then the results that this copy names. Each of them was complete
before its job named it, and no file of a result changes, so all of them are there, but for those that are removed
between the two: by retention, or with their jobs. These are counted, and a restored job whose result is missing
answers as one whose files are gone. A result that is missing while the database still names it was removed by nobody:
it is lost, or the directory is not the right one. Results of jobs that end meanwhile are not named, and not copied.

Which database a restore may replace: an empty one, or one of Evenkeel's that nobody works on.

Puts a backup back, where nothing is, or in place of what is there.

Everything is checked before anything is changed. Results go first, so that no job ever names files that are not there
yet; then the database is replaced, in one transaction. Jobs that were at work when the backup was made have leases
that are long over: a worker's sweeper queues them again, as after the loss of a worker, and rings for all that are
queued.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import TextIO

import psycopg
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from service import __version__
from service.backup.databases import DUMP, RESTORE, PostgresTool, as_one_file, copy_database, database_file
from service.backup.manifest import (
    DATABASE_FILES,
    RESULTS,
    BackupError,
    Manifest,
    SumsWriter,
    copy_with_sum,
    read_manifest,
    read_sums,
    sum_of,
    verify,
    write_manifest,
)
from service.results.directories import remove_job_directory
from service.store import installation
from service.store.maintenance import start_streams_over
from service.store.migrate import current_revision, is_known, upgrade
from service.store.publication import published_paths
from service.store.session import Database
from service.store.tables import InstallationRow


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
        snapshot, server = installation.export_snapshot(session)
        tool.require(server, "the server")
        tool.dump(target, snapshot)
        return _note(session, paths)


def _note(session: Session, paths: TextIO) -> dict[str, int]:
    """Writes the path of every result that the copy names, a line each; gives the rows of each table."""
    paths.writelines(_lines(installation.published_results(session)))
    return installation.count_rows(session)


def _lines(paths: Iterable[str]) -> Iterator[str]:
    return (f"{path}\n" for path in paths)


def require_replaceable(database: Database, silence_ms: int, *, replace: bool) -> str | None:
    """Gives the id of the installation that the database is, None for one without.

    Raises BackupError where tables of others would be lost, where the revision is one that this version does not know,
    where a worker's last sign of life is younger than `silence_ms`, and, unless `replace`, where there are jobs.
    """
    with database.read() as session:
        found = installation.occupant(session)
        _require_ours(found, alone=database.engine.dialect.name == "sqlite")
        if installation.has_workers(session, database.now(session) - silence_ms):
            raise BackupError(
                "workers are at work on this database", "Stop the API and all workers first, then restore."
            )
        jobs = installation.count_jobs(session)
        known_as = installation.find_id(session) if InstallationRow.__tablename__ in found.ours else None
    if jobs and not replace:
        raise BackupError(
            f"the database is not empty: it holds {jobs} jobs",
            "Restore into a new one, or give --force to replace what is there.",
        )
    return known_as


def _require_ours(found: installation.Occupant, *, alone: bool) -> None:
    """`alone`: the whole database is replaced, with what others have in it. --force is for jobs, not for these."""
    if alone and found.others:
        raise BackupError(
            f"the database holds tables that are not Evenkeel's: {', '.join(sorted(found.others)[:3])}",
            "They would be lost: set EVENKEEL_DATABASE_URL to another database.",
        )
    if found.is_empty:
        return
    if not found.is_evenkeel:
        raise BackupError(
            f"the database holds tables that seem to be another application's: {', '.join(sorted(found.ours)[:3])}",
            "They would be lost: set EVENKEEL_DATABASE_URL to another database.",
        )
    (revision,) = found.revisions
    if not is_known(revision):
        raise BackupError(
            f"the database is at revision {revision}, which this version does not know",
            "Restore with the version of Evenkeel that migrated it, or into another database.",
        )


def check_backup(directory: Path) -> Manifest:
    """What the backup says of itself, once every file of it has been read.

    Raises DamagedBackupError where one is missing or has changed, BackupError where a newer version made it.
    """
    manifest = read_manifest(directory)
    if not is_known(manifest.revision):
        raise BackupError(
            f"the backup is of revision {manifest.revision}, which this version does not know",
            f"Restore it with the version that made it ({manifest.version}) or a later one.",
        )
    verify(directory, manifest)
    return manifest


def restore_backup(
    directory: Path,
    database: Database,
    results: Path,
    postgresql_bin: Path | None,
    *,
    silence_ms: int,
    replace: bool,
) -> Manifest:
    """Makes database and results what the backup holds, and the schema this version's.

    Raises BackupError before anything is changed where the backup is not whole or is of another kind of database, where
    the database is not one of this version or an older one, where it has workers whose last sign of life is younger
    than `silence_ms`, and, unless `replace`, where it holds jobs.
    A database that is replaced stays the installation that it was; any other becomes a new one, which removes no file
    in a results directory of another. Results of jobs that are replaced stay behind; workers remove them a day later.
    """
    manifest = check_backup(directory)
    kind = database.engine.dialect.name
    if kind != manifest.database:
        raise BackupError(
            f"the backup is of a {manifest.database} database, and EVENKEEL_DATABASE_URL names one of {kind}",
            "A backup goes back to the kind of database that it came from.",
        )
    known_as = require_replaceable(database, silence_ms, replace=replace)
    tool = None if kind == "sqlite" else _restore_tool(database, manifest, postgresql_bin)
    _copy_results(directory, manifest, results)
    source = directory / DATABASE_FILES[kind]
    if tool is None:
        copy_database(source, database_file(database.engine))
    else:
        _replace_tables(database, tool, source)
    _finish(database, manifest, known_as)
    return manifest


def _restore_tool(database: Database, manifest: Manifest, directory: Path | None) -> PostgresTool:
    tool = PostgresTool(RESTORE, database.engine, directory)
    tool.require(int(manifest.tool.rpartition(" ")[2]), "the pg_dump that made the backup")
    return tool


def _replace_tables(database: Database, tool: PostgresTool, source: Path) -> None:
    try:
        with database.write() as session:
            installation.drop_tables(session)
            tool.restore(source, session)
    except (DBAPIError, psycopg.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        reason = str(cause).strip().split("\n", 1)[0]
        raise BackupError(
            f"the database does not take the backup: {reason}",
            "It is what it was. Remove what is in the way, such as views of yours on Evenkeel's tables, and try again.",
        ) from None


def _finish(database: Database, manifest: Manifest, known_as: str | None) -> None:
    with database.read() as session:
        found = installation.count_rows(session)
    if found != manifest.rows:
        differing = sorted(name for name in found | manifest.rows if found.get(name) != manifest.rows.get(name))
        raise BackupError(
            f"the restored database differs from the backup in {', '.join(differing)}",
            "Somebody was writing meanwhile: stop the API and all workers, and restore again with --force.",
        )
    upgrade(database)
    with database.write() as session:
        installation.forget_processes(session)
        start_streams_over(session, database.now(session))
        installation.become(session, known_as)


def _copy_results(directory: Path, manifest: Manifest, results: Path) -> None:
    files = ((PurePosixPath(name), sha256) for name, sha256 in read_sums(directory, manifest))
    ours = ((path, sha256) for path, sha256 in files if path.parts[0] == RESULTS)
    for parent, group in groupby(ours, lambda file: file[0].parent):
        sums = {path.name: sha256 for path, sha256 in group}
        target = results / parent.relative_to(RESULTS)
        if not _is_there(target, sums):
            # Anything else in there would be read as part of the result.
            remove_job_directory(results, target.parent.name)
            target.mkdir(mode=0o700, parents=True)
            for name in sums:
                copy_with_sum(directory / parent / name, target / name)


def _is_there(target: Path, sums: Mapping[str, str]) -> bool:
    found = {path.name for path in target.glob("*.parquet")}
    return found == set(sums) and all(sum_of(target / name) == sha256 for name, sha256 in sums.items())
