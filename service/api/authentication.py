"""Calls that many requests want at the same moment are made once.

Who asks is found out before anything else of a request is read: strangers cost a header.

The middleware finds the caller, the dependencies say what an operation asks of it. An operation that declares none is
open to everybody, and there are few: `tests/service/api/test_authentication.py` names them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Generic, TypeVar

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

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SharedCalls(Generic[K, T]):
    """Whoever asks for what is being found out already gets that answer. For one event loop."""

    def __init__(self) -> None:
        self._under_way: dict[K, asyncio.Task[T]] = {}

    async def share(self, key: K, call: Callable[[], Awaitable[T]]) -> T:
        """What `call` gives, or the one for the same key that began before. Raises what it raises."""
        under_way = self._under_way.get(key)
        if under_way is None:
            under_way = asyncio.create_task(_task(call))
            self._under_way[key] = under_way
            under_way.add_done_callback(lambda _: self._under_way.pop(key, None))
        # One that gives up must not take the answer away from the others.
        return await asyncio.shield(under_way)


async def _task(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


READINESS_PATH = "/readyz"

OPEN_PATHS = frozenset({"/healthz", READINESS_PATH, "/openapi.json"})
"""What anybody may ask: whether the service is there, and how to talk to it."""

DASHBOARD_PAGE = "/"
DASHBOARD_FILES = "/dashboard/"
"""The page, and what its files' paths begin with. They are the same for everybody and hold no data."""

_STRANGERS_AT_ONCE = 2
"""Keys that are looked up at once of those that never opened anything."""

_SHOW_A_KEY = (
    "Show an API key, as 'Authorization: Bearer ek_…'. Whoever runs the service makes one: `evenkeel keys create`."
)
KEY_ENDED = "The API key has expired or was revoked."
"""What whoever waited for long is told."""

_KEYS = (
    "An API key: `ek_…`. Whoever runs the service makes one (`evenkeel keys create`), or a key with the scope `admin` "
    "does (`create_key`). `x-scopes` of an operation are the scopes of which the key needs one. A service that is used "
    "on its own machine alone asks for no key, and takes any."
)
_NO_KEY = "This API key is unknown, expired or revoked. Show another."
_UNCHECKED = "The database did not answer in time, so the API key could not be checked. Nothing was changed; try again."


