"""`evenkeel health`: asks a part over HTTP whether it works, for health checks where no curl is installed."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.errors import CliError, ExitCode, told_plainly

_TIMEOUT_SECONDS = 5
_MAX_BYTES = 1 << 20


@told_plainly
def health(
    url: Annotated[str, typer.Argument(help="What to ask, such as http://127.0.0.1:8080/healthz.")],
    field: Annotated[
        str | None,
        typer.Option(metavar="NAME[=VALUE]", help="Field that the JSON answer must have: of this value, or any."),
    ] = None,
) -> None:
    """Ask a part over HTTP whether it works: exit code 0 if so, 1 if not. For health checks of containers."""
    body = _ask(url)
    if field is not None:
        _require_field(url, body, field)


def _ask(url: str) -> bytes:
    """The body of a good answer. Raises CliError for any other."""
    import urllib.error
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise CliError(f"{url} is no address of HTTP", "Write http://HOST:PORT/PATH.", code=ExitCode.USAGE)
    # A proxy would be asked about itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_SECONDS) as answer:
            body: bytes = answer.read(_MAX_BYTES)
            return body
    except urllib.error.HTTPError as error:
        raise CliError(f"{url} answers {error.code}: {error.read(500).decode(errors='replace')}") from None
    except (OSError, ValueError) as error:
        raise CliError(f"{url} does not answer: {getattr(error, 'reason', error)}") from None


def _require_field(url: str, body: bytes, field: str) -> None:
    import json

    name, _, wanted = field.partition("=")
    try:
        answer = json.loads(body)
    except ValueError:
        raise CliError(f"{url} answers no JSON") from None
    value = answer.get(name) if isinstance(answer, dict) else None
    if not value or (wanted and str(value) != wanted):
        raise CliError(f"{url} answers {name}={value}, not {wanted or 'a value'}")
