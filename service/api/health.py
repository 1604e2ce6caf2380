"""The routes of liveness and readiness, which need no API key."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from service import __version__
from service.api.authentication import is_authenticated
from service.api.dependencies import ServicesDep
from service.api.problems import problems
from service.contract.errors import NotReadyError
from service.contract.model import Frozen
from service.jobs.readiness import Readiness, check_readiness, without_details

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
    has_key = is_authenticated(request.scope)
    try:
        readiness = await services.readiness.share(None, check)
    except NotReadyError as error:
        raise error if has_key else without_details(error) from None
    return readiness if has_key else readiness.model_copy(update={"warnings": ()})
