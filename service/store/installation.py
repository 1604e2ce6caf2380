"""Which installation a database is: an id that its results directory bears too.

What a database holds as a whole, for backups: how many rows, which results, who is at work; and emptying it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import delete, func, inspect, select, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.store.session import NO_SYNC, take_any_time
from service.store.tables import AttemptRow, Base, InstallationRow, JobRow, LeaderRow, PlanRow, WorkerRow

_ROW = 1


def find_id(session: Session) -> str | None:
    """The database's id; None where nobody has asked for one yet."""
    return session.execute(select(InstallationRow.id).where(InstallationRow.row == _ROW)).scalar_one_or_none()


def ensure_id(session: Session) -> str:
    """The database's id, made now where there is none."""
    if find_id(session) is None:
        try:
            with session.begin_nested():
                session.add(InstallationRow(row=_ROW, id=str(uuid.uuid4())))
        except IntegrityError:
            # Another process was first to ask: its id is committed.
            pass
    found = find_id(session)
    assert found is not None  # noqa: S101 - one of the two made it
    return found


def lock(session: Session) -> None:
    """Lets one transaction at a time go on from here, until it ends: for what must happen once in an installation."""
    ensure_id(session)
    session.execute(select(InstallationRow.row).where(InstallationRow.row == _ROW).with_for_update())


def become(session: Session, known_as: str | None) -> None:
    """Gives the database this id, or lets the next who asks make a new one."""
    session.execute(delete(InstallationRow).execution_options(**NO_SYNC))
    if known_as is not None:
        session.add(InstallationRow(row=_ROW, id=known_as))


REVISIONS = "alembic_version"
TABLES = (*sorted(Base.metadata.tables), REVISIONS)
"""Every table that is ours. A PostgreSQL database may hold others beside them."""

_ROWS_AT_ONCE = 1000
_OURS_FROM_THE_START = {row.__tablename__ for row in (JobRow, AttemptRow, PlanRow, WorkerRow, LeaderRow)}


@dataclass(frozen=True)
class Occupant:
    """Whose tables a database holds. `revisions` are those that it says it is at."""

    ours: frozenset[str]
    """Tables with names of ours."""
    others: frozenset[str]
    revisions: frozenset[str]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in the way of our tables."""
        return self.ours <= {REVISIONS} and not self.revisions

    @property
    def is_evenkeel(self) -> bool:
        """Whether it has the tables that every revision of ours has, and a revision. Others have a table `jobs` too."""
        return self.ours >= _OURS_FROM_THE_START and len(self.revisions) == 1


def occupant(session: Session) -> Occupant:
    """Whose the database is."""
    there = _tables(session.connection())
    revisions = session.scalars(text("SELECT * FROM alembic_version")) if REVISIONS in there else ()
    ours = there & set(TABLES)
    return Occupant(frozenset(ours), frozenset(there - ours), frozenset(str(revision) for revision in revisions))


def count_rows(session: Session) -> dict[str, int]:
    """Rows of each of our tables that there is."""
    there = _tables(session.connection())
    counts = {}
    for name, table in sorted(Base.metadata.tables.items()):
        if name in there:
            counts[name] = session.execute(select(func.count()).select_from(table)).scalar_one()
    return counts


def published_results(session: Session) -> Iterator[str]:
    """The path of every published result, relative to the results directory, in the order of the jobs' ids."""
    paths = select(JobRow.result_path).where(JobRow.result_path.is_not(None)).order_by(JobRow.id)
    for path in session.scalars(paths.execution_options(yield_per=_ROWS_AT_ONCE)):
        if path is not None:
            yield path


def count_jobs(session: Session) -> int:
    """How many jobs there are; 0 too where there are no tables."""
    if JobRow.__tablename__ not in _tables(session.connection()):
        return 0
    return session.execute(select(func.count()).select_from(JobRow)).scalar_one()


def has_workers(session: Session, heard_since: int) -> bool:
    """Whether a worker gave a sign of life at `heard_since` (milliseconds) or later."""
    if WorkerRow.__tablename__ not in _tables(session.connection()):
        return False
    living = select(func.count()).select_from(WorkerRow).where(WorkerRow.heartbeat_at >= heard_since)
    return session.execute(living).scalar_one() > 0


def forget_processes(session: Session) -> None:
    """Forgets workers and who leads: in a database that was restored, they are those of the past."""
    for row in (WorkerRow, LeaderRow):
        session.execute(delete(row).execution_options(**NO_SYNC))


def drop_tables(session: Session) -> None:
    """PostgreSQL only: removes our tables, whatever revision they are of; fails where something of others needs one."""
    connection = session.connection()
    quote = connection.dialect.identifier_preparer.quote
    names = [quote(name) for name in sorted(_tables(connection) & set(TABLES))]
    if names:
        # All at once: they need each other.
        connection.execute(text(f"DROP TABLE {', '.join(names)}"))


def export_snapshot(session: Session) -> tuple[str, int]:
    """PostgreSQL only: makes this transaction one that others may share, for as long as it takes.

    Gives the name of what it sees, and the server's major version. Must come first in the transaction.
    """
    connection = session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
    take_any_time(connection)
    connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
    snapshot = connection.execute(text("SELECT pg_export_snapshot()")).scalar_one()
    return str(snapshot), server_version(session)


def server_version(session: Session) -> int:
    """PostgreSQL's major version."""
    return int(session.execute(text("SHOW server_version_num")).scalar_one()) // 10_000


def _tables(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())
