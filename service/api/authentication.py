"""Authentication by API key, before anything else of a request is read, and the scopes that operations require.

`Authentication`, a middleware, finds the caller. The annotations at the end of this module (`Reader`, `AdminTenant` and
so on) declare which scope an operation requires. An operation without such an annotation is open to everybody; the few
that are open are listed in `tests/service/api/test_authentication.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Request, Security
from fastapi.openapi.models import HTTPBearer as HTTPBearerModel
from fastapi.security.base import SecurityBase
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.problems import service_error_response
from service.contract.enums import KeyScope
from service.contract.errors import DatabaseUnavailableError, MissingScopeError, UnauthenticatedError
from service.keys.verification import ANYBODY, PRINCIPAL, KeyRing, Principal, Secret, read_secret
from service.store.session import fault_of

READINESS_PATH = "/readyz"
OPEN_PATHS = frozenset({"/healthz", READINESS_PATH, "/openapi.json"})
"""Operations that need no API key."""
DASHBOARD_PAGE = "/"
DASHBOARD_FILES = "/dashboard/"
"""The page, and the prefix of the paths of its files. They contain no data, and need no API key."""

KEY_ENDED = "The API key has expired or was revoked."
"""The error of a long request whose key became invalid in the meantime."""
_MISSING_KEY = (
    "Send an API key: 'Authorization: Bearer ek_…'. The service operator creates keys with `evenkeel keys create`."
)
_INVALID_KEY = "This API key is unknown, expired or revoked. Use another one."
_UNCHECKED_KEY = (
    "The database did not answer in time, so the API key could not be checked. Nothing was changed; try again."
)
_KEY_DESCRIPTION = (
    "An API key: `ek_…`. It is created by the service operator (`evenkeel keys create`), or with a key that has the "
    "scope `admin` (`create_key`). `x-scopes` of an operation lists scopes; the key needs one of them. A service that "
    "only its own machine can reach requires no key, and accepts any."
)
_CONCURRENT_LOOK_UPS_OF_UNKNOWN_KEYS = 2

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SharedCalls(Generic[K, T]):
    """Runs a call once for all callers that need its result at the same time. Belongs to one event loop."""

    def __init__(self) -> None:
        self._running: dict[K, asyncio.Task[T]] = {}

    async def share(self, key: K, call: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `call`, or of a running call with the same key. Raises what the call raises."""
        running = self._running.get(key)
        if running is None:
            running = asyncio.create_task(_task(call))
            self._running[key] = running
            running.add_done_callback(lambda _: self._running.pop(key, None))
        # The cancellation of one caller must not cancel the call of the others.
        return await asyncio.shield(running)


