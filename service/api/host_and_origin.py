"""Refuses requests that a web page of another site makes a browser send, before anything else is checked.

Every web page that a user visits can reach a service that listens on loopback and requires no keys. The page can make
its own host name resolve to this machine (DNS rebinding), or send a form across sites. It cannot forge the Host header
of its own site, and it cannot send JSON to another site without the permission of that site (CORS).
"""

from __future__ import annotations

import re
from functools import lru_cache

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.problems import service_error_response
from service.config.settings import ApiSettings
from service.contract.errors import HostNotAllowedError, OriginNotAllowedError, ServiceError

UNSAFE_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""The methods that may change something."""

_REQUEST_HEADERS = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "If-None-Match",
    "Last-Event-ID",
    "Prefer",
    "X-Request-Id",
)
_CACHED_HOSTS = 64
_RESPONSE_HEADERS = ("ETag", "Idempotency-Replayed", "Location", "Preference-Applied", "Retry-After", "X-Request-Id")


class HostAndOriginCheck:
    """ASGI middleware. Requires a Host of this service, and for changes an Origin of this service or an allowed one."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._hosts = frozenset(host.strip().lower() for host in settings.allowed_hosts.split(",") if host.strip())
        self._origins = _allowed_origins(settings)
        self._is_host_of_service = lru_cache(_CACHED_HOSTS)(self._names_service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers with a problem."""
        if scope["type"] == "http":
            try:
                self._check(scope)
            except ServiceError as error:
                await service_error_response(error, scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_host_of_service(hosts[0]):
            raise HostNotAllowedError(
                "The Host header names a host that this service does not serve. If clients reach the service under "
                "that name, add the name to EVENKEEL_API_ALLOWED_HOSTS."
            )
        if scope["method"] not in UNSAFE_METHODS:
            return
        origin = headers.get("origin")
        if origin is not None and not self._is_allowed(origin, hosts[0]):
            raise OriginNotAllowedError("Pages of other sites cannot send requests that change something.")

    def _is_allowed(self, origin: str, host: str) -> bool:
        """Whether `origin` is allowed by the settings, or is this service itself, under the requested `host`.

        Another port of the same machine is another site: a different program may listen there.
        """
        return origin in self._origins or origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")

    def _names_service(self, authority: str) -> bool:
        name = re.sub(r":\d*$", "", authority).lower()
        return bool(name) and ("*" in self._hosts or name in self._hosts)


def add_cors(app: FastAPI, settings: ApiSettings) -> None:
    """Allows pages of the configured origins to use the API. Keys are sent in a header, so cookies are not allowed."""
    origins = _allowed_origins(settings)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "HEAD", *sorted(UNSAFE_METHODS)],
            allow_headers=_REQUEST_HEADERS,
            expose_headers=_RESPONSE_HEADERS,
        )


def _allowed_origins(settings: ApiSettings) -> tuple[str, ...]:
    return tuple(origin for origin in settings.allowed_origins.split(",") if origin)
