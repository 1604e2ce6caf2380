"""The one Spark driver of a worker process: built when first needed, watched, and built anew when it was lost.

PySpark keeps its gateway, context and session in class attributes and never lets go of a JVM that died: every later
call fails. `SparkRuntime` owns that state, so nothing else in the process may build or stop a session.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx
import psutil
import structlog
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from service.java import find_java
from service.settings import SparkSettings
from workers.engine.spark.stage_metrics import SparkMonitor
from workers.scratch import make_scratch

_log = structlog.get_logger(__name__)

_LOOPBACK = "127.0.0.1"
_LOGGING = Path(__file__).with_name("log4j2.properties")
_POOLS = Path(__file__).with_name("fairscheduler.xml")
# PySpark logs errors of queries by itself, with the Java stack: they are the client's and are told as problems.
_QUERY_LOGS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_EXIT_SECONDS = 3.0
_STOP_SECONDS = 5.0
_DISCARD_SECONDS = 1.0
_KILL_AGAIN_SECONDS = 0.5


@dataclass(frozen=True, eq=False)
class Driver:
    """A running Spark driver: its JVM, its context and what is fixed with them."""

    root: SparkSession
    context: SparkContext
    process: subprocess.Popen[bytes]
    slots: int
    """Tasks that run at once."""
    shuffle_partitions: int
    monitor: SparkMonitor
    """Jobs, stages and tasks, from Spark's REST interface."""

    def session_for_job(self) -> SparkSession:
        """A session of its own for a job: settings and temporary views are not shared, the executors are."""
        session = self.root.newSession()
        session.conf.set("spark.sql.shuffle.partitions", str(self.shuffle_partitions))
        return session

    @contextmanager
    def labelled(self, tag: str, pool: str, description: str) -> Iterator[None]:
        """Everything that this thread runs on Spark inside carries `tag`, by which it can be cancelled.

        Labels belong to the thread, and threads are used again: they are cleared at the end.
        """
        context = self.context
        context.addJobTag(tag)
        context.setLocalProperty("spark.scheduler.pool", pool)
        context.setInterruptOnCancel(True)
        context.setJobDescription(description)
        try:
            yield
        finally:
            with suppress(Py4JError, OSError):  # a driver that is gone took its labels along
                context.clearJobTags()
                context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]
                context.setInterruptOnCancel(False)
                context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]

    def cancel(self, tag: str) -> None:
        """Cancels the Spark jobs that carry `tag` now. Those that start later need another call."""
        self.context.cancelJobsWithTag(tag)

    def ping(self) -> None:
        """One round trip to the JVM. Raises when it is gone; does not return while it hangs."""
        jvm = self.context._jvm
        if jvm is None:
            raise ConnectionError("the driver was discarded")
        jvm.java.lang.System.nanoTime()

    def is_running(self) -> bool:
        """Whether the JVM process exists; it may hang all the same."""
        return self.process.poll() is None

    def is_stopped(self) -> bool:
        """Whether Spark ended itself although its JVM may live: its cluster went away, or it is about to exit."""
        try:
            return bool(self.context._jsc.sc().isStopped())
        except (Py4JError, OSError):
            return True

    def has_ended(self, within_seconds: float) -> bool:
        """Whether the JVM process is gone, or goes in that time: a call fails a moment before its process ends."""
        try:
            self.process.wait(within_seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Ends the JVM whatever it does. Calls that wait for it then fail."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_EXIT_SECONDS)


class DriverSource(Protocol):
    """Whatever hands out a running driver."""

    def driver(self) -> Driver:
        """The running driver."""


class SparkRuntime:
    """Builds, hands out and replaces the driver of this process. Safe to share between threads."""

    def __init__(self, settings: SparkSettings, scratch_root: Path) -> None:
        self._settings = settings
        self._scratch_root = scratch_root
        self._scratch: Path | None = None
        self._driver: Driver | None = None
        self._starts = 0
        self._starting = False
        self._stopped = False
        self._lock = threading.Lock()

    @property
    def current(self) -> Driver | None:
        """The driver, if one was built; never waits."""
        return self._driver

    @property
    def starting(self) -> int | None:
        """Number of the start that is under way; None while none is. Never waits."""
        return self._starts if self._starting else None

    def driver(self) -> Driver:
        """The running driver, built now if there is none or the last one died. Takes seconds then.

        Raises JavaError where there is no usable Java, RuntimeError after `stop`, and whatever PySpark raises for a
        JVM that does not start; the next call tries again from the beginning.
        """
        with self._lock:
            if self._stopped:
                raise RuntimeError("this worker's Spark has been stopped")
            if self._driver is not None and (not self._driver.is_running() or self._driver.is_stopped()):
                self._forget(self._driver)
            if self._driver is None:
                self._driver = self._build()
            return self._driver

    def discard(self, driver: Driver) -> None:
        """Lets go of a driver that was lost, so that the next call of `driver` builds another. Bounded in time."""
        # Whoever has the lock for longer is building another one, after letting go of this one.
        if self._lock.acquire(timeout=_DISCARD_SECONDS):
            try:
                if self._driver is driver:
                    self._forget(driver)
            finally:
                self._lock.release()

    def kill_start(self) -> None:
        """Ends the JVM that is being started, whatever it does; the call of `driver` that waits for it then raises."""
        if self._starting and self._scratch is not None:
            _kill_jvms(self._scratch)

    def stop(self) -> None:
        """Ends the driver and removes its files; nothing can be built afterwards. Bounded in time."""
        self._stopped = True
        has_lock = self._take_lock_from_start()
        try:
            if self._driver is not None:
                _stop_politely(self._driver)
                self._forget(self._driver)
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)
        finally:
            if has_lock:
                self._lock.release()

    def _take_lock_from_start(self) -> bool:
        """The lock, which a start that nobody needs any more may hold; False where even killing its JVM was no use."""
        deadline = time.monotonic() + _STOP_SECONDS
        while not self._lock.acquire(timeout=_KILL_AGAIN_SECONDS):
            self.kill_start()
            if time.monotonic() > deadline:
                return False
        return True

    def _build(self) -> Driver:
        find_java(os.environ)
        if self._scratch is None:
            self._scratch = make_scratch(self._scratch_root)
        configuration = spark_configuration(self._settings, self._scratch)
        address = configuration["spark.driver.host"]
        # Spark's web server looks at this variable alone.
        os.environ["SPARK_LOCAL_IP"] = address
        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(configuration.items()))
        for name in _QUERY_LOGS:
            logging.getLogger(name).disabled = True
        self._starts += 1
        self._starting = True
        try:
            return self._start(conf)
        except BaseException:
            # PySpark keeps the gateway of a JVM that died on the way, and every later start would fail with it.
            _kill_jvms(self._scratch)
            _reset_pyspark()
            raise
        finally:
            self._starting = False

    def _start(self, conf: SparkConf) -> Driver:
        session = SparkSession.builder.config(conf=conf).getOrCreate()
        context = session.sparkContext
        slots = max(1, context.defaultParallelism)
        if self._stopped:
            raise RuntimeError("this worker's Spark was stopped while it started")
        driver = Driver(
            root=session,
            context=context,
            process=_process(),
            slots=slots,
            shuffle_partitions=self._settings.shuffle_partitions or 2 * slots,
            monitor=SparkMonitor(context.uiWebUrl or "", context.applicationId),
        )
        threading.Thread(target=_warm_up, args=(driver.monitor,), name="spark-warm-up", daemon=True).start()
        _log.info("spark_started", app_id=context.applicationId, slots=slots, pid=driver.process.pid)
        return driver

    def _forget(self, driver: Driver) -> None:
        self._driver = None
        driver.kill()
        driver.monitor.close()
        _reset_pyspark()


