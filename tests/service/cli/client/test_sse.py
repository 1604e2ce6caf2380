"""Server-sent events, however they are cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.cli.client import sse
from service.cli.client.sse import event_data
from service.cli.errors import CliError

STREAM = ': hello\n\nid: 1\nevent: a\ndata: {"x": "ü\u2028\x85"}\n\ndata:two\r\ndata: lines\r\n\r\n\ndata: cut'.encode()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_whole(size: int) -> None:
    chunks = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert list(event_data(chunks)) == ['{"x": "ü\u2028\x85"}', "two\nlines"]


@pytest.mark.parametrize("chunk", [b"data: " + b"x" * 1000, b"data: " + b"x" * 1000 + b"\n"])
def test_an_event_without_end_is_not_held(monkeypatch: pytest.MonkeyPatch, chunk: bytes) -> None:
    monkeypatch.setattr(sse, "_LONGEST", 100_000)

    def endless() -> Iterator[bytes]:
        while True:
            yield chunk

    with pytest.raises(CliError, match="without end"):
        list(event_data(endless()))
