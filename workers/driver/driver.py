"""A running Spark driver, and the checks of its executors.

`Driver` has the sessions, job tags, cancellation and slots that jobs use. The functions count the executors and the
leftover tasks, write a probe to the results directory (`<results>/.probe-<32 hexadecimal digits>`), and check whether
executors can read a file and run Python.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from workers.driver.pools import TenantPools
from workers.engine.spark.engine import write_parquet
from workers.engine.spark.monitor import SparkMonitor
from workers.engine.spark.scan_cache import ScanCache

_NAME = re.compile(r"\.probe-[0-9a-f]{32}")
_MOST_PROBES = 64
_LARGE = 16 << 20
_CAUSE = re.compile(r"(?:^: |Caused by: )([^\n]*)", re.MULTILINE)
_KNOWN_CAUSE = re.compile(
    r"\[PYTHON_VERSION_MISMATCH\][^\n]*|Cannot run program[^\n]*|No module named[^\n]*"
    r"|FileNotFoundException[^\n]*|AccessDenied[^\n]*|Permission denied[^\n]*|does not exist[^\n]*"
)
_TAGS = "spark.job.tags"
_EXIT_SECONDS = 3.0


def new_probe(directory: Path) -> Path:
    """Returns a new path for a probe, which does not exist yet."""
    return directory / f".probe-{uuid4().hex}"


def remove_old_probes(directory: Path, before: float) -> int:
    """Removes probes of processes that ended before they removed them, if last changed before that time (seconds since
    the epoch). Returns how many; 0 if the directory does not exist."""
    removed = 0
    for probe in directory.glob(".probe-*"):
        # Another process may remove the same one at this moment.
        with suppress(OSError):
            if _NAME.fullmatch(probe.name) and probe.lstat().st_mtime < before:
                shutil.rmtree(probe)
                removed += 1
    return removed


@dataclass(frozen=True)
class Executors:
    """The live executors: their number, and the sum of their cores."""

    number: int
    cores: int


def executors_of(context: SparkContext) -> Executors:
    """Returns the executors that the driver's JVM has; none in local mode. Raises what py4j raises."""
    store: Any = context._jsc.sc().statusStore()
    alive = store.executorList(True)
    found = [alive.apply(index) for index in range(alive.size())]
    cores = [int(one.totalCores()) for one in found if one.id() != "driver"]
    return Executors(len(cores), sum(cores))


def missing_rows(session: SparkSession, directory: Path, slots: int) -> int:
    """Makes the executors write below `directory` as they write results. Returns the number of rows that this process
    does not find.

    It is 0 if all share the directory. If an executor has its own directory of that name, its rows are missing when the
    result is put together. Raises what Spark raises for a directory that executors cannot write to, and OSError for
    files that this process cannot read.
    """
    tasks = min(2 * slots, _MOST_PROBES)
    probe = new_probe(directory)
    try:
        return tasks - write_parquet(session.range(0, tasks, 1, tasks), probe).rows
    finally:
        shutil.rmtree(probe, ignore_errors=True)


def fault_of_reading(session: SparkSession, uri: str, size: int) -> str | None:
    """Returns why executors cannot read a file of `size` bytes; None if they can. Of a large file, only the size is
    read.
    """
    frame = session.read.format("binaryFile").load(uri)
    try:
        frame.selectExpr("length(content)" if size <= _LARGE else "length").collect()
    except Exception as error:  # noqa: BLE001 - Spark raises many for a missing file
        return _cause_line(error)
    return None


def fault_of_python(session: SparkSession) -> str | None:
    """Returns why a Python function cannot run on the executors; None if it can."""
    try:
        # `str` needs nothing of this package on the executors.
        session.sparkContext.parallelize([0], 1).map(str).collect()
    except Exception as error:  # noqa: BLE001 - as above
        return _cause_line(error)
    return None


def _cause_line(error: Exception) -> str:
    """Returns the line of an error that has the cause. Spark puts other lines and a Java stack around it."""
    text = str(error)
    causes = _CAUSE.findall(text)
    found = _KNOWN_CAUSE.search(text)
    line = found.group(0) if found else causes[-1] if causes else next(iter(text.strip().splitlines()), "")
    return line.strip()[:300] or type(error).__name__


def leftover_tasks(context: SparkContext, tag: str | None = None) -> int:
    """Returns the number of tasks that run in a local driver although their stage has ended, of all jobs or of those
    with `tag`. Raises what py4j raises.

    Spark sets a flag for a cancelled task. A task that does not check it continues, such as a regular expression that
    backtracks without end, and occupies its slot until the JVM ends.
    """
    # The scheduler is read directly. Spark's stores of stages and executors are each up to ten seconds late, by
    # different times, so tasks that have just started would appear to have no stage.
    scheduler: Any = context._jsc.sc().taskScheduler()
    jvm: Any = context._jvm
    # A copy, made in the JVM, since tasks start and end meanwhile.
    running = jvm.java.util.Collections.list(scheduler.taskIdToTaskSetManager().elements())
    # By number, since the exception that ends a Java iterator takes ten calls to convert.
    ended = [tasks for tasks in map(running.get, range(running.size())) if tasks.isZombie()]
    # If a stage is tried again, Spark may still use the tasks of an earlier try.
    active = set(context.statusTracker().getActiveStageIds()) if ended else set()
    leftover = [tasks.taskSet() for tasks in ended if tasks.taskSet().stageId() not in active]
    if tag is None:
        return len(leftover)
    return sum(tag in (tasks.properties().getProperty(_TAGS) or "").split(",") for tasks in leftover)


