"""Puts a backup back, where nothing is, or in place of what is there.

Everything is checked before anything is changed. Results go first, so that no job ever names files that are not there
yet; then the database is replaced, in one transaction. Jobs that were at work when the backup was made have leases
that are long over: a worker's sweeper queues them again, as after the loss of a worker, and rings for all that are
queued.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path, PurePosixPath

import psycopg
from sqlalchemy.exc import DBAPIError

from service.backup.errors import BackupError
from service.backup.manifest import (
    DATABASE_FILES,
    RESULTS,
    Manifest,
    copy_with_sum,
    read_manifest,
    read_sums,
    sum_of,
    verify,
)
from service.backup.postgres import RESTORE, PostgresTool
from service.backup.replace import require_replaceable
from service.backup.sqlite import copy_database, database_file
from service.results.directories import remove_job_directory
from service.store import contents, installation
from service.store.migrate import is_known, upgrade
from service.store.restored_streams import start_streams_over
from service.store.session import Database


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
            contents.drop_tables(session)
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
        found = contents.count_rows(session)
    if found != manifest.rows:
        differing = sorted(name for name in found | manifest.rows if found.get(name) != manifest.rows.get(name))
        raise BackupError(
            f"the restored database differs from the backup in {', '.join(differing)}",
            "Somebody was writing meanwhile: stop the API and all workers, and restore again with --force.",
        )
    upgrade(database)
    with database.write() as session:
        contents.forget_processes(session)
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
