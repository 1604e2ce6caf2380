"""What a health check of a container gets to hear."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from tests.support.processes import free_port

ANSWERS = {
    "/good": (200, b'{"status": "ALIVE", "masterwebuiurl": "", "workers": 2}'),
    "/text": (200, b"fine"),
    "/bad": (503, b'{"detail": "No worker has given a sign of life lately."}'),
}


class Part(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = ANSWERS[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its name upstream
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Part) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("path", "options", "code", "told"),
    [
        ("/good", (), 0, ""),
        ("/good", ("--field", "status=ALIVE"), 0, ""),
        ("/good", ("--field", "workers"), 0, ""),
        ("/good", ("--field", "status=STANDBY"), 1, "answers status=ALIVE, not STANDBY"),
        ("/good", ("--field", "masterwebuiurl"), 1, "answers masterwebuiurl=, not a value"),
        ("/good", ("--field", "unknown"), 1, "answers unknown=None, not a value"),
        ("/text", ("--field", "status"), 1, "answers no JSON"),
        ("/bad", (), 1, "answers 503: " + json.dumps({"detail": "No worker has given a sign of life lately."})),
    ],
)
def test_it_tells_by_its_exit_code(address: str, path: str, options: tuple[str, ...], code: int, told: str) -> None:
    result = CliRunner().invoke(app, ["health", address + path, *options], env={"http_proxy": "http://127.0.0.1:9"})
    assert (result.exit_code, told in result.output) == (code, True), result.output


def test_what_does_not_answer_is_not_well() -> None:
    result = CliRunner().invoke(app, ["health", f"http://127.0.0.1:{free_port()}/"])
    assert result.exit_code == 1
    assert "does not answer" in result.output


def test_it_asks_over_http_alone() -> None:
    result = CliRunner().invoke(app, ["health", "file:///etc/hostname"])
    assert result.exit_code == 2
    assert "is no address of HTTP" in result.output
