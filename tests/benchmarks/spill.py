"""Runs jobs over more rows than the memory of a worker holds, on a disk that suffices and on one that fills up.

    python tests/benchmarks/spill.py [--data DIR] [--rows 100000000] [--memory 1g] [--small-disk DIR] [--json FILE]

Generates a table (cached below `--data`, 2.5 GB at the default size), starts `evenkeel up`, and posts each job of
`CASES`. Its rows are compared with DuckDB's. Prints the seconds, the bytes that Spark spilled, and the greatest size of
the worker's temporary files.

With `--small-disk`, an empty directory on a small file system (such as `mount -t tmpfs -o size=500m tmpfs DIR`), the
jobs run again with their temporary files there. Each must end FAILED with `disk_full`, leave no file of a shuffle and
no result, and be followed by a small job that succeeds. The command ends with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.machine import machine
from tests.support.ordered_rows import difference_by_keys
from tests.support.processes import wait_for
from tests.support.service import Service, running_service
from tests.support.tables import parquet

FILES = 20
CASES = {
    "many groups": "SELECT COUNT(*) AS groups, SUM(n) AS n, SUM(s) AS s, MAX(m) AS m FROM "
    "(SELECT u, COUNT(*) AS n, SUM(v) AS s, MAX(t) AS m FROM e GROUP BY u) AS g",
    "distinct values of a hot key": "SELECT COUNT(*) AS k, SUM(d) AS d, MAX(d) AS m FROM "
    "(SELECT k, COUNT(DISTINCT u) AS d FROM e GROUP BY k) AS g",
    "running sum over a hot key": "SELECT COUNT(*) AS n, MAX(total) AS m, MAX(number) AS number FROM "
    "(SELECT SUM(v) OVER w AS total, ROW_NUMBER() OVER w AS number FROM e WINDOW w AS (PARTITION BY k ORDER BY t, id)) "
    "AS w",
    "join of two large sides": "SELECT COUNT(*) AS n, SUM(a.v + b.v) AS s "
    "FROM e AS a JOIN e AS b ON a.u = b.u AND a.k = b.k",
}
SMALL = "SELECT COUNT(*) AS n FROM (SELECT k FROM e WHERE id < 1000 GROUP BY k) AS g"
_JOB_SECONDS = 3600.0


@dataclass(frozen=True)
class Run:
    """A finished job: its status or error code, seconds from the POST, spilled bytes, and the greatest size of the
    temporary files. `fault` says what is wrong, empty if nothing is.
    """

    case: str
    disk: str
    end: str
    seconds: float
    spilled_bytes: int
    temporary_bytes: int
    fault: str


def generate(root: Path, rows: int) -> Path:
    """Writes the table once, and returns its directory. Half of the rows have one `k`; `u` has a third as many values
    as there are rows.
    """
    place = root / f"spill-{rows}"
    place.mkdir(parents=True, exist_ok=True)
    count = rows // FILES
    for number in range(FILES):
        path = place / f"{number:02}.parquet"
        if path.exists():
            continue
        random = np.random.default_rng(number)
        columns = {
            "id": np.arange(number * count, (number + 1) * count),
            "k": np.where(random.random(count) < 0.5, 0, 1 + random.integers(0, 100_000, count)),
            "u": random.integers(0, max(1, rows // 3), count),
            "t": random.integers(0, 1_000_000_000, count),
            "v": random.integers(0, 1_000, count),
        }
        pq.write_table(pa.table(columns), path.with_suffix(".part"), row_group_size=1 << 18)
        path.with_suffix(".part").rename(path)
    return place


def size_of(directory: Path) -> int:
    """Returns the bytes of the files below a directory, which other processes change."""
    total = 0
    for file in directory.rglob("*"):
        with suppress(OSError):
            total += file.lstat().st_size if file.is_file() else 0
    return total


def shuffle_files(directory: Path) -> list[str]:
    """Returns Spark's files of shuffles and spilled rows below a directory."""
    return [str(file) for file in directory.rglob("*") if file.is_file() and "blockmgr-" in str(file)]


@contextmanager
def watching(directory: Path) -> Iterator[list[int]]:
    """Yields a list of one number, the greatest size of the directory so far."""
    most, ends = [0], threading.Event()

    def watch() -> None:
        while not ends.wait(0.5):
            most[0] = max(most[0], size_of(directory))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        ends.set()
        thread.join()


