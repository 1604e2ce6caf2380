"""The worker's entry point: `python -P -m workers …`, or `python -m celery -A workers.celery_app worker …`.

Everything is put together here, once a process; no other module looks up settings or makes a connection.
"""

from __future__ import annotations

from celery import Celery
from celery.signals import setup_logging, worker_ready, worker_shutdown, worker_shutting_down

from service.broker import celery_config
from service.dispatch import Dispatcher
from service.lifeline import die_with_parent
from service.logging import configure_logging
from service.settings import Settings
from workers.tasks.run_job import RunJob
from workers.worker import Worker

die_with_parent()

_settings = Settings()
configure_logging(_settings.log)
_dispatcher = Dispatcher(_settings)
_worker = Worker(_settings, ring=lambda job_id, queue: bool(_dispatcher.ring([job_id], queue)))

app = Celery("evenkeel")
app.conf.update(celery_config(_settings))
app.conf.update(
    broker_connection_retry_on_startup=True,
    # Beside those it runs, a worker takes as many messages as it has threads, and they wait here. Where other workers
    # could have them by now, the sweeper announces their jobs again.
    worker_prefetch_multiplier=1,
    worker_concurrency=_settings.worker.concurrency,
    worker_pool="threads",
    worker_send_task_events=False,
    worker_enable_remote_control=False,
)
app.register_task(RunJob(_worker))


def _keep_logging(**_: object) -> None:
    """Being connected keeps Celery from setting up logging of its own."""
    configure_logging(_settings.log)


def _start(**_: object) -> None:
    _worker.start()


def _drain(**_: object) -> None:
    _worker.drain()


def _close(**_: object) -> None:
    _worker.close()
    _dispatcher.close()


setup_logging.connect(_keep_logging)
worker_ready.connect(_start)
worker_shutting_down.connect(_drain)
worker_shutdown.connect(_close)
