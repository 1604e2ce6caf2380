"""Requests with their retries and errors, as steps that `connection.py` runs with or without `asyncio`.

A routine is a generator: it yields a `Send` or a `Pause`, gets the response of the request, and returns its result. So
each operation is written once for both kinds of connection.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from http import HTTPStatus
from typing import IO, TypeVar

import httpx
from pydantic import SecretStr, ValidationError

from ..contract.problems import Problem
from .address import checked_url
from .errors import (
    ConfigurationError,
    ConflictError,
    EvenkeelError,
    JobRefusedError,
    NotFoundError,
    RequestRefusedError,
    ServiceFailedError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from .requests import JSON, Request
from .retries import RetryBudget, retry_after_seconds
from .text import safe_line, shortened
from .version import installed_version

T = TypeVar("T")

CONNECT_SECONDS = 10.0
_FIRST_SECONDS = 2.0
"""How long requests to a service are retried that has not responded yet: it is probably not running at all."""

_NOTIFY_FROM_SECONDS = 1.0
_NOT_SENT = httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout
_BUSY = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
_ERRORS: dict[int, type[EvenkeelError]] = {
    HTTPStatus.UNAUTHORIZED: UnauthorizedError,
    HTTPStatus.FORBIDDEN: UnauthorizedError,
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED: UnauthorizedError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.GONE: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.REQUEST_TIMEOUT: ServiceUnavailableError,
    **dict.fromkeys(_BUSY, ServiceUnavailableError),
}


@dataclass(frozen=True)
class Send:
    """Send a request.

    The response is complete, unless `is_stream`: then the body of a success is not read. With `sink`, the body of a
    success is written to it.
    """

    request: Request
    timeout: httpx.Timeout
    is_stream: bool = False
    sink: IO[bytes] | None = None


@dataclass(frozen=True)
class Pause:
    """Wait for a number of seconds."""

    seconds: float


Steps = Generator[Send | Pause, httpx.Response | None, T]


def ignore(_message: str) -> None:
    """Ignores a message."""


class Exchange:
    """What all requests to one service have in common. `notify` gets a message before a pause that is long enough to be
    noticed.
    """

    def __init__(
        self,
        url: str,
        key: SecretStr | None = None,
        *,
        retry_seconds: float = 0,
        timeout_seconds: float = 60,
        notify: Callable[[str], None] = ignore,
    ) -> None:
        self.url = checked_url(url)
        self.headers = {"User-Agent": f"evenkeel/{installed_version()}", "Accept": JSON}
        if key is not None:
            self.headers["Authorization"] = f"Bearer {key.get_secret_value()}"
        self._retry_seconds = retry_seconds
        self._timeout_seconds = timeout_seconds
        self._notify = notify
        self._has_responded = False

    def send(
        self, request: Request, *, is_stream: bool = False, sink: IO[bytes] | None = None
    ) -> Steps[httpx.Response]:
        """Returns the response, which is a success or 304. Raises EvenkeelError.

        Lost requests and requests to a busy service are sent again. With a sink, which may already have a part of the
        body, and in a stream, an interruption raises `httpx.TransportError`.
        """
        budget = self.retry_budget()
        step = Send(request, self._timeout(request), is_stream, sink)
        while True:
            try:
                response = yield step
            except httpx.HTTPError as error:
                if sink is not None and isinstance(error, httpx.TransportError) and not isinstance(error, _NOT_SENT):
                    raise
                if not isinstance(error, _NOT_SENT | httpx.TimeoutException) and not self._has_responded:
                    # The connection was accepted and then closed: the service is probably restarting.
                    self._has_responded = True
                    budget = self.retry_budget()
                may_repeat = isinstance(error, _NOT_SENT) or (
                    request.repeatable and isinstance(error, httpx.TransportError)
                )
                pause = budget.next_pause() if may_repeat else None
                if pause is None:
                    raise self.unreachable(error) from None
                yield from self.pause(pause, "The service does not respond")
                continue
            assert response is not None  # noqa: S101 - the answer to a Send is a response
            if not self._has_responded:
                self._has_responded = True
                budget = self.retry_budget()
            if response.is_success or response.status_code == HTTPStatus.NOT_MODIFIED:
                return response
            pause = _pause_if_busy(response, budget, repeatable=request.repeatable)
            if pause is None:
                raise error_of_response(response, request)
            yield from self.pause(pause, f"The service is busy ({response.status_code})")

    def retry_budget(self) -> RetryBudget:
        """Returns the retries for one request, or for a caller that repeats an operation itself."""
        return RetryBudget(self._retry_seconds if self._has_responded else min(self._retry_seconds, _FIRST_SECONDS))

    def pause(self, seconds: float, reason: str) -> Steps[None]:
        """Waits before the next try."""
        if seconds >= _NOTIFY_FROM_SECONDS:
            self._notify(f"{reason}: trying again in {seconds:.0f} s")
        yield Pause(seconds)

    def unreachable(self, error: Exception) -> ServiceUnavailableError:
        """Returns the error for a request that got no response."""
        reason = shortened(safe_line(error), 300) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            advice = "If you use your own CA, set SSL_CERT_FILE to the file with its certificate."
        else:
            advice = "Check its address (EVENKEEL_URL). `evenkeel up` starts a service on this machine."
        return ServiceUnavailableError(f"{safe_line(self.url)} does not respond: {reason}", advice)

    def _timeout(self, request: Request) -> httpx.Timeout:
        read = self._timeout_seconds + request.extra_seconds
        if request.timeout_seconds is not None:
            read = request.timeout_seconds
        return httpx.Timeout(read, connect=min(CONNECT_SECONDS, read))


def _pause_if_busy(response: httpx.Response, budget: RetryBudget, *, repeatable: bool) -> float | None:
    if response.status_code not in _BUSY:
        return None
    # Quotas are checked before anything else is done; after another error, the request may have been carried out.
    if not repeatable and response.status_code != HTTPStatus.TOO_MANY_REQUESTS:
        return None
    return budget.next_pause(retry_after_seconds(response.headers.get("retry-after")))


def http_error(error: Exception) -> ConfigurationError:
    """Returns the error for an HTTP client that cannot be set up."""
    reason = shortened(safe_line(error), 300) or type(error).__name__
    advice = "Check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY (http://HOST:PORT), and SSL_CERT_FILE."
    return ConfigurationError(f"the HTTP client cannot be set up: {reason}", advice)


def error_of_response(response: httpx.Response, request: Request) -> EvenkeelError:
    """Returns the error for a response that is not a success. The body of `response` must have been read."""
    if response.is_redirect:
        target = shortened(safe_line(response.headers.get("location", "an unknown address")), 200)
        advice = "Redirects are not followed. If that is the address of the service, give it instead."
        return ConfigurationError(f"the service redirects to {target}", advice)
    status = response.status_code
    kind = _ERRORS.get(status)
    if kind is None:
        refused = JobRefusedError if request.has_job else RequestRefusedError
        kind = ServiceFailedError if status >= HTTPStatus.INTERNAL_SERVER_ERROR else refused
    problem = _problem(response)
    advice = ""
    if kind is UnauthorizedError:
        advice = "Without another key, it comes from EVENKEEL_API_KEY or the file EVENKEEL_API_KEY_FILE."
    if kind is ServiceFailedError and problem is not None and problem.request_id:
        advice = f"The log of the service has details: request {safe_line(problem.request_id)}"
    message = f"the service answered {status} {_first_line(response)}".rstrip() if problem is None else problem.detail
    return kind(message, advice, problem, status, request.source)


def _problem(response: httpx.Response) -> Problem | None:
    try:
        return Problem.model_validate(response.json())
    except (ValidationError, ValueError, httpx.ResponseNotRead):
        return None


def _first_line(response: httpx.Response) -> str:
    # A proxy may have written the text.
    if "text/plain" not in response.headers.get("content-type", ""):
        return safe_line(response.reason_phrase)
    return shortened(safe_line(response.text.strip().partition("\n")[0]), 200)
