"""Checks of the address of the service, of the API key, and of ids in paths."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from pydantic import SecretStr

from ..config.client import ClientSettings
from .errors import ConfigurationError, NotFoundError
from .text import safe_line

_URL_ADVICE = "Write http://HOST:PORT or https://HOST."
_SEGMENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._:@-]{0,254}")
_KEY = re.compile(r"[\x21-\x7e]{1,1000}")
_MAX_KEY_FILE_BYTES = 10_000


def checked_url(url: str) -> str:
    """Returns the address without a slash at its end.

    Raises ConfigurationError if it is invalid or contains a password.
    """
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
        httpx.URL(url.strip())
        (parts.hostname or "").encode("idna")
    except (ValueError, httpx.InvalidURL) as error:
        raise ConfigurationError(f"the address of the service is invalid: {error}", _URL_ADVICE) from None
    if parts.username is not None or parts.password is not None:
        # The message does not repeat the address: other users can read process lists and logs.
        raise ConfigurationError(
            "the address of the service contains a user or a password",
            "Authenticate with an API key, in EVENKEEL_API_KEY or a file.",
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ConfigurationError(f"{safe_line(url)!r} is not the address of a service", _URL_ADVICE)
    return url.strip().rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether the host is this machine's loopback interface, which is accessed without a proxy."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_key_over_http(url: str, key: SecretStr | None, *, is_allowed: bool) -> None:
    """Raises ConfigurationError if the key would be sent to another machine without encryption."""
    if key is not None and not is_allowed and url.startswith("http:") and not is_loopback(url):
        raise ConfigurationError(
            "the API key would be sent over http without encryption",
            "Use https://HOST. In a trusted network, EVENKEEL_INSECURE_HTTP=true allows it.",
        )


def segment(name: str, kind: str) -> str:
    """Returns an id as a segment of a path. Raises NotFoundError for text that is no id and could change the path."""
    if not _SEGMENT.fullmatch(name):
        raise NotFoundError(f"no {kind} has the id {safe_line(name)!r}")
    return name


def api_key(settings: ClientSettings, key_file: Path | None = None) -> SecretStr | None:
    """Returns the key in `key_file`, otherwise that of the settings, otherwise None. Raises ConfigurationError if it is
    invalid.
    """
    if key_file is None and settings.api_key is not None:
        return checked_key(settings.api_key.get_secret_value(), "EVENKEEL_API_KEY")
    file = key_file or settings.api_key_file
    return None if file is None else checked_key(_read_key(file), f"The file {file}")


def _read_key(file: Path) -> str:
    try:
        with file.expanduser().open("rb") as opened:
            return opened.read(_MAX_KEY_FILE_BYTES).decode()
    except OSError as error:
        raise ConfigurationError(f"the API key could not be read: {error}") from None
    except UnicodeDecodeError:
        return ""


def checked_key(text: str, place: str) -> SecretStr:
    """Returns the key. Raises ConfigurationError, which does not show it, for text that is not one word of ASCII."""
    if not _KEY.fullmatch(text.strip()):
        raise ConfigurationError(f"{place} does not contain an API key", "A key is one word that begins with ek_.")
    return SecretStr(text.strip())