class Authentication:
    """ASGI middleware. With `required`, whoever shows no key that holds gets no further than the open paths."""

    def __init__(self, app: ASGIApp, *, required: bool) -> None:
        self._app = app
        self._required = required
        self._look_ups: SharedCalls[Secret, Principal | None] = SharedCalls()
        self._strangers = asyncio.Semaphore(_STRANGERS_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers with a problem, or hands the request on with its principal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if path in OPEN_PATHS or path == DASHBOARD_PAGE or path.startswith(DASHBOARD_FILES):
            if path == READINESS_PATH:
                await self._recognise(scope)
            await self._app(scope, receive, send)
            return
        try:
            principal = await self._principal(scope) if self._required else ANYBODY
        except UnauthenticatedError as error:
            await service_error_response(error, scope)(scope, receive, send)
            return
        except SQLAlchemyError as error:
            if fault_of(error) is None:
                raise
            refusal = DatabaseUnavailableError(_UNCHECKED, retry_after_seconds=1)
            await service_error_response(refusal, scope)(scope, receive, send)
            return
        scope.setdefault("state", {})[PRINCIPAL] = principal
        await self._app(scope, receive, send)

    async def _recognise(self, scope: Scope) -> None:
        """Notes who asks for what strangers may ask too, where that can be found out."""
        with suppress(UnauthenticatedError, SQLAlchemyError):
            scope.setdefault("state", {})[PRINCIPAL] = await self._principal(scope) if self._required else ANYBODY

    async def _principal(self, scope: Scope) -> Principal:
        shown = Headers(scope=scope).getlist("authorization")
        if not shown:
            raise UnauthenticatedError(_SHOW_A_KEY)
        scheme, _, text = shown[0].partition(" ")
        secret = read_secret(text.strip())
        if len(shown) != 1 or scheme.lower() != "bearer" or secret is None:
            raise UnauthenticatedError(_SHOW_A_KEY)
        ring: KeyRing = scope["app"].state.services.key_ring
        is_known, principal = ring.find_cached(secret)
        if not is_known:
            principal = await self._look_up(ring, secret)
        if principal is None:
            raise UnauthenticatedError(_NO_KEY)
        return principal

    async def _look_up(self, ring: KeyRing, secret: Secret) -> Principal | None:
        """Asks the database, once for all who show the same key at this moment."""
        if ring.was_valid(secret):
            return await self._look_ups.share(secret, partial(run_in_threadpool, ring.look_up, secret))
        # Made-up keys, however many, wait for each other and leave threads and connections to those who are known.
        async with self._strangers:
            return await self._look_ups.share(secret, partial(run_in_threadpool, ring.look_up, secret))


def is_known(scope: Scope) -> bool:
    """Whether it is known who sent the request, of a path that is open to everybody."""
    return isinstance(scope.get("state", {}).get(PRINCIPAL), Principal)


def principal_of(scope: Scope) -> Principal:
    """Who sent the request. Raises UnauthenticatedError where that is not known."""
    principal = scope.get("state", {}).get(PRINCIPAL)
    if not isinstance(principal, Principal):
        raise UnauthenticatedError(_SHOW_A_KEY)
    return principal


class _Caller(SecurityBase):
    """Whoever sent the request, with one of some scopes, or with any key where there are none.

    The middleware finds the caller; this asks what the caller may, and tells the specification of keys: one dependency
    for both, since each costs every request.
    """

    def __init__(self, *scopes: KeyScope) -> None:
        self.model = HTTPBearerModel(description=_KEYS)
        self.scheme_name = "ApiKey"
        self._scopes = frozenset(scopes)
        self._refusal = f"This API key may not do that: it takes one with the scope {_either(scopes)}."

    async def __call__(self, request: Request) -> Principal:
        """Raises UnauthenticatedError and MissingScopeError."""
        return self._allowed(request)

    def _allowed(self, request: Request) -> Principal:
        principal = principal_of(request.scope)
        if self._scopes and self._scopes.isdisjoint(principal.scopes):
            raise MissingScopeError(self._refusal)
        return principal


class _Tenant(_Caller):
    """The tenant of such a caller."""

    async def __call__(self, request: Request) -> str:  # type: ignore[override]
        """As of the caller."""
        return self._allowed(request).tenant


def _either(scopes: Sequence[KeyScope]) -> str:
    return " or ".join(f"'{scope}'" for scope in scopes)


Caller = Annotated[Principal, Security(_Caller())]
"""A caller, whatever it may do."""

Reader = Annotated[Principal, Security(_Caller(KeyScope.READ), scopes=[KeyScope.READ])]
"""A caller that may read, of its tenant."""

Scraper = Annotated[
    Principal,
    Security(_Caller(KeyScope.METRICS, KeyScope.ADMIN), scopes=[KeyScope.METRICS, KeyScope.ADMIN]),
]
"""A caller that may read the service's own metrics."""

Admin = Annotated[Principal, Security(_Caller(KeyScope.ADMIN), scopes=[KeyScope.ADMIN])]
"""A caller that runs the service."""

ReaderTenant = Annotated[str, Security(_Tenant(KeyScope.READ), scopes=[KeyScope.READ])]
"""The tenant of a caller that may read."""

SubmitterTenant = Annotated[str, Security(_Tenant(KeyScope.SUBMIT), scopes=[KeyScope.SUBMIT])]
"""The tenant of a caller that may change jobs and streams."""

AdminTenant = Annotated[str, Security(_Tenant(KeyScope.ADMIN), scopes=[KeyScope.ADMIN])]
"""The tenant of a caller that runs the service."""
