"""Compares calls with OVER, and percentiles, over skewed rows: plain Spark, and Evenkeel's engine.

    python tests/benchmarks/skewed_windows.py [--data DIR] [--rows 20000000] [--rounds 5] [--cases NAME,…] [--slots 2]
        [--setting auto] [--threshold 64MB] [--json FILE]

Both sides write no rows (`noop`), run in one driver with `local[2]` in turn, each round beginning with the other side,
after a warm-up round in which the sums of their rows are compared. `--slots` is the number of slots for which Evenkeel
plans and Spark has partitions (two per slot). Fewer rows than the default need a lower `--threshold`
(`skew.threshold`), or no partition is hot.

Prints for each case the medians of the wall times, the sums of the processor times of all tasks, and the makespans on 2
and on `--slots` slots, simulated from the processor times of the tasks, stage by stage, longest task first. Wall times
depend on the load of the machine; processor times hardly do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from service.contract.job import JobSpec
from service.contract.options import JobSettings
from service.contract.reports import RuleOutcome
from service.contract.tables import TableSource
from service.data.files import find_table_files
from service.data.schemas import read_schema
from service.sql.compile import compile_job
from tests.benchmarks.batch_figures import makespan
from tests.support.machine import machine
from workers.engine.spark.engine import Engine
from workers.engine.spark.sources import TableInput
from workers.engine.spark.statistics_cache import StatisticsCache

PLAIN, ENGINE = "plain Spark", "Evenkeel"
FILES = 8
RUNNING = (
    "SELECT k, t, v, SUM(v) OVER w AS total, ROW_NUMBER() OVER w AS number "
    "FROM e WINDOW w AS (PARTITION BY k ORDER BY t, id)"
)
SHARE = "SELECT k, t, v, SUM(v) OVER (PARTITION BY k) AS total, COUNT(*) OVER (PARTITION BY k) AS number FROM e"
OFFSETS = (
    "SELECT k, t, v, LAG(v) OVER w AS total, LAG(id, 2) OVER w AS number "
    "FROM e WINDOW w AS (PARTITION BY k ORDER BY t, id)"
)
BOTH = (
    "SELECT k, t, v, LAG(v) OVER w AS total, LEAD(id) OVER w AS number "
    "FROM e WINDOW w AS (PARTITION BY k ORDER BY t, id)"
)
DENSE = (
    "SELECT k, t, v, SUM(v) OVER w AS total, DENSE_RANK() OVER w AS number "
    "FROM e WINDOW w AS (PARTITION BY k ORDER BY t)"
)
GROUPED = (
    "SELECT k, t, SUM(v) AS v, SUM(SUM(v)) OVER w AS total, ROW_NUMBER() OVER w AS number "
    "FROM e GROUP BY k, t WINDOW w AS (PARTITION BY k ORDER BY t)"
)
MEDIAN = "SELECT k, 0 AS t, 0 AS v, MEDIAN(v) AS total, COUNT(*) AS number FROM e GROUP BY k"
MEDIAN_OF_UNIQUE = MEDIAN.replace("(v)", "(t)")
WHOLE = "SELECT k, t, v, SUM(v) OVER (ORDER BY t, id) AS total, ROW_NUMBER() OVER (ORDER BY t, id) AS number FROM e"


@dataclass(frozen=True)
class Case:
    """A query over rows of which `share` have one key, and the other ones one of `keys`."""

    name: str
    share: float
    keys: int
    sql: str


CASES = (
    Case("running-90", 0.9, 100_000, RUNNING),
    Case("running-50", 0.5, 100_000, RUNNING),
    Case("running-uniform", 0.0, 100_000, RUNNING),
    Case("whole-90", 0.9, 100_000, SHARE),
    Case("whole-90-many", 0.9, 3_000_000, SHARE),
    Case("whole-uniform", 0.0, 100_000, SHARE),
    Case("one-partition", 0.0, 100_000, WHOLE),
    Case("lag-90", 0.9, 100_000, OFFSETS),
    Case("lag-50", 0.5, 100_000, OFFSETS),
    Case("lag-lead-90", 0.9, 100_000, BOTH),
    Case("dense-90", 0.9, 100_000, DENSE),
    Case("grouped-90", 0.9, 100_000, GROUPED),
    Case("median-90", 0.9, 100_000, MEDIAN),
    Case("median-90-few", 0.9, 50, MEDIAN),
    Case("median-90-unique", 0.9, 100_000, MEDIAN_OF_UNIQUE),
    Case("lag-uniform", 0.0, 100_000, OFFSETS),
)


def generate(case: Case, root: Path, rows: int) -> Path:
    """Writes the table of a case, once, and returns its directory."""
    place = root / f"{case.share}-{case.keys}-{rows}"
    for number in range(FILES):
        path = place / "e" / f"{number}.parquet"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        random, count = np.random.default_rng(number), rows // FILES
        hot = random.random(count) < case.share
        table = pa.table(
            {
                "id": np.arange(number * count, (number + 1) * count),
                "k": np.where(hot, 0, 1 + random.integers(0, case.keys, count)),
                "t": random.integers(0, 1_000_000_000, count),
                "v": random.integers(0, 1_000, count),
            }
        )
        pq.write_table(table, path, row_group_size=1 << 18)
    return place


class Sides:
    """Both sides for one table, in a session."""

    def __init__(self, root: Path, slots: int, settings: dict[str, str], memory: str) -> None:
        self.slots, self._settings = slots, JobSettings.model_validate(settings)
        self._cache = StatisticsCache()
        self._spark = _session(root, slots, memory)
        self.fired: list[str] = []

    def frame(self, side: str, place: Path, sql: str) -> DataFrame:
        """Returns the rows of one side."""
        if side == PLAIN:
            self._spark.read.parquet(f"file://{place / 'e'}").createOrReplaceTempView("e")
            return self._spark.sql(sql)
        source = TableSource.model_validate({"format": "parquet", "path": "e"})
        files = find_table_files("e", source, [place])
        table = TableInput(source, files, read_schema("e", source, files))
        sources = {"e": source.model_dump(mode="json", by_alias=True)}
        query = compile_job(JobSpec.model_validate({"tables": sources, "sql": sql}), {"e": table.schema})
        planned = Engine(self._spark, self.slots, self._cache).plan(query, {"e": table}, self._settings)
        self.fired = sorted({one.rule for one in planned.report.rules if one.outcome is RuleOutcome.FIRED})
        return planned.frame

    def run(self, side: str, place: Path, sql: str) -> tuple[float, list[list[float]]]:
        """Runs a side; returns the seconds, with planning, and the processor seconds of the tasks of each stage."""
        context, tag = self._spark.sparkContext, f"windows-{uuid.uuid4().hex}"
        context.addJobTag(tag)
        began = perf_counter()
        self.frame(side, place, sql).write.format("noop").mode("overwrite").save()
        seconds = perf_counter() - began
        context.clearJobTags()
        return seconds, self._tasks(tag)

    def checksum(self, side: str, place: Path, sql: str) -> list[Any]:
        """Returns sums over the rows of one side."""
        found = self.frame(side, place, sql)
        return list(
            found.selectExpr(
                "count(*)", "sum(total)", "sum(CAST(number AS BIGINT))", "bit_xor(xxhash64(k, t, v, total, number))"
            ).collect()[0]
        )

    def _tasks(self, tag: str) -> list[list[float]]:
        context = self._spark.sparkContext
        jvm = context._jvm
        assert jvm is not None
        mapper = jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
        store = context._jsc.sc().statusStore()
        jobs = json.loads(mapper.writeValueAsString(store.jobsList(None)))
        numbers = sorted({stage for job in jobs if tag in (job.get("jobTags") or ()) for stage in job["stageIds"]})
        found = []
        for number in numbers:
            tasks = json.loads(mapper.writeValueAsString(store.taskList(number, 0, 1_000_000)))
            times = [(task.get("taskMetrics") or {}).get("executorCpuTime", 0) / 1e9 for task in tasks]
            if times:
                found.append(times)
        return found


def _session(root: Path, slots: int, memory: str) -> SparkSession:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2]")
        .appName("evenkeel-windows")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", memory)
        .config("spark.local.dir", str(root / "local"))
        .config("spark.sql.shuffle.partitions", str(2 * slots))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    if slots > 2:
        # As a cluster with so many slots: partitions are not coalesced below their number.
        session = session.config("spark.sql.adaptive.coalescePartitions.enabled", "false")
        session = session.config("spark.sql.files.minPartitionNum", str(slots))
    started = session.getOrCreate()
    started.sparkContext.setLogLevel("OFF")
    return started


def main() -> None:
    """Measures, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "evenkeel-windows")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="", help="names, separated by commas; all of them by default")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--setting", default="auto", help="the value of skewed_windows and distinct_split.enabled")
    parser.add_argument("--threshold", default="64MB", help="the value of skew.threshold")
    parser.add_argument("--memory", default="5g", help="of Spark's driver")
    parser.add_argument("--json", type=Path, default=Path("skewed_windows.json"))
    arguments = parser.parse_args()
    chosen = arguments.cases.split(",") if arguments.cases else [case.name for case in CASES]
    arguments.data.mkdir(parents=True, exist_ok=True)
    settings = {
        "skewed_windows": arguments.setting,
        "distinct_split.enabled": arguments.setting,
        "skew.threshold": arguments.threshold,
    }
    sides = Sides(arguments.data, arguments.slots, settings, arguments.memory)
    slots = sorted({2, arguments.slots})
    figures = []
    sys.stdout.write(f"| case | side | wall | processor | {' | '.join(f'{one} slots' for one in slots)} | rules |\n")
    sys.stdout.write(f"| --- | --- | --- | --- | {' | '.join('---' for _ in slots)} | --- |\n")
    for case in (case for case in CASES if case.name in chosen):
        figures += _measured(case, sides, arguments, slots)
        arguments.json.write_text(
            json.dumps({"machine": machine(), "figures": figures}, indent=2) + "\n", encoding="utf-8"
        )
    sys.stdout.write(f"\n{arguments.rows:,} rows, medians of {arguments.rounds} rounds; {machine()}\n")


