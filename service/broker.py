"""The doorbell's wiring: what the API, which rings, and the workers, which listen, must agree on.

The database is the truth. A message holds a job id alone and may be lost or come twice without harm.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from service import redis_transport
from service.settings import Settings
from service.spec.queues import Queue

_QUEUE = "evenkeel"


@dataclass(frozen=True)
class BrokerFault:
    """What keeps messages from being sent, and what to do, each in one sentence without any secret."""

    detail: str
    advice: str


def queue_name(queue: str) -> str:
    """What the broker calls a `Queue`. Short jobs keep the one name that there was before."""
    return _QUEUE if queue == Queue.SHORT else f"{_QUEUE}.{queue}"


def celery_config(settings: Settings) -> dict[str, Any]:
    """The Celery settings that both sides share. Makes the embedded broker's folders, readable by their owner alone."""
    redis_transport.register()
    return {
        # A host that means nothing keeps kombu from warning that there is none.
        "broker_url": "filesystem://localhost/" if is_embedded(settings) else settings.broker_url,
        "broker_transport": "service.folder_transport:FolderTransport" if is_embedded(settings) else None,
        "broker_transport_options": _transport_options(settings),
        "broker_use_ssl": _tls(settings.broker_url),
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
    """Whether messages travel through folders instead of a server."""
    return settings.broker.url is None


def broker_fault(settings: Settings) -> BrokerFault | None:
    """What keeps messages from being sent; None while nothing does. Takes a few seconds where Redis is silent."""
    if is_embedded(settings):
        folder = _messages(settings)
        if os.access(folder, os.W_OK | os.X_OK):
            return None
        return BrokerFault(f"The folder {folder} cannot be written to.", "Make the state directory writable.")
    address = _address(settings.broker_url)
    if address.startswith("/") and not Path(address).exists():
        return BrokerFault(f"There is no socket {address}.", "Start Redis, or correct EVENKEEL_BROKER_URL.")
    try:
        with _client(settings) as client:
            client.ping()
            is_replica = _is_replica(client)
    except (redis.RedisError, OSError, ValueError) as error:
        return _fault_of(error, address)
    if is_replica:
        return BrokerFault(
            f"The Redis at {address} is a replica, which takes no messages.",
            "Set EVENKEEL_BROKER_URL to its primary.",
        )
    return None


def _is_replica(client: redis.Redis) -> bool:
    """Whether it says that it is one. A user without dangerous commands may not ask, and may send messages all the
    same: that is no fault."""
    try:
        return client.info("replication").get("role") == "slave"
    except redis.exceptions.NoPermissionError:
        return False


def _fault_of(error: Exception, address: str) -> BrokerFault:
    match error:
        case redis.AuthenticationError() | redis.exceptions.NoPermissionError():
            return BrokerFault(
                f"The Redis at {address} refuses the user or password, or the user may not use it.",
                "Correct user and password in EVENKEEL_BROKER_URL.",
            )
        case redis.BusyLoadingError():
            return BrokerFault(f"The Redis at {address} is still loading its data.", "Wait until it has.")
        case redis.TimeoutError() | TimeoutError():
            return BrokerFault(
                f"Redis does not answer at {address}: no answer in time.",
                "See whether the server hangs or a firewall swallows packets; EVENKEEL_BROKER_TIMEOUT_SECONDS bounds "
                "the wait.",
            )
        case redis.ConnectionError() if (reason := _reason(error)) is not None:
            return BrokerFault(
                f"Redis does not answer at {address}: {reason}.", "Start it, or correct EVENKEEL_BROKER_URL."
            )
        case redis.ResponseError():
            return BrokerFault(
                f"The Redis at {address} refuses to work: {error}.", "Correct its configuration or EVENKEEL_BROKER_URL."
            )
    return BrokerFault(
        f"What listens at {address} does not speak as Redis does.",
        "Correct host and port in EVENKEEL_BROKER_URL; rediss:// is for TLS, redis:// for none.",
    )


def _reason(error: BaseException | None) -> str | None:
    """Why nothing could be reached; None where something took the connection and then closed it, or talked nonsense."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return f"TLS failed ({error.reason or type(error).__name__})"
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            return None
        if isinstance(error, OSError) and error.errno is not None:
            # Name resolution has errors of its own, with texts of their own.
            return error.strerror or os.strerror(error.errno)
        error = error.__cause__ or error.__context__
    return None


def _client(settings: Settings) -> redis.Redis:
    url = settings.broker_url
    parts = urlsplit(url)
    if parts.scheme == "redis+socket":
        database = parse_qs(parts.query).get("virtual_host", ["0"])[0].strip("/")
        url = f"unix://{parts.netloc}{parts.path}?db={database}"
    timeout = settings.broker.timeout_seconds
    return redis.Redis.from_url(
        url, socket_connect_timeout=timeout, socket_timeout=timeout, retry=Retry(NoBackoff(), 0), protocol=2
    )


def _address(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or parts.path
    return f"{host}:{parts.port or 6379}" if parts.hostname else host


def _tls(url: str) -> dict[str, Any] | None:
    """kombu takes any certificate where the URL names no option of TLS: like redis-py, we ask for a valid one."""
    parts = urlsplit(url)
    if parts.scheme != "rediss" or parts.query:
        return None
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED}


def _transport_options(settings: Settings) -> dict[str, Any]:
    if not is_embedded(settings):
        return {
            "global_keyprefix": settings.broker.key_prefix,
            # Without these, a caller would hang for as long as Redis is away, or frozen.
            "socket_connect_timeout": settings.broker.timeout_seconds,
            "socket_timeout": settings.broker.timeout_seconds,
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
