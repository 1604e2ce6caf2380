"""Workers: list, read, drain."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from service.api.authentication import AdminTenant, ReaderTenant
from service.api.dependencies import ServicesDep
from service.api.problems import problems
from service.api.retries import SteadyRoute
from service.errors import WorkerNotFoundError, WorkerSilentError
from service.jobs.check_readiness import worker_silence_ms
from service.jobs.drain_worker import drain_worker as drain
from service.jobs.get_worker import get_worker as get
from service.jobs.list_workers import WorkerList
from service.jobs.list_workers import list_workers as list_all
from service.jobs.worker_views import Worker

router = APIRouter(prefix="/v1/workers", tags=["workers"], route_class=SteadyRoute)

WorkerId = Annotated[str, Path(description="Id of a worker.", examples=["node-1-4711-a1b2c3"])]


@router.get("", summary="List workers", responses=problems())
def list_workers(services: ServicesDep, tenant: ReaderTenant) -> WorkerList:
    """Every worker that gave a sign of life within the last hour, oldest first. One that ended as it should is gone."""
    return list_all(services.database, tenant, worker_silence_ms(services.settings))


@router.get("/{worker_id}", summary="Read a worker", responses=problems(WorkerNotFoundError))
def get_worker(worker_id: WorkerId, services: ServicesDep, tenant: ReaderTenant) -> Worker:
    """A worker as it last described itself, with the jobs that it is at."""
    return get(services.database, tenant, worker_id, worker_silence_ms(services.settings))


@router.post(
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
