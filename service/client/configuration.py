"""The service and the key that a client uses: those of the call, otherwise those of the environment."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from pydantic import ValidationError

from ..config.client import ClientSettings
from .address import api_key, checked_key, checked_url, refuse_key_over_http
from .errors import ConfigurationError
from .exchange import Exchange, ignore


def exchange_of(
    url: str | None,
    key: str | None,
    key_file: str | PathLike[str] | None,
    timeout: float | None,
    retry: float | None,
    notify: Callable[[str], None] = ignore,
) -> Exchange:
    """Returns the settings of all requests.

    Raises ConfigurationError if an argument or a variable is invalid, or if the key would be sent to another machine
    over http.
    """
    try:
        settings = ClientSettings()
    except ValidationError as error:
        message = "; ".join(
            f"EVENKEEL_{'_'.join(map(str, problem['loc'])).upper()}: {problem['msg']}" for problem in error.errors()
        )
        raise ConfigurationError(message, "Correct the environment variable.") from None
    if key is not None and key_file is not None:
        raise ConfigurationError("the key is given twice, as `key` and `key_file`", "Leave one of them out.")
    address = checked_url(settings.url if url is None else url)
    file = None if key_file is None else Path(key_file)
    secret = api_key(settings, file) if key is None else checked_key(key, "`key`")
    refuse_key_over_http(address, secret, is_allowed=settings.insecure_http)
    return Exchange(
        address,
        secret,
        retry_seconds=settings.retry_seconds if retry is None else retry,
        timeout_seconds=settings.timeout_seconds if timeout is None else timeout,
        notify=notify,
    )
