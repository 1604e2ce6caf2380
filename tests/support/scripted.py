"""A server that misbehaves step by step, for tests of clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Seen:
    """A request that the server received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Script:
    """A server that runs one step for each request, and then repeats the last step."""

    steps: list[Callable[[BaseHTTPRequestHandler], None]]
    seen: list[Seen] = field(default_factory=list)
    url: str = ""


@contextmanager
def scripted(*steps: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[Script]:
    """Runs the server on loopback during the block."""
    script = Script(list(steps))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            script.seen.append(Seen(self.command, self.path, headers, body))
            script.steps[min(len(script.seen), len(script.steps)) - 1](self)

        do_POST = do_GET  # noqa: N815 - what the base class looks for
        do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_arguments: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        script.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield script
        finally:
            server.shutdown()
            thread.join()


def answers(status: int, document: object, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """Returns a step that responds with JSON. In the names of headers, `_` stands for `-`."""

    def step(handler: BaseHTTPRequestHandler) -> None:
        body = json.dumps(document).encode()
        handler.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return step


def breaks_off(handler: BaseHTTPRequestHandler) -> None:
    """A step that closes the connection without a response."""
    handler.close_connection = True


def breaks_off_amid_the_body(handler: BaseHTTPRequestHandler) -> None:
    """A step that closes the connection in the middle of a response."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"half")
    handler.close_connection = True
