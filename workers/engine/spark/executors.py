"""The executors of a driver, as the driver itself knows them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark import SparkContext
from pyspark.sql import SparkSession

from workers.engine.spark.sinks import write_parquet

_MOST_PROBES = 64


@dataclass(frozen=True)
class Executors:
    """Those that are alive: how many, and their cores together."""

    number: int
    cores: int


def executors_of(context: SparkContext) -> Executors:
    """Asks the driver's JVM, not the cluster. In local mode there are none. Raises what py4j raises."""
    store: Any = context._jsc.sc().statusStore()
    alive = store.executorList(True)
    found = [alive.apply(index) for index in range(alive.size())]
    cores = [int(one.totalCores()) for one in found if one.id() != "driver"]
    return Executors(len(cores), sum(cores))


def missing_rows(session: SparkSession, directory: Path, slots: int) -> int:
    """Has the executors write below `directory` as they write results, and counts the rows that this process misses.

    0 where everybody sees the same directory. Where executors have one of that name for themselves, what they write is
    not found when the result is put together. Raises what Spark raises for a directory that they cannot write to, and
    OSError for files that this process cannot read.
    """
    tasks = min(2 * slots, _MOST_PROBES)
    probe = directory / f".probe-{uuid4().hex}"
    try:
        return tasks - write_parquet(session.range(0, tasks, 1, tasks), probe).rows
    finally:
        shutil.rmtree(probe, ignore_errors=True)
