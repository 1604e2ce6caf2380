"""Compares random queries in Evenkeel's engine, in DuckDB and in plain Spark.

    python -m tests.conformance.fuzz [--queries 20000] [--seed N] [--minutes 15] [--first N] [--json FILE]

Each query runs in the engine with random settings, as if the tables were as they are or a million times larger, and in
DuckDB. Plain Spark runs every `SPARK_EVERY`th query, and each for which the two differ. A query that plain Spark and
the engine answer alike, and DuckDB differently, is a difference of the dialects, and is printed too.

Prints the seed and each difference. Query n of a seed is the same in every run: `--first n --queries 1` repeats it.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.contract.job import JobSpec
from service.contract.options import JobSettings
from service.contract.problems import SpecError
from service.contract.reports import RuleOutcome
from service.sql.compile import compile_job
from service.sql.expressions.scalar import quoted
from tests.conformance.combinations import Settings, all_off, dimensions
from tests.conformance.laboratory import interpreted, magnified, parquet, table_input
from tests.conformance.query_generator import Generator, Table, in_duckdb, in_spark, tables
from tests.conformance.tpcds_workload import NULL_ORDER
from tests.support.ordered_rows import difference_by_keys, sort_keys
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Aggregate, Join, WindowFunctions
from workers.engine.plan.traversal import walk_up
from workers.engine.planner import plan_query
from workers.engine.rules.required_statistics import statistics_keys, summed_columns, window_orders
from workers.engine.spark.lowering import SharedFrames, lower
from workers.engine.spark.sources import scans_of
from workers.engine.spark.table_statistics import gather_statistics
from workers.engine.statistics.cardinality import conditions_of

QUERIES_PER_SCHEMA = 100
SPARK_EVERY = 5
_SLOTS = 2
_SPLIT = " ranges of "
"""What the reason of `skewed_windows` has if a window is split by ranges of its order."""
_FAULT = "fault of Spark: "
"""The beginning of an error that has no condition, such as ClassCastException."""


@dataclass
class Tally:
    """Numbers of queries by what became of them, of rules that fired, and the differences, each with its query."""

    outcomes: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


class Laboratory:
    """Random tables of a seed, in Spark's memory and in DuckDB."""

    def __init__(self, spark: SparkSession, root: Path, random: Random) -> None:
        self._spark = spark
        self._duck = duckdb.connect(config={"threads": 1})
        self._duck.execute(NULL_ORDER)
        # DuckDB's own CONCAT skips NULLs.
        self._duck.execute("CREATE MACRO concat(a, b) AS a || b")
        self.tables: list[Table] = []
        self._frames: dict[str, DataFrame] = {}
        self._shared = SharedFrames()
        self._inputs = {}
        for table, rows in tables(random).items():
            pq.write_table(rows, root / f"{table.name}.parquet")
            self._duck.execute(f"CREATE TABLE {table.name} AS FROM '{root / table.name}.parquet'")
            self._inputs[table.name] = table_input(root, table.name, parquet(f"{table.name}.parquet"))
            frame = spark.read.parquet(str(root / f"{table.name}.parquet")).repartition(2).cache()
            frame.createOrReplaceTempView(table.name)
            self._frames[table.name] = frame
            self.tables.append(table)

    def close(self) -> None:
        """Drops the tables."""
        self._duck.close()
        for frame in self._frames.values():
            frame.unpersist()

    def check(self, text: str, random: Random, tally: Tally, *, asks_spark: bool) -> str | None:
        """Runs a query on all sides. Returns the difference, None if there is none."""
        in_sql = in_spark(text)
        try:
            frame, settings = self._planned(in_sql, random, tally)
        except SpecError as error:
            tally.outcomes["refused"] += 1
            tally.refusals[error.issues[0].detail[:80]] += 1
            return None
        got, keys = _rows(frame), sort_keys(in_sql, frame.columns)
        self._shared.release()
        expected: list[Any] | None
        try:
            expected = self._duck.execute(in_duckdb(text)).fetchall()
        except duckdb.Error as error:
            # Such as an overflow, which plain Spark must find too.
            expected, how = None, f"DuckDB fails with {type(error).__name__}"
        else:
            how = got if isinstance(got, str) else difference_by_keys(expected, got, keys) or ""
        tally.outcomes["ran"] += 1
        tally.outcomes["with rows"] += bool(expected)
        if not how and not asks_spark:
            return None
        tally.outcomes["asked plain Spark"] += 1
        try:
            sparks = _rows(self._spark.sql(in_sql))
        except PySparkException as error:
            # Spark's analyzer fails for some joins of a table with itself by USING.
            tally.outcomes["refused by plain Spark"] += 1
            return f"DuckDB differs, and plain Spark fails with {error.getCondition()}: {how}" if how else None
        if str(sparks).startswith(_FAULT) and not isinstance(got, str) and expected is not None and not how:
            # DuckDB and the engine agree, and a fault of Spark ends the query as it was written.
            tally.outcomes["fault of plain Spark"] += 1
            return None
        if isinstance(sparks, str) or isinstance(got, str):
            from_spark = None if sparks == got else f"{str(got)[:200]} instead of {str(sparks)[:200]}"
            if from_spark is None and (expected is None or str(got).startswith(_FAULT)):
                # DuckDB fails too, or a fault of Spark ends both.
                tally.outcomes["failed alike"] += 1
                return None
        else:
            from_spark = difference_by_keys(sparks, got, keys)
        if from_spark is not None:
            return f"with {dict(settings)}, not as plain Spark: {from_spark}"
        return f"DuckDB and plain Spark differ: {how}" if how else None

    def _planned(self, text: str, random: Random, tally: Tally) -> tuple[DataFrame, Settings]:
        sources = {name: table.source.model_dump(mode="json", by_alias=True) for name, table in self._inputs.items()}
        schemas = {name: table.schema for name, table in self._inputs.items()}
        query = compile_job(JobSpec.model_validate({"tables": sources, "sql": text}), schemas)
        built = build(query)
        nodes = list(walk_up(built))
        calls = [call for node in nodes if isinstance(node, Aggregate) for call in node.calls]
        choices = dimensions(
            distinct=any(call.distinct for call in calls),
            aggregate=bool(calls),
            join=any(isinstance(node, Join) and node.keys for node in nodes),
            window=any(isinstance(node, WindowFunctions) for node in nodes),
        )
        settings: dict[str, Any] = {}
        for choice in choices:
            settings |= random.choice(choice) if random.random() < 0.6 else {}
        if random.random() < 0.5:
            settings |= {"optimizer.join_reorder": True}
        if random.random() < 0.05:
            settings = dict(all_off(choices))
        known = gather_statistics(
            statistics_keys(built),
            scans_of(built),
            self._inputs,
            _SLOTS,
            conditions=conditions_of(built),
            ranged=summed_columns(built),
            orders=window_orders(built),
        )
        statistics = magnified(known) if random.random() < 0.5 else known
        plan = plan_query(query, statistics, JobSettings.model_validate({"skew.threshold": 0, **settings}))
        fired = [trace for trace in plan.trace if trace.outcome is RuleOutcome.FIRED]
        tally.rules.update({trace.rule for trace in fired})
        tally.rules["skewed_windows in ranges"] += any(_SPLIT in trace.reason for trace in fired)
        scans = {
            scan.alias: self._frames[scan.table].select(
                [F.col(quoted(name)).alias(found.name) for found, name in scan.columns]
            )
            for scan in scans_of(plan.after)
        }
        return lower(plan.after, scans, shared=self._shared), settings