def _measured(case: Case, sides: Sides, arguments: argparse.Namespace, slots: list[int]) -> list[dict[str, Any]]:
    place = generate(case, arguments.data, arguments.rows)
    answers = {side: sides.checksum(side, place, case.sql) for side in (PLAIN, ENGINE)}
    if answers[PLAIN] != answers[ENGINE]:
        raise SystemExit(f"{case.name}: other rows: {answers}")
    runs: dict[str, list[tuple[float, list[list[float]]]]] = {PLAIN: [], ENGINE: []}
    for number in range(arguments.rounds):
        for side in (PLAIN, ENGINE) if number % 2 else (ENGINE, PLAIN):
            runs[side].append(sides.run(side, place, case.sql))
    found = [_figures(case, side, runs[side], slots) for side in (PLAIN, ENGINE)]
    for one in found:
        cells = [one["wall_s"], one["processor_s"], *(one["makespan_s"][number] for number in slots)]
        rules = ", ".join(sides.fired) if one["side"] == ENGINE else ""
        sys.stdout.write(f"| {case.name} | {one['side']} | {' | '.join(f'{cell:.1f}' for cell in cells)} | {rules} |\n")
    plain, ours = found
    ratios = [plain["wall_s"] / ours["wall_s"], plain["processor_s"] / ours["processor_s"]]
    ratios += [plain["makespan_s"][number] / ours["makespan_s"][number] for number in slots]
    sys.stdout.write(f"| {case.name} | ratio | {' | '.join(f'{ratio:.2f}x' for ratio in ratios)} | |\n")
    sys.stdout.flush()
    return found


def _figures(case: Case, side: str, runs: list[tuple[float, list[list[float]]]], slots: list[int]) -> dict[str, Any]:
    return {
        "case": case.name,
        "side": side,
        "wall_s": statistics.median(seconds for seconds, _ in runs),
        "walls_s": [seconds for seconds, _ in runs],
        "processor_s": statistics.median(sum(map(sum, stages)) for _, stages in runs),
        "makespan_s": {number: statistics.median(makespan(stages, number) for _, stages in runs) for number in slots},
    }


if __name__ == "__main__":
    main()
