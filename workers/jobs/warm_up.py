"""Runs a small query when a worker starts, so that the first job finds the classes loaded and the code compiled."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from service.contract.job import JobSpec
from service.data.files import find_table_files
from service.data.schemas import read_schema
from service.sql.compile import compile_job
from workers.driver.driver import Driver, new_probe
from workers.engine.spark.engine import Engine
from workers.engine.spark.sources import TableInput
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.jobs.run_metrics import measure

_log = structlog.get_logger(__name__)

_ROWS = 1_000
TAG = "evenkeel-warm-up"
_SPEC = JobSpec.model_validate(
    {
        "name": "warm-up",
        "tables": {"t": {"format": "parquet", "path": "t/"}},
        "sql": "SELECT t.k, COUNT(*) AS n, SUM(t.v) AS s FROM t JOIN t AS o ON o.k = t.k WHERE t.v > 9 GROUP BY t.k "
        "ORDER BY s LIMIT 9",
    }
)


def warm_up(driver: Driver, results: Path) -> None:
    """Plans, runs and measures a query over a small file in a new directory below `results`, which executors share. It
    changes nothing else. An error is only logged.
    """
    probe = new_probe(results)
    try:
        (probe / "t").mkdir(parents=True)
        numbers = range(_ROWS)
        pq.write_table(pa.table({"k": [i % 100 for i in numbers], "v": list(numbers)}), probe / "t" / "part.parquet")
        _run(driver, probe)
    except Exception as error:  # noqa: BLE001 - the first job reports what is wrong
        _log.info("warm_up_failed", error=type(error).__name__)
    finally:
        shutil.rmtree(probe, ignore_errors=True)


def _run(driver: Driver, directory: Path) -> None:
    source = _SPEC.file_tables["t"]
    files = find_table_files("t", source, (directory,))
    tables = {"t": TableInput(source, files, read_schema("t", source, files))}
    query = compile_job(_SPEC, {name: table.schema for name, table in tables.items()})
    with driver.labelled(TAG, "default", "warm-up"):
        engine = Engine(driver.session_for_job(), driver.slots, StatisticsCache(), driver.scans)
        try:
            planned = engine.plan(query, tables, _SPEC.settings)
            written = engine.execute(planned, directory / "result")
            measure(driver.monitor, TAG, planned, tables, 0, written=written)
        finally:
            engine.close()
