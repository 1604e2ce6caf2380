"""kombu's transport over Redis, which drops messages that are not ours: whoever reaches Redis can write there."""

from __future__ import annotations

from typing import Any

import structlog
from kombu.transport import TRANSPORT_ALIASES, redis

from service.messages import is_ours
from service.redis_tls import VerifiedConnection

_log = structlog.get_logger(__name__)


class RedisChannel(redis.Channel):  # type: ignore[misc]
    """A channel that drops what is no JSON."""

    connection_class_ssl = VerifiedConnection

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except ValueError as error:
            # Taken from Redis, and no message to anybody.
            _log.error("message_dropped", reason=f"it is no JSON ({type(error).__name__})")
            return True


class RedisTransport(redis.Transport):  # type: ignore[misc]
    """`redis://`, `rediss://` and `redis+socket://` with `RedisChannel`."""

    Channel = RedisChannel

    def _deliver(self, message: Any, queue: str) -> None:
        if is_ours(message):
            super()._deliver(message, queue)


def register() -> None:
    """Makes it what these URLs mean in this process: of a socket's URL, kombu takes the transport's name alone."""
    name = f"{__name__}:{RedisTransport.__name__}"
    TRANSPORT_ALIASES.update(redis=name, rediss=name)
