"""The parser of HTTP: what it refuses, and what it keeps in memory of a request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from service.api.http_protocol import MAX_HEAD_BYTES, BoundedHttpProtocol

_PART = 4096


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the method, the path and the length of the body."""
    length, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return
        length, more = length + len(message["body"]), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"{scope['method']} {scope['path']} {length}".encode()})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(_echo, http=BoundedHttpProtocol, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(30)


def answer(port: int, *parts: bytes) -> bytes:
    """Sends the parts until the server closes the connection, and returns what it answers."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        try:
            for part in parts:
                client.sendall(part)
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        received = b""
        try:
            while data := client.recv(1 << 16):
                received += data
        except ConnectionResetError:
            pass
        return received


HEAD = b"POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
LARGE = [b"x" * _PART] * (2 * MAX_HEAD_BYTES // _PART)
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([b"GET /", *LARGE], id="path"),
        pytest.param([HEAD + b"X: ", *LARGE], id="header"),
        pytest.param([HEAD, *([b"X: " + b"x" * _PART + b"\r\n"] * len(LARGE))], id="headers"),
        pytest.param([CHUNKED + b"1;", *LARGE], id="extension of a chunk"),
        pytest.param([CHUNKED + b"0\r\nX: ", *LARGE], id="trailer"),
        pytest.param([b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"], id="two lengths"),
        pytest.param([CHUNKED.replace(b"Host", b"Content-Length: 3\r\nHost") + b"0\r\n\r\n"], id="length and chunks"),
        pytest.param([b"\x16\x03\x01\x02\x00"], id="TLS"),
    ],
)
def test_what_is_refused(port: int, parts: list[bytes]) -> None:
    assert b" 200 " not in answer(port, *parts)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([b"GET /y HTTP/1.1\r\nConnection: close\r\n\r\n"], b"GET /y 0"),
        ([HEAD + b"X: " + b"x" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n"], b"POST /x 0"),
        ([HEAD + b"Content-Length: %d\r\n\r\n" % (len(LARGE) * _PART), *LARGE], b"POST /x %d" % (len(LARGE) * _PART)),
        ([CHUNKED, *([b"1000\r\n" + b"x" * _PART + b"\r\n"] * len(LARGE)), b"0\r\n\r\n"], b"%d" % (len(LARGE) * _PART)),
        # Java's client asks for HTTP/2 in its first request.
        ([HEAD + b"Upgrade: h2c\r\nContent-Length: 3\r\n\r\nabc"], b"POST /x 3"),
    ],
)
def test_what_is_read(port: int, parts: list[bytes], expected: bytes) -> None:
    assert expected in answer(port, *parts)


def test_a_connection_goes_on_after_an_upgrade_was_not_granted(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        for request in (b"GET /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", HEAD + b"\r\n"):
            client.sendall(request)
            received = b""
            while b"\r\n0\r\n\r\n" not in received:
                received += client.recv(1 << 16)
            assert b" 200 " in received
