"""The application: routes, what they need, and the order in which a request passes through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from service import __version__
from service.api import jobs, keys, operations, reports, results, streams
from service.api.authentication import Authentication
from service.api.dependencies import Services
from service.api.metrics import HttpMetrics, ServiceGauges
from service.api.middleware import BodyGuard, HeadAsGet, Outage, RequestContext, SiteGuard, UnderWay, origins_of
from service.api.openapi import TITLE, operation_id, specification
from service.api.problems import EVERYWHERE, add_problem_handlers, problems
from service.broker.dispatch import Dispatcher, JobAnnouncer
from service.config.settings import Settings
from service.contract.errors import MissingScopeError, UnauthenticatedError
from service.jobs.explain_job import delete_abandoned_explanations
from service.jobs.lifecycle import CancelledJobs
from service.jobs.read_jobs import JobReader, JobWatcher
from service.jobs.submit_job import Submissions
from service.keys.verification import KeyRing
from service.monitoring.logs import configure_logging
from service.store.migrate import require_current
from service.store.session import Database

_ASKED_WITH = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "If-None-Match",
    "Last-Event-ID",
    "Prefer",
    "X-Request-Id",
)
_TOLD_IN = ("ETag", "Idempotency-Replayed", "Location", "Preference-Applied", "Retry-After", "X-Request-Id")
_LAST_WORDS_SECONDS = 3.0
_WITH_A_KEY = problems(*EVERYWHERE, UnauthenticatedError, MissingScopeError)


def create_app(settings: Settings, database: Database | None = None) -> FastAPI:
    """The API. Database, broker and poller are opened when it starts and closed when it stops.

    Starting raises SchemaMismatchError unless the database is at this version's revision. A `database` that is given
    stays open at the end. Unless `settings` have callers authenticated, whoever listens with it makes sure that
    strangers cannot reach it.
    """
    app = FastAPI(
        title=TITLE,
        version=__version__,
        lifespan=partial(_lifespan, settings=settings, given=database),
        generate_unique_id_function=operation_id,
        separate_input_output_schemas=False,
        redirect_slashes=False,
        docs_url=None,  # its page would be loaded from another host
        redoc_url=None,
    )
    metrics = HttpMetrics()
    app.state.metrics = metrics
    app.state.under_way = UnderWay()
    app.state.outage = Outage(settings.database.retry_seconds)
    for router in (
        jobs.router,
        jobs.streaming_router,
        results.router,
        results.events_router,
        reports.router,
        streams.router,
        operations.workers_router,
        keys.router,
    ):
        app.include_router(router, responses=_WITH_A_KEY)
    app.include_router(operations.router, responses=problems(*EVERYWHERE))
    if settings.api.dashboard:
        app.include_router(operations.dashboard_router)
    add_problem_handlers(app)
    app.add_middleware(BodyGuard, settings=settings.api)
    app.add_middleware(Authentication, required=settings.authenticates)
    app.add_middleware(SiteGuard, settings=settings.api)
    _share_with_other_sites(app, origins_of(settings.api))
    app.add_middleware(RequestContext, metrics=metrics, under_way=app.state.under_way)
    app.add_middleware(HeadAsGet)
    _cache_specification(app)
    return app


def _share_with_other_sites(app: FastAPI, origins: Sequence[str]) -> None:
    """Lets browsers show answers to pages of these sites. A key is shown in a header, so no cookie is of use."""
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=_ASKED_WITH,
            expose_headers=_TOLD_IN,
        )


@asynccontextmanager
async def _lifespan(app: FastAPI, *, settings: Settings, given: Database | None) -> AsyncIterator[None]:
    configure_logging(settings.log)
    database = given or Database(settings.database_url, settings=settings.database)
    require_current(database)
    delete_abandoned_explanations(database)
    announcer = JobAnnouncer(database, Dispatcher(settings))
    watcher = JobWatcher(database, settings.api.poll_interval_seconds)
    watcher.start()
    cancelled = CancelledJobs(database)
    cancelled.start()
    submissions = Submissions()
    gauges = ServiceGauges(database, settings)
    app.state.metrics.registry.register(gauges)
    app.state.services = Services(
        settings, database, announcer, watcher, JobReader(database, settings), KeyRing(database), submissions
    )
    try:
        yield
    finally:
        # The server gives up requests that take too long, and does not wait until they have told so.
        await app.state.under_way.ended(_LAST_WORDS_SECONDS)
        app.state.metrics.registry.unregister(gauges)
        submissions.close()
        await cancelled.stop()
        await watcher.stop()
        await asyncio.to_thread(announcer.close)
        if given is None:
            database.close()


def _cache_specification(app: FastAPI) -> None:
    document: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not document:
            document.update(specification(app))
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # the framework's own way to replace it
