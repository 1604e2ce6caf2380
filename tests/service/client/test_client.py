"""The client as a package: its doctests, and what it imports."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import service.client

MODULES = [
    *(f"service.client.{module.name}" for module in pkgutil.iter_modules(service.client.__path__)),
    # What the commands of the API import.
    *(f"service.cli.{name}" for name in ("display", "exact_profile", "job_input", "operations", "session", "waiting")),
]


def test_doctests(subtests: pytest.Subtests) -> None:
    for module in MODULES:
        with subtests.test(module=module):
            assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_client_imports_nothing_of_the_server(tmp_path: Path) -> None:
    script = (
        f"import importlib, sys; [importlib.import_module(name) for name in {MODULES}]; "
        "heavy = {'pyspark', 'pandas', 'pyarrow', 'sqlalchemy', 'alembic', 'celery', 'redis', 'fastapi', 'sqlglot'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
