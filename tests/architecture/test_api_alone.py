"""Test that the service's modules do not import Spark, the workers or pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

IMPORT_WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"pyspark", "py4j", "pandas", "workers"}:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

sys.meta_path.insert(0, Blocked())
import importlib, pkgutil
import service
for module in pkgutil.walk_packages(service.__path__, "service."):
    # The demo checks its numbers with pandas, which its own extra installs.
    if not module.name.startswith("service.cli.demo") and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


@pytest.mark.not_quick
def test_service_imports_no_spark_pandas_or_workers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
