"""Starts, replaces and stops the one Spark driver of a worker process.

PySpark keeps its gateway, context and session in class attributes, and keeps them after the JVM has ended: every later
call fails. `SparkRuntime` manages these attributes, so nothing else in the process may start or stop a session.
`kill_jvms` ends a JVM during its start, when PySpark has not returned its process yet.
"""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import structlog
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from service.config.processes import JavaError, find_java
from service.config.spark import SparkPropertiesError, SparkSettings, read_properties
from service.contract.enums import SparkState
from workers.driver.cluster import (
    SparkUnavailableError,
    require_master,
    require_shared_results,
    unreachable,
    wait_for_executors,
)
from workers.driver.configuration import LOOPBACK, spark_configuration, write_properties
from workers.driver.driver import Driver
from workers.driver.hadoop import prepare_hadoop
from workers.driver.pools import TenantPools
from workers.driver.scratch import Scratch
from workers.engine.spark.monitor import SparkMonitor

_END_SECONDS = 10.0
"""How long to wait for killed processes. A killed JVM frees its memory first, which takes time on a busy machine."""

_STOP_SECONDS = 5.0
_DISCARD_SECONDS = 1.0
_KILL_AGAIN_SECONDS = 0.5
NOT_STARTED = "spark_not_started"
"""The code of the error if the JVM did not start, or ended during its start."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 5.0, 30.0

# PySpark logs the errors of queries with the Java stack. They are the client's errors, and are reported as problems.
_QUERY_LOGS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

_USED_OFTEN = {
    "org.apache.spark.sql.functions": ("expr", "col", "lit"),
    "org.apache.spark.sql.classic.SparkSession": ("getActiveSession",),
    "org.apache.spark.sql.classic.SparkSession$": ("MODULE$",),
    "PythonUtils": ("toSeq",),
    "PythonSQLUtils": ("explainString",),
}
"""Members of Java classes, by the name under which PySpark finds the class."""

_log = structlog.get_logger(__name__)


def kill_jvms(scratch: Path) -> list[psutil.Process]:
    """Kills every JVM of this process, and the scripts that start one: all have the scratch directory as an argument.

    Returns the killed processes. PySpark returns its process only after the JVM has answered, and waits for it until
    then.
    """
    found = _find(scratch)
    kill_all(found)
    return found


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kills the processes that still run."""
    for process in processes:
        # One may have ended meanwhile, as the launcher does before its script becomes the JVM. The others are killed.
        with suppress(psutil.Error):
            process.kill()


def await_end(processes: Iterable[psutil.Process]) -> None:
    """Waits for killed processes for a limited time, and reaps those that are this process's children.

    To be called only after PySpark has given up the start. Before that, PySpark would assume that the JVM has ended
    successfully, and continue to wait.
    """
    psutil.wait_procs(list(processes), timeout=_END_SECONDS)


def _find(scratch: Path) -> list[psutil.Process]:
    """Returns each script before its children: once the script is killed, it cannot become a JVM."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any(str(scratch) in argument for argument in child.cmdline()):
                found += [child, *_descendants(child)]
    return found


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


@dataclass(frozen=True)
class SparkCondition:
    """Whether the worker's Spark can run a job now, with its application id and slots. Reading it never waits."""

    state: SparkState
    fault: str | None = None
    """The cause and the remedy, without secrets; None unless UNAVAILABLE."""
    app_id: str | None = None
    """Spark's application id; None while there is no driver."""
    slots: int | None = None
    """How many tasks run at once; None while there is no driver."""


