"""An HTTP server with which programs in other languages change the state of the tested service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from tests.clients.acts import Acts


@contextmanager
def acting(acts: Acts) -> Iterator[str]:
    """Yields an address at which `POST /ACT` runs an act with the body as its argument and returns the result."""
    held = ExitStack()
    known: Mapping[str, Callable[[str], str | None]] = {
        "newcomer": lambda _: acts.newcomer(),
        "reader": lambda _: acts.reader(),
        "silent_worker": lambda _: acts.silent_worker(),
        "spoil": acts.spoil,
        "move_on": acts.move_on,
        "lose": acts.lose,
        "stick": lambda _: held.enter_context(acts.stuck()),
        "unstick": lambda _: held.close(),
        "stop": lambda _: acts.stop(),
        "start_again": lambda _: acts.start_again(),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            argument = self.rfile.read(int(self.headers["Content-Length"])).decode()
            try:
                result, status = known[self.path[1:]](argument) or "", 200
            except Exception as error:  # noqa: BLE001 - whoever asked is to fail of it
                result, status = f"{type(error).__name__}: {error}", 500
            body = result.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Suppresses the log."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server, held:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
