"""The operations of the public API, one method each: what is posted, and what comes back, as JSON.

Results on their way to a file or to standard output, a piece at a time.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx

from service.client.connection import Connection, Patience, Source, segment
from service.client.responses import Document, ResultPage, read
from service.client.session import text_chunks
from service.client.terminal import CliError, ExitCode, safe_line

ARROW = "application/vnd.apache.arrow.stream"
EVENT_STREAM = "text/event-stream"
PAGE = 200

_JSON = {"Content-Type": "application/json"}
_EXPLAIN_SECONDS = 300.0
"""The longest that a service may be set to wait for a worker that plans."""


@dataclass(frozen=True)
class JobState:
    """A job as it stands; its `tag` asks whether it still does."""

    document: Document
    tag: str


class Service:
    """Talks to one service. Every method raises CliError for what is not the wanted answer."""

    def __init__(self, connection: Connection, timeout_seconds: float = 60) -> None:
        self.connection = connection
        self._timeout_seconds = timeout_seconds

    def submit(
        self, spec: Mapping[str, Any], *, source: Source | None = None, idempotency_key: str = ""
    ) -> tuple[Document, bool]:
        """Posts a job; with it, whether the same key had made the same job before. However often it is sent, it is one
        job."""
        key = idempotency_key or new_idempotency_key()
        answer = self.connection.ask(
            "POST",
            "/v1/jobs",
            headers={**_JSON, "Idempotency-Key": _quoted(key)},
            content=encoded(spec),
            source=source,
        )
        return _document(answer), answer.headers.get("idempotency-replayed") == "true"

    def explain(self, spec: Mapping[str, Any], source: Source | None = None) -> Document:
        """Plans a job without running it."""
        return _document(
            self.connection.ask(
                "POST",
                "/v1/explain",
                headers=_JSON,
                content=encoded(spec),
                source=source,
                seconds=self._timeout_seconds + _EXPLAIN_SECONDS,
            )
        )

    def profile(self, body: Mapping[str, Any]) -> Document:
        """How the keys of a table are spread."""
        seconds = self._timeout_seconds + _EXPLAIN_SECONDS
        content = encoded(body)
        return _document(self.connection.ask("POST", "/v1/profiles", headers=_JSON, content=content, seconds=seconds))

    def job(self, job_id: str) -> Document:
        """A job as it stands."""
        return self._get(_job(job_id))

    def job_after(self, job_id: str, known: JobState | None, wait_seconds: int) -> JobState | None:
        """The job once it is another than `known`; None where it is the same after `wait_seconds`."""
        headers = {"Prefer": f"wait={wait_seconds}"} if known else {}
        if known is not None and known.tag:
            headers["If-None-Match"] = known.tag
        answer = self.connection.ask("GET", _job(job_id), headers=headers, seconds=self._timeout_seconds + wait_seconds)
        if answer.status_code == httpx.codes.NOT_MODIFIED:
            return None
        return JobState(_document(answer), answer.headers.get("etag", ""))

    def jobs(self, filters: Mapping[str, Any], limit: int, cursor: str = "") -> Document:
        """At most `limit` jobs, newest first, from behind `cursor`; 0 for all."""
        found: list[Any] = []
        while True:
            size = PAGE if limit == 0 else min(PAGE, limit - len(found))
            page = self._get("/v1/jobs", {**filters, "page_size": size, **({"cursor": cursor} if cursor else {})})
            found += _list(page, "jobs")
            cursor = str(page.get("next_cursor") or "")
            if not cursor or (limit and len(found) >= limit):
                return {"jobs": found, "next_cursor": cursor}

    def events(self, job_id: str, after: int) -> Document:
        """A page of what happened behind event `after`."""
        return self._get(f"{_job(job_id)}/events", headers={"Last-Event-ID": str(after)})

    @contextmanager
    def event_stream(self, job_id: str, after: int, silent_seconds: float) -> Iterator[httpx.Response]:
        """Events behind `after` as they happen. Breaks off where not even a sign of life came for `silent_seconds`."""
        headers = {"Last-Event-ID": str(after), "Accept": EVENT_STREAM}
        with self.connection.stream(f"{_job(job_id)}/events", headers=headers, seconds=silent_seconds) as answer:
            yield answer

    def plan(self, job_id: str) -> Document:
        """How a job was planned."""
        return self._get(f"{_job(job_id)}/plan")

    def metrics(self, job_id: str, slots: int | None = None) -> Document:
        """What was measured while a job ran; savings as on so many slots."""
        return self._get(f"{_job(job_id)}/metrics", None if slots is None else {"slots": slots})

    def result_page(self, job_id: str, page_size: int, cursor: str = "") -> Document:
        """Some rows of a result."""
        parameters = {"page_size": page_size, **({"cursor": cursor} if cursor else {})}
        return self._get(f"{_job(job_id)}/result", parameters)

    @contextmanager
    def result(
        self, job_id: str, media_type: str, parameters: Mapping[str, Any] | None = None
    ) -> Iterator[httpx.Response]:
        """The whole result, its body still to come."""
        with self.connection.stream(
            f"{_job(job_id)}/result", params=parameters, headers={"Accept": media_type}
        ) as answer:
            yield answer

    def cancel(self, job_id: str) -> Document:
        """Cancels a job; asking twice changes nothing."""
        return _document(self.connection.ask("POST", f"{_job(job_id)}/cancel"))

    def stop(self, job_id: str) -> Document:
        """Lays a streaming job to rest; asking twice changes nothing."""
        return _document(self.connection.ask("POST", f"{_job(job_id)}/stop"))

    def resume(self, job_id: str, body: Mapping[str, Any]) -> Document:
        """Queues a job that rests. A second time it would be refused, so it is sent once."""
        content = encoded(body)
        path = f"{_job(job_id)}/resume"
        return _document(self.connection.ask("POST", path, headers=_JSON, content=content, repeatable=False))

    def delete(self, job_id: str) -> None:
        """Removes a job with all that is kept of it."""
        self.connection.ask("DELETE", _job(job_id), repeatable=False)

    def workers(self) -> Document:
        """All workers."""
        return self._get("/v1/workers")

    def me(self) -> Document:
        """Who asks."""
        return self._get("/v1/me")

    def create_key(self, body: Mapping[str, Any]) -> Document:
        """Makes an API key; sent once, as each would be another."""
        answer = self.connection.ask("POST", "/v1/keys", headers=_JSON, content=encoded(body), repeatable=False)
        return _document(answer)

    def keys(self, tenant: str) -> Document:
        """All API keys, of one tenant or (empty) of all."""
        found: list[Any] = []
        cursor = ""
        while True:
            page = self._get("/v1/keys", {"tenant": tenant, "cursor": cursor, "page_size": PAGE})
            found += _list(page, "keys")
            cursor = str(page.get("next_cursor") or "")
            if not cursor:
                return {"keys": found}

    def revoke_key(self, key_id: str) -> Document:
        """Ends an API key; asking twice changes nothing."""
        return _document(self.connection.ask("DELETE", f"/v1/keys/{segment(key_id, 'API key')}"))

    def _get(
        self, path: str, params: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> Document:
        return _document(self.connection.ask("GET", path, params=params, headers=headers))


def new_idempotency_key() -> str:
    """A key that no other submission has."""
    return str(uuid.uuid4())


def encoded(body: Mapping[str, Any]) -> bytes:
    """JSON. Raises CliError for what JSON has not."""
    try:
        return json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError) as error:
        raise CliError(f"this cannot be sent as JSON: {error}", code=ExitCode.USAGE) from None


def _quoted(key: str) -> str:
    if not key.isascii() or not key.isprintable():
        raise CliError(
            "an idempotency key is of letters, digits and signs of ASCII", "Take another.", code=ExitCode.USAGE
        )
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _job(job_id: str) -> str:
    return f"/v1/jobs/{segment(job_id, 'job')}"


def _document(answer: httpx.Response) -> Document:
    try:
        document = answer.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise CliError(
            "the service answered something else than a JSON object",
            "Is that the address of an Evenkeel service (--url, EVENKEEL_URL)?",
            code=ExitCode.CRASHED,
        )
    return document


def _list(page: Document, name: str) -> Sequence[Any]:
    found = page.get(name)
    if not isinstance(found, list):
        raise CliError(f"the service answered without {name}", code=ExitCode.CRASHED)
    return found


_PIECE = 1 << 20
_ROWS = 10_000
"""The most that a page may have: each is a request, and the service opens the result anew for it."""

_MOST_BREAKS = 5
"""Each time it begins anew, so that what always breaks off would go on for ever."""


def chunks_of(
    service: Service, job_id: str, media_type: str, parameters: dict[str, str]
) -> Callable[[], Iterator[bytes]]:
    """Begins a download of the whole result anew each time it is called."""

    def begin() -> Iterator[bytes]:
        with service.result(job_id, media_type, parameters) as answer:
            yield from answer.iter_bytes(_PIECE)

    return begin


def json_chunks(service: Service, job_id: str) -> Callable[[], Iterator[bytes]]:
    """The same as one JSON document of all rows, read page by page."""

    def begin() -> Iterator[bytes]:
        document = service.result_page(job_id, _ROWS)
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
            document = service.result_page(job_id, _ROWS, page.next_cursor)
            page = read(ResultPage, document)
        yield b"]}\n"

    return begin


def save(service: Service, begin: Callable[[], Iterable[bytes]], file: Path) -> int:
    """Writes it to `file` and gives its size in bytes. The file is there whole or, where the service breaks off also
    after some tries, as it was before. Raises CliError."""
    patience: Patience | None = None
    breaks = 0
    while True:
        size = 0
        try:
            with _opened(file) as sink:
                for chunk in begin():
                    sink.write(chunk)
                    size += len(chunk)
            return size
        except httpx.TransportError as error:
            breaks += 1
            if patience is None or size:
                # What has come tells that the service is there: it is asked for as long as any that has answered.
                patience = service.connection.patience()
            may_begin_anew = breaks < _MOST_BREAKS and not (size and _is_no_file(file))
            pause = patience.pause() if may_begin_anew else None
            if pause is None:
                raise service.connection.unreachable(error) from None
            service.connection.rest(pause, "The download broke off")
        except OSError as error:
            told = f"{safe_line(error.filename or file)}: {error.strerror}"
            raise CliError(told, code=ExitCode.MISSING) from None


def pour(service: Service, begin: Callable[[], Iterable[bytes]], *, as_text: bool) -> None:
    """Writes it to standard output. Raises CliError where the service breaks off, and for bytes on a terminal."""
    chunks = begin()
    try:
        if sys.stdout.isatty():
            if not as_text:
                raise CliError(
                    "that format is not for terminals", "Give -o FILE, or send it on: … | …", code=ExitCode.USAGE
                )
            for text in text_chunks(chunks):
                sys.stdout.write(text)
        else:
            for chunk in chunks:
                sys.stdout.buffer.write(chunk)
        sys.stdout.flush()
    except httpx.TransportError as error:
        raise service.connection.unreachable(error) from None


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `file` once all is written. Devices and pipes are written to as they are."""
    if _is_no_file(file):
        # By the name that it was given: that of a pipe behind a link of the kernel's names nothing.
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


def _is_no_file(file: Path) -> bool:
    """Whether it is a device or a pipe, which takes what comes and gives nothing back."""
    given = file.expanduser()
    return given.exists() and not given.is_file()