class SparkRuntime:
    """Starts, returns and replaces the driver of this process. Safe to share between threads.

    On a cluster, a driver is returned only after it has executors that share the directory `results`. `properties` are
    Spark properties by name; the operator's properties file overrides them.
    """

    def __init__(
        self,
        settings: SparkSettings,
        scratch_root: Path,
        results: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._properties = dict(properties or {})
        self._scratch_root = scratch_root
        self._results = results
        self._clock = clock
        self._scratch: Scratch | None = None
        self._driver: Driver | None = None
        self._starts = 0
        self._starting = False
        self._killed: list[psutil.Process] = []
        self._fault: SparkUnavailableError | None = None
        self._pause = _FIRST_PAUSE_SECONDS
        self._retry_at = 0.0
        self._stopped = False
        self._lock = threading.Lock()

    @property
    def current(self) -> Driver | None:
        """The driver, or None if there is none. Never waits."""
        return self._driver

    @property
    def starting(self) -> int | None:
        """The number of the current step of a start; None while no start is running. Never waits."""
        return self._starts if self._starting else None

    @property
    def start_timeout_seconds(self) -> float:
        """How long a step of a start may take."""
        return self._settings.start_timeout_seconds

    @property
    def condition(self) -> SparkCondition:
        """The current condition. Never waits."""
        fault, driver = self._fault, self._driver
        if fault is not None:
            return SparkCondition(SparkState.UNAVAILABLE, fault=str(fault))
        if driver is None:
            return SparkCondition(SparkState.STARTING)
        return SparkCondition(SparkState.READY, app_id=driver.app_id, slots=driver.slots)

    def driver(self) -> Driver:
        """Returns the running driver. Starts one if there is none or the last one has ended, which takes seconds.

        Raises SparkUnavailableError, at once if the last start failed; `keep_ready` tries again.
        """
        self._raise_fault()
        with self._lock:
            self._raise_fault()
            return self._ready()

    def keep_ready(self) -> None:
        """Replaces a lost driver, and tries again after a failed start. One step of a loop."""
        if not self._is_due():
            return
        with suppress(SparkUnavailableError), self._lock:  # it was logged, and `condition` reports it
            # Another thread may just have tried.
            if self._is_due():
                self._ready()

    def discard(self, driver: Driver) -> None:
        """Drops a lost driver, so that the next call of `driver` starts another one. Takes a limited time."""
        # A thread that holds the lock for longer has dropped this driver and is starting another one.
        if self._lock.acquire(timeout=_DISCARD_SECONDS):
            try:
                if self._driver is driver:
                    self._forget(driver)
            finally:
                self._lock.release()

    def kill_start(self) -> None:
        """Kills the JVM that is being started, even if it hangs. The call of `driver` that waits for it then raises."""
        if self._starting and self._scratch is not None:
            self._killed += kill_jvms(self._scratch.path)

    def remove_leftovers(self) -> None:
        """Removes the files of drivers whose processes have ended. Raises OSError."""
        scratch = self._scratch
        if scratch is not None:
            scratch.sweep()

    def stop(self) -> None:
        """Stops the driver for good and removes its files. Takes a limited time."""
        self._stopped = True
        has_lock = self._take_lock_from_start()
        try:
            if self._driver is not None:
                _stop_with_timeout(self._driver)
                self._forget(self._driver)
            # A start that still holds the lock may replace it.
            scratch = self._scratch
            if scratch is not None:
                scratch.remove()
        finally:
            if has_lock:
                self._lock.release()

    def _take_lock_from_start(self) -> bool:
        """Acquires the lock, which a start may hold. Kills its JVM; returns False if the start holds the lock even
        then.
        """
        deadline = time.monotonic() + _STOP_SECONDS
        while not self._lock.acquire(timeout=_KILL_AGAIN_SECONDS):
            self.kill_start()
            if time.monotonic() > deadline:
                return False
        return True

    def _is_due(self) -> bool:
        wanted = self._driver is None and self._starts > 0 and not self._stopped
        return wanted and self._clock() >= self._retry_at

    def _raise_fault(self) -> None:
        fault = self._fault
        if fault is not None:
            raise SparkUnavailableError(fault.code, fault.message)

    def _ready(self) -> Driver:
        self._begin_step()
        if self._driver is not None and (not self._driver.is_running() or self._driver.is_stopped()):
            self._forget(self._driver)
        if self._driver is None:
            try:
                self._driver = self._build()
            except Exception as error:
                fault = _fault_of(error)
                if not self._stopped:
                    self._record_fault(fault, error)
                raise fault from error
            self._fault, self._pause = None, _FIRST_PAUSE_SECONDS
        return self._driver

    def _record_fault(self, fault: SparkUnavailableError, error: Exception) -> None:
        self._fault, self._retry_at = fault, self._clock() + self._pause
        _log.error(
            "spark_unavailable",
            code=fault.code,
            detail=fault.message,
            retry_seconds=self._pause,
            exc_info=error if fault.code == NOT_STARTED else None,
        )
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)

    def _begin_step(self) -> None:
        """Begins another step of a start. A start counts as stuck if it takes too long for one step."""
        if self._stopped:
            raise SparkUnavailableError("spark_stopped", "This worker's Spark has been stopped.")
        self._starts += 1

    def _build(self) -> Driver:
        require_master(self._settings)
        find_java(os.environ)
        # The operator's properties override those of the service.
        further = {**self._properties, **read_properties(self._settings.properties_file)}
        self._clear_scratch()
        # The above may take longer than `stop` waits; nothing would stop a JVM that starts after that.
        self._begin_step()
        if self._scratch is None:
            self._scratch = Scratch(self._scratch_root)
        scratch = self._scratch.path
        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(spark_configuration(self._settings, scratch, further).items()))
        self._prepare_environment(further, scratch / "further.properties")
        for name in _QUERY_LOGS:
            logging.getLogger(name).disabled = True
        self._starting = True
        try:
            return self._start(conf)
        except BaseException:
            # PySpark keeps the gateway of a JVM that ended during its start; every later start would fail with it.
            self._killed += kill_jvms(scratch)
            _reset_pyspark()
            await_end(self._killed)
            raise
        finally:
            self._starting, self._killed = False, []

    def _clear_scratch(self) -> None:
        """Removes the files of the previous driver. Drops the directory if it has lost `owner.json`, because another
        worker removed it while this host was suspended for more than a day. The start then creates a new one.
        """
        if self._scratch is None:
            return
        try:
            self._scratch.beat()
            self._scratch.clear()
        except FileNotFoundError:
            self._scratch.remove()
            self._scratch = None

    def _prepare_environment(self, further: dict[str, str], path: Path) -> None:
        """Sets what PySpark and Spark read only from the environment."""
        # The address of Spark's web server, which only this worker uses.
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
        # With a properties file, Spark ignores spark-defaults.conf, whose content is unknown.
        write_properties(further, path)
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {shlex.quote(str(path))} pyspark-shell"
        # The default of PySpark is the `python3` of PATH, which may lack the packages of this environment.
        os.environ["PYSPARK_PYTHON"] = self._settings.python or sys.executable

    def _start(self, conf: SparkConf) -> Driver:
        settings = self._settings
        try:
            session = SparkSession.builder.config(conf=conf).getOrCreate()
        except Py4JJavaError as error:
            # Spark waits a minute for its master, and then stops the context.
            if settings.is_standalone and "stopped SparkContext" in str(error):
                raise unreachable(settings, "The Spark master accepts connections but does not answer") from error
            raise
        self._begin_step()
        driver = _driver(session, settings)
        if driver.on_cluster:
            try:
                wait_for_executors(driver, settings, self._begin_step)
                if self._results is not None:
                    require_shared_results(driver, self._results)
            except BaseException:
                # Releases the resources of the cluster for other applications.
                _stop_with_timeout(driver)
                raise
        _log.info("spark_started", app_id=driver.app_id, slots=driver.slots, pid=driver.process.pid)
        return driver

    def _forget(self, driver: Driver) -> None:
        self._driver = None
        driver.kill()
        _reset_pyspark()


