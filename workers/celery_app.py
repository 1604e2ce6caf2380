"""The Celery application of a worker: `python -P -m workers …` or `python -m celery -A workers.celery_app worker …`.

Creates all parts of the worker, once per process. No other module reads the settings or opens a connection.
"""

from __future__ import annotations

import sys

from celery import Celery
from celery.signals import setup_logging, task_received, worker_ready, worker_shutdown, worker_shutting_down
from celery.worker.request import Request

from service.broker.dispatch import Dispatcher
from service.config.processes import die_with_parent
from service.config.settings import Settings
from service.monitoring.logs import configure_logging
from workers.jobs.planning import allow_deep_plans
from workers.process.queue_consumer import Consumer, Consumption, RunJob, worker_config
from workers.process.shutdown import force_exit
from workers.process.worker import Worker

_SWITCH_SECONDS = 0.001
"""How long one thread may delay another. Python's default is 5 ms, which a planning thread would take after each of its
calls of Spark, while another thread reads files."""

die_with_parent()
allow_deep_plans()
sys.setswitchinterval(_SWITCH_SECONDS)

_settings = Settings()
configure_logging(_settings.log)
_dispatcher = Dispatcher(_settings)
_worker = Worker(_settings, announce=lambda job_id, queue: bool(_dispatcher.announce([job_id], queue)))
_consumption = Consumption()
_worker.listen = _consumption.listen

app = Celery("evenkeel")
app.conf.update(worker_config(_settings))
app.register_task(RunJob(_worker))


def _keep_logging(**_: object) -> None:
    """Configures logging. Celery does not configure it if this signal has a receiver."""
    configure_logging(_settings.log)


def _start(sender: Consumer, **_: object) -> None:
    _consumption.begin(sender)
    _worker.start()


def _hold(request: Request, **_: object) -> None:
    for job_id in request.args[:1]:
        _worker.held.received(job_id)


def _drain(**_: object) -> None:
    _worker.drain()


def _close(**_: object) -> None:
    _worker.close()
    _dispatcher.close()
    force_exit(_worker.id)


setup_logging.connect(_keep_logging)
worker_ready.connect(_start)
task_received.connect(_hold)
worker_shutting_down.connect(_drain)
worker_shutdown.connect(_close)