@dataclass(eq=False)
class Driver:
    """A running Spark driver: its JVM, its context, and the last known state of its cluster."""

    root: SparkSession
    context: SparkContext
    process: subprocess.Popen[bytes]
    slots: int
    """How many tasks run at once. Changes with the executors of a cluster."""
    shuffle_partitions: int
    """0 means twice the number of slots at the start of a job."""
    monitor: SparkMonitor
    """Reads jobs, stages and tasks."""
    pools: TenantPools
    """The pools of tenants in Spark's scheduler."""
    app_id: str = ""
    """Spark's application id."""
    on_cluster: bool = False
    seconds_without_executors: float | None = None
    """How long it may have no executor before it counts as lost; None for no limit."""
    executors: Executors | None = None
    """As of the last call of `refresh`; None before."""
    stopped: bool = False
    """Whether Spark had stopped at the last call of `refresh`."""
    ended: bool = False
    """Whether this worker killed the driver because of stuck work. Other attempts on it do not count then."""
    idle_sessions: list[SparkSession] = field(default_factory=list)
    """Sessions of streams that have ended, for reuse."""
    scans: ScanCache = field(init=False)
    """The plans of scans, shared by jobs."""

    def __post_init__(self) -> None:
        self.scans = ScanCache(self.root)

    def session_for_job(self) -> SparkSession:
        """Returns a new session for a job: it shares executors, but not settings and temporary views."""
        session = self.root.newSession()
        session.conf.set("spark.sql.shuffle.partitions", str(self.shuffle_partitions or 2 * self.slots))
        return session

    def session_for_stream(self) -> SparkSession:
        """Returns a session for a stream, one that an earlier stream used if possible. Spark keeps a listener for every
        session that ever ran a stream, and would notify ever more of them if a job that runs every minute got a new
        session for each run.
        """
        with suppress(IndexError):
            return self.idle_sessions.pop()
        return self.session_for_job()

    def return_session(self, session: SparkSession) -> None:
        """Keeps the session of a stream that has ended, for reuse."""
        self.idle_sessions.append(session)

    @contextmanager
    def labelled(self, tag: str, tenant: str, description: str) -> Iterator[None]:
        """Inside, every Spark job of this thread has `tag`, by which it can be cancelled, and is in the tenant's pool.

        Tags and properties belong to the thread, and threads are reused, so they are cleared at the end.
        """
        context = self.context
        self.pools.create(tenant)
        context.addJobTag(tag)
        context.setLocalProperty("spark.scheduler.pool", tenant)
        context.setInterruptOnCancel(True)
        context.setJobDescription(description)
        try:
            yield
        finally:
            with suppress(Py4JError, OSError):  # a driver that has ended has no labels any more
                context.clearJobTags()
                context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]
                context.setInterruptOnCancel(False)
                context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]

    def add_tag(self, tag: str) -> None:
        """Adds a second tag to the Spark jobs that this thread starts from now on. To be called inside `labelled`."""
        self.context.addJobTag(tag)

    def cancel(self, tag: str) -> None:
        """Cancels the running Spark jobs that have `tag`. Those that start later need another call."""
        self.context.cancelJobsWithTag(tag)

    def ping(self) -> None:
        """Makes one round trip to the JVM. Raises if it has ended; does not return while it hangs."""
        jvm = self.context._jvm
        if jvm is None:
            raise ConnectionError("the driver was discarded")
        jvm.java.lang.System.nanoTime()

    def refresh(self) -> None:
        """Updates the state of the cluster. Like `ping`, raises if the JVM has ended, and waits while it hangs."""
        self.stopped = bool(self.context._jsc.sc().isStopped())
        if self.on_cluster and not self.stopped:
            self.executors = executors_of(self.context)
            # A driver that has just lost all executors keeps the number, for the jobs that wait for new ones.
            self.slots = self.executors.cores or self.slots

    def leftover_tasks(self, tag: str | None = None) -> int:
        """Returns the number of tasks that run although their stage has ended, of all jobs or of those with `tag`. It
        is 0 on a cluster, where Spark ends the executors of such tasks, and if the JVM has ended. Waits while the JVM
        hangs.
        """
        if not self.on_cluster:
            with suppress(Py4JError, OSError):
                return leftover_tasks(self.context, tag)
        return 0

    def is_running(self) -> bool:
        """Whether the JVM process exists, even if it hangs."""
        return self.process.poll() is None

    def is_stopped(self) -> bool:
        """Whether Spark has stopped, even if its JVM still runs: the cluster is lost, or the JVM is about to exit."""
        try:
            return bool(self.context._jsc.sc().isStopped())
        except (Py4JError, OSError):
            return True

    def has_ended(self, within_seconds: float) -> bool:
        """Whether the JVM process has ended, or ends within that time. A call fails shortly before its process ends."""
        try:
            self.process.wait(within_seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kills the JVM, even if it hangs. Calls that wait for it then fail."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_EXIT_SECONDS)


class DriverSource(Protocol):
    """Provides the running driver."""

    def driver(self) -> Driver:
        """Returns the running driver."""
