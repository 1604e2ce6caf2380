"""Measures a large state of a query that is computed by changes.

    python tests/benchmarks/change_state.py [--keys 50000000] [--at-once 5000000] [--memory 2g] [--slots 2] [--data DIR]
        [--json FILE]

Two queries: how many keys have how many rows (an aggregate of an aggregate), and a join of two streams by the key. The
first mini-batches add each key once, `--at-once` of them in each; later ones add a row to each of 10,000, 100,000 and
1,000,000 random keys. Their results are compared with numbers that are known. Mini-batches are run by the engine, with
the state in `--data` and without a sink.

Prints for each query the seconds to add the keys, the size of the state, the median seconds of later mini-batches and
the seconds that a new attempt takes before its first one; and the largest memory of the driver and of the processes of
Python.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import psutil
from pyspark import SparkConf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.config.spark import SparkSettings
from service.contract.job import JobSpec
from service.sql.compile import compile_job
from service.sql.resolve.bound import tables_of
from service.sql.types.data_types import BIGINT, Field, Schema
from tests.support.machine import machine
from workers.driver.configuration import spark_configuration
from workers.engine.plan.builder import build
from workers.engine.streaming.changes.plan import plan_changes
from workers.engine.streaming.changes.run import Changes, one_frame, source_scans

BUCKETS = 8
ROUNDS = 5
SCHEMA = Schema((Field("k", BIGINT), Field("v", BIGINT)))
QUERIES = {
    "aggregate of an aggregate": "SELECT n, COUNT(*) AS c FROM (SELECT k, COUNT(*) AS n FROM s GROUP BY k) AS g "
    "GROUP BY n",
    "join of two streams": "SELECT COUNT(*) AS c, SUM(s.v + t.v) AS v FROM s JOIN t ON s.k = t.k",
}
CHANGES = (10_000, 100_000, 1_000_000)


@dataclass
class Memory:
    """The largest memory of this program's processes, in bytes."""

    driver: int = 0
    python: int = 0

    def measure(self, stop: threading.Event) -> None:
        """Measures it until `stop` is set."""
        own = psutil.Process()
        while not stop.wait(0.2):
            try:
                children = own.children(recursive=True)
                sizes = [(child.name(), child.memory_info().rss) for child in children]
            except psutil.Error:
                continue
            self.driver = max([self.driver, *(size for name, size in sizes if name.startswith("java"))])
            self.python = max(self.python, *(size for name, size in [("", 0), *sizes] if not name.startswith("java")))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=50_000_000)
    parser.add_argument("--at-once", type=int, default=5_000_000)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "evenkeel-change-state")
    parser.add_argument("--json", type=Path, default=Path("change_state.json"))
    arguments = parser.parse_args()
    shutil.rmtree(arguments.data, ignore_errors=True)
    arguments.data.mkdir(parents=True)
    session = _session(arguments)
    memory, stop = Memory(), threading.Event()
    watching = threading.Thread(target=memory.measure, args=(stop,), daemon=True)
    watching.start()
    found = {name: _measure(session, sql, arguments) for name, sql in QUERIES.items()}
    stop.set()
    watching.join()
    for name, figures in found.items():
        sys.stdout.write(f"{name}: {json.dumps(figures)}\n")
    sys.stdout.write(f"driver {memory.driver >> 20} MiB, a Python process {memory.python >> 20} MiB; {machine()}\n")
    whole = {"machine": machine(), "keys": arguments.keys, "found": found, "memory": vars(memory)}
    arguments.json.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    session.stop()


def _session(arguments: argparse.Namespace) -> SparkSession:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = SparkSettings(master=f"local[{arguments.slots}]", driver_memory=arguments.memory)
    (arguments.data / "spark").mkdir()
    properties = spark_configuration(settings, arguments.data / "spark")
    conf = SparkConf(loadDefaults=False).setAll(list(properties.items())).set("spark.ui.enabled", "false")
    return SparkSession.builder.config(conf=conf).getOrCreate()


def _measure(session: SparkSession, sql: str, arguments: argparse.Namespace) -> dict[str, Any]:
    streams = tuple(name for name in "st" if f"FROM {name} " in sql or f"JOIN {name} " in sql)
    tables = {name: {"format": "parquet", "path": name, "role": "stream"} for name in streams}
    spec = JobSpec.model_validate({"mode": "incremental", "tables": tables, "sql": sql})
    query = compile_job(spec, dict.fromkeys(streams, SCHEMA))
    aliases = frozenset(table.alias for table in tables_of(query))
    plan = plan_changes(build(query), aliases)
    changes = Changes(plan, source_scans(plan, aliases), {}, BUCKETS)
    directory = arguments.data / "state"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    keys, at_once = arguments.keys, arguments.at_once
    attempt, number = changes.of_attempt(directory, 1), 0

    def run(frames: Mapping[str, DataFrame]) -> tuple[float, list[Any]]:
        nonlocal number
        begun = perf_counter()
        with attempt(one_frame(changes.scans, _named(changes, frames)), number) as rows:
            emitted = rows.collect()
        number += 1
        return perf_counter() - begun, emitted

    def frame(ids: DataFrame) -> DataFrame:
        return ids.select(F.col("id").alias("k"), F.lit(1).cast("bigint").alias("v"))

    loads = []
    for start in range(0, keys, at_once):
        rows = frame(session.range(start, min(start + at_once, keys)))
        loads.append(run(dict.fromkeys(streams, rows))[0])
    figures: dict[str, Any] = {
        "seconds to add the keys": round(sum(loads), 1),
        "bytes": sum(path.stat().st_size for path in directory.rglob("*.arrow")),
    }
    for count in CHANGES:
        times = []
        for _ in range(ROUNDS):
            ids = session.range(count).select((F.xxhash64("id", F.lit(number)) % keys + keys).alias("id"))
            own = frame(ids.select((F.col("id") % keys).alias("id")))
            times.append(run({"s": own, "t": own.limit(0)})[0])
        figures[f"seconds of {count:,} changes"] = [round(statistics.median(times), 2), round(max(times), 2)]
    begun = perf_counter()
    attempt = changes.of_attempt(directory, 2)
    _, emitted = run({"s": frame(session.range(1)), "t": frame(session.range(0))})
    figures["seconds of a new attempt and its first mini-batch"] = round(perf_counter() - begun, 2)
    total = _total(emitted, sql)
    if total is not None and total != keys + ROUNDS * sum(CHANGES) + 1:
        raise SystemExit(f"{sql}: {total} rows")
    return figures


def _named(changes: Changes, frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Returns the rows of each scan."""
    named = {}
    for scan in changes.scans:
        columns = [(one.name, name) for one, name in scan.columns if not one.name.startswith("$")]
        named[scan.alias] = frames[scan.table].select(*(F.col(name).alias(own) for own, name in columns))
    return named


def _total(emitted: list[Any], sql: str) -> int | None:
    """Returns the number of rows of the join; None for the other query, of which only changed rows are emitted."""
    present = [row for row in emitted if row[-1] > 0]
    return int(present[0]["c"]) if "JOIN" in sql and present else None


if __name__ == "__main__":
    main()
