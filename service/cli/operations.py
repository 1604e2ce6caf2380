"""The operations of the public API, one method each, with JSON documents as arguments and results; and downloads.

A download is a function that starts it and yields its chunks: `save` writes them to a file and starts again if the
connection breaks, `write_to_stdout` writes them to standard output.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, ParamSpec

import httpx

from service.cli.connection import Connection, as_cli_errors, document_of, list_jobs_advice, read
from service.cli.terminal import CliError, ExitCode
from service.client import requests
from service.client.problem_text import Source
from service.client.requests import Request
from service.client.responses import Document, ResultPage
from service.client.retries import RetryBudget
from service.client.text import safe_chunks, safe_line

PAGE = 200

_SHORT_ID = re.compile(r"[0-9a-fA-F-]{4,35}")
_SHOWN_IDS = 5
_CHUNK_BYTES = 1 << 20
_ROWS_PER_PAGE = 10_000
"""The service's maximum: for each page, it opens the result again."""

_MAX_INTERRUPTIONS = 5
"""Each one restarts the download from the beginning, so a connection that always breaks must not retry forever."""

P = ParamSpec("P")

Download = Callable[[], Iterator[bytes]]


class Service:
    """The operations of one service. Every method raises CliError for a response that is not a success."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def submit(
        self, spec: Mapping[str, Any], *, source: Source | None = None, idempotency_key: str = ""
    ) -> tuple[Document, bool]:
        """Submits a job; returns it, and whether an earlier request with the same key created it.

        All retries of the request have the same key, so that they create one job.
        """
        with as_cli_errors():
            request = requests.submission(spec, idempotency_key or requests.new_idempotency_key(), source)
        response = self.connection.send(request)
        return document_of(response), response.headers.get("idempotency-replayed") == "true"

    def full_id(self, job_id: str) -> str:
        """Returns the id of the job whose id begins with `job_id`, which has at least four characters if it is shorter
        than an id.

        Raises CliError if several jobs or none have such an id. Texts that cannot be part of an id are returned as they
        are: the service refuses them.
        """
        if not _SHORT_ID.fullmatch(job_id):
            return job_id
        found = [job["id"] for job in self.jobs({"id_prefix": job_id.lower()}, _SHOWN_IDS)["jobs"]]
        if len(found) == 1:
            return str(found[0])
        if not found:
            raise CliError(
                f"there is no job whose id starts with {job_id}", list_jobs_advice(), code=ExitCode.NOT_FOUND
            )
        raise CliError(
            f"several jobs have an id that starts with {job_id}: {', '.join(found)}",
            "Give more of its characters.",
            code=ExitCode.USAGE,
        )

    def explain(self, spec: Mapping[str, Any], source: Source | None = None) -> Document:
        """Plans a job without running it."""
        return self._document(requests.explanation, spec, source)

    def profile(self, body: Mapping[str, Any], source: Source | None = None) -> Document:
        """Returns statistics of the keys of a table."""
        return self._document(requests.profile, body, source)

    def job(self, job_id: str) -> Document:
        """Returns the job's current state."""
        return self._document(requests.job, job_id)

    def jobs(self, filters: Mapping[str, Any], limit: int, cursor: str = "") -> Document:
        """Returns at most `limit` jobs after `cursor`, newest first; 0 for all."""
        found, cursor = self._pages(requests.jobs, "jobs", filters, limit, cursor)
        return {"jobs": found, "next_cursor": cursor}

    def events(self, job_id: str, after: int) -> Document:
        """Returns a page of the job's events after event `after`."""
        return self._document(requests.events, job_id, after)

    def event_stream(self, job_id: str, after: int, silent_seconds: float) -> AbstractContextManager[httpx.Response]:
        """Opens a stream of the events after `after`; it breaks off after `silent_seconds` without any data."""
        with as_cli_errors():
            request = requests.event_stream(job_id, after, silent_seconds)
        return self.connection.stream(request)

    def plan(self, job_id: str) -> Document:
        """Returns the job's plan report."""
        return self._document(requests.plan, job_id)

    def metrics(self, job_id: str, slots: int | None = None) -> Document:
        """Returns the metrics of the job's run, with savings for `slots`."""
        return self._document(requests.metrics, job_id, slots)

    def result_page(self, job_id: str, page_size: int, cursor: str = "") -> Document:
        """Returns a page of the job's rows."""
        return self._document(requests.result_page, job_id, page_size, cursor)

    def result(
        self, job_id: str, media_type: str, parameters: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[httpx.Response]:
        """Opens the complete result as a stream."""
        with as_cli_errors():
            request = requests.result(job_id, media_type, parameters)
        return self.connection.stream(request)

    def cancel(self, job_id: str) -> Document:
        """Cancels a job. A repeated request changes nothing."""
        return self._document(requests.cancellation, job_id)

    def stop(self, job_id: str) -> Document:
        """Stops a streaming job. A repeated request changes nothing."""
        return self._document(requests.stop, job_id)

    def resume(self, job_id: str, body: Mapping[str, Any]) -> Document:
        """Resumes a stopped job."""
        return self._document(requests.resumption, job_id, body)

    def delete(self, job_id: str) -> None:
        """Deletes a job and everything that is stored about it."""
        with as_cli_errors():
            request = requests.deletion(job_id)
        self.connection.send(request)

    def workers(self) -> Document:
        """Returns all workers."""
        return self._document(requests.workers)

    def me(self) -> Document:
        """Returns the caller's tenant and permissions."""
        return self._document(requests.me)

    def create_key(self, body: Mapping[str, Any]) -> Document:
        """Creates an API key."""
        return self._document(requests.key_creation, body)

    def keys(self, tenant: str) -> Document:
        """Returns all API keys of one tenant, or of all tenants if `tenant` is empty."""
        return {"keys": self._pages(requests.keys, "keys", {"tenant": tenant}, 0, "")[0]}

    def revoke_key(self, key_id: str) -> Document:
        """Revokes an API key. A repeated request changes nothing."""
        return self._document(requests.key_revocation, key_id)

    def _document(self, request: Callable[P, Request], *args: P.args, **kwargs: P.kwargs) -> Document:
        """Sends the request that the function returns, and returns the document of the response."""
        with as_cli_errors():
            built = request(*args, **kwargs)
        return document_of(self.connection.send(built))

    def _pages(
        self,
        request: Callable[[Mapping[str, Any]], Request],
        name: str,
        parameters: Mapping[str, Any],
        limit: int,
        cursor: str,
    ) -> tuple[list[Any], str]:
        """Returns the items of all pages up to `limit` (0: all), and the cursor of the next page."""
        found: list[Any] = []
        while True:
            size = PAGE if limit == 0 else min(PAGE, limit - len(found))
            page = self._document(request, {**parameters, "page_size": size, **({"cursor": cursor} if cursor else {})})
            found += _list(page, name)
            cursor = str(page.get("next_cursor") or "")
            if not cursor or (limit and len(found) >= limit):
                return found, cursor


def _list(page: Document, name: str) -> Sequence[Any]:
    found = page.get(name)
    if not isinstance(found, list):
        raise CliError(f"the response has no list {name!r}", code=ExitCode.CRASHED)
    return found


def download_as(service: Service, job_id: str, media_type: str, parameters: dict[str, str]) -> Download:
    """Returns a download of the complete result in a media type that the service offers for it."""

    def start() -> Iterator[bytes]:
        with service.result(job_id, media_type, parameters) as response:
            yield from response.iter_bytes(_CHUNK_BYTES)

    return start


def download_as_json(service: Service, job_id: str) -> Download:
    """Returns a download of the complete result as one JSON document; it reads the rows page by page."""

    def start() -> Iterator[bytes]:
        document = service.result_page(job_id, _ROWS_PER_PAGE)
        page = read(ResultPage, document)
        head = json.dumps({"columns": document["columns"], "total_rows": page.total_rows}, ensure_ascii=False)
        yield f'{head[:-1]}, "rows": ['.encode()
        separator = ""
        while True:
            rows = [json.dumps(row, ensure_ascii=False) for row in document["rows"]]
            if rows:
                yield (separator + ",\n".join(rows)).encode()
                separator = ",\n"
            if not page.next_cursor:
                break
            document = service.result_page(job_id, _ROWS_PER_PAGE, page.next_cursor)
            page = read(ResultPage, document)
        yield b"]}\n"

    return start


def save(service: Service, start: Download, file: Path) -> int:
    """Writes a download to `file` and returns its size in bytes.

    If the download fails, even after retries, `file` is not changed. Raises CliError.
    """
    budget: RetryBudget | None = None
    interruptions = 0
    while True:
        size = 0
        try:
            with _opened(file) as sink:
                for chunk in start():
                    sink.write(chunk)
                    size += len(chunk)
            return size
        except httpx.TransportError as error:
            interruptions += 1
            if budget is None or size:
                # The service has sent data: start a new budget, as for a service that has responded before.
                budget = service.connection.retry_budget()
            may_restart = interruptions < _MAX_INTERRUPTIONS and not (size and _is_special_file(file))
            pause = budget.next_pause() if may_restart else None
            if pause is None:
                raise service.connection.unreachable(error) from None
            service.connection.pause(pause, "The download was interrupted")
        except OSError as error:
            message = f"{safe_line(error.filename or file)}: {error.strerror}"
            raise CliError(message, code=ExitCode.MISSING) from None


def write_to_stdout(service: Service, start: Download, *, as_text: bool) -> None:
    """Writes a download to standard output. Raises CliError if it is interrupted, and for bytes on a terminal."""
    chunks = start()
    try:
        if sys.stdout.isatty():
            if not as_text:
                raise CliError(
                    "this format is binary and not written to a terminal",
                    "Give -o FILE, or redirect the output to a file or a pipe.",
                    code=ExitCode.USAGE,
                )
            for text in safe_chunks(chunks):
                sys.stdout.write(text)
        else:
            for chunk in chunks:
                sys.stdout.buffer.write(chunk)
        sys.stdout.flush()
    except httpx.TransportError as error:
        raise service.connection.unreachable(error) from None


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    """Opens a temporary file that replaces `file` at the end of the block. Devices and pipes are opened directly."""
    if _is_special_file(file):
        # The link is not resolved: /dev/stdout may link to a pipe, whose name cannot be opened.
        with file.expanduser().open("wb") as sink:
            yield sink
        return
    target = file.expanduser().resolve()
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as sink:
            yield sink
        part.replace(target)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def _is_special_file(file: Path) -> bool:
    """Whether it is a device or a pipe: what was written to it cannot be undone."""
    path = file.expanduser()
    return path.exists() and not path.is_file()
