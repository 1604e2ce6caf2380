"""The routes for operators: health, readiness, Prometheus metrics, and workers (list, read, drain). The routes of the
dashboard's files, which need no API key, as they contain no data: the page calls the API with its user's key.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from service import __version__
from service.api.authentication import DASHBOARD_FILES, DASHBOARD_PAGE, AdminTenant, ReaderTenant, Scraper, is_known
from service.api.dependencies import ServicesDep, names_tag
from service.api.middleware import SteadyRoute
from service.api.problems import problems
from service.contract.errors import (
    MissingScopeError,
    NotReadyError,
    RouteNotFoundError,
    UnauthenticatedError,
    WorkerNotFoundError,
    WorkerSilentError,
)
from service.contract.model import Frozen
from service.dashboard.bundle import INDEX, Asset, bundle
from service.jobs.readiness import Readiness, check_readiness, without_details, worker_silence_ms
from service.jobs.workers import Worker, WorkerList
from service.jobs.workers import drain_worker as drain
from service.jobs.workers import get_worker as get
from service.jobs.workers import list_workers as list_all

router = APIRouter(tags=["operations"])


class Health(Frozen):
    """The response of a process that is alive."""

    status: str = Field(examples=["alive"])
    version: str = Field(examples=["0.1.0"])


@router.get("/healthz", summary="Check liveness")
async def get_health() -> Health:
    """Confirms that the process answers. Checks neither the database nor the broker."""
    return Health(status="alive", version=__version__)


@router.get("/readyz", summary="Check readiness", responses=problems(NotReadyError))
async def get_readiness(request: Request, services: ServicesDep) -> Readiness:
    """Checks the database, the broker and that at least one worker is alive. 503 names what is unavailable; the reason
    is given only to callers with an API key.

    `warnings` names a queue that no worker serves; jobs of the other queue run.
    """
    # This needs no key: without sharing, a flood of requests would take a thread and a connection each.
    check = partial(run_in_threadpool, check_readiness, services.database, services.settings)
    is_authenticated = is_known(request.scope)
    try:
        readiness = await services.readiness.share(None, check)
    except NotReadyError as error:
        raise error if is_authenticated else without_details(error) from None
    return readiness if is_authenticated else readiness.model_copy(update={"warnings": ()})


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        200: {
            "description": "Prometheus' text format.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **problems(UnauthenticatedError, MissingScopeError),
    },
)
def get_prometheus_metrics(request: Request, _caller: Scraper) -> Response:
    """Returns requests by route and status with latency, jobs by status, age of the oldest queued job, live workers."""
    return Response(generate_latest(request.app.state.metrics.registry), media_type=CONTENT_TYPE_LATEST)


workers_router = APIRouter(prefix="/v1/workers", tags=["workers"], route_class=SteadyRoute)

WorkerId = Annotated[str, Path(description="Id of a worker.", examples=["node-1-4711-a1b2c3"])]


@workers_router.get("", summary="List workers", responses=problems())
def list_workers(services: ServicesDep, tenant: ReaderTenant) -> WorkerList:
    """Returns every worker with a heartbeat within the last hour, oldest first. Workers that shut down are removed."""
    return list_all(services.database, tenant, worker_silence_ms(services.settings))


@workers_router.get("/{worker_id}", summary="Read a worker", responses=problems(WorkerNotFoundError))
def get_worker(worker_id: WorkerId, services: ServicesDep, tenant: ReaderTenant) -> Worker:
    """Returns a worker as of its last heartbeat, with the jobs that it is running."""
    return get(services.database, tenant, worker_id, worker_silence_ms(services.settings))


@workers_router.post(
    "/{worker_id}/drain",
    status_code=202,
    summary="Drain a worker",
    responses={
        202: {"description": "The worker, DRAINING."},
        **problems(WorkerNotFoundError, WorkerSilentError),
    },
)
def drain_worker(worker_id: WorkerId, services: ServicesDep, tenant: AdminTenant) -> Worker:
    """The worker takes no new jobs, finishes its running jobs, however long they take, and exits. Idempotent.

    The worker reads the request with its next heartbeat. Your process manager starts a new worker in its place.
    """
    return drain(services.database, tenant, worker_id, worker_silence_ms(services.settings))


dashboard_router = APIRouter(include_in_schema=False)

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_GZIP = re.compile(r"(?:^|,)\s*gzip\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))[\d.]+\s*)?(?:,|$)", re.IGNORECASE)
"""An Accept-Encoding that accepts gzip; `gzip;q=0` does not match."""
_REVALIDATE = "no-cache"
_CACHE_FOREVER = "public, max-age=31536000, immutable"


@dashboard_router.get(DASHBOARD_PAGE)
def show_dashboard(request: Request) -> Response:
    """Returns the page."""
    return _answer(request, bundle().assets[INDEX], _REVALIDATE)


@dashboard_router.get(DASHBOARD_FILES + "{version}/{path:path}")
def get_asset(version: str, path: str, request: Request) -> Response:
    """Returns a file of the page. Raises RouteNotFoundError.

    During an upgrade, another release may have served the page: its requests get the files of this release, uncached.
    """
    found = bundle().assets.get(path)
    if found is None or path == INDEX:
        raise RouteNotFoundError("The dashboard has no such file.")
    return _answer(request, found, _CACHE_FOREVER if version == bundle().version else _REVALIDATE)


def _accepts_gzip(request: Request) -> bool:
    return _GZIP.search(",".join(request.headers.getlist("accept-encoding"))) is not None


def _answer(request: Request, asset: Asset, cache_control: str) -> Response:
    headers = {
        "Content-Security-Policy": _POLICY,
        "Cache-Control": cache_control,
        "ETag": asset.etag,
        "Vary": "Accept-Encoding",
    }
    if names_tag(request.headers.getlist("if-none-match"), asset.etag):
        return Response(status_code=304, headers=headers)
    if asset.compressed is not None and _accepts_gzip(request):
        headers["Content-Encoding"] = "gzip"
        return Response(asset.compressed, media_type=asset.content_type, headers=headers)
    return Response(asset.content, media_type=asset.content_type, headers=headers)
