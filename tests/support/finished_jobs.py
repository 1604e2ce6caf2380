"""A long list of finished jobs."""

from __future__ import annotations

from uuid import uuid4

from sqlalchemy import insert, select

from service.store.session import Database
from service.store.tables import JobRow

_ROWS_PER_INSERT = 1_000


def add_finished(database: Database, like: str, number: int) -> list[str]:
    """Stores copies of a job as SUCCEEDED jobs, submitted a second apart, and returns their ids."""
    with database.write() as session:
        row = session.execute(select(JobRow.__table__).where(JobRow.id == like)).mappings().one()
        ended = {**row, "status": "SUCCEEDED", "version": 5, "fence": 1, "started_at": row["submitted_at"]}
        jobs = [
            {**ended, "id": str(uuid4()), "submitted_at": at, "finished_at": at + 500, "updated_at": at + 500}
            for at in (row["submitted_at"] - 1_000 * (number - place) for place in range(number))
        ]
        for start in range(0, number, _ROWS_PER_INSERT):
            session.execute(insert(JobRow), jobs[start : start + _ROWS_PER_INSERT])
    return [job["id"] for job in jobs]
