"""Test of the running service against openapi.yaml with Schemathesis, including invalid requests."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.client import JobClient
from tests.support.counts import FULL
from tests.support.production import Production, running_production, running_servers
from tests.support.tables import parquet, write_orders

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SEED = 20
SECONDS = 400
"""A longer run is considered hanging."""
SAMPLED = {"sqlite": "examples,fuzzing", "postgresql": "stateful"}
"""The phases of Schemathesis by database, with few requests for each operation. With EVENKEEL_TEST_FULL, all phases run
to their end on both.
"""
MIN_REQUESTS = 60
"""The minimum number of requests of a run. A sample has 90 to 200, a full run more than 6,000."""

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "tests" / "support" / "contract.toml"
SETTINGS = {
    "EVENKEEL_API_AUTHENTICATION": "on",
    # For the longest wait that a request can ask for.
    "EVENKEEL_API_MAX_WAIT_SECONDS": "1",
}
_log = logging.getLogger(__name__)

COUNTED = {"tables": {"o": parquet("orders")}, "sql": "SELECT category, COUNT(*) AS n FROM o GROUP BY category"}


@pytest.fixture
def production(database: str, tmp_path: Path) -> Iterator[Production]:
    with ExitStack() as stack:
        servers = stack.enter_context(running_servers(tmp_path)) if database == "postgresql" else None
        running = running_production(tmp_path, servers, apis=1, workers=1, environment=SETTINGS)
        production = stack.enter_context(running)
        write_orders(production.data)
        yield production


def make_something_of_each(client: JobClient) -> str:
    """Creates a result, posted rows, and a stopped stream, so that requests find something. Returns the stream's id."""
    client.run(COUNTED)
    job_id = client.submit({**COUNTED, "mode": "incremental"})
    assert client.wait(job_id, "STOPPED")["status"] == "STOPPED"
    declared = client.http.put("/v1/streams/clicks", json={"schema": "uid BIGINT, page STRING"})
    assert declared.status_code == 201, declared.text
    rows = client.http.post(
        "/v1/streams/clicks/rows",
        params={"batch_id": "1"},
        content='{"uid": 1, "page": "/"}\n',
        headers={"Content-Type": "application/x-ndjson"},
    )
    assert rows.status_code == 202, rows.text
    return job_id


@pytest.mark.withstands(
    "requests generated from the specification",
    kind="attack",
    how="Schemathesis with all its checks and one seed: valid and invalid requests, single and in sequences, on "
    "SQLite and on PostgreSQL, without event streams",
    times=10_000,
    guaranteed="only declared statuses, headers and bodies; invalid requests are refused, and valid ones are never "
    "refused for their form; no 500 and no hang",
)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("database", SAMPLED)
def test_service_conforms_to_its_specification(production: Production, database: str, tmp_path: Path) -> None:
    (api,) = production.apis
    stream = make_something_of_each(api)
    key = api.http.get("/v1/me").json()["key_id"]
    workers = [worker["id"] for worker in api.http.get("/v1/workers").json()["workers"]]
    command = [sys.executable, "-m", "schemathesis.cli", f"--config-file={CONFIGURATION}", "run", "--no-color"]
    limits = [] if FULL else [f"--phases={SAMPLED[database]}", "--max-examples=4"]
    run = subprocess.run(
        [*command, *limits, f"--seed={SEED}", f"{api.address}/openapi.json"],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CONTRACT_AUTHORIZATION": api.http.headers["Authorization"],
            "CONTRACT_STREAM": stream,
            "CONTRACT_SPARED": ",".join([key, stream, *workers]),
        },
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    _log.warning("seed %s: %s", SEED, run.stdout)
    assert run.returncode == 0, f"{run.stdout}\n{production.logs()}"
    generated = re.search(r"(\d+) generated, (\d+) passed", run.stdout)
    assert generated, run.stdout
    assert int(generated[1]) >= MIN_REQUESTS
    assert production.workers[0].is_running
    assert api.http.get("/readyz").is_success
