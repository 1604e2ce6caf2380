"""For whoever runs the service: alive, ready, measured."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import Field

from service import __version__
from service.access_errors import MissingScopeError, UnauthenticatedError
from service.api.authentication import Scraper
from service.api.dependencies import ServicesDep
from service.api.problems import problems
from service.errors import NotReadyError
from service.jobs.check_readiness import Readiness, check_readiness
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
def get_readiness(services: ServicesDep) -> Readiness:
    """Whether database, broker and at least one worker are there; 503 names what is missing.

    A queue that no worker listens to is told in `warnings`: jobs of the other one run.
    """
    return check_readiness(services.database, services.settings)


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
