"""`evenkeel health`, as the health check of a container."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from service import __version__
from service.cli.main import app
from service.contract.enums import SparkState
from service.store import workers
from service.store.session import Database
from service.store.tables import JobRow, WorkerRow
from service.store.workers import WorkerFacts
from tests.support import lifecycle
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


def test_exit_code_depends_on_the_response(address: str, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, tuple[str, ...], int, str]] = [
        ("/good", (), 0, ""),
        ("/good", ("--field", "status=ALIVE"), 0, ""),
        ("/good", ("--field", "workers"), 0, ""),
        ("/good", ("--field", "status=STANDBY"), 1, "returned status=ALIVE instead of STANDBY"),
        ("/good", ("--field", "masterwebuiurl"), 1, "returned masterwebuiurl= instead of a value"),
        ("/good", ("--field", "unknown"), 1, "returned unknown=None instead of a value"),
        ("/text", ("--field", "status"), 1, "is not JSON"),
        ("/bad", (), 1, "answered 503: " + json.dumps({"detail": "No worker has given a sign of life lately."})),
    ]
    for path, options, code, expected in cases:
        with subtests.test(path=path, options=options, code=code, expected=expected):
            result = CliRunner().invoke(
                app, ["health", address + path, *options], env={"http_proxy": "http://127.0.0.1:9"}
            )
            assert (result.exit_code, expected in result.output) == (code, True), result.output


@pytest.mark.parametrize(
    ("host", "state", "heard_ms_ago", "code", "expected"),
    [
        (socket.gethostname(), SparkState.READY, 0, 0, ""),
        (socket.gethostname(), SparkState.STARTING, 29_000, 0, ""),
        (socket.gethostname(), SparkState.UNAVAILABLE, 0, 1, "worker w accepts no jobs: The master does not answer."),
        (socket.gethostname(), SparkState.READY, 60_000, 1, "no worker on this machine"),
        ("elsewhere", SparkState.READY, 0, 1, "no worker on this machine"),
    ],
)
def test_worker_is_healthy_with_heartbeat_and_spark(
    state_dir: Path,
    sqlite_database: Database,
    host: str,
    state: SparkState,
    heard_ms_ago: int,
    code: int,
    expected: str,
) -> None:
    facts = WorkerFacts(host=host, spark_state=state.value, spark_fault="The master does not answer.")
    with sqlite_database.write() as session:
        workers.record_heartbeat(session, "w", sqlite_database.now(session) - heard_ms_ago, "0.1.0", facts)
    result = CliRunner().invoke(app, ["health", "worker"])
    assert (result.exit_code, expected in result.output) == (code, True), result.output


@pytest.mark.withstands(
    "a worker is alive but receives no jobs",
    how="heartbeats, a free slot, and a job that has waited too long for it",
    times=1,
    guaranteed="its health check fails unless the broker is unavailable; `/readyz` warns",
)
@pytest.mark.parametrize(("job_ms_ago", "broker", "code"), [(130_000, True, 1), (130_000, False, 0), (60_000, True, 0)])
def test_worker_that_takes_no_jobs_is_unhealthy(
    state_dir: Path, sqlite_database: Database, job_ms_ago: int, broker: bool, code: int
) -> None:
    job_id = lifecycle.insert(sqlite_database)
    facts = WorkerFacts(host=socket.gethostname(), spark_state=SparkState.READY.value, queues="short")
    with sqlite_database.write() as session:
        now = sqlite_database.now(session)
        workers.record_heartbeat(session, "w", now, __version__, facts)
        session.execute(update(WorkerRow).values(started_at=now - 600_000))
        session.execute(update(JobRow).where(JobRow.id == job_id).values(updated_at=now - job_ms_ago))
    environment = {}
    (state_dir / "broker" / "messages").mkdir(parents=True)
    if not broker:
        environment["EVENKEEL_BROKER_URL"] = f"redis://127.0.0.1:{free_port()}/0"
    result = CliRunner().invoke(app, ["health", "worker"], env=environment)
    printed = "worker w accepts no jobs although jobs wait for it" in result.output
    assert (result.exit_code, printed) == (code, code == 1), result.output


def test_worker_without_database_is_unhealthy() -> None:
    result = CliRunner().invoke(app, ["health", "worker"], env={"EVENKEEL_DATABASE_URL": "sqlite:////proc/jobs.db"})
    assert result.exit_code == 3
    assert "unable to open database file" in result.output


def test_address_that_does_not_respond_is_unhealthy() -> None:
    result = CliRunner().invoke(app, ["health", f"http://127.0.0.1:{free_port()}/"])
    assert result.exit_code == 1
    assert "does not respond" in result.output


def test_other_schemes_are_refused() -> None:
    result = CliRunner().invoke(app, ["health", "file:///etc/hostname"])
    assert result.exit_code == 2
    assert "is not an HTTP URL" in result.output
