"""Requests that another site has a browser send are refused before anything else is looked at.

A service without keys on loopback is within reach of every web page that its user visits. A page can name another host
(DNS rebinding) or post a form across sites; it can neither forge the Host header of its own site nor send JSON to
another one unasked.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.problems import service_error_response
from service.errors import HostNotAllowedError, OriginNotAllowedError, ServiceError
from service.settings import ApiSettings

UNSAFE_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""What changes something, or may."""


class SiteGuard:
    """ASGI middleware. Lets requests pass that name this service's host, and changes that its own pages ask for."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._hosts = frozenset(host.strip().lower() for host in settings.allowed_hosts.split(",") if host.strip())
        self._origins = origins_of(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers with a problem, or hands the request on."""
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
        if len(hosts) != 1 or not self._serves(hosts[0]):
            raise HostNotAllowedError(
                "The Host header names another host than this service. If it is reachable under that name, add the "
                "name to EVENKEEL_API_ALLOWED_HOSTS."
            )
        origin = headers.get("origin")
        if scope["method"] in UNSAFE_METHODS and origin is not None and not self._trusts(origin, hosts[0]):
            raise OriginNotAllowedError("A page of another site may not change anything here.")

    def _trusts(self, origin: str, host: str) -> bool:
        """Whether a page of `origin` is one of this service, as it was asked for, or of a site that may use it.

        Another port of the same machine is another site: whatever listens there is not this service.
        """
        return origin in self._origins or origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")

    def _serves(self, authority: str) -> bool:
        name = re.sub(r":\d*$", "", authority).lower()
        return bool(name) and ("*" in self._hosts or name in self._hosts)


def origins_of(settings: ApiSettings) -> tuple[str, ...]:
    """Of other sites whose pages may use the API."""
    return tuple(origin for origin in settings.allowed_origins.split(",") if origin)
