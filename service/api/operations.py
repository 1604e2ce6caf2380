"""For whoever runs the service: alive, ready, measured."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from service import __version__
from service.access_errors import MissingScopeError, UnauthenticatedError
from service.api.authentication import Scraper, is_known
from service.api.dependencies import ServicesDep
from service.api.problems import problems
from service.errors import NotReadyError
from service.jobs.check_readiness import Readiness, check_readiness, for_strangers
from service.spec.model import Frozen

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
