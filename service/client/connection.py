"""How long one request is tried again.

The address of a service, as a user gives it.

The API key that a command shows: from the environment or a file, never from the command line, which others see.

A line of SQL with a caret below the place that is wrong.

Answers that are not the wanted one, told to people, with an exit code for scripts.

Requests to one service: its key is shown to no other, and what may be tried again is, within bounds.
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

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
_SECONDS = re.compile(r"\d{1,6}")


class Patience:
    """For one request: pauses that double, until `seconds` have gone since the first try."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = clock() + seconds
        self._tried = 0

    def pause(self, asked: float | None = None) -> float | None:
        """Seconds until the next try, at least those that the service asked for; None where there is to be none."""
        wait = max(min(_FIRST_PAUSE * 2**self._tried, _LONGEST_PAUSE), asked or 0)
        self._tried += 1
        return wait if self._clock() + wait <= self._until else None


def seconds_asked(header: str | None) -> float | None:
    """What Retry-After asks for in seconds; None for a date, or nothing."""
    return float(header) if header is not None and _SECONDS.fullmatch(header.strip()) else None


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


_SHOWN = re.compile(r"[\x21-\x7e]{1,1000}")
_MOST_BYTES = 10_000


def api_key(settings: ClientSettings, key_file: Path | None) -> SecretStr | None:
    """The key of `key_file`, else of the settings; None where there is none. Raises CliError for what cannot be one."""
    if key_file is not None:
        return _checked(_read(key_file), f"The file {key_file}")
    if settings.api_key is not None:
        return _checked(settings.api_key.get_secret_value(), "EVENKEEL_API_KEY")
    if settings.api_key_file is not None:
        return _checked(_read(settings.api_key_file), f"The file {settings.api_key_file}")
    return None


def _read(file: Path) -> str:
    try:
        with file.expanduser().open("rb") as opened:
            return opened.read(_MOST_BYTES).decode()
    except OSError as error:
        raise CliError(f"the API key could not be read: {error}", code=ExitCode.USAGE) from None
    except UnicodeDecodeError:
        return ""


def _checked(text: str, place: str) -> SecretStr:
    if not _SHOWN.fullmatch(text.strip()):
        raise CliError(f"{place} holds no API key", "A key is one word that begins with ek_.", code=ExitCode.USAGE)
    return SecretStr(text.strip())


_WIDTH = 76
_CONTEXT = 30


def pointed_out(sql: str, line: int, column: int | None, width: int = _WIDTH) -> Sequence[str]:
    """The line (from 1) and, where a column (from 1) is given, a caret below it; nothing where there is no such line.

    Of a long line, what stands around the column.

    >>> print(*pointed_out("SELECT a,\\n  b.x FROM b", 2, 5), sep="\\n")
      b.x FROM b
        ^
    """
    lines = sql.split("\n")
    if not 1 <= line <= len(lines):
        return ()
    text = lines[line - 1].rstrip("\r").replace("\t", " ")
    if column is None or not 1 <= column <= len(text) + 1:
        return (safe_line(text[:width]),)
    begin = 0 if len(text) <= width else max(0, column - 1 - _CONTEXT)
    before, after = text[begin : column - 1], text[column - 1 : begin + width]
    head = ("…" if begin else "") + safe_line(before)
    tail = safe_line(after) + ("…" if begin + width < len(text) else "")
    return head + tail, " " * cell_len(head) + "^"


_MOST_ISSUES = 20
_MOST_CHARACTERS = 2000

_CODES = {
    HTTPStatus.UNAUTHORIZED: ExitCode.DENIED,
    HTTPStatus.FORBIDDEN: ExitCode.DENIED,
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED: ExitCode.DENIED,
    HTTPStatus.NOT_FOUND: ExitCode.NOT_FOUND,
    HTTPStatus.GONE: ExitCode.NOT_FOUND,
    HTTPStatus.CONFLICT: ExitCode.CONFLICT,
    HTTPStatus.REQUEST_TIMEOUT: ExitCode.UNREACHABLE,
    HTTPStatus.TOO_MANY_REQUESTS: ExitCode.UNREACHABLE,
    HTTPStatus.BAD_GATEWAY: ExitCode.UNREACHABLE,
    HTTPStatus.SERVICE_UNAVAILABLE: ExitCode.UNREACHABLE,
    HTTPStatus.GATEWAY_TIMEOUT: ExitCode.UNREACHABLE,
}


