"""The routes of workers: list, read, drain."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from service.api.authentication import AdminTenant, ReaderTenant
from service.api.database_retries import RetryingRoute
from service.api.dependencies import ServicesDep
from service.api.problems import problems
from service.contract.errors import WorkerNotFoundError, WorkerSilentError
from service.jobs import workers
from service.jobs.readiness import worker_silence_ms

router = APIRouter(prefix="/v1/workers", tags=["workers"], route_class=RetryingRoute)

WorkerId = Annotated[str, Path(description="Id of a worker.", examples=["node-1-4711-a1b2c3"])]


@router.get("", summary="List workers", responses=problems())
def list_workers(services: ServicesDep, tenant: ReaderTenant) -> workers.WorkerList:
    """Returns every worker with a heartbeat within the last hour, oldest first. Workers that shut down are removed."""
    return workers.list_workers(services.database, tenant, worker_silence_ms(services.settings))


@router.get("/{worker_id}", summary="Read a worker", responses=problems(WorkerNotFoundError))
def get_worker(worker_id: WorkerId, services: ServicesDep, tenant: ReaderTenant) -> workers.Worker:
    """Returns a worker as of its last heartbeat, with the jobs that it is running."""
    return workers.get_worker(services.database, tenant, worker_id, worker_silence_ms(services.settings))


@router.post(
    "/{worker_id}/drain",
    status_code=202,
    summary="Drain a worker",
    responses={202: {"description": "The worker, DRAINING."}, **problems(WorkerNotFoundError, WorkerSilentError)},
)
def drain_worker(worker_id: WorkerId, services: ServicesDep, tenant: AdminTenant) -> workers.Worker:
    """The worker takes no new jobs, finishes its running jobs, however long they take, and exits. Idempotent.

    The worker reads the request with its next heartbeat.
    """
    return workers.drain_worker(services.database, tenant, worker_id, worker_silence_ms(services.settings))
