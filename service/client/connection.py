"""Requests to one service, with retries, and its errors as messages for people.

The checks of the address and of the API key come first, then the retries, then the texts of errors (with the place in
the SQL), then `Connection`. The API key is sent to the named service only: redirects are not followed.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from pydantic import SecretStr, ValidationError
from rich.cells import cell_len

from service import __version__
from service.client.terminal import CliError, ExitCode, safe_line, shortened
from service.config.client import ClientSettings
from service.contract.problems import Issue, Problem

_URL_ADVICE = "Write http://HOST:PORT or https://HOST, in --url or EVENKEEL_URL."
_SEGMENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._:@-]{0,254}")

_KEY = re.compile(r"[\x21-\x7e]{1,1000}")
_MAX_KEY_FILE_BYTES = 10_000

_FIRST_PAUSE = 0.2
_MAX_PAUSE = 5.0
_FIRST_SECONDS = 2.0
"""How long requests to a service are retried that has not responded yet: it is probably not running at all."""

_NOTIFY_FROM_SECONDS = 1.0
_RETRY_AFTER = re.compile(r"\d{1,6}")

_EXCERPT_WIDTH = 76
_EXCERPT_BEFORE = 30
_MAX_ISSUES = 20
_MAX_CHARACTERS = 2000

CONNECT_SECONDS = 10.0
_NOT_SENT = httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout
_BUSY = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
_EXIT_CODES = {
    HTTPStatus.UNAUTHORIZED: ExitCode.DENIED,
    HTTPStatus.FORBIDDEN: ExitCode.DENIED,
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED: ExitCode.DENIED,
    HTTPStatus.NOT_FOUND: ExitCode.NOT_FOUND,
    HTTPStatus.GONE: ExitCode.NOT_FOUND,
    HTTPStatus.CONFLICT: ExitCode.CONFLICT,
    HTTPStatus.REQUEST_TIMEOUT: ExitCode.UNREACHABLE,
    **dict.fromkeys(_BUSY, ExitCode.UNREACHABLE),
}


def checked_url(url: str) -> str:
    """Returns the address without a slash at its end. Raises CliError if it is invalid or contains a password."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
        httpx.URL(url.strip())
        (parts.hostname or "").encode("idna")
    except (ValueError, httpx.InvalidURL) as error:
        raise CliError(f"the address of the service is invalid: {error}", _URL_ADVICE, code=ExitCode.USAGE) from None
    if parts.username is not None or parts.password is not None:
        # The message does not repeat the address: other users can read process lists and logs.
        raise CliError(
            "the address of the service contains a user or a password",
            "Authenticate with an API key, in EVENKEEL_API_KEY or --key-file.",
            code=ExitCode.USAGE,
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise CliError(f"{safe_line(url)!r} is not the address of a service", _URL_ADVICE, code=ExitCode.USAGE)
    return url.strip().rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether the host is this machine's loopback interface, which is accessed without a proxy."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def segment(name: str, kind: str) -> str:
    """Returns an id as a segment of a path. Raises CliError for text that is not an id and could change the path."""
    if not _SEGMENT.fullmatch(name):
        raise CliError(f"no {kind} has the id {safe_line(name)!r}", code=ExitCode.NOT_FOUND)
    return name


def api_key(settings: ClientSettings, key_file: Path | None) -> SecretStr | None:
    """Returns the key in `key_file`, otherwise that of the settings, otherwise None. Raises CliError if it is invalid.

    No option takes the key itself, since other users can read command lines.
    """
    if key_file is None and settings.api_key is not None:
        return _checked_key(settings.api_key.get_secret_value(), "EVENKEEL_API_KEY")
    file = key_file or settings.api_key_file
    return None if file is None else _checked_key(_read_key(file), f"The file {file}")


def _read_key(file: Path) -> str:
    try:
        with file.expanduser().open("rb") as opened:
            return opened.read(_MAX_KEY_FILE_BYTES).decode()
    except OSError as error:
        raise CliError(f"the API key could not be read: {error}", code=ExitCode.USAGE) from None
    except UnicodeDecodeError:
        return ""


def _checked_key(text: str, place: str) -> SecretStr:
    if not _KEY.fullmatch(text.strip()):
        raise CliError(
            f"{place} does not contain an API key", "A key is one word that begins with ek_.", code=ExitCode.USAGE
        )
    return SecretStr(text.strip())


class RetryBudget:
    """The pauses between the tries of one request. They double, until `seconds` have passed since the first try."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = clock() + seconds
        self._tries = 0

    def next_pause(self, at_least: float | None = None) -> float | None:
        """Returns the seconds until the next try, at least those that the service requested; None to give up."""
        pause = max(min(_FIRST_PAUSE * 2**self._tries, _MAX_PAUSE), at_least or 0)
        self._tries += 1
        return pause if self._clock() + pause <= self._until else None


def retry_after_seconds(header: str | None) -> float | None:
    """Returns the seconds in a `Retry-After` header; None for a date or without the header."""
    return float(header) if header is not None and _RETRY_AFTER.fullmatch(header.strip()) else None


def excerpt(sql: str, line: int, column: int | None, width: int = _EXCERPT_WIDTH) -> Sequence[str]:
    """Returns a line of SQL, and a second line with a caret below the column; nothing if the line does not exist.

    Lines and columns are counted from 1; without a column there is no caret. A long line is cut around the column.

    >>> print(*excerpt("SELECT a,\\n  b.x FROM b", 2, 5), sep="\\n")
      b.x FROM b
        ^
    """
    lines = sql.split("\n")
    if not 1 <= line <= len(lines):
        return ()
    text = lines[line - 1].rstrip("\r").replace("\t", " ")
    if column is None or not 1 <= column <= len(text) + 1:
        return (safe_line(text[:width]),)
    begin = 0 if len(text) <= width else max(0, column - 1 - _EXCERPT_BEFORE)
    before, after = text[begin : column - 1], text[column - 1 : begin + width]
    head = ("…" if begin else "") + safe_line(before)
    tail = safe_line(after) + ("…" if begin + width < len(text) else "")
    return head + tail, " " * cell_len(head) + "^"


@dataclass(frozen=True)
class Source:
    """The posted SQL, and its name for the user: a file, or `--sql`."""

    sql: str
    label: str


def error_of_response(response: httpx.Response, source: Source | None = None) -> CliError:
    """Returns the error for a response that is not a success. The body of `response` must have been read."""
    if response.is_redirect:
        return _redirect_error(response)
    code = _exit_code(response.status_code)
    problem = _problem(response)
    if problem is None:
        return CliError(f"the service answered {response.status_code} {_first_line(response)}".rstrip(), code=code)
    lines = list(problem_lines(problem, source))
    if code is ExitCode.DENIED:
        lines.append("The key comes from --key-file, EVENKEEL_API_KEY or EVENKEEL_API_KEY_FILE.")
    if code is ExitCode.CRASHED and problem.request_id:
        lines.append(f"The log of the service has details: request {safe_line(problem.request_id)}")
    return CliError(problem_head(problem), "\n  ".join(lines), code=code)


def problem_head(problem: Problem) -> str:
    """Returns a problem as one line, with its stable code."""
    detail = problem.detail if len(problem.errors) < 2 else f"the request has {len(problem.errors)} errors"
    return f"{_shown(detail)} [{safe_line(problem.code)}]"


def problem_lines(problem: Problem, source: Source | None) -> Iterator[str]:
    """Yields lines with the place of each error: the SQL with a caret below it, or the pointer into the request."""
    several = len(problem.errors) > 1
    for issue in problem.errors[:_MAX_ISSUES]:
        if several:
            yield f"{_shown(issue.detail)} [{safe_line(issue.code)}]"
        # The detail of a problem with one error may already contain the pointer.
        is_known = not several and issue.pointer is not None and issue.pointer in problem.detail
        if not is_known or issue.line is not None:
            yield from _place(issue, source)
    if len(problem.errors) > _MAX_ISSUES:
        yield f"… and {len(problem.errors) - _MAX_ISSUES} more"


def _shown(text: str) -> str:
    return shortened(safe_line(text), _MAX_CHARACTERS)


def _place(issue: Issue, source: Source | None) -> Iterable[str]:
    if issue.line is None:
        return (f"at {safe_line(issue.pointer)}",) if issue.pointer else ()
    if source is None:
        return (f"at line {issue.line}" + ("" if issue.column is None else f", column {issue.column}"),)
    column = "" if issue.column is None else f":{issue.column}"
    return (f"{safe_line(source.label)}:{issue.line}{column}", *excerpt(source.sql, issue.line, issue.column))


def _exit_code(status: int) -> ExitCode:
    if status in _EXIT_CODES:
        return _EXIT_CODES[HTTPStatus(status)]
    return ExitCode.CRASHED if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ExitCode.USAGE


def _problem(response: httpx.Response) -> Problem | None:
    try:
        return Problem.model_validate(response.json())
    except (ValidationError, ValueError):
        return None


def _first_line(response: httpx.Response) -> str:
    # A proxy may have written the text.
    if "text/plain" not in response.headers.get("content-type", ""):
        return safe_line(response.reason_phrase)
    return shortened(safe_line(response.text.strip().partition("\n")[0]), 200)


def _redirect_error(response: httpx.Response) -> CliError:
    target = shortened(safe_line(response.headers.get("location", "an unknown address")), 200)
    return CliError(
        f"the service redirects to {target}",
        "Redirects are not followed. If that is the address of the service, give it with --url.",
        code=ExitCode.USAGE,
    )


def _ignore(_message: str) -> None:
    return


class Connection:
    """Sends requests to the service at `url` and raises CliError for responses that are not a success.

    `notify` gets a message before a pause that is long enough to be noticed.
    """

    def __init__(
        self,
        url: str,
        key: SecretStr | None = None,
        *,
        retry_seconds: float = 0,
        timeout_seconds: float = 60,
        notify: Callable[[str], None] = _ignore,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = checked_url(url)
        self._retry_seconds = retry_seconds
        self._timeout_seconds = timeout_seconds
        self._notify = notify
        self._has_responded = False
        headers = {"User-Agent": f"evenkeel/{__version__}", "Accept": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key.get_secret_value()}"
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers=headers,
                # A redirect may lead to another host, which must not get the key.
                follow_redirects=False,
                # A proxy would connect to the loopback interface of its own machine.
                trust_env=not is_loopback(self.url),
                verify=httpx.create_ssl_context() if self.url.startswith("https:") else True,
                transport=transport,
            )
        except (ImportError, OSError, ValueError) as error:
            reason = shortened(safe_line(error), 300) or type(error).__name__
            advice = "Check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY (http://HOST:PORT), and SSL_CERT_FILE."
            raise CliError(f"the HTTP client cannot be set up: {reason}", advice, code=ExitCode.USAGE) from None

    def request(
        self,
        method: str,
        path: str,
        *,
        repeatable: bool = True,
        source: Source | None = None,
        seconds: float | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> httpx.Response:
        """Returns the complete response, which is a success or 304. Raises CliError.

        Lost requests and requests to a busy service are retried; one that is not `repeatable`, only if it was not sent
        or if a quota refused it. `seconds` is the timeout of the response.
        """
        request = self._http.build_request(
            method, path, params=params, headers=headers, content=content, timeout=self._timeout(seconds)
        )
        return self._send(request, repeatable=repeatable, source=source, stream=False)

    @contextmanager
    def stream(
        self,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> Iterator[httpx.Response]:
        """Sends a GET and yields the successful response before its body is read; closes it at the end of the block.

        Raises CliError for other responses, and `httpx.TransportError` if the body is cut off.
        """
        request = self._http.build_request("GET", path, params=params, headers=headers, timeout=self._timeout(seconds))
        response = self._send(request, repeatable=True, source=None, stream=True)
        try:
            yield response
        finally:
            response.close()

    def retry_budget(self) -> RetryBudget:
        """Returns the retries for one request, or for a caller that repeats an operation itself."""
        return RetryBudget(self._retry_seconds if self._has_responded else min(self._retry_seconds, _FIRST_SECONDS))

    def pause(self, seconds: float, reason: str) -> None:
        """Waits before the next try."""
        if seconds >= _NOTIFY_FROM_SECONDS:
            self._notify(f"{reason}: trying again in {seconds:.0f} s")
        time.sleep(seconds)

    def unreachable(self, error: Exception) -> CliError:
        """Returns the error for a request that got no response."""
        reason = shortened(safe_line(error), 300) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            advice = "If you use your own CA, set SSL_CERT_FILE to the file with its certificate."
        else:
            advice = "Check its address (--url, EVENKEEL_URL). `evenkeel up` starts a service on this machine."
        return CliError(f"{safe_line(self.url)} does not respond: {reason}", advice, code=ExitCode.UNREACHABLE)

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _send(self, request: httpx.Request, *, repeatable: bool, source: Source | None, stream: bool) -> httpx.Response:
        budget = self.retry_budget()
        while True:
            try:
                response = self._http.send(request, stream=stream)
            except httpx.HTTPError as error:
                if not isinstance(error, _NOT_SENT | httpx.TimeoutException) and not self._has_responded:
                    # The connection was accepted and then closed: the service is probably restarting.
                    self._has_responded = True
                    budget = self.retry_budget()
                may_repeat = isinstance(error, _NOT_SENT) or (repeatable and isinstance(error, httpx.TransportError))
                pause = budget.next_pause() if may_repeat else None
                if pause is None:
                    raise self.unreachable(error) from None
                self.pause(pause, "The service does not respond")
                continue
            if not self._has_responded:
                self._has_responded = True
                budget = self.retry_budget()
            if response.is_success or response.status_code == HTTPStatus.NOT_MODIFIED:
                return response
            pause = _pause_if_busy(response, budget, repeatable=repeatable)
            if pause is None:
                raise _read_error(response, source)
            response.close()
            self.pause(pause, f"The service is busy ({response.status_code})")

    def _timeout(self, seconds: float | None) -> httpx.Timeout:
        read = self._timeout_seconds if seconds is None else seconds
        return httpx.Timeout(read, connect=min(CONNECT_SECONDS, read))


def _pause_if_busy(response: httpx.Response, budget: RetryBudget, *, repeatable: bool) -> float | None:
    if response.status_code not in _BUSY:
        return None
    # Quotas are checked before anything else is done; after another error, the request may have been carried out.
    if not repeatable and response.status_code != HTTPStatus.TOO_MANY_REQUESTS:
        return None
    return budget.next_pause(retry_after_seconds(response.headers.get("retry-after")))


def _read_error(response: httpx.Response, source: Source | None) -> CliError:
    try:
        response.read()
    except httpx.HTTPError:
        message = f"the service answered {response.status_code}, and the response was cut off"
        return CliError(message, code=ExitCode.UNREACHABLE)
    finally:
        response.close()
    return error_of_response(response, source)
