"""Measures the small jobs of one tenant while the long queue of another tenant runs.

    python tests/benchmarks/fair_sharing.py [--heavy 100] [--jobs 20] [--rows 10000] [--heavy-rows 6000000]

Starts `evenkeel up` with API keys in a temporary directory. Tenant B submits small aggregations one after the other,
first on the idle service. Then tenant A submits its heavy jobs together, and B submits the small jobs again. A time is
from before the POST until the rows are read. A small job that takes longer than `--limit` seconds ends the measurement.
Prints rows of a Markdown table, how many of the heavy jobs ended meanwhile, and the machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[2]))

from service.contract.enums import KeyScope
from service.keys.administration import KeyRequest, issue_key
from service.store.session import Database
from tests.support.client import JobClient
from tests.support.machine import machine, p90
from tests.support.processes import UNDER_LOAD, wait_for
from tests.support.service import Service, running_service

SMALL = {
    "name": "small",
    "tables": {"t": {"format": "parquet", "path": "small/"}},
    "sql": "SELECT t.k, COUNT(*) AS n, SUM(t.v) AS s FROM t GROUP BY t.k",
}
HEAVY = {
    "name": "heavy",
    "tables": {"t": {"format": "parquet", "path": "heavy/"}},
    "sql": "SELECT COUNT(*) AS n, SUM(s.d) AS d FROM "
    "(SELECT t.k, COUNT(DISTINCT t.v) AS d, SUM(t.v) AS total FROM t GROUP BY t.k) s",
}
WARM_UP = 8
_SEED = 7


def main() -> None:
    """Measures and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heavy", type=int, default=100, help="heavy jobs of the other tenant")
    parser.add_argument("--jobs", type=int, default=20, help="small jobs")
    parser.add_argument("--rows", type=int, default=10_000, help="rows of the table of a small job")
    parser.add_argument("--heavy-rows", type=int, default=6_000_000, help="rows of the table of a heavy job")
    parser.add_argument("--limit", type=float, default=60, help="seconds")
    arguments = parser.parse_args()
    environment = {"EVENKEEL_API_AUTHENTICATION": "on", "EVENKEEL_SPARK_DRIVER_MEMORY": "2g"}
    with (
        tempfile.TemporaryDirectory(prefix="evenkeel-benchmark-") as directory,
        running_service(Path(directory), environment) as service,
        client_of(service, "heavy") as heavy,
        client_of(service, "small") as small,
    ):
        write_tables(service.data, arguments.rows, arguments.heavy_rows)
        for _ in range(WARM_UP):
            measure(small, arguments.limit)
        began = time.perf_counter()
        heavy.wait(heavy.submit(HEAVY))
        alone = time.perf_counter() - began
        idle = list(times(small, arguments.jobs, arguments.limit))
        posted = [heavy.submit(HEAVY) for _ in range(arguments.heavy)]
        wait_for("a heavy job to run", lambda: any(heavy.job(one)["status"] == "RUNNING" for one in posted[:4]), 60)
        began = time.perf_counter()
        busy = list(times(small, arguments.jobs, arguments.limit))
        elapsed = time.perf_counter() - began
        ended = sum(bool(heavy.job(one)["finished"]) for one in posted)
    sys.stdout.write("| the service | small jobs | median | p90 | longest |\n| --- " + "| ---: " * 4 + "|\n")
    for name, found in (("idle", idle), (f"{arguments.heavy} heavy jobs of another tenant", busy)):
        sys.stdout.write(f"| {name} | {len(found)} | {shown(sorted(found))} |\n")
    sys.stdout.write(
        f"\nA heavy job alone took {alone:.1f} s. {ended} of {arguments.heavy} heavy jobs ended within "
        f"{elapsed:.0f} s.\n{machine()}\n"
    )


@contextmanager
def client_of(service: Service, tenant: str) -> Iterator[JobClient]:
    """Yields a client with a key of the tenant."""
    database = Database(f"sqlite:///{service.state_dir / 'evenkeel.db'}")
    key = issue_key(database, KeyRequest(name="benchmark", tenant=tenant, scopes=tuple(KeyScope)), None).key
    database.close()
    client = JobClient(service.address, key)
    with client.http:
        yield client


def write_tables(data: Path, rows: int, heavy_rows: int) -> None:
    """Writes the tables of the small and the heavy jobs: the keys of the small one are 0 to 99."""
    random = np.random.default_rng(_SEED)
    for name, number, keys in (("small", rows, 100), ("heavy", heavy_rows, max(1, heavy_rows // 4))):
        (data / name).mkdir()
        table = pa.table({"k": random.integers(0, keys, number), "v": random.integers(0, number, number)})
        pq.write_table(table, data / name / "part.parquet")


def times(client: JobClient, jobs: int, limit: float) -> Iterator[float]:
    """Yields the time of one small job after the other, until one does not end within `limit` seconds."""
    for _ in range(jobs):
        try:
            yield measure(client, limit)
        except AssertionError:
            sys.stdout.write(f"A small job did not end within {limit:.0f} s.\n")
            return


def measure(client: JobClient, limit: float) -> float:
    """Returns the seconds from before the POST until the rows are read. Raises AssertionError after `limit` seconds."""
    began = time.perf_counter()
    job_id = client.submit(SMALL)
    job = client.wait(job_id, seconds=limit / UNDER_LOAD)
    if job["status"] != "SUCCEEDED":
        raise SystemExit(f"the job ended {job['status']}: {job['error']}")
    client.rows(job_id)
    return time.perf_counter() - began


def shown(found: list[float]) -> str:
    """Returns the cells of sorted times."""
    if not found:
        return "- | - | -"
    return f"{statistics.median(found):.2f} s | {p90(found):.2f} s | {found[-1]:.2f} s"


if __name__ == "__main__":
    main()
