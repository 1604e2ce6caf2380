"""Server-sent events, read from the bytes of a stream as the standard says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from service.cli.errors import CliError, ExitCode

_LONGEST = 16 << 20


def event_data(chunks: Iterable[bytes]) -> Iterator[str]:
    """The `data` of each event, whole. What is cut off by the end of the stream is left out. Raises CliError for an
    event without end."""
    data: list[str] = []
    size = 0
    for line in _lines(chunks):
        if not line:
            if data:
                yield "\n".join(data)
            data, size = [], 0
            continue
        name, _, value = line.partition(b":")
        if name == b"data":
            size += len(value)
            if size > _LONGEST:
                raise _too_long()
            data.append(value.removeprefix(b" ").decode("utf-8", "replace"))


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    # Not `str.splitlines`: texts in events may hold what Unicode calls a line break.
    held = b""
    for chunk in chunks:
        held += chunk
        *lines, held = held.split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
        if len(held) > _LONGEST:
            raise _too_long()


def _too_long() -> CliError:
    return CliError("the service sent an event without end", code=ExitCode.CRASHED)
