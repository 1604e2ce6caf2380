"""Sends many HTTP requests from one event loop with little processor time, for measurements on the same machine.

A connection writes bytes that were built before and reads an answer up to its length. It has no pool, no redirects and
no compression. httpx needs ten times the processor time, which would be missing for the server.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_TAG = re.compile(rb"\r\netag: ([^\r]+)\r\n", re.IGNORECASE)
_WITHOUT_BODY = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: its status, its head as it was sent, and its body."""

    status: int
    head: bytes
    body: bytes

    @property
    def tag(self) -> str:
        """The ETag; empty if there is none."""
        found = _TAG.search(self.head)
        return found[1].decode() if found else ""


class Connection(asyncio.Protocol):
    """An open connection, for one request at a time."""

    def __init__(self) -> None:
        self._buffer = b""
        self._answer: asyncio.Future[Answer] | None = None
        self._transport: asyncio.Transport | None = None
        self.events = 0
        """Events of a stream that arrived on this connection."""
        self.streams = False

    @classmethod
    async def open(cls, host: str, port: int) -> Connection:
        """Connects. Raises OSError."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails the request that waits."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Completes the request once the whole answer is there. Of a stream, counts the events."""
        if self.streams:
            self.events += data.count(b"\nid:") + data.startswith(b"id:")
            return
        self._buffer += data
        end = self._buffer.find(_END)
        if end < 0 or self._answer is None:
            return
        status = int(self._buffer[9:12])
        length = 0
        if status not in _WITHOUT_BODY:
            found = _LENGTH.search(self._buffer, 0, end + 2)
            length = int(found[1]) if found else 0
        begin = end + len(_END)
        if len(self._buffer) >= begin + length:
            answer = Answer(status, self._buffer[: end + 2], self._buffer[begin : begin + length])
            self._buffer = b""
            waiting, self._answer = self._answer, None
            waiting.set_result(answer)

    async def send(self, request: bytes) -> Answer:
        """Sends a request and returns its answer. Raises OSError if the connection breaks."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def listen(self, request: bytes) -> None:
        """Sends a request whose answer is a stream of events, and counts them from then on."""
        assert self._transport is not None
        self.streams = True
        self._transport.write(request)

    def close(self) -> None:
        """Closes the connection."""
        if self._transport is not None:
            self._transport.close()


def request(method: str, path: str, headers: Mapping[str, str], body: object = None) -> bytes:
    """Returns the bytes of a request, with `body` as JSON."""
    content = b"" if body is None else json.dumps(body).encode()
    sent = {"Host": "127.0.0.1", **headers}
    if body is not None:
        sent |= {"Content-Type": "application/json", "Content-Length": str(len(content))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + content


@dataclass
class Times:
    """Seconds from when each request was due to its answer, and the number of failures."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0

    def count(self, began: float, status: int, expected: int) -> None:
        """Adds an answer to a request that was due at `began`."""
        self.seconds.append(time.perf_counter() - began)
        self.failed += status != expected

    def add(self, others: Times) -> None:
        """Adds the requests of another measurement."""
        self.seconds += others.seconds
        self.failed += others.failed

    def share(self, share: float) -> float:
        """Returns a quantile in milliseconds."""
        times = sorted(self.seconds) or [0.0]
        return 1000 * times[min(len(times) - 1, int(share * len(times)))]

    @property
    def median(self) -> float:
        """Milliseconds."""
        return 1000 * statistics.median(self.seconds or [0.0])

    @property
    def longest(self) -> float:
        """Milliseconds."""
        return 1000 * max(self.seconds, default=0.0)


async def as_fast_as_possible(
    connections: Sequence[Connection], requests: Callable[[], Iterator[bytes]], seconds: float, expected: int
) -> tuple[Times, float]:
    """Sends requests over each connection, the next one after each answer. Returns the times and the seconds that it
    took. `requests` is called once for each connection.
    """
    times, began = Times(), time.perf_counter()

    async def go_on(connection: Connection) -> None:
        for one in requests():
            due = time.perf_counter()
            if due - began >= seconds:
                return
            times.count(due, (await connection.send(one)).status, expected)

    await asyncio.gather(*(go_on(connection) for connection in connections))
    return times, time.perf_counter() - began


async def at_a_rate(
    connections: Sequence[Connection], requests: Iterator[bytes], a_second: float, seconds: float, expected: int
) -> Times:
    """Sends `a_second` requests over the connections in turn, each when it is due, and waits for all answers. A request
    waits for the earlier one of its connection; its time counts from when it was due.
    """
    times, began = Times(), time.perf_counter()
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for connection in connections:
        free.put_nowait(connection)

    async def send(due: float, one: bytes) -> None:
        connection = await free.get()
        times.count(due, (await connection.send(one)).status, expected)
        free.put_nowait(connection)

    async with asyncio.TaskGroup() as tasks:
        for number in range(round(a_second * seconds)):
            due = began + number / a_second
            if (early := due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            tasks.create_task(send(due, next(requests)))
    return times
