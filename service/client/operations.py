"""The operations of the public API, one method each, with JSON documents as arguments and results; and downloads.

A download is a function that starts it and yields its chunks: `save` writes them to a file and starts again if the
connection breaks, `write_to_stdout` writes them to standard output.
"""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx

from service.client.connection import Connection, RetryBudget, Source, segment
from service.client.responses import Document, ResultPage, read
from service.client.terminal import CliError, ExitCode, safe_chunks, safe_line

ARROW = "application/vnd.apache.arrow.stream"
EVENT_STREAM = "text/event-stream"
PAGE = 200

_SHORT_ID = re.compile(r"[0-9a-fA-F-]{4,35}")
_SHOWN_IDS = 5
_JSON = {"Content-Type": "application/json"}
_PLANNING_SECONDS = 300.0
"""The longest time that a service may be configured to wait for a worker that plans."""

_CHUNK_BYTES = 1 << 20
_ROWS_PER_PAGE = 10_000
"""The service's maximum: for each page, it opens the result again."""

_MAX_INTERRUPTIONS = 5
"""Each one restarts the download from the beginning, so a connection that always breaks must not retry forever."""

Download = Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class JobState:
    """A job with its `ETag`, with which a request asks for changes."""

    document: Document
    tag: str


class Service:
    """The operations of one service. Every method raises CliError for a response that is not a success."""

    def __init__(self, connection: Connection, timeout_seconds: float = 60) -> None:
        self.connection = connection
        self._timeout_seconds = timeout_seconds

    def submit(
        self, spec: Mapping[str, Any], *, source: Source | None = None, idempotency_key: str = ""
    ) -> tuple[Document, bool]:
        """Submits a job; returns it, and whether an earlier request with the same key created it.

        All retries of the request have the same key, so that they create one job.
        """
        headers = {**_JSON, "Idempotency-Key": _quoted(idempotency_key or new_idempotency_key())}
        response = self.connection.request("POST", "/v1/jobs", headers=headers, content=encoded(spec), source=source)
        return _document(response), response.headers.get("idempotency-replayed") == "true"

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
            raise CliError(f"there is no job whose id starts with {job_id}", code=ExitCode.NOT_FOUND)
        raise CliError(
            f"several jobs have an id that starts with {job_id}: {', '.join(found)}",
            "Give more of its characters.",
            code=ExitCode.USAGE,
        )

    def explain(self, spec: Mapping[str, Any], source: Source | None = None) -> Document:
        """Plans a job without running it."""
        return self._post("/v1/explain", spec, source=source, seconds=self._timeout_seconds + _PLANNING_SECONDS)

    def profile(self, body: Mapping[str, Any]) -> Document:
        """Returns statistics of the keys of a table."""
        return self._post("/v1/profiles", body, seconds=self._timeout_seconds + _PLANNING_SECONDS)

    def job(self, job_id: str) -> Document:
        """Returns the job's current state."""
        return self._get(_job_path(job_id))

    def changed_job(self, job_id: str, known: JobState | None, wait_seconds: int) -> JobState | None:
        """Returns the job as soon as its state differs from `known`; None if it is the same after `wait_seconds`."""
        headers = {"Prefer": f"wait={wait_seconds}"} if known else {}
        if known is not None and known.tag:
            headers["If-None-Match"] = known.tag
        response = self.connection.request(
            "GET", _job_path(job_id), headers=headers, seconds=self._timeout_seconds + wait_seconds
        )
        if response.status_code == httpx.codes.NOT_MODIFIED:
            return None
        return JobState(_document(response), response.headers.get("etag", ""))

    def jobs(self, filters: Mapping[str, Any], limit: int, cursor: str = "") -> Document:
        """Returns at most `limit` jobs after `cursor`, newest first; 0 for all."""
        found, cursor = self._pages("/v1/jobs", "jobs", filters, limit, cursor)
        return {"jobs": found, "next_cursor": cursor}

    def events(self, job_id: str, after: int) -> Document:
        """Returns a page of the job's events after event `after`."""
        return self._get(f"{_job_path(job_id)}/events", headers={"Last-Event-ID": str(after)})

    def event_stream(self, job_id: str, after: int, silent_seconds: float) -> AbstractContextManager[httpx.Response]:
        """Opens a stream of the events after `after`; it breaks off after `silent_seconds` without any data."""
        headers = {"Last-Event-ID": str(after), "Accept": EVENT_STREAM}
        return self.connection.stream(f"{_job_path(job_id)}/events", headers=headers, seconds=silent_seconds)

    def plan(self, job_id: str) -> Document:
        """Returns the job's plan report."""
        return self._get(f"{_job_path(job_id)}/plan")

    def metrics(self, job_id: str, slots: int | None = None) -> Document:
        """Returns the metrics of the job's run, with savings for `slots`."""
        return self._get(f"{_job_path(job_id)}/metrics", None if slots is None else {"slots": slots})

    def result_page(self, job_id: str, page_size: int, cursor: str = "") -> Document:
        """Returns a page of the job's rows."""
        parameters = {"page_size": page_size, **({"cursor": cursor} if cursor else {})}
        return self._get(f"{_job_path(job_id)}/result", parameters)

    def result(
        self, job_id: str, media_type: str, parameters: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[httpx.Response]:
        """Opens the complete result as a stream."""
        return self.connection.stream(f"{_job_path(job_id)}/result", params=parameters, headers={"Accept": media_type})

    def cancel(self, job_id: str) -> Document:
        """Cancels a job. A repeated request changes nothing."""
        return self._post(f"{_job_path(job_id)}/cancel")

    def stop(self, job_id: str) -> Document:
        """Stops a streaming job. A repeated request changes nothing."""
        return self._post(f"{_job_path(job_id)}/stop")

    def resume(self, job_id: str, body: Mapping[str, Any]) -> Document:
        """Resumes a stopped job. It is sent once, since a repeated request would be refused."""
        return self._post(f"{_job_path(job_id)}/resume", body, repeatable=False)

    def delete(self, job_id: str) -> None:
        """Deletes a job and everything that is stored about it."""
        self.connection.request("DELETE", _job_path(job_id), repeatable=False)

    def workers(self) -> Document:
        """Returns all workers."""
        return self._get("/v1/workers")

    def me(self) -> Document:
        """Returns the caller's tenant and permissions."""
        return self._get("/v1/me")

    def create_key(self, body: Mapping[str, Any]) -> Document:
        """Creates an API key. It is sent once, since a repeated request would create another key."""
        return self._post("/v1/keys", body, repeatable=False)

    def keys(self, tenant: str) -> Document:
        """Returns all API keys of one tenant, or of all tenants if `tenant` is empty."""
        return {"keys": self._pages("/v1/keys", "keys", {"tenant": tenant}, 0, "")[0]}

    def revoke_key(self, key_id: str) -> Document:
        """Revokes an API key. A repeated request changes nothing."""
        return _document(self.connection.request("DELETE", f"/v1/keys/{segment(key_id, 'API key')}"))

    def _get(
        self, path: str, params: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> Document:
        return _document(self.connection.request("GET", path, params=params, headers=headers))

    def _post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        repeatable: bool = True,
        source: Source | None = None,
        seconds: float | None = None,
    ) -> Document:
        content, headers = (None, None) if body is None else (encoded(body), _JSON)
        return _document(
            self.connection.request(
                "POST", path, headers=headers, content=content, repeatable=repeatable, source=source, seconds=seconds
            )
        )

    def _pages(
        self, path: str, name: str, parameters: Mapping[str, Any], limit: int, cursor: str
    ) -> tuple[list[Any], str]:
        """Returns the items of all pages up to `limit` (0: all), and the cursor of the next page."""
        found: list[Any] = []
        while True:
            size = PAGE if limit == 0 else min(PAGE, limit - len(found))
            page = self._get(path, {**parameters, "page_size": size, **({"cursor": cursor} if cursor else {})})
            found += _list(page, name)
            cursor = str(page.get("next_cursor") or "")
            if not cursor or (limit and len(found) >= limit):
                return found, cursor


def new_idempotency_key() -> str:
    """Returns a new unique key for a submission."""
    return str(uuid.uuid4())


def encoded(body: Mapping[str, Any]) -> bytes:
    """Returns a body as JSON. Raises CliError for values that JSON does not support."""
    try:
        return json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError) as error:
        raise CliError(f"the request cannot be written as JSON: {error}", code=ExitCode.USAGE) from None


def _quoted(key: str) -> str:
    if not key.isascii() or not key.isprintable():
        raise CliError("an idempotency key contains only printable ASCII characters", code=ExitCode.USAGE)
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _job_path(job_id: str) -> str:
    return f"/v1/jobs/{segment(job_id, 'job')}"


def _document(response: httpx.Response) -> Document:
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise CliError(
            "the response is not a JSON object",
            "Check that the address is that of an Evenkeel service (--url, EVENKEEL_URL).",
            code=ExitCode.CRASHED,
        )
    return document


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
