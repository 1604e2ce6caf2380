"""How workers are rung: where Redis is, and what is wrong with a URL that leads to none."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

_REDIS_SCHEMES = ("redis", "rediss", "redis+socket")
_TLS_OPTIONS = frozenset({"ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"})


class BrokerSettings(BaseSettings):
    """How workers are rung. The database is the truth; the broker may lose everything."""

    # What is wrong may be a password, or stand beside one.
    model_config = SettingsConfigDict(
        env_prefix="EVENKEEL_BROKER_", frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True
    )

    url: SecretStr | None = Field(
        default=None,
        description="Redis: `redis://:PASSWORD@HOST:6379/0`, `rediss://…` for TLS, or `redis+socket:///PATH`; "
        "folders in the state directory by default.",
    )
    password: SecretStr | None = Field(
        default=None, description="Password for a URL that has none, as it is: nothing in it is percent-encoded."
    )
    key_prefix: str = Field(
        default="",
        max_length=64,
        pattern=r"^[A-Za-z0-9_.:{}-]*$",
        description="Put before every key in Redis, so that several installations may share one.",
    )
    timeout_seconds: float = Field(
        default=2, ge=0.1, le=60, description="How long connecting to Redis, and its answer to a message, may take."
    )

    @field_validator("url")
    @classmethod
    def _leads_to_redis(cls, url: SecretStr | None) -> SecretStr | None:
        fault = None if url is None else _fault_of_redis_url(url.get_secret_value())
        if fault is not None:
            raise PydanticCustomError("broker_url", "{fault}", {"fault": fault})
        return url


def _fault_of_redis_url(url: str) -> str | None:
    """What keeps the URL from naming a Redis, and what to write; None for one that does. Tells nothing of the URL but
    its scheme, since a password may stand anywhere in one that is wrong."""
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme not in _REDIS_SCHEMES:
        known = f"'{scheme}://'" if scheme.replace("+", "").isalpha() else "what was given"
        return (
            f"{known} is no broker for Evenkeel: use Redis (redis://HOST:6379/0, rediss://… for TLS, "
            "redis+socket:///PATH), or leave the variable out to use folders in the state directory"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or parts.fragment or "," in parts.netloc or ";" in url:
        return (
            "not the URL of one server: write redis://:PASSWORD@HOST:PORT/DATABASE, and in the password "
            "%23 for #, %2F for /, %3A for :, %3F for ?, %40 for @"
        )
    if scheme == "redis+socket":
        return None if len(parts.path) > 1 else "no path of a socket: write redis+socket:///PATH"
    if not parts.hostname:
        return f"no host: write {scheme}://HOST:6379/0"
    if not _TLS_OPTIONS.issuperset(parse_qs(parts.query)):
        return f"of options behind '?' there are only {', '.join(sorted(_TLS_OPTIONS))}"
    if parts.path.strip("/") and not parts.path.strip("/").isdecimal():
        return f"the database of a Redis is a number: write {scheme}://HOST:6379/0"
    return None
