"""How workers are rung: where Redis is, and what is wrong with a URL that leads to none."""

from __future__ import annotations

from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

_REDIS_SCHEMES = ("redis", "rediss", "redis+socket")


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
    tls_ca_file: Path | None = Field(
        default=None,
        description="Certificates (PEM) of the only CAs that may vouch for Redis; those that this machine trusts by "
        "default. For `rediss://`, as the next two are.",
    )
    tls_certificate_file: Path | None = Field(
        default=None,
        description="Certificate (PEM) to show to a Redis that asks for one, with those of the CAs below the root.",
    )
    tls_key_file: Path | None = Field(
        default=None, description="Its key (PEM, without a passphrase), where that is in a file of its own."
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

    @model_validator(mode="after")
    def _files_are_for_tls(self) -> Self:
        if self.tls_key_file is not None and self.tls_certificate_file is None:
            raise PydanticCustomError(
                "broker_key", "EVENKEEL_BROKER_TLS_KEY_FILE needs EVENKEEL_BROKER_TLS_CERTIFICATE_FILE beside it"
            )
        has_files = self.tls_ca_file is not None or self.tls_certificate_file is not None
        if has_files and (self.url is None or not self.url.get_secret_value().startswith("rediss://")):
            # Whoever names them would take the connection for a safe one.
            raise PydanticCustomError(
                "broker_tls",
                "EVENKEEL_BROKER_TLS_CA_FILE and EVENKEEL_BROKER_TLS_CERTIFICATE_FILE are for TLS, and "
                "EVENKEEL_BROKER_URL asks for none: write rediss://HOST:PORT/0, or leave them out",
            )
        return self


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
    if "?" in url:
        return (
            "there are no options behind '?' (in a password write %3F): the certificate of Redis and its host name are "
            "always checked, and files for that go into EVENKEEL_BROKER_TLS_CA_FILE, _CERTIFICATE_FILE and _KEY_FILE"
        )
    if parts.path.strip("/") and not parts.path.strip("/").isdecimal():
        return f"the database of a Redis is a number: write {scheme}://HOST:6379/0"
    return None