def _rows(frame: DataFrame) -> list[Any] | str:
    """Returns the rows, or the condition of the error; `_FAULT` and the Java class if it has none."""
    try:
        return [tuple(row) for row in frame.collect()]
    except PySparkException as error:
        return error.getCondition() or type(error).__name__
    except Py4JJavaError as error:
        return f"{_FAULT}{error.java_exception.getClass().getName()}"


def run(spark: SparkSession, seed: int, queries: range, seconds: float, file: Path | None = None) -> Tally:
    """Runs these queries of a seed, until `seconds` have passed. Writes the figures to `file` after each schema."""
    tally, ends = Tally(), time.monotonic() + seconds
    laboratory: Laboratory | None = None
    with tempfile.TemporaryDirectory() as directory, interpreted(spark):
        for number in queries:
            if time.monotonic() > ends:
                break
            schema = number // QUERIES_PER_SCHEMA
            if laboratory is None or number % QUERIES_PER_SCHEMA == 0:
                if laboratory is not None:
                    laboratory.close()
                write(tally, seed, file)
                root = Path(directory) / str(schema)
                root.mkdir()
                laboratory = Laboratory(spark, root, Random(f"{seed} schema {schema}"))
            random = Random(f"{seed} query {number}")
            text = Generator(random, laboratory.tables).query()
            how = laboratory.check(text, random, tally, asks_spark=number % SPARK_EVERY == 0)
            tally.outcomes["queries"] += 1
            if how:
                tally.differences.append(f"seed {seed}, query {number}: {text}\n  {how}")
    if laboratory is not None:
        laboratory.close()
    return tally


def write(tally: Tally, seed: int, file: Path | None) -> None:
    """Writes the figures of a run to `file` as JSON, if there is one."""
    if file is not None:
        figures = {"seed": seed, "outcomes": tally.outcomes, "rules": tally.rules, "wrong": tally.differences}
        file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def report(tally: Tally, seed: int) -> str:
    """Returns the figures of a run, and its differences."""
    figures = ", ".join(f"{number} {name}" for name, number in tally.outcomes.items())
    rules = ", ".join(f"{rule} {number}" for rule, number in tally.rules.most_common())
    refusals = "".join(f"\n  {number}: {detail}" for detail, number in tally.refusals.most_common(10))
    shown = "".join(f"\n{each}" for each in tally.differences)
    wrong = len(tally.differences)
    return f"seed {seed}: {figures}; {wrong} differences{shown}\nrules: {rules}\nrefused:{refusals}\n"


@contextmanager
def _session() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def main() -> None:
    """Runs the queries, and prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    sys.stdout.write(f"seed {arguments.seed}\n")
    sys.stdout.flush()
    queries = range(arguments.first, arguments.first + arguments.queries)
    with _session() as spark:
        tally = run(spark, arguments.seed, queries, arguments.minutes * 60, arguments.json)
    sys.stdout.write(report(tally, arguments.seed))
    write(tally, arguments.seed, arguments.json)
    sys.exit(1 if tally.differences else 0)


if __name__ == "__main__":
    main()
