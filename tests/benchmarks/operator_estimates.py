"""Compares the estimated rows of each join, filter and aggregate of TPC-DS's queries with their measured number.

    python tests/benchmarks/operator_estimates.py [--scale 1] [--data DIR] [--queries q01,…] [--seconds 60]
        [--json FILE]

Generates the tables (cached below `--data`), and plans each query as a worker does: the statistics are those of the
files, and no query knows of another run. Then plain Spark counts the rows of each operator of the plan before the
rules, by a query of its own; conditions and keys are where the plan has them. Equal operators of a query count once. An
operator without an estimate, or whose rows Spark does not count within `--seconds`, is left out, and named.

Prints the percentiles of estimated divided by measured rows, and the operators that are furthest off.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from dataclasses import asdict, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from service.contract.job import JobSpec
from service.contract.options import JobSettings
from service.sql.compile import compile_job
from tests.benchmarks.tpc_estimates import Estimate, summary
from tests.conformance.laboratory import parquet, table_input
from tests.conformance.tpcds_workload import QUERIES, generate, specified
from workers.engine.plan.explain import line_of, text_of
from workers.engine.plan.nodes import Aggregate, Filter, Join, Node
from workers.engine.plan.traversal import walk_up
from workers.engine.spark.engine import Engine
from workers.engine.spark.lowering import lower
from workers.engine.spark.sources import TableInput, read_scan, scans_of
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.engine.statistics.cardinality import estimate_rows

CORES = 2
_SHOWN = 20


def operators(plan: Node) -> list[Node]:
    """Returns the joins, filters and aggregates of a plan, each once."""
    found = (node for node in walk_up(plan) if isinstance(node, Join | Filter | Aggregate))
    return list({text_of(node): node for node in found}.values())


def rows_of(session: SparkSession, node: Node, tables: dict[str, TableInput], seconds: float) -> int | None:
    """Returns the number of rows of a node; None if Spark needs longer."""
    scans = {scan.alias: read_scan(session, scan, tables[scan.table]) for scan in scans_of(node)}
    context = session.sparkContext
    timer = threading.Timer(seconds, context.cancelAllJobs)
    timer.start()
    try:
        return lower(node, scans, session).count()
    except (PySparkException, Py4JJavaError):
        return None
    finally:
        timer.cancel()


def measure(
    session: SparkSession, tables: dict[str, TableInput], query: str, cache: StatisticsCache, seconds: float
) -> tuple[list[Estimate], list[str], list[str]]:
    """Returns the estimates of a query's operators, their texts, and the texts of those that were not counted."""
    sources = {name: table.source.model_dump(mode="json", by_alias=True) for name, table in tables.items()}
    spec = JobSpec.model_validate({"tables": sources, "sql": specified(query)})
    bound = compile_job(spec, {name: table.schema for name, table in tables.items()}, is_accepted=True)
    engine = Engine(session, CORES, cache)
    planned = engine.plan(bound, tables, JobSettings())
    engine.close()
    found, texts, missing = [], [], []
    statistics = replace(planned.statistics, guesses=True)
    for node in operators(planned.made.before):
        text = f"{query}: {line_of(node)}"
        estimated = estimate_rows(node, statistics)
        measured = None if estimated is None else rows_of(session, node, tables, seconds)
        if estimated is None or measured is None:
            missing.append(f"{text} ({'no estimate' if estimated is None else 'not counted'})")
        else:
            found.append(Estimate(type(node).__name__, estimated, measured))
            texts.append(text)
    return found, texts, missing


def main() -> None:
    """Measures, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", default="1")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "evenkeel-tpc")
    parser.add_argument("--queries", default="")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json", type=Path, default=Path("operator_estimates.json"))
    arguments = parser.parse_args()
    root = arguments.data / f"tpcds-{arguments.scale}"
    if not root.exists():
        root.mkdir(parents=True)
        generate(root, arguments.scale)
    session = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(2 * CORES))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    tables = {path.stem: table_input(root, path.stem, parquet(path.name)) for path in sorted(root.iterdir())}
    cache, estimates = StatisticsCache(), list[Estimate]()
    texts, missing = list[str](), list[str]()
    for query in arguments.queries.split(",") if arguments.queries else QUERIES:
        found, own, left_out = measure(session, tables, query, cache, arguments.seconds)
        estimates += found
        texts += own
        missing += left_out
        figures = [{"text": text, **asdict(one)} for text, one in zip(texts, estimates, strict=True)]
        arguments.json.write_text(json.dumps({"estimates": figures, "missing": missing}, indent=1) + "\n", "utf-8")
    sys.stdout.write(summary(estimates))
    worst = sorted(zip(estimates, texts, strict=True), key=lambda one: -max(one[0].factor, 1 / one[0].factor))
    for estimate, text in worst[:_SHOWN]:
        sys.stdout.write(f"{estimate.factor:.3g}: {estimate.estimated} for {estimate.measured} rows, {text[:160]}\n")
    sys.stdout.write(f"{len(missing)} operators were left out: {'; '.join(missing)[:2000]}\n")
    session.stop()


if __name__ == "__main__":
    main()
