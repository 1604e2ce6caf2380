"""A real `evenkeel up` for tests, in a state directory of its own and on a port that it takes itself."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.processes import end, start_python, wait_for

_READY = re.compile(r"Evenkeel is ready at (http://\S+)")
_READY_SECONDS = 120

# Quick to stop, and small enough that several of them fit beside the session of the test process.
ENVIRONMENT = {
    "EVENKEEL_WORKER_DRAIN_SECONDS": "0",
    "EVENKEEL_SPARK_MASTER": "local[2]",
    "EVENKEEL_SPARK_DRIVER_MEMORY": "1g",
}


class Service:
    """A running service and the usual requests to it."""

    def __init__(self, process: subprocess.Popen[bytes], state_dir: Path, output: Path, address: str) -> None:
        self.process = process
        self.state_dir = state_dir
        self.data = state_dir / "data"
        self.output = output
        self.address = address
        self.http = httpx.Client(base_url=address, timeout=60, trust_env=False)

    def submit(self, spec: Mapping[str, Any], **headers: str) -> str:
        """Posts a job that is to be accepted; gives its id."""
        answer = self.http.post("/v1/jobs", json=spec, headers=headers)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """A job as it stands."""
        answer = self.http.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        job: dict[str, Any] = answer.json()
        return job

    def wait(self, job_id: str, status: str | None = None, seconds: float = 90) -> dict[str, Any]:
        """Waits until the job has finished, or has `status`; AssertionError after `seconds`."""
        deadline = time.monotonic() + seconds
        headers = {"Prefer": "wait=2"}
        job = self.job(job_id)
        while not job["finished"] and job["status"] != status:
            assert time.monotonic() < deadline, f"waited {seconds} s in vain: {job}"
            answer = self.http.get(f"/v1/jobs/{job_id}", headers=headers)
            if answer.status_code == 200:
                job = answer.json()
                headers["If-None-Match"] = answer.headers["ETag"]
        return job

    def run(self, spec: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
        """Submits a job that is to succeed; gives its id and the first page of its rows."""
        job_id = self.submit(spec)
        job = self.wait(job_id)
        assert job["status"] == "SUCCEEDED", job["error"]
        return job_id, self.rows(job_id)

    def rows(self, job_id: str, **parameters: Any) -> list[dict[str, Any]]:
        """The first page of a result, each row by column."""
        answer = self.http.get(f"/v1/jobs/{job_id}/result", params=parameters)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        names = [column["name"] for column in page["columns"]]
        return [dict(zip(names, row, strict=True)) for row in page["rows"]]

    def logs(self) -> str:
        """What the processes said, for the message of a failed test."""
        files = [self.output, *sorted((self.state_dir / "logs").glob("*.log"))]
        return "\n".join(f"--- {file.name}\n{file.read_text()[-4000:]}" for file in files if file.exists())


@contextmanager
def running_service(directory: Path, environment: Mapping[str, str] | None = None) -> Iterator[Service]:
    """Starts `evenkeel up` below `directory` and stops it at the end."""
    state_dir, output = directory / "state", directory / "up.log"
    (state_dir / "data").mkdir(parents=True)
    process = start_python(
        ["-m", "service.cli", "up", "--port", "0"],
        environment={**ENVIRONMENT, "EVENKEEL_STATE_DIR": str(state_dir), **(environment or {})},
        log=output,
        cwd=directory,
    )
    try:

        def address() -> str | None:
            if process.poll() is not None:
                raise RuntimeError(f"evenkeel up ended with {process.returncode}:\n{output.read_text()}")
            found = _READY.search(output.read_text())
            return found and found.group(1)

        service = Service(process, state_dir, output, wait_for("the service", address, _READY_SECONDS))
        with service.http:
            yield service
    finally:
        end(process, seconds=60)
