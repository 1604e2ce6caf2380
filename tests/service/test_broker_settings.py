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
        "rediss://user:secret@host:6380/0",
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
        ("redis://:secret@host?timeout=3", "there are no options behind '?'"),
        ("redis+socket://", "no path of a socket"),
    ],
)
def test_urls_that_do_not_are_refused_without_their_password(url: str, told: str) -> None:
    with pytest.raises(ValidationError) as refused:
        BrokerSettings(url=url)
    assert told in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "sec#ret" not in str(refused.value)


@pytest.mark.withstands(
    "a URL of Redis that turns TLS's checks off",
    kind="attack",
    how="kombu's and redis-py's options, with values, without one, and empty, which kombu took for none at all",
    times=8,
    guaranteed="the service does not start, and says which settings there are; there is no way to connect unchecked",
)
@pytest.mark.parametrize(
    "options",
    [
        "ssl_cert_reqs=none",
        "ssl_cert_reqs=CERT_NONE",
        "ssl_cert_reqs=optional",
        "ssl_check_hostname=false",
        "ssl_ca_certs=",
        "x",
        "virtual_host=1",
        "",
    ],
)
def test_no_url_turns_off_what_tls_checks(options: str) -> None:
    with pytest.raises(ValidationError, match=r"always checked.*EVENKEEL_BROKER_TLS_CA_FILE") as refused:
        BrokerSettings(url=f"rediss://:secret@host:6380/0?{options}")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "files", "told"),
    [
        ("redis://:secret@host", {"tls_ca_file": "ca.pem"}, "EVENKEEL_BROKER_URL asks for none"),
        ("redis+socket:///run/redis.sock", {"tls_certificate_file": "own.pem"}, "asks for none: write rediss://"),
        (None, {"tls_ca_file": "ca.pem"}, "EVENKEEL_BROKER_URL asks for none"),
        ("rediss://:secret@host", {"tls_key_file": "own.key"}, "needs EVENKEEL_BROKER_TLS_CERTIFICATE_FILE"),
    ],
)
def test_files_for_tls_without_tls_are_refused(url: str | None, files: dict[str, str], told: str) -> None:
    with pytest.raises(ValidationError, match=told) as refused:
        BrokerSettings.model_validate({"url": url, **files})
    assert "secret" not in str(refused.value)


def test_files_for_tls() -> None:
    files = {"tls_ca_file": "ca.pem", "tls_certificate_file": "own.pem", "tls_key_file": "own.key"}
    settings = BrokerSettings.model_validate({"url": "rediss://:secret@host", **files})
    assert (str(settings.tls_ca_file), str(settings.tls_key_file)) == ("ca.pem", "own.key")
