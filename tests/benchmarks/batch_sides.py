"""The sides of the batch benchmark: a query over the same files with plain Spark, the engine and DuckDB.

Each reads and writes Parquet. All Spark sides share a driver, `local[2]`. Times include planning.
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

from service.contract.job import JobSpec
from service.contract.options import JobSettings
from service.contract.reports import RuleOutcome
from service.contract.tables import TableSource
from service.data.files import find_table_files
from service.data.schemas import read_schema
from service.sql.compile import compile_job
from tests.benchmarks.batch_cases import Case
from tests.benchmarks.batch_figures import DUCKDB, ENGINE, PLAIN
from workers.engine.spark.engine import Engine, write_parquet
from workers.engine.spark.monitor import SparkMonitor
from workers.engine.spark.sources import TableInput
from workers.engine.spark.statistics_cache import StatisticsCache

CORES = 2
WIDE = 256
"""The number of slots for the run whose task times are recorded."""

_WIDE_SETTINGS = {
    "spark.sql.shuffle.partitions": str(WIDE),
    # A cluster with this number of slots would not coalesce partitions below it either.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.files.minPartitionNum": str(WIDE),
    "spark.sql.files.openCostInBytes": "65536",
}
_ALL_TASKS = 1_000_000


class UnfinishedError(Exception):
    """A side was stopped at its time limit."""


@dataclass
class Measured:
    """A run: its seconds, the rules that fired and, if requested, the task times of each stage in ms, and which stages
    read a shuffle.
    """

    seconds: float
    rules: list[str] = field(default_factory=list)
    stages: list[list[float]] = field(default_factory=list)
    reducing: list[bool] = field(default_factory=list)


class Sides:
    """The sides for the tables of one case. `limit` is the time limit of a run in seconds.

    The engine caches the statistics of files between runs, as a worker does, unless `cold`.
    """

    def __init__(self, case: Case, root: Path, driver_memory: str, limit: float, *, cold: bool = False) -> None:
        self._case, self._root, self._limit = case, root, limit
        self._cache = None if cold else StatisticsCache()
        self._out = root / f"out-{os.getpid()}"
        self._spark = _session(root, driver_memory)
        self._monitor = SparkMonitor(self._spark.sparkContext)

    def close(self) -> None:
        """Stops Spark."""
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
        """Returns the number of rows of the last run's output, and a checksum over the rows as text."""
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
        """Returns the task times of every stage in ms, and whether it read a shuffle."""
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
    """Calls `stop` if the block takes longer than `seconds`, and sets the event before."""
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
