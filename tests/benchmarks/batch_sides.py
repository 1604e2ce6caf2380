"""The sides of the batch benchmark: one query over the same files by plain Spark, by the engine and by DuckDB.

Each reads Parquet and writes Parquet. All Spark sides share one driver, `local[2]`. What a side takes includes all its
planning.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import duckdb
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from service.contract.job import JobSpec, TableSource
from service.contract.options import JobSettings
from service.contract.reports import RuleOutcome
from service.data.files import find_table_files
from service.data.schemas import read_schema
from service.sql.compile import compile_job
from tests.benchmarks.batch_cases import Case
from tests.benchmarks.batch_figures import DUCKDB, ENGINE, PLAIN
from workers.engine.spark.engine import Engine
from workers.engine.spark.monitor import SparkMonitor
from workers.engine.spark.result_writer import write_parquet
from workers.engine.spark.sources import TableInput
from workers.engine.spark.statistics_cache import StatisticsCache

CORES = 2
WIDE = 256
"""Slots of the cluster for which tasks are laid out in the run whose task times are kept."""

_WIDE_SETTINGS = {
    "spark.sql.shuffle.partitions": str(WIDE),
    # A cluster of so many slots would not put partitions together below their number either.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.files.minPartitionNum": str(WIDE),
    "spark.sql.files.openCostInBytes": "65536",
}
_ALL_TASKS = 1_000_000


class UnfinishedError(Exception):
    """A side was stopped at its time limit."""


@dataclass
class Measured:
    """One run: seconds, the rules that fired, and, where asked for, the times of each stage's tasks in ms, and which
    of the stages read what others have shuffled.
    """

    seconds: float
    rules: list[str] = field(default_factory=list)
    stages: list[list[float]] = field(default_factory=list)
    reducing: list[bool] = field(default_factory=list)


class Sides:
    """One case's tables, ready to be asked by each side. `limit` is in seconds, for each run.

    What the engine learns of the files it keeps from run to run, as a worker does; `cold`, it learns it anew each time.
    """

    def __init__(self, case: Case, root: Path, driver_memory: str, limit: float, *, cold: bool = False) -> None:
        self._case, self._root, self._limit = case, root, limit
        self._cache = None if cold else StatisticsCache()
        self._out = root / f"out-{os.getpid()}"
        self._spark = _session(root, driver_memory)
        self._monitor = SparkMonitor(self._spark.sparkContext)

    def close(self) -> None:
        """Ends Spark."""
        self._spark.stop()
        shutil.rmtree(self._out, ignore_errors=True)

    def run(self, side: str, *, wide: bool = False) -> Measured:
        """Runs the query once. Raises UnfinishedError, and what the side raises."""
        shutil.rmtree(self._out, ignore_errors=True)
        if side == DUCKDB:
            return self._duckdb()
        partitions = None if side == PLAIN else 2 * CORES
        return self._on_spark(self._engine if side == ENGINE else self._plain, partitions, wide=wide)

    def checksum(self) -> list[object]:
        """Of what the last run wrote: how many rows, and a sum over the rows as text."""
        files = f"'{self._out}/**/*.parquet'"
        sql = f"SELECT COUNT(*), SUM(hash(CAST(written AS VARCHAR))) FROM read_parquet({files}) AS written"
        with duckdb.connect(config={"threads": CORES}) as connection:
            return list(connection.execute(sql).fetchall()[0])

    def _on_spark(
        self, ask: Callable[[SparkSession, int], list[str]], partitions: int | None, *, wide: bool
    ) -> Measured:
        session, context = self._spark.newSession(), self._spark.sparkContext
        if partitions is not None:
            session.conf.set("spark.sql.shuffle.partitions", str(partitions))
        for key, value in _WIDE_SETTINGS.items() if wide else ():
            session.conf.set(key, value)
        tag = f"benchmark-{uuid.uuid4().hex}"
        context.addJobTag(tag)
        try:
            with _stopping(self._limit, lambda: context.cancelJobsWithTag(tag)) as stopped:
                began = perf_counter()
                try:
                    rules = ask(session, WIDE if wide else CORES)
                except (PySparkException, Py4JError):
                    if stopped.is_set():
                        raise UnfinishedError from None
                    raise
                seconds = perf_counter() - began
        finally:
            context.clearJobTags()
        return Measured(seconds, rules, *(self._tasks(tag) if wide else ()))

    def _plain(self, session: SparkSession, _slots: int) -> list[str]:
        for name in self._case.tables:
            session.read.parquet(f"file://{self._root / name}").createOrReplaceTempView(name)
        write_parquet(session.sql(self._case.sql), self._out)
        return []

    def _engine(self, session: SparkSession, slots: int) -> list[str]:
        tables = {name: _table(self._root, name) for name in self._case.tables}
        sources = {name: table.source.model_dump(mode="json", by_alias=True) for name, table in tables.items()}
        spec = JobSpec.model_validate({"tables": sources, "sql": self._case.sql})
        query = compile_job(spec, {name: table.schema for name, table in tables.items()})
        engine = Engine(session, slots, self._cache)
        planned = engine.plan(query, tables, JobSettings())
        engine.execute(planned, self._out)
        return sorted({trace.rule for trace in planned.report.rules if trace.outcome is RuleOutcome.FIRED})

    def _duckdb(self) -> Measured:
        self._out.mkdir()
        began = perf_counter()
        with duckdb.connect(config={"threads": CORES}) as connection:
            for name in self._case.tables:
                connection.execute(f"CREATE VIEW {name} AS FROM '{self._root / name}/*.parquet'")
            with _stopping(self._limit, connection.interrupt) as stopped:
                try:
                    connection.execute(f"COPY ({self._case.sql}) TO '{self._out}/out.parquet' (FORMAT parquet)")
                except duckdb.InterruptException:
                    if stopped.is_set():
                        raise UnfinishedError from None
                    raise
        return Measured(perf_counter() - began)

    def _tasks(self, tag: str) -> tuple[list[list[float]], list[bool]]:
        """The times of the tasks of every stage that ran, in ms, and whether it read from a shuffle."""
        context = self._spark.sparkContext
        jvm, store = context._jvm, context._jsc.sc().statusStore()
        assert jvm is not None
        mapper = jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
        found, reducing = [], []
        for stage in self._monitor.outcome(tag)[0]:
            tasks = json.loads(
                mapper.writeValueAsString(store.taskList(stage.stage_id, stage.stage_attempt, _ALL_TASKS))
            )
            found.append([float(task.get("duration") or 0) for task in tasks])
            reducing.append(stage.shuffle_read_rows > 0)
        return found, reducing


def _table(root: Path, name: str) -> TableInput:
    source = TableSource.model_validate({"format": "parquet", "path": name})
    files = find_table_files(name, source, [root])
    return TableInput(source, files, read_schema(name, source, files))


def _session(root: Path, driver_memory: str) -> SparkSession:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName("evenkeel-benchmark")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", driver_memory)
        .config("spark.local.dir", str(root / "local"))
        .config("spark.sql.warehouse.dir", str(root / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


@contextmanager
def _stopping(seconds: float, stop: Callable[[], object]) -> Iterator[threading.Event]:
    """Calls `stop` when what is inside takes longer, and sets the event first."""
    stopped = threading.Event()

    def end() -> None:
        stopped.set()
        stop()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield stopped
    finally:
        timer.cancel()
