"""Results on their way to a file or to standard output, a piece at a time."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import httpx

from service.cli.client.answers import ResultPage, read
from service.cli.client.output import text_chunks
from service.cli.client.patience import Patience
from service.cli.client.safe_text import safe_line
from service.cli.client.service import Service
from service.cli.errors import CliError, ExitCode

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
