"""Runs the queries of TPC-H or TPC-DS through a real service, and compares rows and times with DuckDB and plain Spark.

    python tests/benchmarks/tpc.py tpch|tpcds [--scale 1] [--data DIR] [--queries q01,…] [--sides evenkeel,…]
        [--skew 1.2] [--rounds 1] [--memory 3g] [--force split|incremental|bitmap|branches] [--again] [--json FILE]

Generates the tables (cached below `--data`, 0.4 GB at scale 1), starts `evenkeel up` on a free port, and posts each
query as a job with default settings. The rows of the result, read over HTTP, are compared with those of DuckDB as
multisets, and their order by the keys of ORDER BY. Plain Spark 4.3 runs in this process with two cores and as many
shuffle partitions as a worker sets, and writes its result as Parquet, as a job does. DuckDB has two threads. The times
of Evenkeel are from the POST to the answer with SUCCEEDED.

The sides run in turn, query by query, after `WARM_UP` queries that are not measured. With one round, each side runs a
query once. With several, a further round before them warms both sides up, and the times are medians.

With `--skew`, the foreign keys of the facts follow Zipf's law with this exponent (`tests.benchmarks.tpc_skew`).

With `--force`, the jobs have the settings of that name in `combinations.FORCED_SETS`. A setting that the service
refuses for a query is left out for that query.

A query that is in the file of `--json` is not run again, so that a run can be continued; `--again` runs all. Prints a
table and the estimates (`python tests/benchmarks/tpc_estimates.py FILE` prints these alone). The figures depend on the
machine and its load.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.tpc_estimates import Estimate, summary
from tests.benchmarks.tpc_skew import skew
from tests.conformance import tpcds_workload, tpch_workload
from tests.conformance.combinations import FORCED_SETS, Settings
from tests.support.machine import machine
from tests.support.ordered_rows import difference_by_keys, sort_keys
from tests.support.service import Service, running_service
from tests.support.tables import parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKLOADS = {"tpch": tpch_workload, "tpcds": tpcds_workload}
EVENKEEL, SPARK, DUCKDB = SIDES = ("evenkeel", "spark", "duckdb")
PARTS = ("planning", "execution")
WARM_UP = 3
_JOB_SECONDS = 600
_SPARK_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
}


@dataclass
class Outcome:
    """What became of one query: the number of rows, how Evenkeel's rows differ from DuckDB's (empty if they are equal),
    seconds by side (medians of the rounds, and each round's), the seconds of Evenkeel's `PARTS` in each round, rules
    that fired, the settings that were refused, and the rows of the plan's nodes.
    """

    rows: int = 0
    difference: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    rounds: dict[str, list[float]] = field(default_factory=dict)
    parts: dict[str, list[float]] = field(default_factory=dict)
    rules: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    estimates: list[Estimate] = field(default_factory=list)


class Sides:
    """The three sides, over the Parquet files below `root`. Each returns the rows of a query and its seconds."""

    def __init__(self, service: Service, root: Path, memory: str, settings: Settings) -> None:
        self._service, self._settings = service, settings
        self._paths = {path.stem: path for path in sorted(root.glob("*.parquet"))}
        self._memory, self._result = memory, service.data / "plain-spark-result"
        self._duck = duckdb.connect(config={"threads": 2})
        self._duck.execute(tpcds_workload.NULL_ORDER)
        for name, path in self._paths.items():
            self._duck.execute(f"CREATE VIEW {name} AS FROM '{path}'")
        for path in self._paths.values():
            _link(path, service.data / path.name)

    @cached_property
    def _spark(self) -> SparkSession:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", self._memory)
        for key, value in _SPARK_SETTINGS.items():
            builder = builder.config(key, value)
        session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        for name, path in self._paths.items():
            session.read.parquet(str(path)).createOrReplaceTempView(name)
        return session

    def duckdb(self, sql: str) -> tuple[list[str], list[Any], float]:
        """Returns also the names of the columns."""
        began = time.perf_counter()
        result = self._duck.execute(sql)
        rows = result.fetchall()
        return [column[0] for column in result.description or ()], rows, time.perf_counter() - began

    def spark(self, sql: str) -> float:
        """Runs the query with plain Spark, which writes the result."""
        session = self._spark
        began = time.perf_counter()
        frame = session.sql(_in_spark(sql))
        if len(set(map(str.casefold, frame.columns))) < len(frame.columns):
            frame = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
        frame.write.mode("overwrite").parquet(f"file://{self._result}")
        return time.perf_counter() - began

    def evenkeel(self, name: str, sql: str) -> tuple[str, list[str], float]:
        """Runs the query as a job. Returns its id and the refused settings. Raises RuntimeError if the query is refused
        or fails.
        """
        words = set(re.findall(r"\w+", sql.casefold()))
        tables = {table: parquet(path.name) for table, path in self._paths.items() if table in words}
        spec = {"name": name, "tables": tables, "sql": sql, "limits": {"timeout": f"{_JOB_SECONDS}s"}}
        settings = dict(self._settings)
        while True:
            began = time.perf_counter()
            answer = self._service.http.post("/v1/jobs", json=spec | {"settings": settings})
            if answer.status_code == 202:
                break
            refused = _settings_of(answer.json()) & settings.keys()
            if not refused:
                raise RuntimeError(answer.text)
            settings = {key: value for key, value in settings.items() if key not in refused}
        job_id = str(answer.json()["id"])
        job = self._service.wait(job_id, seconds=_JOB_SECONDS)
        seconds = time.perf_counter() - began
        if job["status"] != "SUCCEEDED":
            raise RuntimeError(f"{job['status']}: {job['error']}")
        return job_id, sorted(self._settings.keys() - settings.keys()), seconds

    def rows(self, job_id: str) -> list[tuple[Any, ...]]:
        """Returns the rows of a job's result."""
        headers = {"Accept": "application/vnd.apache.arrow.stream"}
        content = self._service.http.get(f"/v1/jobs/{job_id}/result", headers=headers).content
        table = pa.ipc.open_stream(io.BytesIO(content)).read_all()
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def estimates(self, job_id: str) -> list[Estimate]:
        """Returns the estimated and the measured rows of the nodes of a job's plan for which there are both."""
        plan = self._get(f"/v1/jobs/{job_id}/plan")["after"]["nodes"]
        measured = {node["id"]: node["rows"] for node in self._get(f"/v1/jobs/{job_id}/metrics")["nodes"]}
        return [
            Estimate(node["operator"], node["estimated_rows"], measured[node["id"]])
            for node in plan
            if node["estimated_rows"] is not None and measured.get(node["id"]) is not None
        ]

    def parts(self, job_id: str) -> dict[str, float]:
        """Returns the seconds of the `PARTS` of a job."""
        metrics = self._get(f"/v1/jobs/{job_id}/metrics")
        return {part: metrics[f"{part}_ms"] / 1000 for part in PARTS}

    def rules(self, job_id: str) -> list[str]:
        """Returns the rules that fired."""
        trace = self._get(f"/v1/jobs/{job_id}/plan")["rules"]
        return sorted({each["rule"] for each in trace if each["outcome"] == "fired"})

    def _get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = self._service.http.get(path).raise_for_status().json()
        return found


def main() -> None:
    """Measures, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("--scale", default="1")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "evenkeel-tpc")
    parser.add_argument("--queries", default="", help="names, separated by commas; all of them by default")
    parser.add_argument("--sides", default=",".join(SIDES), help="names, separated by commas; DuckDB always runs")
    parser.add_argument("--skew", type=float, default=None, help="exponent of Zipf's law; uniform by default")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--memory", default="3g", help="of each Spark driver")
    parser.add_argument("--force", choices=sorted(FORCED_SETS), default=None)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    # So that the service ends with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    settings: Settings = FORCED_SETS[arguments.force] if arguments.force else {}
    zipf = "" if arguments.skew is None else f"zipf{arguments.skew:g}"
    name = "-".join(filter(None, (arguments.workload, arguments.scale, zipf, arguments.force)))
    file = arguments.json or Path(f"{name}.json")
    known = {} if arguments.again or not file.exists() else json.loads(file.read_text(encoding="utf-8"))
    workload = WORKLOADS[arguments.workload]
    names = arguments.queries.split(",") if arguments.queries else workload.QUERIES
    texts = {name: _text_of(arguments.workload, name, arguments.scale) for name in names if name not in known}
    root = _generated(arguments.data / f"{arguments.workload}-{arguments.scale}", workload.generate, arguments.scale)
    if zipf:
        uniform, skewed = root, root.with_name(f"{root.name}-{zipf}")
        root = _generated(skewed, lambda to, _: skew(uniform, to, arguments.workload, arguments.skew), arguments.scale)
    environment = {"EVENKEEL_SPARK_DRIVER_MEMORY": arguments.memory}
    with (
        tempfile.TemporaryDirectory(prefix="evenkeel-tpc-", dir=arguments.data) as directory,
        running_service(Path(directory), environment) as service,
    ):
        asked = Sides(service, root, arguments.memory, settings)
        for number, (name, text) in enumerate([*list(texts.items())[:WARM_UP], *texts.items()]):
            is_measured = number >= min(WARM_UP, len(texts))
            rounds = arguments.rounds if is_measured else 1
            outcome = measure(asked, name, text, arguments.sides.split(","), rounds=rounds, first=number)
            if not is_measured:
                continue
            known[name] = asdict(outcome)
            file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
            sys.stderr.write(f"{name} {outcome.rows} rows, {outcome.seconds} {outcome.difference}\n")
    sys.stdout.write(table_of(known))
    sys.stdout.write(f"\nscale factor {arguments.scale}; {machine()}\n\n")
    if settings:
        fired = Counter(rule for found in known.values() for rule in found["rules"])
        sys.stdout.write("".join(f"{rule} fired in {count} queries\n" for rule, count in sorted(fired.items())))
    sys.stdout.write(summary([Estimate(**each) for found in known.values() for each in found["estimates"]]))


def measure(asked: Sides, name: str, sql: str, sides: list[str], *, rounds: int, first: int) -> Outcome:
    """Runs the query on each side, beginning with another side each time, and compares the rows of each round."""
    outcome = Outcome()
    times: dict[str, list[float]] = {side: [] for side in SIDES if side in {*sides, EVENKEEL, DUCKDB}}
    parts: dict[str, list[float]] = {part: [] for part in PARTS}
    try:
        for number in range(rounds if rounds == 1 else rounds + 1):
            names, expected, seconds = asked.duckdb(sql)
            outcome.rows = len(expected)
            times[DUCKDB].append(seconds)
            for side in (SPARK, EVENKEEL) if (first + number) % 2 else (EVENKEEL, SPARK):
                if side == SPARK and side in sides:
                    times[side].append(asked.spark(sql))
                if side == EVENKEEL:
                    job_id, outcome.refused, seconds = asked.evenkeel(name, sql)
                    times[side].append(seconds)
                    for part, seconds in asked.parts(job_id).items():
                        parts[part].append(seconds)
            outcome.difference = difference_by_keys(expected, asked.rows(job_id), sort_keys(sql, names)) or ""
            if outcome.difference:
                break
        outcome.estimates, outcome.rules = asked.estimates(job_id), asked.rules(job_id)
    except Exception as error:  # noqa: BLE001 - a query that fails is a finding, not the end of the others
        outcome.difference = f"{type(error).__name__}: {str(error)[:500]}"
    warm_up = 0 if rounds == 1 else 1
    outcome.rounds = {side: found[warm_up:] or found for side, found in times.items() if found}
    outcome.parts = {part: found[warm_up:] or found for part, found in parts.items()}
    outcome.seconds = {side: statistics.median(found) for side, found in outcome.rounds.items()}
    return outcome


def table_of(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the Markdown table of the outcomes by query, and their totals."""
    head = "| query | rows | plain Spark | Evenkeel | ratio | DuckDB |\n| --- | ---: | ---: | ---: | ---: | ---: |\n"
    lines = [_line(name, str(one["rows"]), one["seconds"]) for name, one in sorted(found.items())]
    whole = [one["seconds"] for one in found.values() if {EVENKEEL, SPARK} <= one["seconds"].keys()]
    total = {side: sum(seconds[side] for seconds in whole) for side in SIDES} if whole else {}
    equal = sum(not one["difference"] for one in found.values())
    wrong = "".join(f"\n{name}: {one['difference']}" for name, one in sorted(found.items()) if one["difference"])
    return (
        f"{head}{''.join(lines)}{_line('all', '', total)}\n{equal} of {len(found)} equal DuckDB's rows.{wrong}\n"
        f"{_planning(found)}{_losses(found)}"
    )


def _planning(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a sentence on the time that planning takes, from the medians of the rounds."""
    planning = {
        name: statistics.median(parts["planning"])
        for name, one in found.items()
        if (parts := one.get("parts", {})).get("planning")
    }
    if not planning:
        return ""
    share = sum(planning.values()) / sum(found[name]["seconds"][EVENKEEL] for name in planning)
    slowest = max(planning, key=planning.__getitem__)
    return f"Planning takes {share:.1%} of Evenkeel's time; at most {planning[slowest]:.2f} s, for {slowest}.\n"


def _losses(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the queries that take more than 15 % and more than 0.2 s longer than on plain Spark."""
    pairs = {name: one["seconds"] for name, one in found.items() if {SPARK, EVENKEEL} <= one["seconds"].keys()}
    slow = [name for name, one in pairs.items() if one[EVENKEEL] > max(1.15 * one[SPARK], one[SPARK] + 0.2)]
    return f"More than 15 % and 0.2 s slower than plain Spark: {', '.join(sorted(slow)) or 'none'}.\n" if pairs else ""


def _line(name: str, rows: str, seconds: Mapping[str, float]) -> str:
    shown = {side: f"{seconds[side]:.2f} s" if side in seconds else "" for side in SIDES}
    ratio = f"{seconds[SPARK] / seconds[EVENKEEL]:.2f}x" if {SPARK, EVENKEEL} <= seconds.keys() else ""
    return f"| {name} | {rows} | {shown[SPARK]} | {shown[EVENKEEL]} | {ratio} | {shown[DUCKDB]} |\n"


def _settings_of(problem: Mapping[str, Any]) -> set[str]:
    """Returns the settings that a refusal points to."""
    pointers = [issue.get("pointer") or "" for issue in problem.get("errors", [problem])]
    return {pointer.removeprefix("/settings/").replace("/", ".") for pointer in pointers}


def _text_of(workload: str, query: str, scale: str) -> str:
    return tpch_workload.specified(query, scale) if workload == "tpch" else tpcds_workload.specified(query)


def _generated(root: Path, generate: Callable[[Path, str], object], scale: str) -> Path:
    if not root.exists():
        unfinished = root.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        generate(unfinished, scale)
        unfinished.rename(root)
    return root


def _link(path: Path, to: Path) -> None:
    try:
        os.link(path, to)
    except OSError:
        shutil.copy(path, to)


def _in_spark(sql: str) -> str:
    """Returns the text with names in backquotes: Spark reads double quotes as those of texts."""
    return re.sub(r'"([^"]*)"', r"`\1`", sql)


if __name__ == "__main__":
    main()
