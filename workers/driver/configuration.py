"""Builds the Spark properties of a worker from its settings. Nothing here needs Spark."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from service.config.spark import SparkSettings

LOOPBACK = "127.0.0.1"
_LOGGING = Path(__file__).with_name("log4j2.properties")
_POOLS = Path(__file__).with_name("fairscheduler.xml")
_UNASSIGNED = ("192.0.2.1", 9)
"""An unassigned address (RFC 5737): the route to it leaves this machine."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_EXECUTOR_JAVA_OPTIONS = "spark.executor.extraJavaOptions"
_STACK = "-Xss32m"
"""The limit of each thread's stack; a thread uses only as much as it needs. Spark turns an AND of 5,000 terms into a
tree of as many levels, and recurses into it. A task that needs more than the default of 1 MB ends its whole JVM.
"""


def spark_configuration(
    settings: SparkSettings, scratch: Path, further: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns every property that Evenkeel sets. `scratch` is the directory of all temporary files of Spark.

    `further` are the operator's own properties. Only their JVM options are used here.
    """
    for part in ("local", "warehouse", "tmp"):
        (scratch / part).mkdir(mode=0o700, exist_ok=True)
    further = further or {}
    return {**_driver_properties(settings, scratch, further), **_cluster_properties(settings, further)}


def write_properties(properties: Mapping[str, str], path: Path) -> None:
    """Writes properties for `spark-submit --properties-file`, readable only by this user.

    Every user of the machine could read a command line. Spark reads the file as Java properties.
    """
    escaped = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
    text = "".join(f"{key}={value.translate(escaped)}\n" for key, value in properties.items())
    with suppress(FileNotFoundError):
        path.unlink()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def driver_host(settings: SparkSettings) -> str:
    """Returns the address of the driver for executors: the setting, or the local address that reaches the master."""
    if settings.is_local:
        return LOOPBACK
    if settings.driver_host is not None:
        return settings.driver_host
    targets = settings.masters
    if settings.master.startswith("k8s://"):
        server = settings.master.removeprefix("k8s://")
        url = urlsplit(server if "://" in server else f"https://{server}")
        targets = ((url.hostname or "", url.port or 443),)
    for host, port in (*targets, _UNASSIGNED):
        with suppress(OSError):
            return _address_towards(host, port)
    return LOOPBACK


def _address_towards(host: str, port: int) -> str:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing
        return str(probe.getsockname()[0])


def _driver_properties(settings: SparkSettings, scratch: Path, further: Mapping[str, str]) -> dict[str, str]:
    host = driver_host(settings)
    return {
        "spark.master": settings.master,
        "spark.app.name": "evenkeel",
        "spark.submit.deployMode": "client",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.host": host,
        "spark.driver.bindAddress": settings.driver_bind_address or host,
        # -UsePerfData: a JVM that is killed would leave a file in the system's temporary directory.
        _JAVA_OPTIONS: f'"-Djava.io.tmpdir={scratch / "tmp"}" -XX:-UsePerfData {_STACK} '
        f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} {further.get(_JAVA_OPTIONS, '')}".rstrip(),
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": _POOLS.as_uri(),
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.ui.killEnabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Enough for the metrics at the end of an attempt. Progress is read every second, and covers all of these.
        "spark.ui.retainedJobs": "200",
        "spark.ui.retainedStages": "400",
        "spark.sql.ui.retainedExecutions": "50",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.restrictedMode.enabled": "true",
        "spark.sql.runSQLOnFiles": "false",
        # Otherwise ${env:NAME} in a literal of a job would be replaced by the worker's environment variable.
        "spark.sql.variable.substitute": "false",
        # Otherwise the shuffle files of a query stay until a garbage collection, and of one that filled the disk too.
        "spark.sql.classic.shuffleDependency.fileCleanup.enabled": "true",
        # Subqueries that are values occupy a thread each, for all jobs of the driver. The default is 16.
        "spark.sql.subquery.maxThreadThreshold": "128",
        # A task checks only between two batches whether it was cancelled. With 4096 rows per batch, a broadcast join on
        # a key of 400,000 rows ran for 16 s after its cancellation, with 256 for 0.3 s. A scan takes as long as before.
        "spark.sql.parquet.columnarReaderBatchSize": "256",
    }


def _cluster_properties(settings: SparkSettings, further: Mapping[str, str]) -> dict[str, str]:
    if settings.is_local:
        return {}
    wanted = {
        _EXECUTOR_JAVA_OPTIONS: f"{_STACK} {further.get(_EXECUTOR_JAVA_OPTIONS, '')}".rstrip(),
        # A task that ignores its cancellation would occupy its slot for ever.
        "spark.task.reaper.enabled": "true",
        "spark.task.reaper.killTimeout": f"{round(settings.task_kill_seconds * 1000)}ms",
        "spark.task.reaper.threadDump": "false",
        "spark.executor.memory": settings.executor_memory,
        "spark.executor.cores": settings.executor_cores,
        "spark.executor.instances": settings.executors,
        "spark.cores.max": settings.cores_max,
        "spark.driver.port": settings.driver_port,
        "spark.blockManager.port": settings.block_manager_port,
        **(_dynamic_allocation_properties(settings) if settings.dynamic_allocation else {}),
    }
    return {key: str(value) for key, value in wanted.items() if value is not None}


def _dynamic_allocation_properties(settings: SparkSettings) -> dict[str, str | int | None]:
    return {
        "spark.dynamicAllocation.enabled": "true",
        # Shuffle files are lost with their executor, since there is no external shuffle service.
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": settings.min_executors,
        # At least one, so that the worker can check at its start that the cluster starts executors.
        "spark.dynamicAllocation.initialExecutors": max(1, settings.min_executors or 0),
        "spark.dynamicAllocation.maxExecutors": settings.max_executors,
    }
