"""The address of a service, as a user gives it."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

import httpx

from service.cli.client.safe_text import safe_line
from service.cli.errors import CliError, ExitCode

_ADVICE = "Write http://HOST:PORT or https://HOST, in --url or EVENKEEL_URL."
_SEGMENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._:@-]{0,254}")


def checked_url(url: str) -> str:
    """The address without a slash at its end. Raises CliError for what is none, and for one with a password in it."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
        httpx.URL(url.strip())
        (parts.hostname or "").encode("idna")
    except (ValueError, httpx.InvalidURL) as error:
        raise CliError(f"the address of the service cannot be read: {error}", _ADVICE, code=ExitCode.USAGE) from None
    if parts.username is not None or parts.password is not None:
        # Not shown: others see the list of processes, and logs are kept.
        raise CliError(
            "the address of the service has a user or password in it",
            "Show who you are with an API key, in EVENKEEL_API_KEY or --key-file.",
            code=ExitCode.USAGE,
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise CliError(f"{safe_line(url)!r} is no address of a service", _ADVICE, code=ExitCode.USAGE)
    return url.strip().rstrip("/")


def is_here(url: str) -> bool:
    """Whether it is this machine's loopback, which no proxy is asked for."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def segment(name: str, kind: str) -> str:
    """An id as part of a path. Raises CliError for what no id looks like, which might lead elsewhere."""
    if not _SEGMENT.fullmatch(name):
        raise CliError(f"no {kind} has the id {safe_line(name)!r}", code=ExitCode.NOT_FOUND)
    return name
