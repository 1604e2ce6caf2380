"""Answers polls of single jobs without the framework's routing, which costs several times what reading a job does.

Clients poll their jobs all the time, nearly always with the same kind of request. This middleware answers that kind:
`GET /v1/jobs/{job_id}` without a query string and without `Prefer`, of a caller that may read, for a job that exists.
It calls what the route calls, `JobReader.read` and `job_response`, so that both answer alike. It passes on every other
request, also one whose answer is an error: there is one place that refuses requests.
"""

from __future__ import annotations

import re

from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.authentication import tenant_of_reader
from service.api.dependencies import Services
from service.api.representations import job_response
from service.contract.errors import JobNotFoundError
from service.jobs.known_jobs import JobKey

_PATH = re.compile(r"/v1/jobs/([0-9a-f-]{36})")


class JobPolls:
    """ASGI middleware, the innermost: all checks of a request and its caller have passed."""

    def __init__(self, app: ASGIApp, route: BaseRoute) -> None:
        """`route` is the one of `get_job`: log lines and metrics name it."""
        self._app = app
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a poll, or passes the request on."""
        answer = await self._answer(scope) if scope["type"] == "http" and scope["method"] == "GET" else None
        await (self._app if answer is None else answer)(scope, receive, send)

    async def _answer(self, scope: Scope) -> Response | None:
        path = _PATH.fullmatch(scope["path"])
        tenant = tenant_of_reader(scope)
        # Only the route is traced, if OpenTelemetry is configured.
        if path is None or tenant is None or scope["query_string"] or "fastapi.telemetry" in scope:
            return None
        headers = Headers(scope=scope)
        if headers.getlist("prefer"):
            return None
        state = scope["app"].state
        services: Services = state.services
        try:
            job = await services.reader.read(JobKey(tenant, path[1]))
        except (JobNotFoundError, SQLAlchemyError):
            # The route reads again. It waits for a database that restarts.
            return None
        state.outage.mark_recovered()
        scope["route"] = self._route
        return job_response(job, known_tags=headers.getlist("if-none-match"))
