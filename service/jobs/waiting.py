"""What a queued job waits for."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Protocol

from sqlalchemy.orm import Session

from service.jobs.check_readiness import worker_silence_ms
from service.settings import Settings
from service.store import quotas
from service.store.listeners import queues_listened_to


class WaitingFor(StrEnum):
    """`SLOT`: a worker that listens to its queue is to become free. `WORKER`: none that could run it listens. `TENANT`:
    a job of the same tenant is to end. `RETRY`: its attempt failed, and the pause before the next one is to pass."""

    SLOT = "slot"
    WORKER = "worker"
    TENANT = "tenant"
    RETRY = "retry"


class Waiting(Protocol):
    """Tells what a tenant's job waits for that is queued in `queue`."""

    def waiting_for(self, tenant: str, queue: str) -> WaitingFor: ...


class Listening:
    """Which queues live workers listen to; looked up once, and only where a job waits."""

    def __init__(self, session: Session, settings: Settings, now: int) -> None:
        """`session` must be open as long as questions come; `now` in milliseconds by the database's clock."""
        self._session = session
        self._heard_since = now - worker_silence_ms(settings)
        self._most_running = settings.limits.running_jobs
        self._is_full: dict[tuple[str, str], bool] = {}

    def waiting_for(self, tenant: str, queue: str) -> WaitingFor:
        """What a tenant's job waits for that is queued in `queue`."""
        if queue not in self._queues:
            return WaitingFor.WORKER
        return WaitingFor.TENANT if self._is_tenant_full(tenant, queue) else WaitingFor.SLOT

    def _is_tenant_full(self, tenant: str, queue: str) -> bool:
        if not self._most_running:
            return False
        if (tenant, queue) not in self._is_full:
            self._is_full[tenant, queue] = quotas.is_full(self._session, tenant, queue, self._most_running)
        return self._is_full[tenant, queue]

    @cached_property
    def _queues(self) -> frozenset[str]:
        return queues_listened_to(self._session, self._heard_since)
