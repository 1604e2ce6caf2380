"""Measures a small job from POST to SUCCEEDED on a warm service, and a running job from its cancellation to CANCELLED.

    python tests/benchmarks/job_latency.py [--jobs 30] [--rows 10000] [--cancels 10]

Starts `evenkeel up` in a temporary directory and warms it up with some jobs. Then it submits aggregations over a
Parquet file one after the other and waits for each with `Prefer: wait`; afterwards it starts endless joins and cancels
each when its tasks run. Prints medians, p90 and the machine. The figures depend on the machine and its load.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.machine import machine, p90
from tests.support.processes import wait_for
from tests.support.service import Service, running_service
from tests.support.tables import ENDLESS, write_endless

SPEC = {
    "name": "benchmark",
    "tables": {"t": {"format": "parquet", "path": "t/"}},
    "sql": "SELECT t.k, COUNT(*) AS n, SUM(t.v) AS s FROM t GROUP BY t.k",
}
WARM_UP = 40
"""Jobs after which the JVM has compiled what a small job needs."""


def main() -> None:
    """Measures and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--cancels", type=int, default=10)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="evenkeel-benchmark-") as directory,
        running_service(Path(directory), {"EVENKEEL_SPARK_MASTER": "local[*]"}) as service,
    ):
        (service.data / "t").mkdir()
        numbers = range(arguments.rows)
        table = pa.table({"k": [i % 100 for i in numbers], "v": list(numbers)})
        pq.write_table(table, service.data / "t" / "part.parquet")
        write_endless(service.data)
        first = measure(service)
        for _ in range(WARM_UP):
            measure(service)
        times = sorted(measure(service) for _ in range(arguments.jobs))
        cancels = sorted(measure_cancel(service) for _ in range(arguments.cancels))
    sys.stdout.write(
        f"POST to SUCCEEDED, {arguments.rows:,} rows, {arguments.jobs} jobs one after the other\n"
        f"{describe(times)}\n"
        f"the first job of all, sent while Spark starts: {first:.1f} s\n"
        f"cancel to CANCELLED, {arguments.cancels} running jobs one after the other\n"
        f"{describe(cancels)}\n"
        f"{machine()}\n"
    )


def measure(service: Service) -> float:
    """Returns the seconds from before the POST until the response with SUCCEEDED."""
    began = time.perf_counter()
    job = service.wait(service.submit(SPEC))
    seconds = time.perf_counter() - began
    if job["status"] != "SUCCEEDED":
        raise SystemExit(f"the job ended {job['status']}: {job['error']}")
    return seconds


def measure_cancel(service: Service) -> float:
    """Returns the seconds from before the cancellation of a running job until the response with CANCELLED."""
    job_id = service.submit(ENDLESS)
    wait_for("tasks to run", lambda: (service.job(job_id)["progress"] or {}).get("tasks_total", 0) > 0)
    began = time.perf_counter()
    service.http.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
    job = service.wait(job_id)
    seconds = time.perf_counter() - began
    if job["status"] != "CANCELLED":
        raise SystemExit(f"the job ended {job['status']}: {job['error']}")
    return seconds


def describe(times: list[float]) -> str:
    """Describes sorted times."""
    return (
        f"median {statistics.median(times):.2f} s, p90 {p90(times):.2f} s, from {times[0]:.2f} s to {times[-1]:.2f} s"
    )


if __name__ == "__main__":
    main()
