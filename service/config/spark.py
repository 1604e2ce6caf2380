"""The Spark settings of a worker, and the operator's own Spark properties.

Contradicting settings are refused, and so are properties whose values Evenkeel depends on.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from service.config import SettingsGroup, bounded, refusal
from service.contract.model import parse_bytes

LEAST_MEMORY = 471_859_200
"""Smallest memory with which a driver or executor of Spark starts, in bytes."""

MEMORY = r"^\d+[mg]$"
"""Pattern of a size of memory, as Spark and Java write it."""
_LOCAL = re.compile(r"local(\[(\*|[1-9]\d*)(,\d+)?\])?")
_HOST = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
_DRIVER_ADDRESS = r"^[A-Za-z0-9._:\[\]-]+$"
_STANDALONE = re.compile(rf"spark://{_HOST}:\d{{1,5}}(?:,{_HOST}:\d{{1,5}})*")
_KUBERNETES = re.compile(rf"k8s://(?:https?://)?{_HOST}(?::\d{{1,5}})?(?:/[^?#@\s]*)?")
_MASTERS = "local[*], local[4], spark://HOST:7077 (several: spark://A:7077,B:7077), yarn or k8s://HOST:PORT"
_OF_CLUSTERS = (
    *("executor_memory", "executor_cores", "executors", "cores_max", "dynamic_allocation", "min_executors"),
    *("max_executors", "driver_host", "driver_bind_address", "driver_port", "block_manager_port"),
)


def require_memory(memory: str | None) -> str | None:
    """Returns the size of a heap; refuses one with which Spark does not start."""
    if memory is not None and parse_bytes(memory) < LEAST_MEMORY:
        raise refusal(f"Spark does not start with less than {LEAST_MEMORY >> 20} MiB: set 512m or more")
    return memory


class SparkSettings(SettingsGroup, env_prefix="EVENKEEL_SPARK_"):
    """The Spark session of a worker."""

    master: str = Field(default="local[*]", description=f"Spark master URL: {_MASTERS}.")
    driver_memory: str = Field(
        default="2g", pattern=MEMORY, description="Heap of the driver, which in local mode runs the tasks too."
    )
    executor_memory: str | None = Field(
        default=None, pattern=MEMORY, description="Heap of each executor on a cluster; Spark's 1g by default."
    )
    executor_cores: int | None = bounded(
        None, 1, 1024, "Cores of each executor; by default all of a standalone worker, or 1 on YARN and Kubernetes."
    )
    executors: int | None = bounded(
        None, 1, 100_000, "Number of executors on YARN and Kubernetes; Spark's 2 by default."
    )
    cores_max: int | None = bounded(
        None,
        1,
        1_000_000,
        "Cores of a standalone cluster that this worker uses. All by default, so that a second worker gets none: set "
        "it if several workers share a cluster.",
    )
    dynamic_allocation: bool = Field(
        default=False, description="Request executors when jobs need them, and release idle ones."
    )
    min_executors: int | None = bounded(
        None, 0, 100_000, "Smallest number of executors with dynamic allocation; 0 by default."
    )
    max_executors: int | None = bounded(
        None, 1, 100_000, "Largest number of executors with dynamic allocation; no limit by default."
    )
    driver_host: str | None = Field(
        default=None,
        pattern=_DRIVER_ADDRESS,
        description="Name or address at which executors reach this worker. By default the address from which this "
        "machine reaches the master.",
    )
    driver_bind_address: str | None = Field(
        default=None,
        pattern=_DRIVER_ADDRESS,
        description="Address on which the driver listens, if it is another one, as in a container: `0.0.0.0`.",
    )
    driver_port: int | None = bounded(None, 1024, 65535, "Port at which executors reach the driver; any by default.")
    block_manager_port: int | None = bounded(None, 1024, 65535, "Port at which executors fetch blocks; any by default.")
    python: str | None = Field(
        default=None,
        description="Python on the executors, which needs the packages of Evenkeel to read Avro files. The path of the "
        "worker's own Python by default.",
    )
    properties_file: Path | None = Field(
        default=None,
        description="File of further Spark properties in the format of spark-defaults.conf: credentials of S3, jars, "
        "the image on Kubernetes. Spark's own spark-defaults.conf is not read.",
    )
    master_ui_port: int = bounded(
        8080, 1, 65535, "Web port of a standalone master, where the worker reads why it has no executor."
    )
    connect_timeout_seconds: float = bounded(5, 0.1, 300, "How long connecting to the master of a cluster may take.")
    executor_wait_seconds: float = bounded(
        60,
        1,
        3600,
        "How long a worker waits for its first executor, and runs without executors before it restarts Spark.",
    )
    start_timeout_seconds: float = bounded(
        180,
        10,
        3600,
        "Time without progress after which a start of Spark is ended and tried again. A start takes seconds, and "
        "minutes on a busy machine.",
    )
    warm_up: bool = Field(
        default=True,
        description="Start Spark with the worker, and run a small query; otherwise the first job waits for Spark.",
    )
    shuffle_partitions: int = bounded(
        0, 0, 100_000, "Partitions of a shuffle; 0 for twice the number of the cluster's cores."
    )
    task_kill_seconds: float = bounded(
        30,
        1,
        3600,
        "Time after the end of a job when the executor of a task that still runs is ended. In `local` mode the driver "
        "is ended instead, once no other job makes progress, or after ten times as long. The driver is also ended if "
        "it does not answer the planning of a job that has ended.",
    )
    preempt_seconds: float = bounded(
        0.25,
        0,
        3600,
        "How long the tasks of a tenant wait while those of others occupy all slots. Then the youngest task of the "
        "batch jobs of a tenant with several tasks is ended, and Spark runs it again later; 0 for never.",
    )
    gateway_timeout_seconds: float = bounded(10, 1, 300, "Time without an answer after which the JVM counts as dead.")

    @property
    def is_local(self) -> bool:
        """Whether Spark runs inside the worker, without a cluster."""
        return self.master.startswith("local")

    @property
    def is_standalone(self) -> bool:
        """Whether the cluster is a standalone cluster of Spark."""
        return self.master.startswith("spark://")

    @property
    def masters(self) -> tuple[tuple[str, int], ...]:
        """Host and port of every standalone master; empty for another cluster."""
        if not self.is_standalone:
            return ()
        pairs = (part.rpartition(":") for part in self.master.removeprefix("spark://").split(","))
        return tuple((host.strip("[]"), int(port)) for host, _, port in pairs)

    @field_validator("master")
    @classmethod
    def _is_known(cls, master: str) -> str:
        if master == "yarn" or any(one.fullmatch(master) for one in (_LOCAL, _STANDALONE, _KUBERNETES)):
            return master
        raise refusal(f"this Spark master is not supported: use {_MASTERS}")

    _is_enough = field_validator("driver_memory", "executor_memory")(require_memory)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        fault = self._fault_of_local() or self._fault_of_manager() or self._fault_of_dynamic() or self._fault_of_size()
        if fault is not None:
            raise refusal(fault)
        return self

    def _fault_of_local(self) -> str | None:
        given = [f"EVENKEEL_SPARK_{name}".upper() for name in _OF_CLUSTERS if getattr(self, name)]
        if not self.is_local or not given:
            return None
        return (
            f"EVENKEEL_SPARK_MASTER is {self.master}, which has no executors: leave out {', '.join(given)}, "
            "or name a cluster. EVENKEEL_SPARK_DRIVER_MEMORY is the memory of the driver and its tasks"
        )

    def _fault_of_manager(self) -> str | None:
        if self.is_standalone and self.executors is not None:
            return (
                "EVENKEEL_SPARK_EXECUTORS is not for standalone clusters, where the number of executors is the "
                "quotient of two other settings: set EVENKEEL_SPARK_CORES_MAX and EVENKEEL_SPARK_EXECUTOR_CORES"
            )
        if not self.is_local and not self.is_standalone and self.cores_max is not None:
            return (
                "EVENKEEL_SPARK_CORES_MAX is for standalone clusters: "
                "set EVENKEEL_SPARK_EXECUTORS and EVENKEEL_SPARK_EXECUTOR_CORES"
            )
        return None

    def _fault_of_dynamic(self) -> str | None:
        bounds = (self.min_executors, self.max_executors)
        if not self.dynamic_allocation:
            if bounds == (None, None):
                return None
            return (
                "EVENKEEL_SPARK_MIN_EXECUTORS and EVENKEEL_SPARK_MAX_EXECUTORS need "
                "EVENKEEL_SPARK_DYNAMIC_ALLOCATION=true"
            )
        if self.executors is not None:
            return (
                "EVENKEEL_SPARK_EXECUTORS is a fixed number, and EVENKEEL_SPARK_DYNAMIC_ALLOCATION changes it: "
                "set EVENKEEL_SPARK_MIN_EXECUTORS and EVENKEEL_SPARK_MAX_EXECUTORS instead"
            )
        if self.max_executors is not None and (self.min_executors or 0) > self.max_executors:
            return "EVENKEEL_SPARK_MIN_EXECUTORS is more than EVENKEEL_SPARK_MAX_EXECUTORS"
        return None

    def _fault_of_size(self) -> str | None:
        if self.cores_max is not None and (self.executor_cores or 0) > self.cores_max:
            return "EVENKEEL_SPARK_EXECUTOR_CORES is more than EVENKEEL_SPARK_CORES_MAX: no executor would ever start"
        return None


_MEANING = "rewrites are proven only for the current meaning of SQL"
FIXED = {
    "spark.sql.restrictedMode.": "it prevents expressions of jobs from calling arbitrary Java",
    "spark.sql.runSQLOnFiles": "it restricts jobs to the data roots",
    "spark.sql.variable.substitute": "it hides the worker's environment from jobs",
    "spark.sql.classic.shuffleDependency.fileCleanup.enabled": "it removes the files of each query when it ends",
    "spark.sql.extensions": "rewrites are proven only for Spark's own planner",
    "spark.sql.ansi.": "results and errors of jobs follow ANSI",
    "spark.sql.storeAssignmentPolicy": "results and errors of jobs follow ANSI",
    "spark.sql.session.timeZone": "times in results are UTC",
    "spark.sql.legacy.": _MEANING,
    "spark.sql.parser.escapedStringLiterals": _MEANING,
    "spark.sql.parser.quotedRegexColumnNames": _MEANING,
    "spark.sql.groupByOrdinal": _MEANING,
    "spark.sql.groupByAliases": _MEANING,
    "spark.sql.orderByOrdinal": _MEANING,
    "spark.sql.caseSensitive": "names in jobs are checked without regard to case",
    "spark.sql.adaptive.enabled": "the cost model assumes it",
    "spark.sql.subquery.maxThreadThreshold": "all jobs of a driver share these threads",
    "spark.sql.shuffle.partitions": "set EVENKEEL_SPARK_SHUFFLE_PARTITIONS",
    "spark.sql.warehouse.dir": "it is in the worker's scratch directory",
    "spark.sql.catalogImplementation": "jobs read files, not tables of a catalog",
    "spark.sql.parquet.columnarReaderBatchSize": "with another value a cancelled job would run for long",
    "spark.ui.enabled": "progress and metrics are read from it",
    "spark.ui.port": "progress and metrics are read from it",
    "spark.ui.killEnabled": "everybody who can open Spark's pages could end jobs",
    "spark.ui.retained": "progress and metrics are read from retained data",
    "spark.sql.ui.retainedExecutions": "progress and metrics are read from retained data",
    "spark.ui.showConsoleProgress": "the log has one event per line",
    "spark.ui.reverseProxy": "progress and metrics are read from the driver itself",
    "spark.ui.filters": "progress and metrics are read from it",
    "spark.acls.enable": "progress and metrics are read without a user",
    "spark.ssl.enabled": "enable TLS for each part, such as spark.ssl.rpc.enabled",
    "spark.ssl.ui.": "progress and metrics are read from the driver on loopback",
    "spark.sql.files.ignore": "rows would be missing from results without an error",
    "spark.sql.sources.commitProtocolClass": "results are complete only with Spark's own commit protocol",
    "spark.sql.parquet.output.committer.class": "results are complete only with Spark's own commit protocol",
    "spark.hadoop.mapreduce.fileoutputcommitter.": "results are complete only with Spark's own commit protocol",
    "spark.scheduler.mode": "it shares the cores fairly between jobs",
    "spark.scheduler.allocation.file": "it shares the cores fairly between jobs",
    "spark.submit.": "the worker is the driver",
    "spark.app.": "the worker names its application",
    "spark.local.dir": "set EVENKEEL_STATE_DIR; executors use their cluster's directories",
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
    "spark.plugins": "plugins in the driver are not isolated from jobs",
}
"""Key -> why an operator may not set it. A key that ends in a dot or is in `_PREFIXES` applies to all keys with that
prefix."""

_PREFIXES = ("spark.ui.retained", "spark.sql.files.ignore")

_LINE = re.compile(r"([^\s=:]+)\s*[=:\s]\s*(.*)")


class SparkPropertiesError(ValueError):
    """The properties file cannot be used. The message says what to change, and contains no value of the file."""


def read_properties(path: Path | None) -> dict[str, str]:
    """Reads a file in the format of spark-defaults.conf: a key, blanks or `=`, a value; `#` for comments.

    Raises SparkPropertiesError for a file that cannot be read, a line that is no property, and a key in FIXED.
    """
    if path is None:
        return {}
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
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
        raise SparkPropertiesError(f"{where}: write a key, a blank and a value on one line.")
    key, value = match.group(1), match.group(2).strip()
    if not key.startswith("spark."):
        raise SparkPropertiesError(
            f"{where}: Spark ignores {key!r}, whose name does not begin with 'spark.'. "
            "A property of Hadoop is written spark.hadoop.NAME."
        )
    reason = reason_to_refuse(key)
    if reason is not None:
        raise SparkPropertiesError(f"{where}: {key} cannot be set: {reason}. Remove the line.")
    return key, value


def reason_to_refuse(key: str) -> str | None:
    """Returns why an operator may not set `key`; None if it can be set."""
    for fixed, reason in FIXED.items():
        if key == fixed or ((fixed in _PREFIXES or fixed.endswith(".")) and key.startswith(fixed)):
            return reason
    return None
