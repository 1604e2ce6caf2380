"""The settings of a worker's Spark, with what they must not say together.

The operator's own Spark properties: read, and refused where Evenkeel depends on another value.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.contract.model import parse_bytes

LEAST_MEMORY = 471_859_200
"""Bytes below which neither a driver nor an executor of Spark starts."""

_MEMORY = r"^\d+[mg]$"
_LOCAL = re.compile(r"local(\[(\*|[1-9]\d*)(,\d+)?\])?")
_HOST = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
_STANDALONE = re.compile(rf"spark://{_HOST}:\d{{1,5}}(?:,{_HOST}:\d{{1,5}})*")
_KUBERNETES = re.compile(rf"k8s://(?:https?://)?{_HOST}(?::\d{{1,5}})?(?:/[^?#@\s]*)?")
_MASTERS = "local[*], local[4], spark://HOST:7077 (several: spark://A:7077,B:7077), yarn or k8s://HOST:PORT"
_OF_CLUSTERS = (
    *("executor_memory", "executor_cores", "executors", "cores_max", "dynamic_allocation", "min_executors"),
    *("max_executors", "driver_host", "driver_bind_address", "driver_port", "block_manager_port"),
)


class SparkSettings(BaseSettings):
    """The Spark session of a worker."""

    model_config = SettingsConfigDict(
        env_prefix="EVENKEEL_SPARK_", frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True
    )

    master: str = Field(default="local[*]", description=f"Spark master URL: {_MASTERS}.")
    driver_memory: str = Field(
        default="2g", pattern=_MEMORY, description="Heap of the driver; in local mode of the executors too."
    )
    executor_memory: str | None = Field(
        default=None, pattern=_MEMORY, description="Heap of each executor on a cluster; Spark's own 1g by default."
    )
    executor_cores: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Cores of each executor; by default all of a standalone worker, or 1 on YARN and Kubernetes.",
    )
    executors: int | None = Field(
        default=None, ge=1, le=100_000, description="Number of executors on YARN and Kubernetes; Spark's 2 by default."
    )
    cores_max: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Cores that this worker takes of a standalone cluster. All by default: the first worker leaves "
        "none to the next, so set it where several share a cluster.",
    )
    dynamic_allocation: bool = Field(
        default=False, description="Take executors as jobs need them, and give back those that are idle."
    )
    min_executors: int | None = Field(
        default=None, ge=0, le=100_000, description="Executors kept with dynamic allocation; 0 by default."
    )
    max_executors: int | None = Field(
        default=None, ge=1, le=100_000, description="Most executors with dynamic allocation; no bound by default."
    )
    driver_host: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._:\[\]-]+$",
        description="Name or address at which executors reach this worker. By default the address from which this "
        "machine reaches the master.",
    )
    driver_bind_address: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._:\[\]-]+$",
        description="Address that the driver listens on, where that is another one, as in a container: `0.0.0.0`.",
    )
    driver_port: int | None = Field(
        default=None, ge=1024, le=65535, description="Port at which executors reach the driver; any by default."
    )
    block_manager_port: int | None = Field(
        default=None, ge=1024, le=65535, description="Port at which executors fetch blocks; any by default."
    )
    python: str | None = Field(
        default=None,
        description="Python on the executors. No job runs Python there; Spark's own `python3` by default.",
    )
    properties_file: Path | None = Field(
        default=None,
        description="Further Spark properties in the format of spark-defaults.conf: credentials of S3, jars, the image "
        "on Kubernetes. Spark's own spark-defaults.conf is not read.",
    )
    master_ui_port: int = Field(
        default=8080,
        ge=1,
        le=65535,
        description="Web port of a standalone master, asked for the reason when no executor comes.",
    )
    connect_timeout_seconds: float = Field(
        default=5, ge=0.1, le=300, description="How long connecting to the master of a cluster may take."
    )
    executor_wait_seconds: float = Field(
        default=60,
        ge=1,
        le=3600,
        description="How long a worker waits for its first executor, and goes on without any before it starts anew.",
    )
    start_timeout_seconds: float = Field(
        default=180,
        ge=10,
        le=3600,
        description="A start of Spark that makes no progress for so long is ended and begun anew; it takes seconds, "
        "and minutes on a machine that is busy with others.",
    )
    warm_up: bool = Field(
        default=True, description="Start Spark with the worker; else with its first job, which then waits for it."
    )
    shuffle_partitions: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="Partitions of a shuffle; 0 takes twice the cores of the cluster.",
    )
    task_kill_seconds: float = Field(
        default=30,
        ge=1,
        le=3600,
        description="A task that goes on for so long after its job has ended loses its executor; in `local` mode, "
        "where the driver is all there is, the driver, once no other job gets on with it, or after ten times as long. "
        "The driver is ended likewise where it does not answer the planning of a job that has ended.",
    )
    gateway_timeout_seconds: float = Field(
        default=10, ge=1, le=300, description="A JVM that does not answer for so long counts as dead."
    )

    @property
    def is_local(self) -> bool:
        """Whether Spark runs inside the worker, without a cluster."""
        return self.master.startswith("local")

    @property
    def is_standalone(self) -> bool:
        """Whether the cluster is one of Spark's own masters."""
        return self.master.startswith("spark://")

    @property
    def masters(self) -> tuple[tuple[str, int], ...]:
        """Host and port of every standalone master; empty on another cluster."""
        if not self.is_standalone:
            return ()
        pairs = (part.rpartition(":") for part in self.master.removeprefix("spark://").split(","))
        return tuple((host.strip("[]"), int(port)) for host, _, port in pairs)

    @field_validator("master")
    @classmethod
    def _is_known(cls, master: str) -> str:
        if master == "yarn" or any(one.fullmatch(master) for one in (_LOCAL, _STANDALONE, _KUBERNETES)):
            return master
        raise _refusal(f"no Spark master that Evenkeel knows: use {_MASTERS}")

    @field_validator("driver_memory", "executor_memory")
    @classmethod
    def _is_enough(cls, memory: str | None) -> str | None:
        if memory is not None and parse_bytes(memory) < LEAST_MEMORY:
            raise _refusal(f"Spark does not start with less than {LEAST_MEMORY >> 20} MiB: set 512m or more")
        return memory

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        fault = self._fault_of_local() or self._fault_of_manager() or self._fault_of_dynamic() or self._fault_of_size()
        if fault is not None:
            raise _refusal(fault)
        return self

    def _fault_of_local(self) -> str | None:
        given = [f"EVENKEEL_SPARK_{name}".upper() for name in _OF_CLUSTERS if getattr(self, name)]
        if not self.is_local or not given:
            return None
        return (
            f"EVENKEEL_SPARK_MASTER is {self.master}, which has no executors of its own: leave out {', '.join(given)}, "
            "or name a cluster. EVENKEEL_SPARK_DRIVER_MEMORY is the memory of all"
        )

    def _fault_of_manager(self) -> str | None:
        if self.is_standalone and self.executors is not None:
            return (
                "a standalone cluster has no number of executors (EVENKEEL_SPARK_EXECUTORS): "
                "set EVENKEEL_SPARK_CORES_MAX and EVENKEEL_SPARK_EXECUTOR_CORES, whose quotient it is"
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


def _refusal(fault: str) -> PydanticCustomError:
    return PydanticCustomError("spark_settings", "{fault}", {"fault": fault})


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
