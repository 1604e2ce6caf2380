"""What a queued job waits for."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Protocol

from sqlalchemy.orm import Session

from service.jobs.check_readiness import worker_silence_ms
from service.settings import Settings
from service.store.listeners import queues_listened_to


class WaitingFor(StrEnum):
    """`SLOT`: a worker that listens to its queue is to become free. `WORKER`: none that could run it listens."""

    SLOT = "slot"
    WORKER = "worker"


class Waiting(Protocol):
    """Tells what a job waits for that is queued in `queue`."""

    def waiting_for(self, queue: str) -> WaitingFor: ...


class Listening:
    """Which queues live workers listen to; looked up once, and only where a job waits."""

    def __init__(self, session: Session, settings: Settings, now: int) -> None:
        """`session` must be open as long as questions come; `now` in milliseconds by the database's clock."""
        self._session = session
        self._heard_since = now - worker_silence_ms(settings)

    def waiting_for(self, queue: str) -> WaitingFor:
        """What a job waits for that is queued in `queue`."""
        return WaitingFor.SLOT if queue in self._queues else WaitingFor.WORKER

    @cached_property
    def _queues(self) -> frozenset[str]:
        return queues_listened_to(self._session, self._heard_since)
