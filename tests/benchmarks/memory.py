"""Measures the memory of the API, the worker and its JVM while many small jobs run.

    python tests/benchmarks/memory.py [--jobs 10000] [--every 500] [--concurrency 2] [--memory 1g] [--minutes 60]

Starts an API with SQLite and the folder broker, and one worker, and runs the jobs in groups of `--every`. One in five
has a query that no other job has, one in ten joins and counts distinct values, and one in fifty fails. After each
group, when no job runs, it reads the resident memory of each process and the jobs a second, and prints a row of a
Markdown table. It stops before the next group once `--minutes` have passed.

The JVM keeps the heap that it once needed: with `--memory`, the size of its heap, it soon has all of it, and only other
memory grows from then on.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import func, select

sys.path.insert(0, str(Path(__file__).parents[2]))

from service.store.tables import JobRow
from tests.support.burst import small_job, wait_until_ended, write_small
from tests.support.machine import machine
from tests.support.production import Production, running_production
from tests.support.tables import parquet
from tests.support.worker import jvm_of

_MB = 1 << 20
_THREADS = 4
_END_SECONDS = 1800.0
_HEAD = "| jobs | a second | API | worker | JVM |\n| ---: | ---: | ---: | ---: | ---: |\n"


def job(number: int) -> dict[str, Any]:
    """Returns one of the jobs."""
    found = small_job(number)
    if number % 50 == 7:
        return {**found, "sql": "SELECT 1 / (COUNT(*) - COUNT(s.v)) AS x FROM s"}
    if number % 10 == 3:
        tables = {"s": parquet("small-20"), "t": parquet(f"small-{number % 20 + 1}")}
        sql = "SELECT s.v % 5 AS g, COUNT(DISTINCT t.v) AS n, MAX(t.v) AS m FROM s JOIN t ON s.v = t.v GROUP BY s.v % 5"
        return {**found, "tables": tables, "sql": sql}
    if number % 5 == 1:
        return {**found, "sql": f"SELECT COUNT(*) AS n, SUM(s.v + {number}) AS total FROM s WHERE s.v >= -{number}"}
    return found


def read(production: Production) -> list[int]:
    """Returns the resident memory of the API, the worker and the JVM, in bytes."""
    worker = production.workers[0].process
    processes = [production.apis[0].part.process.pid, worker.pid, jvm_of(worker).pid]
    return [psutil.Process(pid).memory_info().rss for pid in processes]


def measure(production: Production, jobs: int, every: int, seconds: float) -> None:
    """Runs the jobs, and prints a row after each group. Raises SystemExit if a job ends otherwise than it should."""
    ends = time.monotonic() + seconds
    (api,) = production.apis
    for first in range(0, jobs, every):
        if time.monotonic() > ends:
            break
        began = time.monotonic()
        numbers = range(first, min(first + every, jobs))
        with ThreadPoolExecutor(_THREADS) as pool:
            ids = dict(zip(pool.map(lambda number: api.submit(job(number)), numbers), numbers, strict=True))
        wait_until_ended(production, ids, _END_SECONDS)
        rate = len(ids) / (time.monotonic() - began)
        memory = " | ".join(f"{size / _MB:.0f} MB" for size in read(production))
        sys.stdout.write(f"| {numbers[-1] + 1} | {rate:.1f} | {memory} |\n")
        sys.stdout.flush()
    found = Counter(dict(production.all(select(JobRow.status, func.count()).group_by(JobRow.status))))
    sys.stdout.write(f"\n{dict(found)}\n")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=500, help="jobs in a group")
    parser.add_argument("--concurrency", type=int, default=2, help="jobs at once in the worker")
    parser.add_argument("--memory", default="1g", help="of Spark's driver")
    parser.add_argument("--minutes", type=float, default=60)
    arguments = parser.parse_args()
    environment = {
        "EVENKEEL_WORKER_CONCURRENCY": str(arguments.concurrency),
        "EVENKEEL_SPARK_DRIVER_MEMORY": arguments.memory,
    }
    sys.stdout.write(_HEAD)
    with (
        tempfile.TemporaryDirectory(prefix="evenkeel-benchmark-") as directory,
        running_production(Path(directory), None, apis=1, workers=1, environment=environment) as production,
    ):
        write_small(production.data)
        measure(production, arguments.jobs, arguments.every, 60 * arguments.minutes)
    sys.stdout.write(f"\n{arguments.concurrency} jobs at once, local[1]; {machine()}\n")


if __name__ == "__main__":
    main()
