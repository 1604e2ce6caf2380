"""The application: its routes, its middleware in order, and the objects that it opens at its start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import Depends, FastAPI

from service import __version__
from service.api import dashboard, jobs, keys, operations, reports, results, streams, workers
from service.api.authentication import Authentication
from service.api.database_retries import DatabaseOutage
from service.api.dependencies import Services
from service.api.host_and_origin import HostAndOriginCheck, add_cors
from service.api.job_polls import JobPolls
from service.api.openapi import TITLE, operation_id, specification
from service.api.problems import EVERYWHERE, add_problem_handlers, problems
from service.api.query_parameters import refuse_unknown_parameters
from service.api.representations import HeadAsGet
from service.api.request_bodies import BodyCheck
from service.api.request_context import RequestContext, RequestsInProgress
from service.broker.dispatch import Dispatcher, JobAnnouncer
from service.config.settings import Settings
from service.contract.errors import MissingScopeError, UnauthenticatedError
from service.jobs.end_cancelled import CancelledJobs
from service.jobs.explain_job import delete_abandoned_explanations
from service.jobs.read_jobs import JobReader, JobWatcher
from service.jobs.submit_job import Submissions
from service.keys.verification import KeyRing
from service.monitoring.logs import configure_logging
from service.store.migrate import require_current
from service.store.session import Database

_FINAL_RESPONSES_SECONDS = 3.0
"""How long the shutdown waits for the responses to cancelled requests."""
_ROUTERS = (
    jobs.router,
    jobs.streaming_router,
    results.router,
    reports.router,
    streams.router,
    workers.router,
    keys.router,
)


def create_app(settings: Settings, database: Database | None = None, process: str = "") -> FastAPI:
    """Returns the API. It opens database, broker and poller when it starts, and closes them when it stops.

    A `database` that is given stays open. The start raises SchemaMismatchError unless the database schema has this
    version's revision. If `settings` do not require API keys, the caller must ensure that only trusted clients can
    reach the service. `process` is a label of the metrics, for several processes at one address.
    """
    app = FastAPI(
        title=TITLE,
        version=__version__,
        lifespan=partial(_lifespan, settings=settings, given=database),
        generate_unique_id_function=operation_id,
        separate_input_output_schemas=False,
        redirect_slashes=False,
        docs_url=None,  # FastAPI's pages load scripts from another host
        redoc_url=None,
    )
    app.state.metrics = operations.HttpMetrics(process)
    app.state.in_progress = RequestsInProgress()
    app.state.outage = DatabaseOutage(settings.database.retry_seconds)
    checked = [Depends(refuse_unknown_parameters)]
    for router in _ROUTERS:
        app.include_router(
            router, responses=problems(*EVERYWHERE, UnauthenticatedError, MissingScopeError), dependencies=checked
        )
    app.include_router(operations.router, responses=problems(*EVERYWHERE), dependencies=checked)
    if settings.api.dashboard:
        app.include_router(dashboard.router)
    add_problem_handlers(app)
    # The last one added is the first one that a request passes.
    app.add_middleware(JobPolls, route=jobs.ROUTE_OF_A_JOB)
    app.add_middleware(BodyCheck, settings=settings.api)
    app.add_middleware(Authentication, required=settings.authenticates)
    app.add_middleware(HostAndOriginCheck, settings=settings.api)
    add_cors(app, settings.api)
    app.add_middleware(RequestContext, metrics=app.state.metrics, in_progress=app.state.in_progress)
    app.add_middleware(HeadAsGet)
    _cache_specification(app)
    return app


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
    reader = JobReader(database, settings)
    gauges = operations.ServiceGauges(database, settings)
    app.state.metrics.registry.register(gauges)
    app.state.services = Services(settings, database, announcer, watcher, reader, KeyRing(database), submissions)
    try:
        yield
    finally:
        # The server cancels requests that take too long, and does not wait for the responses to them.
        await app.state.in_progress.wait_until_none(_FINAL_RESPONSES_SECONDS)
        app.state.metrics.registry.unregister(gauges)
        submissions.close()
        reader.close()
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

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to replace the document
