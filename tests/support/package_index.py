"""A local server that replaces PyPI for releases and their security advisories."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trustme

from tests.support.tls import behind_tls, pass_on, write_ca


@contextmanager
def package_index(advisories: Callable[[str], list[Any] | None], directory: Path) -> Iterator[Mapping[str, str]]:
    """Runs the server and yields the environment variables for clients that use `requests`. `advisories` returns those
    of a package, or None for an unknown package."""
    ca = trustme.CA()

    class Index(_Quiet):
        def do_GET(self) -> None:
            name = self.path.split("/")[2]
            found = advisories(name)
            body = json.dumps({"info": {"name": name}, "vulnerabilities": found}).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with _served(Index) as index:

        class Proxy(_Quiet):
            def do_CONNECT(self) -> None:
                # The proxy answers for every host.
                issued = ca.issue_cert(self.path.rpartition(":")[0])
                self.send_response(200)
                self.end_headers()
                with behind_tls(index, issued) as front, socket.create_connection(("127.0.0.1", front.port)) as there:
                    pass_on(self.connection, there)
                self.close_connection = True

        with _served(Proxy) as proxy:
            yield {
                "HTTPS_PROXY": f"http://127.0.0.1:{proxy}",
                "NO_PROXY": "",
                "REQUESTS_CA_BUNDLE": str(write_ca(ca, directory / "index-ca.pem")),
            }


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Suppresses the log."""


@contextmanager
def _served(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join(10)
