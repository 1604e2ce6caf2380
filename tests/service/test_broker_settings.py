"""URLs of the broker: what leads to a Redis, and what does not is told without its password."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from service.broker_settings import BrokerSettings


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://:p%40ss@[::1]:6379/3",
        "rediss://user:secret@host:6380/0?ssl_cert_reqs=required&ssl_ca_certs=/ca.pem",
        "redis+socket:///run/redis.sock?virtual_host=2",
    ],
)
def test_urls_that_lead_to_redis(url: str) -> None:
    assert BrokerSettings(url=url).url is not None


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("amqp://guest:secret@rabbit//", "'amqp://' is no broker for Evenkeel: use Redis"),
        ("sentinel://:secret@host:26379", "'sentinel://' is no broker"),
        ("secret", "what was given is no broker"),
        ("redis://:sec#ret@host/0", "%23 for #"),
        ("redis://:sec/ret@host:6379/0", "not the URL of one server"),
        ("redis://:secret@host:port/0", "not the URL of one server"),
        ("redis://:secret@a;redis://b", "not the URL of one server"),
        ("redis://:secret@/0", "no host"),
        ("redis://:secret@host/first", "the database of a Redis is a number"),
        ("redis://:secret@host?timeout=3", "of options behind '?' there are only ssl_"),
        ("redis+socket://", "no path of a socket"),
    ],
)
def test_urls_that_do_not_are_refused_without_their_password(url: str, told: str) -> None:
    with pytest.raises(ValidationError) as refused:
        BrokerSettings(url=url)
    assert told in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "sec#ret" not in str(refused.value)
