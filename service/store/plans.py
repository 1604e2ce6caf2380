"""Plan reports, skew reports and stage metrics, as attempts wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.spec.reports import PlanReport
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


def queries_ms(plan: PlanRow) -> int | None:
    """What running the query took, with a first run that failed; None where it has not run to its end."""
    if plan.execution_ms is None:
        return None
    first_run = (plan.details or {}).get("first_run")
    return plan.execution_ms + (first_run["execution_ms"] if first_run else 0)


def split(report: PlanReport) -> tuple[dict[str, Any], dict[str, Any]]:
    """`report` as `plans.report` and `plans.details` hold it: the API of a version before may still read the former,
    and refuses what it does not know.
    """
    told = report.model_dump(mode="json")
    details = {"sql": [told[side].pop("sql") for side in ("before", "after")]}
    details["cached"] = [table.pop("cached") for table in told["tables"]]
    details["node_ids"] = [trace.pop("node_id") for trace in told["rules"]]
    details["first_run"] = told.pop("first_run")
    return told, details


def report_of(plan: PlanRow) -> PlanReport:
    """The report that `plan` holds, by whichever version's worker it was written: what is not known yet is left out."""
    told = dict(plan.report)
    if plan.details is not None:
        for side, sql in zip(("before", "after"), plan.details["sql"], strict=True):
            told[side] = {**told[side], "sql": sql}
        known = zip(told["tables"], plan.details["cached"], strict=True)
        told["tables"] = [{**table, "cached": cached} for table, cached in known]
        if "node_ids" in plan.details:
            ids = zip(told["rules"], plan.details["node_ids"], strict=True)
            told["rules"] = [{**trace, "node_id": node_id} for trace, node_id in ids]
        told["first_run"] = plan.details.get("first_run")
    return PlanReport.model_validate(told, extra="ignore")
