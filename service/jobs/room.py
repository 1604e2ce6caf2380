"""Refuses what a tenant asks for beyond its limits, before anything of it is stored."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.access_errors import (
    TooManyExplanationsError,
    TooManyJobsError,
    TooManyPostedBytesError,
    TooManyStreamsError,
)
from service.limit_settings import LimitSettings
from service.store import quotas

_SOON_SECONDS = 10
"""When a slot may have become free: nobody knows how long the jobs take that are before."""
_LATER_SECONDS = 60
"""When somebody may have deleted a stream."""


def require_room_to_wait(session: Session, limits: LimitSettings, tenant: str) -> None:
    """Raises TooManyJobsError where as many jobs of the tenant wait as may. Those that come at the same instant do not
    see each other: they may be some more.
    """
    most = limits.queued_jobs
    if most and quotas.count_waiting(session, tenant, most) >= most:
        raise TooManyJobsError(
            f"{most} jobs of tenant '{tenant}' wait already, as many as may (EVENKEEL_LIMITS_QUEUED_JOBS). "
            "Submit this one when some of them have started, or cancel some.",
            retry_after_seconds=_SOON_SECONDS,
        )


def require_room_to_explain(session: Session, limits: LimitSettings, tenant: str, since: int) -> None:
    """Raises TooManyExplanationsError where the tenant waits for as many as it may of those that it asked for after
    `since` (milliseconds): for earlier ones, nobody waits any more.
    """
    most = limits.explanations
    if most and quotas.count_explanations(session, tenant, since) >= most:
        raise TooManyExplanationsError(
            f"Tenant '{tenant}' waits for {most} explanations already, as many as may at once "
            "(EVENKEEL_LIMITS_EXPLANATIONS). Ask for this one when they are answered.",
            retry_after_seconds=_SOON_SECONDS,
        )


def require_room_for_stream(session: Session, limits: LimitSettings, tenant: str) -> None:
    """Raises TooManyStreamsError where the tenant has as many streams of posted rows as it may."""
    most = limits.streams
    if most and quotas.count_streams(session, tenant) >= most:
        raise TooManyStreamsError(
            f"Tenant '{tenant}' has {most} streams, as many as may be (EVENKEEL_LIMITS_STREAMS). Delete one that is no "
            "longer needed: DELETE /v1/streams/{name}.",
            retry_after_seconds=_LATER_SECONDS,
        )


def require_room_for_rows(session: Session, limits: LimitSettings, tenant: str) -> None:
    """Raises TooManyPostedBytesError once the tenant's posted rows take as much room as they may. The batch with which
    they reach the limit is accepted.
    """
    most = limits.posted_bytes
    if most and quotas.posted_bytes(session, tenant) >= most:
        raise TooManyPostedBytesError(
            f"The rows that tenant '{tenant}' has posted take {most} bytes or more, as many as may be "
            "(EVENKEEL_LIMITS_POSTED_BYTES). Delete a stream whose rows are no longer needed: "
            "DELETE /v1/streams/{name}.",
            retry_after_seconds=_LATER_SECONDS,
        )
