"""A job beside the earlier one that it names: may it name that one, and what has become of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy.orm import Session

from service.jobs.find import is_job_id
from service.spec.errors import SpecError
from service.spec.modes import Mode
from service.spec.options import JobSettings
from service.spec.savings import Comparison
from service.spec.status import JobStatus
from service.store import jobs, plans
from service.store.tables import JobRow, PlanRow

_POINTER = "/compare_with"


def require_comparable(session: Session, tenant: str, job_id: str | None) -> None:
    """Raises SpecError `unknown_job` where the tenant has no such job, `job_not_comparable` for one that streams."""
    if job_id is None:
        return
    other = _other(session, tenant, job_id)
    if other is None:
        detail = "No job has this id; it may have been deleted. Name another job of yours, or remove 'compare_with'."
        raise SpecError.of("unknown_job", detail, pointer=_POINTER)
    if Mode(other.mode).is_streaming:
        detail = "The job is a streaming one, which has no one time to compare with: name a batch job."
        raise SpecError.of("job_not_comparable", detail, pointer=_POINTER)


def compare(session: Session, row: JobRow, plan: PlanRow) -> Comparison | None:
    """`row`, read with its spec, and how it ran, beside the job that it names.

    None where it names none, or that is gone.
    """
    named = row.spec.get("compare_with")
    other = _other(session, row.tenant, named) if isinstance(named, str) else None
    if other is None:
        return None
    before_plan = plans.latest_plan(session, other.id)
    both = other.status == row.status == JobStatus.SUCCEEDED.value
    before = after = None
    if both and before_plan is not None:
        before, after = plans.queries_ms(before_plan), plans.queries_ms(plan)
    return Comparison(
        job_id=other.id,
        status=other.status,
        before_ms=before,
        after_ms=after,
        saved_ms=None if before is None or after is None else before - after,
        ratio=round(after / before, 4) if before and after is not None else None,
        same_query=all(other.spec.get(part) == row.spec.get(part) for part in ("sql", "query", "tables")),
        settings_changed=dict(_changes(other.spec, row.spec)),
    )


def _other(session: Session, tenant: str, job_id: str) -> JobRow | None:
    return jobs.find_job(session, tenant=tenant, job_id=job_id, with_spec=True) if is_job_id(job_id) else None


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    defaults = dict(_flat(JobSettings().model_dump(mode="json", by_alias=True)))
    old, new = (defaults | dict(_flat(spec.get("settings") or {})) for spec in (before, after))
    for key in sorted({*old, *new}):
        values = [_text(settings.get(key)) for settings in (old, new)]
        if values[0] != values[1]:
            yield key, values


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _text(value: object) -> str:
    """As the table of settings spells it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
