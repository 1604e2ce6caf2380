"""Plan reports, skew reports and stage metrics, as attempts wrote them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.tables import PlanRow, StageMetricsRow


def latest_plan(session: Session, job_id: str) -> PlanRow | None:
    """The plan of the newest attempt that made one."""
    statement = select(PlanRow).where(PlanRow.job_id == job_id).order_by(PlanRow.fence.desc()).limit(1)
    return session.scalars(statement).one_or_none()


def stage_metrics(session: Session, job_id: str, fence: int) -> Sequence[StageMetricsRow]:
    """The stages of one attempt, in the order in which Spark numbered them."""
    statement = (
        select(StageMetricsRow)
        .where(StageMetricsRow.job_id == job_id, StageMetricsRow.fence == fence)
        .order_by(StageMetricsRow.stage_id, StageMetricsRow.stage_attempt)
    )
    return session.scalars(statement).all()
