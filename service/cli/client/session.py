"""What one command works with: the service and the output. Settings and options come together here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.cli.client.output import Output
    from service.cli.client.service import Service
    from service.client_settings import ClientSettings


@dataclass(frozen=True)
class Session:
    """The service that was asked for, and where to write."""

    service: Service
    output: Output


@contextmanager
def opened(url: str | None, key_file: Path | None, *, as_json: bool = False) -> Iterator[Session]:
    """A session with the service of the options, else of the environment. Raises CliError where either is wrong."""
    from service.cli.client.address import checked_url, is_here
    from service.cli.client.connection import Connection
    from service.cli.client.credentials import api_key
    from service.cli.client.output import Output
    from service.cli.client.service import Service
    from service.cli.errors import CliError, ExitCode

    settings = client_settings()
    output = Output(as_json=as_json)
    asked, key = checked_url(settings.url if url is None else url), api_key(settings, key_file)
    if key is not None and not settings.insecure_http and asked.startswith("http:") and not is_here(asked):
        raise CliError(
            "the API key would go over http, where others hear it",
            "Write https://HOST in --url or EVENKEEL_URL; or, where nobody listens, set EVENKEEL_INSECURE_HTTP=true.",
            code=ExitCode.USAGE,
        )
    with Connection(
        asked,
        key,
        retry_seconds=settings.retry_seconds,
        timeout_seconds=settings.timeout_seconds,
        tell=output.note,
    ) as connection:
        yield Session(Service(connection, settings.timeout_seconds), output)


def client_settings() -> ClientSettings:
    """The variables of these commands. Raises CliError that names the wrong one."""
    from pydantic import ValidationError

    from service.cli.errors import CliError, ExitCode
    from service.client_settings import ClientSettings

    try:
        return ClientSettings()
    except ValidationError as error:
        told = "; ".join(
            f"EVENKEEL_{'_'.join(map(str, problem['loc'])).upper()}: {problem['msg']}" for problem in error.errors()
        )
        raise CliError(told, "The README lists every variable.", code=ExitCode.USAGE) from None
