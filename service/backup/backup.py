"""Makes a backup while the service runs, and restores one.

A backup copies the database first, as a snapshot, then the results that the copy names. A result is complete before its
job names it, and its files never change. Results that retention or a deletion removes in between are counted as
missing; one that is missing although the database still names it is lost, or the results directory is the wrong one.

A restore checks everything before it changes anything. It copies results first, then replaces the database in one
transaction. Jobs that were running have expired leases; a sweeper queues them again and announces all queued jobs.
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
from service.backup.databases import DUMP, RESTORE, PostgresTool, copy_database, database_file, leave_wal_mode
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
from service.store.maintenance import reset_streams
from service.store.migrate import current_revision, is_known, upgrade
from service.store.publication import published_paths
from service.store.session import Database
from service.store.tables import InstallationRow


def make_backup(database: Database, results: Path, directory: Path, postgresql_bin: Path | None) -> Manifest:
    """Copies database and results into `directory`, which must be empty or new.

    Raises BackupError, DatabaseError and OSError. A copy that is interrupted has no manifest and is no valid backup.
    """
    kind = database.engine.dialect.name
    revision = current_revision(database)
    if revision is None:
        raise BackupError("the database has no tables yet: there is nothing to back up")
    if not is_known(revision):
        # This version would leave out tables of a newer one.
        raise BackupError(
            f"the database is at revision {revision}, which this version does not support",
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
            copied.copy_result(results, path.rstrip("\n"), directory / RESULTS, sums)
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
    """Counts of the results copied so far."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.results = 0
        self.missing = 0
        self.lost = 0
        self.bytes = 0

    def copy_result(self, results: Path, path: str, target: Path, sums: SumsWriter) -> None:
        """Copies one result completely, or nothing of it if it has been removed."""
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
        # A purge deletes rows before files, so it has not removed a result that the database still names.
        job_id = path.partition("/")[0]
        with self._database.read() as session:
            return published_paths(session, [job_id]).get(job_id) == path


def _files_of(result: Path) -> list[Path]:
    # Not with `glob`, which ignores permission errors: they must be reported.
    with suppress(FileNotFoundError), os.scandir(result) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.name.endswith(".parquet"))
    return []


def _require_listable(results: Path) -> None:
    try:
        os.scandir(results).close()
    except OSError as error:
        raise BackupError(
            f"the results directory {results} cannot be read: {error.strerror}",
            "Set EVENKEEL_DATA_RESULTS as for the service, mount the share, and run as the service's user.",
        ) from None