def _fault_of(error: Exception) -> SparkUnavailableError:
    if isinstance(error, SparkUnavailableError):
        return error
    if isinstance(error, JavaError):
        return SparkUnavailableError("java_missing", f"{error.message}. {error.advice}")
    if isinstance(error, SparkPropertiesError):
        return SparkUnavailableError("properties_refused", str(error))
    return SparkUnavailableError(NOT_STARTED, "The Spark driver did not start; see the worker's log for the cause.")


def keep_classes(jvm: Any) -> None:
    """Lets the view of a JVM keep what PySpark uses for each column and DataFrame. It would ask the JVM for the class,
    and then for the method, before each call.
    """
    for name, members in _USED_OFTEN.items():
        found = getattr(jvm, name)
        # An attribute takes precedence over the question to the JVM.
        setattr(jvm, name, found)
        for member in members:
            setattr(found, member, getattr(found, member))


def _driver(session: SparkSession, settings: SparkSettings) -> Driver:
    context = session.sparkContext
    keep_classes(context._jvm)
    prepare_hadoop(context)
    needs_executors = not settings.is_local and (not settings.dynamic_allocation or bool(settings.min_executors))
    return Driver(
        root=session,
        context=context,
        process=_process(),
        slots=max(1, context.defaultParallelism),
        shuffle_partitions=settings.shuffle_partitions,
        monitor=SparkMonitor(context),
        pools=TenantPools(context),
        app_id=context.applicationId,
        on_cluster=not settings.is_local,
        seconds_without_executors=settings.executor_wait_seconds if needs_executors else None,
    )


def _reset_pyspark() -> None:
    """Resets the class attributes of PySpark after a JVM has ended."""
    gateway = SparkContext._gateway
    if gateway is not None:
        with suppress(Py4JError, OSError):
            gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


def _process() -> subprocess.Popen[bytes]:
    gateway = SparkContext._gateway
    process = None if gateway is None else gateway.proc
    if not isinstance(process, subprocess.Popen):
        raise RuntimeError("the worker must start Spark's JVM itself: unset PYSPARK_GATEWAY_PORT")
    return process


def _stop_with_timeout(driver: Driver) -> None:
    # `stop` would never return from a JVM that hangs.
    stopping = threading.Thread(target=_stop_session, args=(driver,), name="spark-stop", daemon=True)
    stopping.start()
    stopping.join(_STOP_SECONDS)


def _stop_session(driver: Driver) -> None:
    with suppress(Py4JError, OSError):
        driver.root.stop()
