"""The doorbell's wiring: what the API, which rings, and the workers, which listen, must agree on.

The database is the truth. A message holds a job id alone and may be lost or come twice without harm.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import redis

from service.settings import Settings

QUEUE = "evenkeel"
"""The one queue."""

RUN_JOB = "run_job"
"""Name of the task that workers register; its one argument is the job id."""

_REDIS_TIMEOUT_SECONDS = 2.0


def celery_config(settings: Settings) -> dict[str, Any]:
    """The Celery settings that both sides share. Makes the embedded broker's folders, readable by their owner alone."""
    return {
        # A host that means nothing keeps kombu from warning that there is none.
        "broker_url": "filesystem://localhost/" if is_embedded(settings) else settings.broker_url,
        "broker_transport": "service.folder_transport:FolderTransport" if is_embedded(settings) else None,
        "broker_transport_options": _transport_options(settings),
        "broker_connection_timeout": _REDIS_TIMEOUT_SECONDS,
        "task_default_queue": QUEUE,
        "task_ignore_result": True,
        "task_serializer": "json",
        "accept_content": ["json"],
        "result_backend": None,
        "enable_utc": True,
        "worker_hijack_root_logger": False,
    }


def is_embedded(settings: Settings) -> bool:
    """Whether messages travel through folders instead of a server."""
    return settings.broker_url.startswith("filesystem:")


def broker_fault(settings: Settings) -> str | None:
    """What keeps messages from being sent, in one sentence; None while nothing does."""
    if is_embedded(settings):
        folder = _messages(settings)
        return None if os.access(folder, os.W_OK | os.X_OK) else f"The folder {folder} cannot be written to."
    try:
        with redis.Redis.from_url(
            settings.broker_url,
            socket_connect_timeout=_REDIS_TIMEOUT_SECONDS,
            socket_timeout=_REDIS_TIMEOUT_SECONDS,
        ) as client:
            client.ping()
    except redis.RedisError as error:
        return f"Redis does not answer: {type(error).__name__}."
    return None


def _transport_options(settings: Settings) -> dict[str, Any]:
    if not is_embedded(settings):
        # Without these, a caller would hang for as long as Redis is away.
        return {
            "socket_connect_timeout": _REDIS_TIMEOUT_SECONDS,
            "socket_timeout": 30.0,
            "socket_keepalive": True,
        }
    messages, control = _messages(settings), settings.broker_dir / "control"
    for folder in (settings.broker_dir, messages, control):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        "data_folder_in": str(messages),
        "data_folder_out": str(messages),
        "control_folder": str(control),
        "store_processed": False,
        "polling_interval": 0.05,
    }


def _messages(settings: Settings) -> Path:
    return settings.broker_dir / "messages"