def _prepare(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise BackupError(f"{directory} is not empty", "Use a new directory for each backup.")
    # Other users must not read the copy, whatever permissions the directory had.
    try:
        directory.chmod(0o700)
    except PermissionError:
        raise BackupError(
            f"{directory} belongs to another user, who may allow others to read it", "Use a new directory inside it."
        ) from None


def _copy_sqlite(database: Database, target: Path, paths: TextIO) -> dict[str, int]:
    copy_database(database_file(database.engine), target)
    leave_wal_mode(target)
    engine = create_engine(f"sqlite:///{target}")
    try:
        with closing(Session(engine)) as session:
            return _note(session, paths)
    finally:
        engine.dispose()


def _dump(database: Database, tool: PostgresTool, target: Path, paths: TextIO) -> dict[str, int]:
    # pg_dump reads the same snapshot as the row counts. The transaction ends before files are copied, since VACUUM
    # cannot remove deleted rows while it is open.
    with database.read() as session:
        snapshot, server = installation.export_snapshot(session)
        tool.require(server, "the server")
        tool.dump(target, snapshot)
        return _note(session, paths)


def _note(session: Session, paths: TextIO) -> dict[str, int]:
    """Writes the path of every result that the copy names, one on each line. Returns the row counts of all tables."""
    paths.writelines(_lines(installation.published_results(session)))
    return installation.count_rows(session)


def _lines(paths: Iterable[str]) -> Iterator[str]:
    return (f"{path}\n" for path in paths)


def require_replaceable(database: Database, silence_ms: int, *, replace: bool) -> str | None:
    """Returns the id of the installation that the database belongs to, None if it has none.

    Raises BackupError if tables of another application would be lost, if this version does not support the revision, if
    a worker's last heartbeat is less than `silence_ms` ago, and, unless `replace`, if there are jobs.
    """
    with database.read() as session:
        found = installation.contents_of(session)
        _require_ours(found, alone=database.engine.dialect.name == "sqlite")
        if installation.has_workers(session, database.now(session) - silence_ms):
            raise BackupError("workers are using this database", "Stop the API and all workers first, then restore.")
        jobs = installation.count_jobs(session)
        installation_id = installation.find_id(session) if InstallationRow.__tablename__ in found.ours else None
    if jobs and not replace:
        raise BackupError(
            f"the database is not empty: it contains {jobs} jobs",
            "Restore into a new database, or use --force to replace its contents.",
        )
    return installation_id


def _require_ours(found: installation.DatabaseContents, *, alone: bool) -> None:
    """Raises BackupError if the restore would lose tables of others; --force does not override this.

    `alone`: the whole database is replaced, including tables of others.
    """
    if alone and found.others:
        raise BackupError(
            f"the database contains tables that are not Evenkeel's: {', '.join(sorted(found.others)[:3])}",
            "They would be lost: set EVENKEEL_DATABASE_URL to another database.",
        )
    if found.is_empty:
        return
    if not found.is_evenkeel:
        raise BackupError(
            f"the database contains tables that seem to be another application's: {', '.join(sorted(found.ours)[:3])}",
            "They would be lost: set EVENKEEL_DATABASE_URL to another database.",
        )
    (revision,) = found.revisions
    if not is_known(revision):
        raise BackupError(
            f"the database is at revision {revision}, which this version does not support",
            "Restore with the version of Evenkeel that migrated it, or into another database.",
        )


def check_backup(directory: Path) -> Manifest:
    """Reads every file of the backup, and returns its manifest.

    Raises DamagedBackupError if a file is missing or has changed, BackupError if a newer version made the backup.
    """
    manifest = read_manifest(directory)
    if not is_known(manifest.revision):
        raise BackupError(
            f"the backup has revision {manifest.revision}, which this version does not support",
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
    """Restores database and results from the backup, and migrates the schema to this version.

    Raises BackupError before anything is changed if the backup is damaged or of another kind of database, if the
    database is not one of this version or an older one, if a worker's last heartbeat is less than `silence_ms` ago,
    and, unless `replace`, if the database contains jobs.

    A replaced database keeps its installation id; any other gets a new one, so that it removes no files from a results
    directory that another installation owns. Results of replaced jobs remain; workers remove them a day later.
    """
    manifest = check_backup(directory)
    kind = database.engine.dialect.name
    if kind != manifest.database:
        raise BackupError(
            f"the backup is of a {manifest.database} database, but EVENKEEL_DATABASE_URL names a {kind} database",
            "Restore a backup into the same kind of database.",
        )
    installation_id = require_replaceable(database, silence_ms, replace=replace)
    tool = None if kind == "sqlite" else _restore_tool(database, manifest, postgresql_bin)
    _copy_results(directory, manifest, results)
    source = directory / DATABASE_FILES[kind]
    if tool is None:
        copy_database(source, database_file(database.engine))
    else:
        _replace_tables(database, tool, source)
    _finish(database, manifest, installation_id)
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
            f"the database does not accept the backup: {reason}",
            "The database was not changed. Remove conflicting objects, such as your views on Evenkeel's tables, and "
            "try again.",
        ) from None


def _finish(database: Database, manifest: Manifest, installation_id: str | None) -> None:
    with database.read() as session:
        found = installation.count_rows(session)
    if found != manifest.rows:
        differing = sorted(name for name in found | manifest.rows if found.get(name) != manifest.rows.get(name))
        raise BackupError(
            f"the restored database differs from the backup in {', '.join(differing)}",
            "Another process wrote to it. Stop the API and all workers, and restore again with --force.",
        )
    upgrade(database)
    with database.write() as session:
        installation.remove_processes(session)
        reset_streams(session, database.now(session))
        installation.set_id(session, installation_id)


def _copy_results(directory: Path, manifest: Manifest, results: Path) -> None:
    files = ((PurePosixPath(name), sha256) for name, sha256 in read_sums(directory, manifest))
    ours = ((path, sha256) for path, sha256 in files if path.parts[0] == RESULTS)
    for parent, group in groupby(ours, lambda file: file[0].parent):
        sums = {path.name: sha256 for path, sha256 in group}
        target = results / parent.relative_to(RESULTS)
        if not _is_there(target, sums):
            # Other files in the directory would be read as part of the result.
            remove_job_directory(results, target.parent.name)
            target.mkdir(mode=0o700, parents=True)
            for name in sums:
                copy_with_sum(directory / parent / name, target / name)


def _is_there(target: Path, sums: Mapping[str, str]) -> bool:
    found = {path.name for path in target.glob("*.parquet")}
    return found == set(sums) and all(sum_of(target / name) == sha256 for name, sha256 in sums.items())
