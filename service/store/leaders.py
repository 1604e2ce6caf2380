"""Tasks that one process at a time does: who it is and until when."""

from __future__ import annotations

from sqlalchemy import delete, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.store.session import NO_SYNC
from service.store.tables import LeaderRow

_LONGEST_MS = 3_600_000
"""No task is led for longer at a time: an end that is further off was set before the database's clock went back."""


def elect(session: Session, task: str, owner: str, now: int, ttl_ms: int) -> bool:
    """Makes `owner` the leader of `task` for `ttl_ms`, at most an hour, or extends its time; False while another one
    leads.
    """
    is_over = or_(LeaderRow.expires_at <= now, LeaderRow.expires_at > now + _LONGEST_MS)
    won = session.execute(
        update(LeaderRow)
        .where(LeaderRow.task == task, or_(LeaderRow.owner == owner, is_over))
        .values(owner=owner, expires_at=now + ttl_ms)
        .returning(LeaderRow.task)
        .execution_options(**NO_SYNC)
    ).scalar_one_or_none()
    if won is not None:
        return True
    if session.execute(select(LeaderRow.task).where(LeaderRow.task == task)).scalar_one_or_none() is not None:
        return False
    try:
        with session.begin_nested():
            session.add(LeaderRow(task=task, owner=owner, expires_at=now + ttl_ms))
    except IntegrityError:
        # Another process was first to lead this task ever.
        return False
    return True


def resign(session: Session, task: str, owner: str) -> None:
    """Lets another process lead at once."""
    session.execute(
        delete(LeaderRow).where(LeaderRow.task == task, LeaderRow.owner == owner).execution_options(**NO_SYNC)
    )
