"""Rings workers: sends the id of each job to the queue, by the task's name, since the service imports no task."""

from __future__ import annotations

from collections.abc import Iterable

import structlog
from celery import Celery
from kombu.exceptions import KombuError

from service.broker import RUN_JOB, celery_config, queue_name
from service.settings import Settings

_log = structlog.get_logger(__name__)


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
        "connect_retries_timeout": 2.0,
    }
    app.conf.update(options)
    return app


class Dispatcher:
    """Sends messages on connections of its own. Safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self._celery = build_celery(settings)

    def ring(self, job_ids: Iterable[str], queue: str) -> tuple[str, ...]:
        """Announces jobs to the workers of a `Queue`; gives those whose message the broker took.

        Never raises for a broker that is away.
        """
        sent = []
        for job_id in job_ids:
            try:
                self._celery.send_task(RUN_JOB, args=[job_id], queue=queue_name(queue), retry=False, ignore_result=True)
            except (OSError, KombuError) as error:
                _log.warning("broker_unreachable", job_id=job_id, error=type(error).__name__)
            else:
                sent.append(job_id)
        return tuple(sent)

    def close(self) -> None:
        """Closes the connections."""
        self._celery.close()
