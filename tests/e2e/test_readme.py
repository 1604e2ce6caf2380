"""Tests of the README's examples, run as written: the demo's command and the tours."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import readme
from tests.support.processes import end, free_port, wait_for
from tests.support.service import ENVIRONMENT, running_service

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

COMMANDS = Path(sys.executable).parent
_DEMO_SECONDS = 400
_UP_SECONDS = 120


@dataclass(frozen=True)
class Kept:
    """The service that the README tells its readers to keep running."""

    address: str
    directory: Path
    environment: dict[str, str]

    def do(self, marker: str) -> None:
        readme.do_as_written(readme.block(marker), self.address, self.directory, self.environment)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    directory = tmp_path_factory.mktemp("readme")
    # The environment that the previous command, which CI cannot repeat, would have created.
    (directory / ".venv").symlink_to(COMMANDS.parent, target_is_directory=True)
    port = free_port()
    address = f"http://localhost:{port}"
    environment = {
        **os.environ,
        **ENVIRONMENT,
        "PATH": f"{COMMANDS}{os.pathsep}{os.environ['PATH']}",
        "EVENKEEL_PARENT_PID": str(os.getpid()),
        "EVENKEEL_API_PORT": str(port),
        "EVENKEEL_URL": address,
    }
    # `env` executes the command, which therefore ends with this process.
    demo, up = (["env", *shlex.split(command)] for command in readme.block("command: keep").split(" && "))
    done = subprocess.run(
        demo, cwd=directory, env=environment, capture_output=True, text=True, timeout=_DEMO_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    output = directory / "up.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            up, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:

        def is_ready() -> bool:
            assert process.poll() is None, output.read_text()
            return "Evenkeel is ready at" in output.read_text()

        wait_for("the service", is_ready, _UP_SECONDS)
        yield Kept(address, directory, environment)
    finally:
        end(process, seconds=60)


def test_tour_over_http(kept: Kept) -> None:
    kept.do("executed: tour")


def test_tour_of_streams(kept: Kept) -> None:
    kept.do("executed: streams")


def test_tour_of_commands(kept: Kept) -> None:
    kept.do("executed: commands")
    assert (kept.directory / "rows.parquet").stat().st_size > 0


def test_keys_are_created_both_ways(tmp_path: Path) -> None:
    command, *request = readme.block("command: keys").splitlines()
    with running_service(tmp_path, {"EVENKEEL_API_AUTHENTICATION": "on"}) as service:
        (first,) = set(re.findall(r"ek_[\w-]+", service.output.read_text()))
        for text in (command, "\n".join(request).replace("https://jobs.example.org", service.address)):
            done = subprocess.run(
                ["bash", "-c", text],
                env={
                    **os.environ,
                    "PATH": f"{COMMANDS}{os.pathsep}{os.environ['PATH']}",
                    "EVENKEEL_STATE_DIR": str(service.state_dir),
                    "KEY": first,
                },
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert re.search(r"ek_[\w-]+", done.stdout), (done.stdout, done.stderr)
