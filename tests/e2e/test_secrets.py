"""Test that no secret is in a response or in a file of the service."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.client import JobClient
from tests.support.servers import PostgresServer
from tests.support.service import running_service
from tests.support.tables import parquet, write_orders

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SECRET = "hush-5f2c9d41"
"""A part of every secret in this test."""


class Listener(JobClient):
    """A client that records all responses."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.heard = b""
        self.http.event_hooks["response"] = [self._hear]

    def _hear(self, answer: httpx.Response) -> None:
        self.heard += answer.read() + repr(answer.headers.raw).encode()


@pytest.mark.withstands(
    "leaked secrets",
    kind="attack",
    how="jobs that succeed, that fail, whose store is unreachable and whose sinks refuse the password, with secrets "
    "for S3, Hadoop and sinks; then all responses and all files of the service are searched",
    times=7,
    guaranteed="no secret in responses, events, plans, logs, database or results; the one file for Spark is readable "
    "only by its user and is deleted with the driver",
)
def test_no_secret_is_sent_or_written(tmp_path: Path, postgres: PostgresServer) -> None:
    properties = tmp_path / "spark.conf"
    properties.write_text(f"spark.hadoop.fs.s3a.session.token {SECRET}-token\n")
    data = tmp_path / "state" / "data"
    url = postgres.create_database("secrets")
    wrong = (
        url.replace("://", f"://nobody:{SECRET}-wrong@", 1) if "@" not in url else url.replace("@", f"-{SECRET}@", 1)
    )
    environment = {
        "EVENKEEL_DATA_ROOTS": f"file://{data},s3a://bucket/data",
        "EVENKEEL_SPARK_PROPERTIES_FILE": str(properties),
        "EVENKEEL_DATA_S3_ENDPOINT": "http://127.0.0.1:9",
        "EVENKEEL_DATA_S3_ACCESS_KEY": f"{SECRET}-access",
        "EVENKEEL_DATA_S3_SECRET_KEY": f"{SECRET}-secret",
        "EVENKEEL_SINK_REFUSING_URL": wrong,
        "EVENKEEL_SINK_UNREADABLE_URL": f"postgresql://u:{SECRET}@127.0.0.1:port/x y",
        "EVENKEEL_SINK_AWAY_URL": f"postgresql://u:{SECRET}@127.0.0.1:9/x",
    }
    with running_service(tmp_path, environment) as service:
        write_orders(service.data)
        client = Listener(service.address)
        with client.http:
            ends = run_all(client)
        assert ends == {
            "succeeds": "SUCCEEDED",
            "fails": "FAILED",
            "refusing": "STOPPED",
            "unreadable": "STOPPED",
            "away": "STOPPED",
        }
        found = [path for path in (service.output, *files_of(tmp_path / "state")) if holds_a_secret(path)]
        modes = [stat.S_IMODE(path.stat().st_mode) for path in found]
    # Spark reads secrets from a file that only its user can read; a command line is visible to all users.
    assert [path.name for path in found] == ["further.properties"]
    assert modes == [0o600]
    assert SECRET.encode() not in client.heard
    assert len(client.heard) > 10_000
    assert not any(map(holds_a_secret, files_of(tmp_path / "state"))), "files of the driver are left"


def files_of(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def holds_a_secret(path: Path) -> bool:
    return path.exists() and SECRET.encode() in path.read_bytes()


def run_all(client: Listener) -> dict[str, str]:
    """Runs all jobs, requests everything about each, and returns their final states by name."""
    orders = {"o": parquet("orders")}
    streams: dict[str, dict[str, Any]] = {
        name: {
            "name": name,
            "mode": "incremental",
            "tables": orders,
            "sql": "SELECT category, COUNT(*) AS n FROM o GROUP BY category",
            "sink": {"kind": "postgres", "connection": name, "table": "t"},
        }
        for name in ("refusing", "unreadable", "away")
    }
    specs: dict[str, dict[str, Any]] = {
        "succeeds": {"tables": orders, "sql": "SELECT COUNT(*) AS n FROM o"},
        "fails": {"tables": orders, "sql": "SELECT SUM(CAST(category AS INT)) AS n FROM o"},
        **streams,
    }
    ids = {name: client.submit({"name": name, **spec}) for name, spec in specs.items()}
    ends = {}
    for name, job_id in ids.items():
        ends[name] = client.wait(job_id, "STOPPED")["status"]
        for part in ("", "/events", "/plan", "/metrics", "/result", "/stream", "/batches"):
            client.http.get(f"/v1/jobs/{job_id}{part}", headers={"Accept": "application/json"})
    far = {"tables": {"o": {"format": "parquet", "path": "s3a://bucket/data/x"}}, "sql": "SELECT COUNT(*) AS n FROM o"}
    assert client.http.post("/v1/jobs", json=far).status_code == 503
    client.http.post("/v1/explain", json=specs["succeeds"])
    for path in ("/v1/jobs", "/v1/workers", "/metrics", "/readyz", "/openapi.json"):
        client.http.get(path)
    return ends
