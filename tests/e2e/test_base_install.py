"""Test that the base installation runs the API without Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.processes import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_api_runs_without_pyspark(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=120)
    python = venv / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-compile", "-c", ROOT / "constraints.txt", ROOT],
        check=True,
        timeout=300,
    )
    found = subprocess.run([python, "-c", "import pyspark"], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in found.stderr
    output = tmp_path / "serve.log"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("EVENKEEL_")},
        "EVENKEEL_STATE_DIR": str(tmp_path / "state"),
        "EVENKEEL_PARENT_PID": str(os.getpid()),
    }
    evenkeel = venv / "bin" / "evenkeel"
    # From another directory, so that no module of the checkout is imported.
    subprocess.run([evenkeel, "migrate"], env=environment, cwd=tmp_path, check=True, timeout=60)
    with output.open("wb") as log:
        api = subprocess.Popen(
            [evenkeel, "serve", "--port", "0"], env=environment, cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        wait_for("the address", lambda: "listens on" in output.read_text() or api.poll() is not None)
        address = output.read_text().split("listens on ")[1].split()[0]
        assert wait_for("health", lambda: answer(f"{address}/healthz")) == 200
        # There is no worker.
        assert answer(f"{address}/readyz") == 503
        # The client commands need nothing else.
        ask = {**environment, "EVENKEEL_URL": address}
        for command in (("whoami",), ("jobs",), ("workers",), ("keys", "list")):
            done = subprocess.run(
                [evenkeel, *command, "--json"], env=ask, cwd=tmp_path, capture_output=True, timeout=60, check=True
            )
            json.loads(done.stdout)
        refused = subprocess.run(
            [evenkeel, "submit", "--sql", "SELECT 1 AS a FROM t", "--table", "t=nowhere.csv"],
            env=ask,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (refused.returncode, refused.stderr.count("evenkeel: ")) == (2, 1), refused.stderr
    finally:
        api.terminate()
        # uvicorn shuts down and then ends with the signal that it received.
        assert api.wait(30) in (0, -signal.SIGTERM)


def answer(url: str) -> int | None:
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code
    except httpx.TransportError:
        return None
