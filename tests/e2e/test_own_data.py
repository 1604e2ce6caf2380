"""Tests the guide about own data: its service is started as written, and prints the rows of its CSV file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import readme
from tests.support.processes import end, free_port, wait_for
from tests.support.service import ENVIRONMENT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

GUIDE = Path(__file__).parents[2] / "docs/how-to/own-data.md"
COMMANDS = Path(sys.executable).parent
NAME = "own data"
_UP_SECONDS = 120


@pytest.fixture
def environment() -> dict[str, str]:
    port = free_port()
    return {
        **os.environ,
        **ENVIRONMENT,
        "PATH": f"{COMMANDS}{os.pathsep}{os.environ['PATH']}",
        "EVENKEEL_PARENT_PID": str(os.getpid()),
        "EVENKEEL_API_PORT": str(port),
        "EVENKEEL_URL": f"http://localhost:{port}",
    }


@pytest.fixture
def directory(tmp_path: Path, environment: dict[str, str]) -> Iterator[Path]:
    """A directory with the guide's CSV file, which the guide's service reads."""
    (lines,) = re.findall(r"`shop/orders\.csv` has these lines:\n\n```text\n(.*?)```\n", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/orders.csv").write_text(lines, encoding="utf-8")
    output = tmp_path / "up.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            # `exec env` replaces the shell by the command, which therefore ends with this process.
            ["bash", "-c", "exec env " + readme.block(f"command: {NAME}")],
            cwd=tmp_path,
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
        yield tmp_path
    finally:
        end(process, seconds=60)


def test_rows_of_own_csv_file(directory: Path, environment: dict[str, str]) -> None:
    readme.do_as_written(readme.block(f"commands: {NAME}"), environment["EVENKEEL_URL"], directory, environment)
