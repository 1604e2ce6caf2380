"""Generates the Python client from openapi.yaml with openapi-python-client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "tests" / "clients" / "python_client.yaml"
PACKAGE = "evenkeel_openapi"

_SECONDS = 120


def generate_python_client(directory: Path) -> Path:
    """Generates the client below `directory` and returns the directory from which it can be imported.

    Raises AssertionError if the generator prints a warning.
    """
    project = directory / "evenkeel-openapi"
    options = ["--path", ROOT / "openapi.yaml", "--config", CONFIGURATION, "--output-path", project]
    run = subprocess.run(
        [sys.executable, "-m", "openapi_python_client", "generate", "--fail-on-warning", *map(str, options)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert run.returncode == 0, f"{run.stdout}{run.stderr}"
    return project