def spark_configuration(settings: SparkSettings, scratch: Path) -> dict[str, str]:
    """Every setting of the driver. `scratch` takes all files that Spark makes for itself."""
    for part in ("local", "warehouse", "tmp"):
        (scratch / part).mkdir(mode=0o700, exist_ok=True)
    is_local = settings.master.startswith("local")
    # On a cluster the executors must reach the driver: the operator says where, by Spark's own variable.
    address = _LOOPBACK if is_local else os.environ.get("SPARK_LOCAL_IP", _LOOPBACK)
    return {
        "spark.master": settings.master,
        "spark.app.name": "evenkeel",
        "spark.submit.deployMode": "client",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,
        # -UsePerfData: a JVM that is killed would leave a file in the system's temporary directory.
        "spark.driver.extraJavaOptions": f'"-Djava.io.tmpdir={scratch / "tmp"}" -XX:-UsePerfData '
        f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
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


def _reset_pyspark() -> None:
    """Makes PySpark forget a JVM that is gone."""
    gateway = SparkContext._gateway
    if gateway is not None:
        with suppress(Py4JError, OSError):
            gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


def _kill_jvms(scratch: Path) -> None:
    """Kills every JVM of this process, and the scripts that start one: all have the scratch directory as an argument.

    PySpark tells its process only once the JVM has answered. It also is the one to wait for it.
    """
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any(str(scratch) in argument for argument in child.cmdline()):
                for process in (*child.children(recursive=True), child):
                    process.kill()


def _process() -> subprocess.Popen[bytes]:
    gateway = SparkContext._gateway
    process = None if gateway is None else gateway.proc
    if not isinstance(process, subprocess.Popen):
        raise RuntimeError("the worker must start Spark's JVM itself: unset PYSPARK_GATEWAY_PORT")
    return process


def _warm_up(monitor: SparkMonitor) -> None:
    """Spark's web server takes seconds for its first answer: better now than at the end of the first job."""
    with suppress(httpx.HTTPError, RuntimeError):  # it was closed meanwhile
        monitor.progress("")


def _stop_politely(driver: Driver) -> None:
    # A JVM that hangs would keep `stop` for ever.
    stopping = threading.Thread(target=_stop_session, args=(driver,), name="spark-stop", daemon=True)
    stopping.start()
    stopping.join(_STOP_SECONDS)


def _stop_session(driver: Driver) -> None:
    with suppress(Py4JError, OSError):
        driver.root.stop()
