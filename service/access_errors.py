"""Refusals for the sake of who asks: keys, scopes, quotas. They stand in the tree of `service.errors`."""

from __future__ import annotations

from service.errors import ConflictError, NotFoundError, RequestError, ServiceError


class UnauthenticatedError(RequestError):
    """The caller shows no API key, or none that holds."""

    status = 401
    code = "unauthenticated"
    title = "An API key is needed"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, headers={"WWW-Authenticate": 'Bearer realm="evenkeel"'})


class MissingScopeError(RequestError):
    """The caller's API key is for other things."""

    status = 403
    code = "missing_scope"
    title = "The API key may not do that"


class KeyNotFoundError(NotFoundError):
    """No such API key."""

    status = 404
    code = "key_not_found"
    title = "There is no such API key"


class LastAdminKeyError(ConflictError):
    """Without this key, nobody could make another over HTTP."""

    status = 409
    code = "last_admin_key"
    title = "This is the last key with the scope admin"


class QuotaError(ServiceError):
    """The tenant has as much as it may. Carries Retry-After."""

    def __init__(self, detail: str, *, retry_after_seconds: int) -> None:
        super().__init__(detail, headers={"Retry-After": str(retry_after_seconds)})


class TooManyJobsError(QuotaError):
    """The tenant's jobs that wait already are as many as may be."""

    status = 429
    code = "too_many_jobs"
    title = "Too many jobs are waiting"


class TooManyExplanationsError(QuotaError):
    """The tenant waits for as many explanations as it may."""

    status = 429
    code = "too_many_explanations"
    title = "Too many explanations at once"


class TooManyStreamsError(QuotaError):
    """The tenant has declared as many streams as it may."""

    status = 429
    code = "too_many_streams"
    title = "Too many streams"


class TooManyPostedBytesError(QuotaError):
    """The rows that the tenant has posted take as much room as they may."""

    status = 429
    code = "too_many_posted_bytes"
    title = "Posted rows take too much room"
