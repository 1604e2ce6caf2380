"""For whoever runs the service: alive, ready, measured.

Workers: list, read, drain.

The dashboard's page and its files. They hold no data, so no key is asked for: the page asks with its user's own.
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
from service.jobs.readiness import Readiness, check_readiness, for_strangers, worker_silence_ms
from service.jobs.workers import Worker, WorkerList
from service.jobs.workers import drain_worker as drain
from service.jobs.workers import get_worker as get
from service.jobs.workers import list_workers as list_all

router = APIRouter(tags=["operations"])


class Health(Frozen):
    """The process answers."""

    status: str = Field(examples=["alive"])
    version: str = Field(examples=["0.1.0"])


@router.get("/healthz", summary="Is the process alive")
async def get_health() -> Health:
    """Says that the process answers, and nothing about what is behind it."""
    return Health(status="alive", version=__version__)


@router.get("/readyz", summary="Would a job run", responses=problems(NotReadyError))
async def get_readiness(request: Request, services: ServicesDep) -> Readiness:
    """Whether database, broker and at least one worker are there; 503 names what is missing, and why it is to callers
    who show an API key.

    A queue that no worker listens to is told in `warnings`: jobs of the other one run.
    """
    # Anybody may ask, as often as they like: that must not cost a thread and a connection each.
    look = partial(run_in_threadpool, check_readiness, services.database, services.settings)
    knows = is_known(request.scope)
    try:
        found = await services.readiness.share(None, look)
    except NotReadyError as error:
        raise error if knows else for_strangers(error) from None
    return found if knows else found.model_copy(update={"warnings": ()})


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        200: {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **problems(UnauthenticatedError, MissingScopeError),
    },
)
def get_prometheus_metrics(request: Request, _caller: Scraper) -> Response:
    """Requests by route and status with their latency, jobs by status, age of the oldest queued job, live workers."""
    return Response(generate_latest(request.app.state.metrics.registry), media_type=CONTENT_TYPE_LATEST)


workers_router = APIRouter(prefix="/v1/workers", tags=["workers"], route_class=SteadyRoute)

WorkerId = Annotated[str, Path(description="Id of a worker.", examples=["node-1-4711-a1b2c3"])]


@workers_router.get("", summary="List workers", responses=problems())
def list_workers(services: ServicesDep, tenant: ReaderTenant) -> WorkerList:
    """Every worker that gave a sign of life within the last hour, oldest first. One that ended as it should is gone."""
    return list_all(services.database, tenant, worker_silence_ms(services.settings))


@workers_router.get("/{worker_id}", summary="Read a worker", responses=problems(WorkerNotFoundError))
def get_worker(worker_id: WorkerId, services: ServicesDep, tenant: ReaderTenant) -> Worker:
    """A worker as it last described itself, with the jobs that it is at."""
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
    """The worker takes no more jobs, lets those at hand end however long they take, and ends its process.

    It learns of it with its next sign of life. Whatever keeps workers running starts a fresh one in its place. Asking
    twice changes nothing.
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
"""An Accept-Encoding that takes gzip; not one that says `q=0`."""
_ASK_AGAIN = "no-cache"
_FOR_GOOD = "public, max-age=31536000, immutable"


@dashboard_router.get(DASHBOARD_PAGE)
def show_dashboard(request: Request) -> Response:
    """The page."""
    return _answer(request, bundle().assets[INDEX], _ASK_AGAIN)


@dashboard_router.get(DASHBOARD_FILES + "{version}/{path:path}")
def get_asset(version: str, path: str, request: Request) -> Response:
    """A file of the page. Raises RouteNotFoundError.

    In the midst of an upgrade another release may have sent the page: its files are answered with these, and not kept.
    """
    found = bundle().assets.get(path)
    if found is None or path == INDEX:
        raise RouteNotFoundError("The dashboard has no such file.")
    return _answer(request, found, _FOR_GOOD if version == bundle().version else _ASK_AGAIN)


def _takes_gzip(request: Request) -> bool:
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
    if asset.compressed is not None and _takes_gzip(request):
        headers["Content-Encoding"] = "gzip"
        return Response(asset.compressed, media_type=asset.content_type, headers=headers)
    return Response(asset.content, media_type=asset.content_type, headers=headers)