class Laboratory:
    """A service over the table, whose temporary files are in `temporary`."""

    def __init__(self, service: Service, table: Path, temporary: Path, disk: str) -> None:
        self._service, self._temporary, self._disk = service, temporary, disk
        self._tables = {"e": parquet(table.name)}
        self._duck = duckdb.connect(config={"threads": 2, "memory_limit": "8GB"})
        self._duck.execute(f"CREATE VIEW e AS FROM '{table}/*.parquet'")

    def run(self, case: str, *, fills_up: bool) -> Run:
        """Runs a case."""
        with watching(self._temporary) as most:
            began = time.monotonic()
            job_id = self._service.submit({"tables": self._tables, "sql": CASES[case]})
            job = self._service.wait(job_id, seconds=_JOB_SECONDS)
            seconds = time.monotonic() - began
        end = job["error"]["code"] if job["error"] else job["status"]
        fault = self._fault_of_full_disk(job_id, end) if fills_up else self._difference(job_id, end, CASES[case])
        report = self._service.http.get(f"/v1/jobs/{job_id}/metrics")
        stages = report.json().get("stages", []) if report.is_success else []
        spilled = sum(stage["spilled_bytes"] for stage in stages)
        return Run(case, self._disk, end, round(seconds, 1), spilled, most[0], fault)

    def _difference(self, job_id: str, end: str, sql: str) -> str:
        if end != "SUCCEEDED":
            return "it must succeed"
        got = [tuple(row.values()) for row in self._service.rows(job_id)]
        return difference_by_keys(self._duck.execute(sql).fetchall(), got, []) or ""

    def _fault_of_full_disk(self, job_id: str, end: str) -> str:
        if end != "disk_full":
            return "it must fail with disk_full"
        results = self._service.state_dir / "results" / job_id
        wait_for("the result to be removed", lambda: not list(results.glob("*")))
        wait_for("the files of shuffles to be removed", lambda: not shuffle_files(self._temporary))
        _, rows = self._service.run({"tables": self._tables, "sql": SMALL})
        return "" if rows else "the next job returned no row"


@contextmanager
def laboratory(table: Path, small_disk: Path | None, memory: str) -> Iterator[Laboratory]:
    """Starts a service, with its temporary files on the small disk if given."""
    with tempfile.TemporaryDirectory(dir=table.parent) as directory:
        state = Path(directory) / "state"
        state.mkdir()
        if small_disk is not None:
            (state / "spark").symlink_to(small_disk)
        environment = {
            "EVENKEEL_SPARK_MASTER": f"local[{os.cpu_count()}]",
            "EVENKEEL_SPARK_DRIVER_MEMORY": memory,
            "EVENKEEL_DATA_ROOTS": str(table.parent),
        }
        with running_service(Path(directory), environment) as service:
            yield Laboratory(service, table, state / "spark", "small" if small_disk else "large")


def report(runs: list[Run]) -> str:
    """Returns a table of the runs."""
    lines = ["| job | disk | end | seconds | spilled | temporary files |", "| --- | --- | --- | ---: | ---: | ---: |"]
    for run in runs:
        sizes = f"{run.spilled_bytes / 1e9:.1f} GB | {run.temporary_bytes / 1e9:.1f} GB"
        lines.append(f"| {run.case} | {run.disk} | {run.end} | {run.seconds} | {sizes} |")
    lines += [f"\n{run.case}, {run.disk} disk: {run.fault}" for run in runs if run.fault]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs all cases, and prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "evenkeel-spill")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--memory", default="1g")
    parser.add_argument("--small-disk", type=Path, default=None)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    table = generate(arguments.data.absolute(), arguments.rows)
    runs: list[Run] = []
    disks = [None] if arguments.small_disk is None else [None, arguments.small_disk.absolute()]
    for disk in disks:
        with laboratory(table, disk, arguments.memory) as own:
            for case in arguments.cases.split(","):
                runs.append(own.run(case, fills_up=disk is not None))
                sys.stdout.write(f"{runs[-1]}\n")
                sys.stdout.flush()
    sys.stdout.write(report(runs))
    if arguments.json:
        figures: dict[str, Any] = {"machine": machine(), "rows": arguments.rows, "runs": [asdict(run) for run in runs]}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if any(run.fault for run in runs) else 0)


if __name__ == "__main__":
    main()
