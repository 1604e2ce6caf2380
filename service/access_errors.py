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


class TooManyJobsError(ServiceError):
    """The tenant's jobs that wait already are as many as may be. Carries Retry-After."""

    status = 429
    code = "too_many_jobs"
    title = "Too many jobs are waiting"

    def __init__(self, detail: str, *, retry_after_seconds: int) -> None:
        super().__init__(detail, headers={"Retry-After": str(retry_after_seconds)})
