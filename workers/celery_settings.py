"""How a worker listens: Celery's settings beside those that it shares with the API."""

from __future__ import annotations

from typing import Any

from kombu import Exchange, Queue

from service.broker import celery_config, is_embedded, queue_name
from service.settings import Settings


def worker_config(settings: Settings) -> dict[str, Any]:
    """All Celery settings of a worker process."""
    names = [queue_name(queue) for queue in settings.worker_queues]
    return {
        **celery_config(settings),
        "task_queues": [Queue(name, Exchange(name), routing_key=name) for name in names],
        "broker_connection_retry_on_startup": True,
        # For ever: the database is there, and so are jobs.
        "broker_connection_max_retries": None,
        # From folders, a worker takes as many messages beside those it runs as it has threads, and they wait here.
        # Where other workers could have them by now, the sweeper announces their jobs again. From Redis it takes none
        # to wait.
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": not is_embedded(settings),
        "worker_enable_prefetch_count_reduction": False,
        # Touches no task here, since all are acknowledged early, and saves a warning each time the broker was away.
        "worker_cancel_long_running_tasks_on_connection_loss": True,
        "worker_concurrency": settings.worker.concurrency,
        "worker_pool": "threads",
        "worker_send_task_events": False,
        "worker_enable_remote_control": False,
    }
