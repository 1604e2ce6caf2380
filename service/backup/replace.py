"""Which database a restore may replace: an empty one, or one of Evenkeel's that nobody works on."""

from __future__ import annotations

from service.backup.errors import BackupError
from service.store import contents, installation
from service.store.migrate import is_known
from service.store.session import Database
from service.store.tables import InstallationRow


def require_replaceable(database: Database, silence_ms: int, *, replace: bool) -> str | None:
    """Gives the id of the installation that the database is, None for one without.

    Raises BackupError where tables of others would be lost, where the revision is one that this version does not know,
    where a worker's last sign of life is younger than `silence_ms`, and, unless `replace`, where there are jobs.
    """
    with database.read() as session:
        found = contents.occupant(session)
        _require_ours(found, alone=database.engine.dialect.name == "sqlite")
        if contents.has_workers(session, database.now(session) - silence_ms):
            raise BackupError(
                "workers are at work on this database", "Stop the API and all workers first, then restore."
            )
        jobs = contents.count_jobs(session)
        known_as = installation.find_id(session) if InstallationRow.__tablename__ in found.ours else None
    if jobs and not replace:
        raise BackupError(
            f"the database is not empty: it holds {jobs} jobs",
            "Restore into a new one, or give --force to replace what is there.",
        )
    return known_as


def _require_ours(found: contents.Occupant, *, alone: bool) -> None:
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