@dataclass(frozen=True)
class Source:
    """The SQL that was posted, and what its user knows it as: a file, or `--sql`."""

    sql: str
    label: str


def refusal(answer: httpx.Response, source: Source | None = None) -> CliError:
    """The failure that an answer stands for. `answer` has been read."""
    if answer.is_redirect:
        return _redirected(answer)
    code = _exit_code(answer.status_code)
    problem = _problem(answer)
    if problem is None:
        return CliError(f"the service answered {answer.status_code} {_first_line(answer)}".rstrip(), code=code)
    lines = list(problem_lines(problem, source))
    if code is ExitCode.DENIED:
        lines.append("EVENKEEL_API_KEY or --key-file has the key that is shown.")
    if code is ExitCode.CRASHED and problem.request_id:
        lines.append(f"The service's log tells more: request {safe_line(problem.request_id)}")
    return CliError(problem_head(problem), "\n  ".join(lines), code=code)


def problem_head(problem: Problem) -> str:
    """What happened, on one line, with the stable code."""
    issues = problem.errors
    told = problem.detail if len(issues) < 2 else f"{len(issues)} things are wrong"
    return f"{shortened(safe_line(told), _MOST_CHARACTERS)} [{safe_line(problem.code)}]"


def problem_lines(problem: Problem, source: Source | None) -> Iterator[str]:
    """Where it is wrong, place by place: SQL with a caret below, or the pointer into what was posted."""
    several = len(problem.errors) > 1
    for issue in problem.errors[:_MOST_ISSUES]:
        if several:
            yield f"{shortened(safe_line(issue.detail), _MOST_CHARACTERS)} [{safe_line(issue.code)}]"
        # The detail of a single one begins with its place.
        told = not several and issue.pointer is not None and issue.pointer in problem.detail
        if not told or issue.line is not None:
            yield from _place(issue, source)
    if len(problem.errors) > _MOST_ISSUES:
        yield f"… and {len(problem.errors) - _MOST_ISSUES} more"


def _place(issue: Issue, source: Source | None) -> Iterable[str]:
    if issue.line is None:
        return (f"at {safe_line(issue.pointer)}",) if issue.pointer else ()
    column = "" if issue.column is None else f":{issue.column}"
    if source is None:
        return (f"at line {issue.line}{column and f', column {issue.column}'}",)
    return (f"{safe_line(source.label)}:{issue.line}{column}", *pointed_out(source.sql, issue.line, issue.column))


def _exit_code(status: int) -> ExitCode:
    if status in _CODES:
        return _CODES[HTTPStatus(status)]
    return ExitCode.CRASHED if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ExitCode.USAGE


def _problem(answer: httpx.Response) -> Problem | None:
    try:
        return Problem.model_validate(answer.json())
    except (ValidationError, ValueError):
        return None


def _first_line(answer: httpx.Response) -> str:
    """Of a text that some proxy may have written."""
    if "text/plain" not in answer.headers.get("content-type", ""):
        return safe_line(answer.reason_phrase)
    return shortened(safe_line(answer.text.strip().partition("\n")[0]), 200)


def _redirected(answer: httpx.Response) -> CliError:
    # Not followed: the key is for the service that was named, and for no other.
    target = shortened(safe_line(answer.headers.get("location", "elsewhere")), 200)
    return CliError(
        f"the service sends elsewhere, to {target}",
        "If that is where it should be asked, give its address with --url.",
        code=ExitCode.USAGE,
    )


CONNECT_SECONDS = 10.0
_FIRST_SECONDS = 2.0
"""How long a service is looked for that has not answered yet: it is more likely not there than restarting."""

_TELL_FROM_SECONDS = 1.0

_NOT_SENT = httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout
_BUSY = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)


def _silent(_text: str) -> None:
    return


