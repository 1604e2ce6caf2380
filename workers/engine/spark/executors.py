"""The executors of a driver, as the driver itself knows them."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from workers.engine.spark.probes import new_probe
from workers.engine.spark.sinks import write_parquet

_MOST_PROBES = 64
_LARGE = 16 << 20
_CAUSE = re.compile(r"(?:^: |Caused by: )([^\n]*)", re.MULTILINE)
_TELLING = re.compile(
    r"\[PYTHON_VERSION_MISMATCH\][^\n]*|Cannot run program[^\n]*|No module named[^\n]*"
    r"|FileNotFoundException[^\n]*|AccessDenied[^\n]*|Permission denied[^\n]*|does not exist[^\n]*"
)


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
    probe = new_probe(directory)
    try:
        return tasks - write_parquet(session.range(0, tasks, 1, tasks), probe).rows
    finally:
        shutil.rmtree(probe, ignore_errors=True)


def fault_of_reading(session: SparkSession, uri: str, size: int) -> str | None:
    """What keeps executors from reading a file of `size` bytes; None where they can. A large one is only looked at."""
    frame = session.read.format("binaryFile").load(uri)
    try:
        frame.selectExpr("length(content)" if size <= _LARGE else "length").collect()
    except Exception as error:  # noqa: BLE001 - Spark has many for a file that is not there
        return _told(error)
    return None


def fault_of_python(session: SparkSession) -> str | None:
    """Why a Python function would not run on the executors; None where it would."""
    try:
        # Nothing of this package is needed for it there.
        session.sparkContext.parallelize([0], 1).map(str).collect()
    except Exception as error:  # noqa: BLE001 - as above
        return _told(error)
    return None


def _told(error: Exception) -> str:
    """The line of an error that says what is wrong: Spark puts it below others, and a Java stack around it."""
    text = str(error)
    causes = _CAUSE.findall(text)
    found = _TELLING.search(text)
    line = found.group(0) if found else causes[-1] if causes else next(iter(text.strip().splitlines()), "")
    return line.strip()[:300] or type(error).__name__
