"""The database as a whole: the id that it shares with its results directory, and its contents for backups."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import delete, func, inspect, select, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.store.session import remove_time_limits
from service.store.tables import AttemptRow, Base, InstallationRow, JobRow, LeaderRow, PlanRow, WorkerRow

REVISIONS = "alembic_version"
TABLES = (*sorted(Base.metadata.tables), REVISIONS)
"""Every table of this service. A PostgreSQL database may contain others."""

_ROW = 1
_ROWS_PER_BATCH = 1000
_IN_EVERY_REVISION = {row.__tablename__ for row in (JobRow, AttemptRow, PlanRow, WorkerRow, LeaderRow)}


def find_id(session: Session) -> str | None:
    """Returns the database's id; None if it has none yet."""
    return session.execute(select(InstallationRow.id).where(InstallationRow.row == _ROW)).scalar_one_or_none()


def ensure_id(session: Session) -> str:
    """Returns the database's id. Creates one if there is none."""
    if find_id(session) is None:
        try:
            with session.begin_nested():
                session.add(InstallationRow(row=_ROW, id=str(uuid.uuid4())))
        except IntegrityError:
            # Another process has created one at the same time.
            pass
    found = find_id(session)
    assert found is not None  # noqa: S101 - one of the two has created it
    return found


def lock(session: Session) -> None:
    """Makes other transactions that call this wait until this one ends, for what must happen once."""
    ensure_id(session)
    session.execute(select(InstallationRow.row).where(InstallationRow.row == _ROW).with_for_update())


def set_id(session: Session, new: str | None) -> None:
    """Replaces the database's id; None removes it, and the next `ensure_id` creates one."""
    session.execute(delete(InstallationRow))
    if new is not None:
        session.add(InstallationRow(row=_ROW, id=new))


@dataclass(frozen=True)
class DatabaseContents:
    """The tables of a database and the revisions that it is at."""

    ours: frozenset[str]
    """Tables with names that this service uses."""
    others: frozenset[str]
    revisions: frozenset[str]

    @property
    def is_empty(self) -> bool:
        """Whether the tables of this service can be created."""
        return self.ours <= {REVISIONS} and not self.revisions

    @property
    def is_evenkeel(self) -> bool:
        """Whether it has a revision and the tables of every revision: other applications have a table `jobs` too."""
        return self.ours >= _IN_EVERY_REVISION and len(self.revisions) == 1


def contents_of(session: Session) -> DatabaseContents:
    """Returns what the database contains."""
    existing = _tables(session.connection())
    revisions = session.scalars(text("SELECT * FROM alembic_version")) if REVISIONS in existing else ()
    ours = existing & set(TABLES)
    return DatabaseContents(
        frozenset(ours), frozenset(existing - ours), frozenset(str(revision) for revision in revisions)
    )


def count_rows(session: Session) -> dict[str, int]:
    """Returns the number of rows of each table of this service that exists."""
    existing = _tables(session.connection())
    return {
        name: session.execute(select(func.count()).select_from(table)).scalar_one()
        for name, table in sorted(Base.metadata.tables.items())
        if name in existing
    }


def published_results(session: Session) -> Iterator[str]:
    """Returns the path of every published result, relative to the results directory, by the id of its job."""
    paths = select(JobRow.result_path).where(JobRow.result_path.is_not(None)).order_by(JobRow.id)
    for path in session.scalars(paths.execution_options(yield_per=_ROWS_PER_BATCH)):
        if path is not None:
            yield path


def count_jobs(session: Session) -> int:
    """Returns the number of jobs; 0 without tables."""
    if JobRow.__tablename__ not in _tables(session.connection()):
        return 0
    return session.execute(select(func.count()).select_from(JobRow)).scalar_one()


def has_workers(session: Session, since: int) -> bool:
    """Returns whether a worker has a heartbeat at `since` (milliseconds) or later."""
    if WorkerRow.__tablename__ not in _tables(session.connection()):
        return False
    alive = select(func.count()).select_from(WorkerRow).where(WorkerRow.heartbeat_at >= since)
    return session.execute(alive).scalar_one() > 0


def remove_processes(session: Session) -> None:
    """Removes workers and leaders: those of a restored database no longer exist."""
    for row in (WorkerRow, LeaderRow):
        session.execute(delete(row))


def drop_tables(session: Session) -> None:
    """Drops the tables of this service, of any revision. PostgreSQL only; fails if another object depends on one."""
    connection = session.connection()
    quote = connection.dialect.identifier_preparer.quote
    names = [quote(name) for name in sorted(_tables(connection) & set(TABLES))]
    if names:
        # In one statement, since they refer to each other.
        connection.execute(text(f"DROP TABLE {', '.join(names)}"))


def export_snapshot(session: Session) -> tuple[str, int]:
    """Exports this transaction's snapshot for others, without a time limit. PostgreSQL only.

    Returns the snapshot's name and the server's major version. Must be the first statement of the transaction.
    """
    connection = session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
    remove_time_limits(connection)
    connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
    snapshot = connection.execute(text("SELECT pg_export_snapshot()")).scalar_one()
    return str(snapshot), server_version(session)


def server_version(session: Session) -> int:
    """Returns PostgreSQL's major version."""
    return int(session.execute(text("SHOW server_version_num")).scalar_one()) // 10_000


def _tables(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())
