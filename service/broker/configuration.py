"""The Celery settings that the API and the workers share, and a check of the broker.

Jobs are stored in the database. A message contains only a job id, and may be lost or arrive twice.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.broker import transports
from service.broker.transports import BrokerFault, VerifiedConnection, fault_of, fault_of_files, is_tls, tls_options
from service.config.settings import Settings
from service.contract.enums import Queue

_QUEUE = "evenkeel"


def queue_name(queue: str) -> str:
    """Returns the broker's name of a `Queue`. Short jobs keep the queue of version 1, which had only one."""
    return _QUEUE if queue == Queue.SHORT else f"{_QUEUE}.{queue}"


def celery_config(settings: Settings) -> dict[str, Any]:
    """Returns the shared Celery settings. Creates the embedded broker's folders, readable only by their owner."""
    transports.register()
    return {
        # The host is not used, but kombu warns if the URL has none.
        "broker_url": "filesystem://localhost/" if is_embedded(settings) else settings.broker_url,
        "broker_transport": "service.broker.transports:FolderTransport" if is_embedded(settings) else None,
        "broker_transport_options": _transport_options(settings),
        "broker_use_ssl": tls_options(settings.broker) if is_tls(settings.broker_url) else None,
        "broker_connection_timeout": settings.broker.timeout_seconds,
        "task_default_queue": queue_name(Queue.SHORT),
        "task_ignore_result": True,
        "task_serializer": "json",
        "accept_content": ["json"],
        "result_backend": None,
        "enable_utc": True,
        "worker_hijack_root_logger": False,
    }


def is_embedded(settings: Settings) -> bool:
    """Returns whether messages are sent through folders instead of a server."""
    return settings.broker.url is None


def broker_fault(settings: Settings) -> BrokerFault | None:
    """Returns why messages cannot be sent; None if they can. Takes a few seconds if Redis does not answer."""
    if is_embedded(settings):
        folder = _message_folder(settings)
        if os.access(folder, os.W_OK | os.X_OK):
            return None
        return BrokerFault(f"The folder {folder} cannot be written to.", "Make the state directory writable.")
    address = _address(settings.broker_url)
    if address.startswith("/") and not Path(address).exists():
        return BrokerFault(f"There is no socket {address}.", "Start Redis, or correct EVENKEEL_BROKER_URL.")
    if is_tls(settings.broker_url) and (detail := fault_of_files(settings.broker)) is not None:
        return BrokerFault(detail, "Correct the file, or the variable.")
    try:
        with _client(settings) as client:
            client.ping()
            is_replica = _is_replica(client)
    except (redis.RedisError, OSError, ValueError) as error:
        return fault_of(error, address, is_tls=is_tls(settings.broker_url))
    if is_replica:
        return BrokerFault(
            f"The Redis at {address} is a replica, which accepts no messages.",
            "Set EVENKEEL_BROKER_URL to its primary.",
        )
    return None


def _is_replica(client: redis.Redis) -> bool:
    """Returns whether Redis reports that it is a replica; False if the user may not run INFO, but may send messages."""
    try:
        return client.info("replication").get("role") == "slave"
    except redis.exceptions.NoPermissionError:
        return False


def _client(settings: Settings) -> redis.Redis:
    url = settings.broker_url
    parts = urlsplit(url)
    if parts.scheme == "redis+socket":
        database = parse_qs(parts.query).get("virtual_host", ["0"])[0].strip("/")
        url = f"unix://{parts.netloc}{parts.path}?db={database}"
    timeout = settings.broker.timeout_seconds
    tls = {"connection_class": VerifiedConnection, **tls_options(settings.broker)} if is_tls(url) else {}
    return redis.Redis.from_url(
        url, socket_connect_timeout=timeout, socket_timeout=timeout, retry=Retry(NoBackoff(), 0), protocol=2, **tls
    )


def _address(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or parts.path
    return f"{host}:{parts.port or 6379}" if parts.hostname else host


def _transport_options(settings: Settings) -> dict[str, Any]:
    if not is_embedded(settings):
        return {
            "global_keyprefix": settings.broker.key_prefix,
            # Without these timeouts, a client would wait for as long as Redis is unavailable or hangs.
            "socket_connect_timeout": settings.broker.timeout_seconds,
            "socket_timeout": settings.broker.timeout_seconds,
            "socket_keepalive": True,
        }
    messages, control = _message_folder(settings), settings.broker_dir / "control"
    for folder in (settings.broker_dir, messages, control):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        "data_folder_in": str(messages),
        "data_folder_out": str(messages),
        "control_folder": str(control),
        "store_processed": False,
        "polling_interval": 0.01,
    }


def _message_folder(settings: Settings) -> Path:
    return settings.broker_dir / "messages"