async def _task(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


class Authentication:
    """ASGI middleware. If keys are `required`, refuses requests without a valid key, except those for open paths."""

    def __init__(self, app: ASGIApp, *, required: bool) -> None:
        self._app = app
        self._required = required
        self._look_ups: SharedCalls[Secret, Principal | None] = SharedCalls()
        self._unknown_keys = asyncio.Semaphore(_CONCURRENT_LOOK_UPS_OF_UNKNOWN_KEYS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on with its caller, or answers with a problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if path in OPEN_PATHS or path == DASHBOARD_PAGE or path.startswith(DASHBOARD_FILES):
            if path == READINESS_PATH:
                # Only authenticated callers get details, but everybody gets an answer.
                with suppress(UnauthenticatedError, SQLAlchemyError):
                    await self._set_caller(scope)
            await self._app(scope, receive, send)
            return
        try:
            await self._set_caller(scope)
        except UnauthenticatedError as error:
            await service_error_response(error, scope)(scope, receive, send)
            return
        except SQLAlchemyError as error:
            if fault_of(error) is None:
                raise
            refusal = DatabaseUnavailableError(_UNCHECKED_KEY, retry_after_seconds=1)
            await service_error_response(refusal, scope)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _set_caller(self, scope: Scope) -> None:
        scope.setdefault("state", {})[PRINCIPAL] = await self._authenticate(scope) if self._required else ANYBODY

    async def _authenticate(self, scope: Scope) -> Principal:
        lines = Headers(scope=scope).getlist("authorization")
        if len(lines) != 1:
            raise UnauthenticatedError(_MISSING_KEY)
        scheme, _, text = lines[0].partition(" ")
        secret = read_secret(text.strip())
        if scheme.lower() != "bearer" or secret is None:
            raise UnauthenticatedError(_MISSING_KEY)
        ring: KeyRing = scope["app"].state.services.key_ring
        is_cached, principal = ring.find_cached(secret)
        if not is_cached:
            principal = await self._look_up(ring, secret)
        if principal is None:
            raise UnauthenticatedError(_INVALID_KEY)
        return principal

    async def _look_up(self, ring: KeyRing, secret: Secret) -> Principal | None:
        """Queries the database, once for all concurrent requests with the same key."""
        look_up = partial(run_in_threadpool, ring.look_up, secret)
        if ring.was_valid(secret):
            return await self._look_ups.share(secret, look_up)
        # Requests with invented keys wait for each other, and leave threads and connections to those with valid keys.
        async with self._unknown_keys:
            return await self._look_ups.share(secret, look_up)


def is_authenticated(scope: Scope) -> bool:
    """Whether the caller of a request for an open path is known."""
    return isinstance(scope.get("state", {}).get(PRINCIPAL), Principal)


def principal_of(scope: Scope) -> Principal:
    """Returns the caller. Raises UnauthenticatedError if the caller is unknown."""
    principal = scope.get("state", {}).get(PRINCIPAL)
    if not isinstance(principal, Principal):
        raise UnauthenticatedError(_MISSING_KEY)
    return principal


def tenant_of_reader(scope: Scope) -> str | None:
    """Returns the caller's tenant if it is a `ReaderTenant`; None for every other caller."""
    principal = scope.get("state", {}).get(PRINCIPAL)
    if isinstance(principal, Principal) and KeyScope.READ in principal.scopes:
        return principal.tenant
    return None


class _Caller(SecurityBase):
    """A dependency that returns the caller, and requires one of some scopes; without scopes, any key is sufficient.

    It checks the scope and also documents the key in OpenAPI: one dependency for both, since each dependency takes time
    in every request.
    """

    def __init__(self, *scopes: KeyScope) -> None:
        self.model = HTTPBearerModel(description=_KEY_DESCRIPTION)
        self.scheme_name = "ApiKey"
        self._scopes = frozenset(scopes)
        names = " or ".join(f"'{scope}'" for scope in scopes)
        self._refusal = f"This API key may not do that: a key with the scope {names} is required."

    async def __call__(self, request: Request) -> Principal:
        """Returns the caller. Raises UnauthenticatedError and MissingScopeError."""
        return self._allowed(request)

    def _allowed(self, request: Request) -> Principal:
        principal = principal_of(request.scope)
        if self._scopes and self._scopes.isdisjoint(principal.scopes):
            raise MissingScopeError(self._refusal)
        return principal


class _Tenant(_Caller):
    """A dependency that returns the caller's tenant; otherwise like `_Caller`."""

    async def __call__(self, request: Request) -> str:  # type: ignore[override]
        """Returns the caller's tenant. Raises UnauthenticatedError and MissingScopeError."""
        return self._allowed(request).tenant


def _requires(dependency: type[_Caller], *scopes: KeyScope) -> Any:
    return Security(dependency(*scopes), scopes=scopes)


Caller = Annotated[Principal, _requires(_Caller)]
"""The caller, with any scopes."""
Reader = Annotated[Principal, _requires(_Caller, KeyScope.READ)]
"""A caller that may read the jobs and streams of its tenant."""
Scraper = Annotated[Principal, _requires(_Caller, KeyScope.METRICS, KeyScope.ADMIN)]
"""A caller that may read the metrics of the service."""
Admin = Annotated[Principal, _requires(_Caller, KeyScope.ADMIN)]
"""A caller that may manage keys and workers."""
ReaderTenant = Annotated[str, _requires(_Tenant, KeyScope.READ)]
"""The tenant of a `Reader`."""
SubmitterTenant = Annotated[str, _requires(_Tenant, KeyScope.SUBMIT)]
"""The tenant of a caller that may change its jobs and streams."""
AdminTenant = Annotated[str, _requires(_Tenant, KeyScope.ADMIN)]
"""The tenant of an `Admin`."""
