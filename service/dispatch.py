"""Rings workers: sends the id of each job to a queue, by the task's name, since the service imports no task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import redis
import structlog
from celery import Celery
from kombu.exceptions import KombuError

from service.broker import celery_config, queue_name
from service.messages import RUN_JOB
from service.settings import Settings

_log = structlog.get_logger(__name__)

_REST_SECONDS = 2.0
"""For so long after a failure nothing is sent: each submission would wait for the same silent broker."""


def build_celery(settings: Settings) -> Celery:
    """A Celery application that can send; it knows no tasks."""
    app = Celery("evenkeel", set_as_current=False)
    options = celery_config(settings)
    # A submission must not wait for a broker that is away: the outbox row stays and a worker's sweeper rings again.
    options["broker_transport_options"] = {
        **options["broker_transport_options"],
        "max_retries": 1,
        "interval_start": 0.0,
        "interval_step": 0.0,
        "connect_retries_timeout": settings.broker.timeout_seconds,
    }
    app.conf.update(options)
    return app


class Dispatcher:
    """Sends messages on connections of its own. Safe to share between threads."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._celery = build_celery(settings)
        self._clock = clock
        self._rests_until = clock()

    def ring(self, job_ids: Iterable[str], queue: str) -> tuple[str, ...]:
        """Announces jobs to the workers of a `Queue`; gives those whose message the broker took.

        Never raises for a broker that is away, and gives up on the rest then.
        """
        sent: list[str] = []
        for job_id in job_ids:
            if self._clock() < self._rests_until:
                break
            try:
                self._celery.send_task(RUN_JOB, args=[job_id], queue=queue_name(queue), retry=False, ignore_result=True)
            except (OSError, KombuError, redis.RedisError) as error:
                self._rests_until = self._clock() + _REST_SECONDS
                _log.warning("broker_unreachable", job_id=job_id, error=type(error).__name__)
            else:
                sent.append(job_id)
        return tuple(sent)

    def close(self) -> None:
        """Closes the connections."""
        self._celery.close()
