"""The connection of the commands: that of `service.client`, with its errors as messages and exit codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self, TypeVar

import httpx
from pydantic import BaseModel, SecretStr

from service.cli.terminal import CliError, ExitCode, program
from service.client import responses
from service.client.connection import Connection as ClientConnection
from service.client.errors import (
    ConflictError,
    EvenkeelError,
    NotFoundError,
    ServiceFailedError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from service.client.exchange import Exchange, Steps, ignore
from service.client.requests import Request
from service.client.retries import RetryBudget

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

_EXIT_CODES: tuple[tuple[type[EvenkeelError], ExitCode], ...] = (
    (UnauthorizedError, ExitCode.DENIED),
    (NotFoundError, ExitCode.NOT_FOUND),
    (ConflictError, ExitCode.CONFLICT),
    (ServiceUnavailableError, ExitCode.UNREACHABLE),
    (ServiceFailedError, ExitCode.CRASHED),
    (EvenkeelError, ExitCode.USAGE),
)


def cli_error(error: EvenkeelError) -> CliError:
    """Returns an error of the client as that of a command."""
    code = next(code for kind, code in _EXIT_CODES if isinstance(error, kind))
    advice = error.advice
    if isinstance(error, NotFoundError) and error.code == "job_not_found":
        advice = list_jobs_advice()
    lines = (*error.lines, *([advice] if advice else ()))
    return CliError(error.head, "\n  ".join(lines), code=code)


def list_jobs_advice() -> str:
    """Returns what to do if no job has an id."""
    return f"List the jobs: {program()} jobs"


@contextmanager
def as_cli_errors() -> Iterator[None]:
    """A block whose EvenkeelErrors are raised as CliErrors."""
    try:
        yield
    except EvenkeelError as error:
        raise cli_error(error) from None


def read(kind: type[M], document: object) -> M:
    """Validates a response. Raises CliError if it does not have the form of `kind`."""
    with as_cli_errors():
        return responses.read(kind, document)


def document_of(response: httpx.Response) -> responses.Document:
    """Returns the JSON object of a response. Raises CliError if it has none."""
    with as_cli_errors():
        return responses.document_of(response)


class Connection:
    """Sends requests to the service at `url` and raises CliError for responses that are not a success."""

    def __init__(
        self,
        url: str,
        key: SecretStr | None = None,
        *,
        retry_seconds: float = 0,
        timeout_seconds: float = 60,
        notify: Callable[[str], None] = ignore,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        with as_cli_errors():
            self._exchange = Exchange(
                url, key, retry_seconds=retry_seconds, timeout_seconds=timeout_seconds, notify=notify
            )
            self._connection = ClientConnection(self._exchange, transport)

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._exchange.url

    def send(self, request: Request) -> httpx.Response:
        """Returns the complete response, which is a success or 304. Lost and refused requests are sent again."""
        return self.run(lambda exchange: exchange.send(request))

    def run(self, routine: Callable[[Exchange], Steps[T]]) -> T:
        """Runs a routine of `service.client.operations` and returns its result."""
        with as_cli_errors():
            return self._connection.run(routine(self._exchange))

    @contextmanager
    def stream(self, request: Request) -> Iterator[httpx.Response]:
        """Yields the successful response before its body is read; closes it at the end of the block.

        Raises CliError for other responses, and `httpx.TransportError` if the body is cut off.
        """
        with as_cli_errors(), self._connection.stream(request) as response:
            yield response

    def retry_budget(self) -> RetryBudget:
        """Returns the retries for a caller that repeats an operation itself."""
        return self._exchange.retry_budget()

    def pause(self, seconds: float, reason: str) -> None:
        """Waits before the next try."""
        self._connection.run(self._exchange.pause(seconds, reason))

    def unreachable(self, error: Exception) -> CliError:
        """Returns the error for a request that got no response."""
        return cli_error(self._exchange.unreachable(error))

    def close(self) -> None:
        """Closes the connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
