"""Checks the limits of a tenant before a job, an explanation or a stream is stored."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.orm import Session

from service.config.settings import LimitSettings, Settings
from service.contract.errors import (
    TooManyExplanationsError,
    TooManyJobsError,
    TooManyPostedBytesError,
    TooManyStreamsError,
)
from service.store import accounts
from service.store.jobs import EXPLAIN

_RETRY_JOBS_SECONDS = 10
"""Retry-After for limits that count jobs. When a slot becomes free depends on jobs of unknown duration."""
_RETRY_STREAMS_SECONDS = 60
"""Retry-After for limits that a client gets below by deleting a stream."""


def explain_ms(settings: Settings) -> int:
    """Returns the timeout of an explanation in milliseconds."""
    return round(settings.api.explain_timeout_seconds * 1000)


class Room:
    """How many more jobs and explanations the limits allow each tenant, counted once in a transaction.

    PostgreSQL does not show the uncommitted jobs of other processes, so the limit of jobs may be exceeded by
    the jobs that each of them stores at the same time, at most 32.
    """

    def __init__(self, session: Session, settings: Settings, now: Callable[[], int]) -> None:
        """`now` returns milliseconds by the database's clock. Explanations that have timed out do not count."""
        self._session = session
        self._limits = settings.limits
        self._now = now
        self._explain_ms = explain_ms(settings)
        self._jobs: dict[str, int] = {}
        self._explanations: dict[str, int] = {}

    def take(self, tenant: str, kind: str) -> None:
        """Counts one more job of this kind. Raises TooManyJobsError or TooManyExplanationsError at the limit."""
        if kind == EXPLAIN:
            self._take_explanation(tenant)
        else:
            self._take_job(tenant)

    def _take_job(self, tenant: str) -> None:
        limit = self._limits.queued_jobs
        if not limit:
            return
        if tenant not in self._jobs:
            self._jobs[tenant] = accounts.count_waiting(self._session, tenant, limit)
        if self._jobs[tenant] >= limit:
            raise TooManyJobsError(
                f"Tenant '{tenant}' has {limit} queued jobs, which is the limit (EVENKEEL_LIMITS_QUEUED_JOBS). "
                "Submit this job when some of them have started, or cancel some.",
                retry_after_seconds=_RETRY_JOBS_SECONDS,
            )
        self._jobs[tenant] += 1

    def _take_explanation(self, tenant: str) -> None:
        limit = self._limits.explanations
        if not limit:
            return
        if tenant not in self._explanations:
            since = self._now() - self._explain_ms
            self._explanations[tenant] = accounts.count_explanations(self._session, tenant, since)
        if self._explanations[tenant] >= limit:
            raise TooManyExplanationsError(
                f"Tenant '{tenant}' has {limit} pending explanations, which is the limit "
                "(EVENKEEL_LIMITS_EXPLANATIONS). Request this one when some of them have finished.",
                retry_after_seconds=_RETRY_JOBS_SECONDS,
            )
        self._explanations[tenant] += 1


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
