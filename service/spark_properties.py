"""The operator's own Spark properties: read, and refused where Evenkeel depends on another value."""

from __future__ import annotations

import re
from pathlib import Path

FIXED = {
    "spark.sql.restrictedMode.": "it keeps a job's expressions from calling arbitrary Java",
    "spark.sql.runSQLOnFiles": "it keeps jobs inside the data roots",
    "spark.sql.variable.substitute": "it keeps the worker's environment out of jobs",
    "spark.sql.extensions": "rewrites are only proven for Spark's own planner",
    "spark.sql.ansi.": "results and errors of jobs follow ANSI",
    "spark.sql.storeAssignmentPolicy": "results and errors of jobs follow ANSI",
    "spark.sql.session.timeZone": "times in results are UTC",
    "spark.sql.legacy.": "rewrites are only proven for the present meaning of SQL",
    "spark.sql.caseSensitive": "names in jobs are checked without regard to case",
    "spark.sql.adaptive.enabled": "the cost model reckons with it",
    "spark.sql.shuffle.partitions": "set EVENKEEL_SPARK_SHUFFLE_PARTITIONS",
    "spark.sql.warehouse.dir": "a worker keeps it in its own scratch directory",
    "spark.sql.catalogImplementation": "jobs name files, not tables of a catalog",
    "spark.sql.parquet.columnarReaderBatchSize": "a cancelled job would go on for long",
    "spark.ui.enabled": "progress and metrics are read from it",
    "spark.ui.port": "progress and metrics are read from it",
    "spark.ui.killEnabled": "whoever sees Spark's pages could end jobs",
    "spark.ui.retained": "progress and metrics are read from what it retains",
    "spark.sql.ui.retainedExecutions": "progress and metrics are read from what it retains",
    "spark.ui.showConsoleProgress": "the log has one event a line",
    "spark.ui.reverseProxy": "progress and metrics are read from the driver itself",
    "spark.ui.filters": "progress and metrics are read from it",
    "spark.acls.enable": "progress and metrics are read without a user",
    "spark.ssl.enabled": "name the parts that are to be encrypted, such as spark.ssl.rpc.enabled",
    "spark.ssl.ui.": "progress and metrics are read from the driver on loopback",
    "spark.sql.files.ignore": "rows would be missing from results unseen",
    "spark.sql.sources.commitProtocolClass": "results are whole by Spark's own way to commit files",
    "spark.sql.parquet.output.committer.class": "results are whole by Spark's own way to commit files",
    "spark.hadoop.mapreduce.fileoutputcommitter.": "results are whole by Spark's own way to commit files",
    "spark.scheduler.mode": "jobs share the cores fairly by it",
    "spark.scheduler.allocation.file": "jobs share the cores fairly by it",
    "spark.submit.": "the worker is the driver",
    "spark.app.": "the worker names its application",
    "spark.local.dir": "set EVENKEEL_STATE_DIR; executors take their cluster's directories",
    "spark.master": "set EVENKEEL_SPARK_MASTER",
    "spark.driver.memory": "set EVENKEEL_SPARK_DRIVER_MEMORY",
    "spark.driver.host": "set EVENKEEL_SPARK_DRIVER_HOST",
    "spark.driver.bindAddress": "set EVENKEEL_SPARK_DRIVER_BIND_ADDRESS",
    "spark.driver.port": "set EVENKEEL_SPARK_DRIVER_PORT",
    "spark.driver.blockManager.port": "set EVENKEEL_SPARK_BLOCK_MANAGER_PORT",
    "spark.blockManager.port": "set EVENKEEL_SPARK_BLOCK_MANAGER_PORT",
    "spark.executor.memory": "set EVENKEEL_SPARK_EXECUTOR_MEMORY",
    "spark.executor.cores": "set EVENKEEL_SPARK_EXECUTOR_CORES",
    "spark.executor.instances": "set EVENKEEL_SPARK_EXECUTORS",
    "spark.cores.max": "set EVENKEEL_SPARK_CORES_MAX",
    "spark.dynamicAllocation.enabled": "set EVENKEEL_SPARK_DYNAMIC_ALLOCATION",
    "spark.dynamicAllocation.minExecutors": "set EVENKEEL_SPARK_MIN_EXECUTORS",
    "spark.dynamicAllocation.initialExecutors": "set EVENKEEL_SPARK_MIN_EXECUTORS",
    "spark.dynamicAllocation.maxExecutors": "set EVENKEEL_SPARK_MAX_EXECUTORS",
    "spark.task.reaper.": "set EVENKEEL_SPARK_TASK_KILL_SECONDS",
    "spark.pyspark.": "set EVENKEEL_SPARK_PYTHON",
    "spark.plugins": "code of others in the driver is not kept apart from jobs",
}
"""Key -> why it is Evenkeel's to set. One in `_BEGINNINGS`, or that ends in a dot, stands for all that begin so."""

_BEGINNINGS = ("spark.ui.retained", "spark.sql.files.ignore")

_LINE = re.compile(r"([^\s=:]+)\s*[=:\s]\s*(.*)")


class SparkPropertiesError(ValueError):
    """The properties file cannot be used; the message says what to change, and holds no value of it."""


def read_properties(path: Path | None) -> dict[str, str]:
    """The properties of a file in the format of spark-defaults.conf: a key, blanks or `=`, a value; `#` for comments.

    Raises SparkPropertiesError for a file that cannot be read, a line that is no property, and a key that is fixed.
    """
    if path is None:
        return {}
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise SparkPropertiesError(f"EVENKEEL_SPARK_PROPERTIES_FILE {path} cannot be read: {reason}.") from None
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.strip().startswith(("#", "!")):
            key, value = _parse(line.strip(), f"{path}, line {number}")
            found[key] = value
    return found


def _parse(line: str, where: str) -> tuple[str, str]:
    match = _LINE.fullmatch(line)
    if match is None or line.endswith("\\"):
        raise SparkPropertiesError(f"{where}: write a key, a blank and a value, all on one line.")
    key, value = match.group(1), match.group(2).strip()
    if not key.startswith("spark."):
        raise SparkPropertiesError(
            f"{where}: Spark ignores {key!r}, whose name does not begin with 'spark.'. "
            "A property of Hadoop is written spark.hadoop.NAME."
        )
    reason = reason_to_refuse(key)
    if reason is not None:
        raise SparkPropertiesError(f"{where}: {key} is Evenkeel's to set: {reason}. Remove the line.")
    return key, value


def reason_to_refuse(key: str) -> str | None:
    """Why an operator may not set `key`; None where it is free."""
    for fixed, reason in FIXED.items():
        if key == fixed or ((fixed in _BEGINNINGS or fixed.endswith(".")) and key.startswith(fixed)):
            return reason
    return None
