"""Checks the limits of a tenant before a job, an explanation or a stream is stored."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.config.settings import LimitSettings
from service.contract.errors import (
    TooManyExplanationsError,
    TooManyJobsError,
    TooManyPostedBytesError,
    TooManyStreamsError,
)
from service.store import accounts

_RETRY_JOBS_SECONDS = 10
"""Retry-After for limits that count jobs. When a slot becomes free depends on jobs of unknown duration."""
_RETRY_STREAMS_SECONDS = 60
"""Retry-After for limits that a client gets below by deleting a stream."""


def require_queue_capacity(session: Session, limits: LimitSettings, tenant: str) -> None:
    """Raises TooManyJobsError if the number of the tenant's queued jobs has reached the limit.

    Concurrent submissions do not see each other, so the limit may be exceeded by a few jobs.
    """
    limit = limits.queued_jobs
    if limit and accounts.count_waiting(session, tenant, limit) >= limit:
        raise TooManyJobsError(
            f"Tenant '{tenant}' has {limit} queued jobs, which is the limit (EVENKEEL_LIMITS_QUEUED_JOBS). "
            "Submit this job when some of them have started, or cancel some.",
            retry_after_seconds=_RETRY_JOBS_SECONDS,
        )


def require_explanation_capacity(session: Session, limits: LimitSettings, tenant: str, since: int) -> None:
    """Raises TooManyExplanationsError if the number of the tenant's pending explanations has reached the limit.

    Only explanations requested after `since` (milliseconds) count: earlier requests have timed out.
    """
    limit = limits.explanations
    if limit and accounts.count_explanations(session, tenant, since) >= limit:
        raise TooManyExplanationsError(
            f"Tenant '{tenant}' has {limit} pending explanations, which is the limit (EVENKEEL_LIMITS_EXPLANATIONS). "
            "Request this one when some of them have finished.",
            retry_after_seconds=_RETRY_JOBS_SECONDS,
        )


def require_stream_capacity(session: Session, limits: LimitSettings, tenant: str) -> None:
    """Raises TooManyStreamsError if the number of the tenant's streams of posted rows has reached the limit."""
    limit = limits.streams
    if limit and accounts.count_streams(session, tenant) >= limit:
        raise TooManyStreamsError(
            f"Tenant '{tenant}' has {limit} streams, which is the limit (EVENKEEL_LIMITS_STREAMS). Delete one that is "
            "no longer needed: DELETE /v1/streams/{name}.",
            retry_after_seconds=_RETRY_STREAMS_SECONDS,
        )


def require_posted_bytes_capacity(session: Session, limits: LimitSettings, tenant: str) -> None:
    """Raises TooManyPostedBytesError if the tenant's posted rows have reached the limit in bytes.

    The batch that reaches the limit is accepted.
    """
    limit = limits.posted_bytes
    if limit and accounts.posted_bytes(session, tenant) >= limit:
        raise TooManyPostedBytesError(
            f"The posted rows of tenant '{tenant}' take {limit} bytes or more, which is the limit "
            "(EVENKEEL_LIMITS_POSTED_BYTES). Delete a stream whose rows are no longer needed: "
            "DELETE /v1/streams/{name}.",
            retry_after_seconds=_RETRY_STREAMS_SECONDS,
        )
