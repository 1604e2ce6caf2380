"""Every Spark property of a worker, put together from its settings; nothing here needs Spark."""

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
_ELSEWHERE = ("192.0.2.1", 9)
"""An address of nobody (RFC 5737): the way there is the way out of this machine."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_EXECUTOR_JAVA_OPTIONS = "spark.executor.extraJavaOptions"
_STACK = "-Xss32m"
"""The stack of every thread, which takes no more of it than it needs. Spark turns an AND of 5,000 terms into a tree of
as many levels, and recurses into it; a task for which the default of 1 MB does not suffice ends its whole JVM.
"""


def spark_configuration(
    settings: SparkSettings, scratch: Path, further: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Every property that Evenkeel sets. `scratch` takes all files that Spark makes for itself.

    `further` are the operator's own properties, of which only options of the JVMs are taken up here.
    """
    for part in ("local", "warehouse", "tmp"):
        (scratch / part).mkdir(mode=0o700, exist_ok=True)
    further = further or {}
    return {**_of_every_driver(settings, scratch, further), **_of_cluster(settings, further)}


def write_properties(properties: Mapping[str, str], path: Path) -> None:
    """Writes properties for `spark-submit --properties-file`, readable by this user alone.

    A command line could be read by everybody on the machine. Spark reads the file as Java properties.
    """
    escaped = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
    text = "".join(f"{key}={value.translate(escaped)}\n" for key, value in properties.items())
    with suppress(FileNotFoundError):
        path.unlink()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def driver_host(settings: SparkSettings) -> str:
    """Where executors reach the driver: as set, else the address from which this machine reaches the master."""
    if settings.is_local:
        return LOOPBACK
    if settings.driver_host is not None:
        return settings.driver_host
    targets = settings.masters
    if settings.master.startswith("k8s://"):
        server = settings.master.removeprefix("k8s://")
        url = urlsplit(server if "://" in server else f"https://{server}")
        targets = ((url.hostname or "", url.port or 443),)
    for host, port in (*targets, _ELSEWHERE):
        with suppress(OSError):
            return _address_towards(host, port)
    return LOOPBACK


def _address_towards(host: str, port: int) -> str:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing
        return str(probe.getsockname()[0])


def _of_every_driver(settings: SparkSettings, scratch: Path, further: Mapping[str, str]) -> dict[str, str]:
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
        # What an attempt's end needs is stored then; progress is asked for every second, and answers with all of them.
        "spark.ui.retainedJobs": "200",
        "spark.ui.retainedStages": "400",
        "spark.sql.ui.retainedExecutions": "50",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.restrictedMode.enabled": "true",
        "spark.sql.runSQLOnFiles": "false",
        # Else ${env:NAME} inside a caller's literal becomes the worker's environment.
        "spark.sql.variable.substitute": "false",
        # A task looks only between two batches whether it was cancelled. With 4096 rows a batch, a broadcast join on a
        # key of 400,000 rows went on for 16 s after its cancellation, with 256 for 0.3 s; a scan takes no longer.
        "spark.sql.parquet.columnarReaderBatchSize": "256",
    }


def _of_cluster(settings: SparkSettings, further: Mapping[str, str]) -> dict[str, str]:
    if settings.is_local:
        return {}
    wanted = {
        _EXECUTOR_JAVA_OPTIONS: f"{_STACK} {further.get(_EXECUTOR_JAVA_OPTIONS, '')}".rstrip(),
        # A task that does not listen would hold its slot for good.
        "spark.task.reaper.enabled": "true",
        "spark.task.reaper.killTimeout": f"{round(settings.task_kill_seconds * 1000)}ms",
        "spark.task.reaper.threadDump": "false",
        "spark.executor.memory": settings.executor_memory,
        "spark.executor.cores": settings.executor_cores,
        "spark.executor.instances": settings.executors,
        "spark.cores.max": settings.cores_max,
        "spark.driver.port": settings.driver_port,
        "spark.blockManager.port": settings.block_manager_port,
        **(_of_dynamic_allocation(settings) if settings.dynamic_allocation else {}),
    }
    return {key: str(value) for key, value in wanted.items() if value is not None}


def _of_dynamic_allocation(settings: SparkSettings) -> dict[str, str | int | None]:
    return {
        "spark.dynamicAllocation.enabled": "true",
        # Shuffle files stay with executors, which no external shuffle service outlives.
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": settings.min_executors,
        # One at least, by which a worker sees at its start that the cluster gives any.
        "spark.dynamicAllocation.initialExecutors": max(1, settings.min_executors or 0),
        "spark.dynamicAllocation.maxExecutors": settings.max_executors,
    }
