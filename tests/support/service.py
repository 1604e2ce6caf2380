"""A real `evenkeel up` with its own state directory, on a port that it chooses."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.client import JobClient
from tests.support.processes import end, start_python, wait_for

_READY = re.compile(r"Evenkeel is ready at (http://\S+)")
_READY_SECONDS = 120

# Quick to stop, and small enough for several of them next to the test process's Spark session.
ENVIRONMENT = {
    "EVENKEEL_WORKER_DRAIN_SECONDS": "0",
    "EVENKEEL_SPARK_MASTER": "local[2]",
    "EVENKEEL_SPARK_DRIVER_MEMORY": "1g",
}


class Service(JobClient):
    """A running service with the usual requests."""

    def __init__(self, process: subprocess.Popen[bytes], state_dir: Path, output: Path, address: str) -> None:
        super().__init__(address)
        self.process = process
        self.state_dir = state_dir
        self.data = state_dir / "data"
        self.output = output

    def logs(self) -> str:
        """Returns the logs of the processes, for the message of a failed test."""
        files = [self.output, *sorted((self.state_dir / "logs").glob("*.log"))]
        return "\n".join(f"--- {file.name}\n{file.read_text()[-4000:]}" for file in files if file.exists())


@contextmanager
def running_service(directory: Path, environment: Mapping[str, str] | None = None) -> Iterator[Service]:
    """Runs `evenkeel up` below `directory`."""
    state_dir, output = directory / "state", directory / "up.log"
    (state_dir / "data").mkdir(parents=True, exist_ok=True)
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
