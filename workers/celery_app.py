"""The worker's entry point: `python -P -m workers …`, or `python -m celery -A workers.celery_app worker …`.

Everything is put together here, once a process; no other module looks up settings or makes a connection.
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
from workers.process.queue_consumer import Consumer, Consumption, RunJob, worker_config
from workers.process.shutdown import force_exit
from workers.process.worker import Worker

die_with_parent()

# The largest queries that are accepted, of 128 tables, need 800 frames of Python's stack to be planned; the default
# limit of 1,000 leaves too little for what is below.
sys.setrecursionlimit(5_000)

_settings = Settings()
configure_logging(_settings.log)
_dispatcher = Dispatcher(_settings)
_worker = Worker(_settings, ring=lambda job_id, queue: bool(_dispatcher.ring([job_id], queue)))
_consumption = Consumption()
_worker.listen = _consumption.listen

app = Celery("evenkeel")
app.conf.update(worker_config(_settings))
app.register_task(RunJob(_worker))


def _keep_logging(**_: object) -> None:
    """Being connected keeps Celery from setting up logging of its own."""
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
