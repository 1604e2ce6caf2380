"""Requests to one service: its key is shown to no other, and what may be tried again is, within bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Self

import httpx
from pydantic import SecretStr

from service import __version__
from service.cli.client.address import checked_url, is_here
from service.cli.client.patience import Patience, seconds_asked
from service.cli.client.refusals import Source, refusal
from service.cli.client.safe_text import safe_line, shortened
from service.cli.errors import CliError, ExitCode

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
