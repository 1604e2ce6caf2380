"""Workers whose planning hangs for queries over a table with a certain alias.

FROM orders AS checks   a loop that calls what planning calls between its steps
FROM orders AS loops    a loop that calls nothing
FROM orders AS waits    a call that does not return
FROM orders AS calls    a call into the JVM that does not return
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.processes import wait_for
from tests.support.tables import parquet

# Every Python process runs this at start; only a worker's planning is slow.
_HOOK = """
import sys

if "workers" in sys.orig_argv:
    import threading
    from pathlib import Path

    from pyspark import SparkContext
    from service.sql.resolve.bound import tables_of
    from workers.engine.spark import engine

    plan_query = engine.plan_query

    def hang(alias, check):
        Path(__file__).with_name(alias).touch()
        while alias == "loops":
            pass
        while alias == "checks":
            check()
        if alias == "calls":
            SparkContext._active_spark_context._jvm.java.lang.Thread.sleep(3_600_000)
        threading.Event().wait()

    def slow(query, statistics, settings, budget):
        for table in tables_of(query):
            if table.alias in {"checks", "loops", "waits", "calls"}:
                hang(table.alias, budget.check)
        return plan_query(query, statistics, settings, budget)

    engine.plan_query = slow
"""


def slow_planning(directory: Path) -> Mapping[str, str]:
    """Returns the environment of such workers, which use `directory`."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(_HOOK)
    return {"PYTHONPATH": os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])}


def query(alias: str) -> dict[str, Any]:
    """Returns a job that counts the orders, with this alias for the table."""
    return {"name": alias, "tables": {"o": parquet("orders")}, "sql": f"SELECT COUNT(*) AS n FROM o AS {alias}"}


def wait_until_it_hangs(directory: Path, alias: str, seconds: float = 60) -> None:
    """Waits until the planning of such a query hangs for the first time."""
    marker = directory / alias
    wait_for(f"the planning of {alias}", marker.exists, seconds)
    marker.unlink()
