"""The programs of the documentation's page about generated clients, run as written."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.typescript_client import check_types, run_program
from tests.support import documents
from tests.support.node import node_packages, run_node
from tests.support.production import Production

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
ADDRESS, KEY = "http://localhost:8080", "ek_…"
CARRIERS = [["UA", 58665], ["B6", 54635], ["EV", 54173]]


def program(client: str, production: Production) -> str:
    """Returns the documented program, adapted to the tests' service."""
    (api,) = production.apis
    text = documents.block(f"program: {client} client")
    assert ADDRESS in text
    assert KEY in text
    return text.replace(ADDRESS, api.address).replace(KEY, production.key())


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory with the files that the commands use."""
    for name in ("openapi.yaml", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def test_python_from_installation_to_rows(checkout: Path, production: Production) -> None:
    tool, generate, package = documents.block("commands: python client").splitlines()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        shlex.split(generate),
        cwd=checkout,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    name = generate.split()[0]
    assert tool == f"pip install {name}"
    where = checkout / package.removeprefix("pip install ")
    assert (where / "pyproject.toml").exists()
    (checkout / "program.py").write_text(program("python", production), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "program.py"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(where)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ast.literal_eval(ran.stdout) == CARRIERS


def test_typescript_from_installation_to_rows(checkout: Path, production: Production) -> None:
    (checkout / "node_modules").symlink_to(node_packages(), target_is_directory=True)
    install, generate = documents.block("commands: typescript client").splitlines()
    assert {"openapi-fetch", "openapi-typescript", "typescript"} <= set(install.split())
    npx, *command = shlex.split(generate)
    assert npx == "npx"
    done = run_node(command, cwd=checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    text = program("typescript", production)
    given = checkout / "given"
    given.mkdir()
    (given / "program.ts").write_text(text, encoding="utf-8")
    assert check_types(checkout, given / "program.ts") == []
    shown = text.replace("console.log((", "console.log(JSON.stringify((").replace(".data);", ".data));")
    (checkout / "program.ts").write_text(shown, encoding="utf-8")
    ran = run_program(checkout, "program.ts")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.findall(r'\["(\w\w)",(\d+)\]', ran.stdout)[:3] == [(name, str(rows)) for name, rows in CARRIERS]
