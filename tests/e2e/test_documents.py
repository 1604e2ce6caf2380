"""The commands and console sessions of README.md and docs/, run as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support import documents
from tests.support.processes import end, free_port, wait_for
from tests.support.service import ENVIRONMENT, running_service

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

COMMANDS = Path(sys.executable).parent
_DEMO_SECONDS = 400
_UP_SECONDS = 120


SESSIONS = [one.name for one in documents.blocks("executed")]


@dataclass(frozen=True)
class RunningService:
    """A service with the demo's tables, and where commands that use it run."""

    address: str
    directory: Path
    environment: dict[str, str]


@contextmanager
def running(command: str, directory: Path) -> Iterator[RunningService]:
    """Runs `command`, which starts a service, in `directory` until the block ends."""
    # The environment that the command of README.md, which CI cannot repeat, would have created.
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
    *before, up = command.strip().replace(" && ", "\n").splitlines()
    for one in before:
        subprocess.run(["bash", "-c", one], cwd=directory, env=environment, timeout=_DEMO_SECONDS, check=True)
    output = directory / "up.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            # `exec env` replaces the shell by the command, which therefore ends with this process.
            ["bash", "-c", f"exec env {up}"],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:

        def is_ready() -> bool:
            assert process.poll() is None, output.read_text()
            return "Evenkeel is ready at" in output.read_text()

        wait_for("the service", is_ready, _UP_SECONDS)
        yield RunningService(address, directory, environment)
    finally:
        end(process, seconds=60)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    install_and_demo = documents.block("command: demo").strip()
    commands = f"{install_and_demo.rpartition(' && ')[2]}\n{documents.block('command: keep')}"
    with running(commands, tmp_path_factory.mktemp("demo")) as service:

        def is_worker_ready() -> bool:
            workers = httpx.get(f"{service.address}/v1/workers").json()["workers"]
            return any(worker["status"] == "READY" for worker in workers)

        wait_for("the worker", is_worker_ready, _UP_SECONDS)
        yield service


@pytest.mark.parametrize("name", SESSIONS)
def test_session(demo: RunningService, name: str) -> None:
    session = documents.block(f"executed: {name}")
    documents.do_as_written(session, demo.address, demo.directory, demo.environment)


def test_own_files_of_the_readme(tmp_path: Path) -> None:
    with running(documents.block("command: own files"), tmp_path) as service:
        documents.do_as_written(
            documents.block("commands: own files"), service.address, service.directory, service.environment
        )


def test_own_data_of_the_guide(tmp_path: Path) -> None:
    guide = (documents.ROOT / "docs/how-to/own-data.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"`shop/orders\.csv` has these lines:\n\n```text\n(.*?)```\n", guide, re.DOTALL)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/orders.csv").write_text(lines, encoding="utf-8")
    with running(documents.block("command: own data"), tmp_path) as service:
        documents.do_as_written(
            documents.block("commands: own data"), service.address, service.directory, service.environment
        )


def test_keys_are_created_both_ways(tmp_path: Path) -> None:
    command, *request = documents.block("command: keys").splitlines()
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