class Connection:
    """Talks to the service at `url`. Raises CliError for every answer that is not a good one."""

    def __init__(
        self,
        url: str,
        key: SecretStr | None = None,
        *,
        retry_seconds: float = 0,
        timeout_seconds: float = 60,
        tell: Callable[[str], None] = _silent,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = checked_url(url)
        self._retry_seconds = retry_seconds
        self._timeout_seconds = timeout_seconds
        self._tell = tell
        self._has_answered = False
        headers = {"User-Agent": f"evenkeel/{__version__}", "Accept": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key.get_secret_value()}"
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers=headers,
                # Whoever redirects may name another host.
                follow_redirects=False,
                # A proxy would look for loopback on its own machine.
                trust_env=not is_here(self.url),
                verify=httpx.create_ssl_context() if self.url.startswith("https:") else True,
                transport=transport,
            )
        except (ImportError, OSError, ValueError) as error:
            told = shortened(safe_line(error), 300) or type(error).__name__
            advice = "Look at HTTP_PROXY, HTTPS_PROXY and ALL_PROXY (http://HOST:PORT), and at SSL_CERT_FILE."
            raise CliError(f"connections cannot be made as it is set up: {told}", advice, code=ExitCode.USAGE) from None

    def ask(
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
        """The answer, read whole: good, or 304. Tried again where it may have been lost on the way.

        What is not `repeatable` is tried again only where it was not sent. `seconds` is the longest that the service
        may think. Raises CliError.
        """
        send = self._http.build_request(
            method, path, params=params, headers=headers, content=content, timeout=self._timeout(seconds)
        )
        return self._send(send, repeatable=repeatable, source=source, stream=False)

    @contextmanager
    def stream(
        self,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> Iterator[httpx.Response]:
        """A good answer to a GET whose body is still to come, closed at the end. Raises CliError before it, and
        `httpx.TransportError` where the body breaks off."""
        send = self._http.build_request("GET", path, params=params, headers=headers, timeout=self._timeout(seconds))
        answer = self._send(send, repeatable=True, source=None, stream=True)
        try:
            yield answer
        finally:
            answer.close()

    def patience(self) -> Patience:
        """For one request, or what is done again by whoever asks."""
        return Patience(self._retry_seconds if self._has_answered else min(self._retry_seconds, _FIRST_SECONDS))

    def rest(self, seconds: float, why: str) -> None:
        """Pauses before the next try, and says so where that is long enough to be noticed."""
        if seconds >= _TELL_FROM_SECONDS:
            self._tell(f"{why}: trying again in {seconds:.0f} s")
        time.sleep(seconds)

    def unreachable(self, error: Exception) -> CliError:
        """The failure to tell where there was no answer."""
        told = shortened(safe_line(error), 300) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in told:
            advice = "Where its CA is your own, SSL_CERT_FILE names the file with its certificate."
        else:
            advice = "Is that its address (--url, EVENKEEL_URL)? `evenkeel up` starts a service here."
        return CliError(f"{safe_line(self.url)} does not answer: {told}", advice, code=ExitCode.UNREACHABLE)

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _send(self, request: httpx.Request, *, repeatable: bool, source: Source | None, stream: bool) -> httpx.Response:
        patience = self.patience()
        while True:
            try:
                answer = self._http.send(request, stream=stream)
            except httpx.HTTPError as error:
                if not isinstance(error, _NOT_SENT | httpx.TimeoutException) and not self._has_answered:
                    # Somebody is there, and broke off: a service that restarts, rather.
                    self._has_answered = True
                    patience = self.patience()
                may_repeat = isinstance(error, _NOT_SENT) or (repeatable and isinstance(error, httpx.TransportError))
                pause = patience.pause() if may_repeat else None
                if pause is None:
                    raise self.unreachable(error) from None
                self.rest(pause, "The service does not answer")
                continue
            if not self._has_answered:
                self._has_answered = True
                patience = self.patience()
            if answer.is_success or answer.status_code == HTTPStatus.NOT_MODIFIED:
                return answer
            pause = self._pause_of(answer, patience, repeatable=repeatable)
            if pause is None:
                raise _refused(answer, source)
            answer.close()
            self.rest(pause, f"The service is busy ({answer.status_code})")

    @staticmethod
    def _pause_of(answer: httpx.Response, patience: Patience, *, repeatable: bool) -> float | None:
        if answer.status_code not in _BUSY:
            return None
        # A quota is looked at before anything is done; anything else may have come too late.
        if not repeatable and answer.status_code != HTTPStatus.TOO_MANY_REQUESTS:
            return None
        return patience.pause(seconds_asked(answer.headers.get("retry-after")))

    def _timeout(self, seconds: float | None) -> httpx.Timeout:
        read = self._timeout_seconds if seconds is None else seconds
        return httpx.Timeout(read, connect=min(CONNECT_SECONDS, read))


def _refused(answer: httpx.Response, source: Source | None) -> CliError:
    try:
        answer.read()
    except httpx.HTTPError:
        return CliError(f"the service answered {answer.status_code} and broke off", code=ExitCode.UNREACHABLE)
    finally:
        answer.close()
    return refusal(answer, source)
