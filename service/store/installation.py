"""Which installation a database is: an id that its results directory bears too."""

from __future__ import annotations

import uuid

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.store.session import NO_SYNC
from service.store.tables import InstallationRow

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
