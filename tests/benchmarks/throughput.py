"""Measures how many small jobs the service runs per second when many are submitted together, and their waiting times.

    python tests/benchmarks/throughput.py [--jobs 500] [--workers 1,2,3] [--concurrency 2] [--embedded]

Starts PostgreSQL, Redis, two APIs and the workers (with `--embedded`, SQLite and the folder broker), warms each worker
up with some jobs, submits the jobs from eight threads to both APIs and waits for all of them. Times are those of the
database. Prints a row of a Markdown table for each number of workers, and the machine. The figures depend on the
machine and its load.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

sys.path.insert(0, str(Path(__file__).parents[2]))

from service.store.tables import JobRow
from tests.support.burst import submit_all, wait_until_ended, write_small
from tests.support.machine import machine, p90
from tests.support.production import Production, running_production, running_servers

_APIS = 2
_WARM_UP = 40
"""Warm-up jobs per worker: a JVM gets faster during its first dozens of jobs."""
_END_SECONDS = 900.0

_HEAD = (
    "| database, broker | workers | submitted a second | finished a second | waited: median | p90 | longest "
    "| ran: median | p90 |\n| --- " + "| ---: " * 8 + "|\n"
)


@dataclass(frozen=True)
class Figures:
    """Figures of a run: seconds, and jobs per second. A job waits from submission to its first start, and then runs."""

    submitted: float
    finished: float
    waited: Sequence[float]
    ran: Sequence[float]


def main() -> None:
    """Measures and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--workers", default="1,2,3", help="numbers of workers, separated by commas")
    parser.add_argument("--concurrency", type=int, default=2, help="jobs that a worker runs at once")
    parser.add_argument("--embedded", action="store_true", help="SQLite and the folder broker")
    arguments = parser.parse_args()
    name = "SQLite, folders" if arguments.embedded else "PostgreSQL, Redis"
    sys.stdout.write(_HEAD)
    for workers in map(int, arguments.workers.split(",")):
        found = measure(arguments.jobs, workers, arguments.concurrency, embedded=arguments.embedded)
        sys.stdout.write(f"| {name} | {workers} | {cells(found)} |\n")
        sys.stdout.flush()
    sys.stdout.write(f"\n{arguments.jobs} jobs, {arguments.concurrency} at once in a worker, local[1]; {machine()}\n")


def measure(jobs: int, workers: int, concurrency: int, *, embedded: bool) -> Figures:
    """Runs the jobs on a new service."""
    environment = {"EVENKEEL_WORKER_CONCURRENCY": str(concurrency)}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evenkeel-benchmark-")))
        directory.chmod(0o711)  # PostgreSQL runs as another user, who needs access.
        servers = None if embedded else stack.enter_context(running_servers(directory))
        production = stack.enter_context(
            running_production(directory, servers, apis=_APIS, workers=workers, environment=environment)
        )
        write_small(production.data)
        wait_until_ended(production, submit_all(production.apis, range(_WARM_UP * workers)), _END_SECONDS)
        return burst(production, jobs)


def burst(production: Production, jobs: int) -> Figures:
    """Submits the jobs concurrently and waits for all."""
    began = time.perf_counter()
    ids = submit_all(production.apis, range(jobs))
    submitted = jobs / (time.perf_counter() - began)
    wait_until_ended(production, ids, _END_SECONDS)
    columns = select(JobRow.submitted_at, JobRow.started_at, JobRow.finished_at, JobRow.status, JobRow.fence)
    rows = production.all(columns.where(JobRow.id.in_(list(ids))))
    if any(row[3:] != ("SUCCEEDED", 1) for row in rows):
        raise SystemExit(f"not every job succeeded at its first attempt:\n{production.logs()}")
    seconds = (max(row[2] for row in rows) - min(row[0] for row in rows)) / 1000
    return Figures(
        submitted,
        jobs / seconds,
        sorted((started - posted) / 1000 for posted, started, *_ in rows),
        sorted((finished - started) / 1000 for _, started, finished, *_ in rows),
    )


def cells(found: Figures) -> str:
    """Returns the cells of the table."""
    waited, ran = found.waited, found.ran
    times = (statistics.median(waited), p90(waited), waited[-1], statistics.median(ran), p90(ran))
    return " | ".join([f"{found.submitted:.0f}", f"{found.finished:.1f}", *(f"{seconds:.2f} s" for seconds in times)])


if __name__ == "__main__":
    main()
