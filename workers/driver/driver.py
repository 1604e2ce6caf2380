"""What executors write to show that they share the results directory: `<results>/.probe-<32 hexadecimal digits>`.

The executors of a driver, as the driver itself knows them.

Tasks of work that has ended: Spark asks a cancelled task to end, and one that looks at nothing goes on.

A regular expression that backtracks without end is such a task: it holds its slot until its JVM ends.

Asked is the scheduler itself. Spark's store of stages and executors is up to ten seconds late, and each of them by
another time: tasks that had just begun would look as if they belonged to nobody.

A running Spark driver, as whoever runs jobs on it sees it.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from workers.engine.spark.monitor import SparkMonitor
from workers.engine.spark.result_writer import write_parquet

_NAME = re.compile(r"\.probe-[0-9a-f]{32}")


def new_probe(directory: Path) -> Path:
    """Where to write this time; nothing is there."""
    return directory / f".probe-{uuid4().hex}"


def remove_old_probes(directory: Path, before: float) -> int:
    """Removes what processes left that ended before they could, last changed before that time (seconds since the
    epoch); gives how many. Without the directory, 0."""
    removed = 0
    for probe in directory.glob(".probe-*"):
        # One that somebody else removes at this moment is gone as well.
        with suppress(OSError):
            if _NAME.fullmatch(probe.name) and probe.lstat().st_mtime < before:
                shutil.rmtree(probe)
                removed += 1
    return removed


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


_TAGS = "spark.job.tags"


def tasks_left_behind(context: SparkContext) -> int:
    """Tasks that run in a local driver although their stage has ended. Raises what py4j raises."""
    return len(_left_behind(context))


def tasks_left_behind_by(context: SparkContext, tag: str) -> int:
    """Those among them of the jobs that carry `tag`."""
    found = (tasks.taskSet().properties().getProperty(_TAGS) for tasks in _left_behind(context))
    return sum(tag in (tags or "").split(",") for tags in found)


def _left_behind(context: SparkContext) -> Sequence[Any]:
    """For each of these tasks, the try of a stage that it belongs to."""
    scheduler: Any = context._jsc.sc().taskScheduler()
    jvm: Any = context._jvm
    # A copy, made over there: tasks come and go.
    running = jvm.java.util.Collections.list(scheduler.taskIdToTaskSetManager().elements())
    ended = [tasks for tasks in running if tasks.isZombie()]
    # Where a stage is tried again, tasks of an earlier try may still be of use.
    active = set(context.statusTracker().getActiveStageIds()) if ended else set()
    return [tasks for tasks in ended if tasks.taskSet().stageId() not in active]


_EXIT_SECONDS = 3.0


@dataclass(eq=False)
class Driver:
    """A running Spark driver: its JVM, its context, and what was last seen of its cluster."""

    root: SparkSession
    context: SparkContext
    process: subprocess.Popen[bytes]
    slots: int
    """Tasks that run at once; follows a cluster's executors as they come and go."""
    shuffle_partitions: int
    """0 takes twice the slots that there are when a job starts."""
    monitor: SparkMonitor
    """Jobs, stages and tasks."""
    app_id: str = ""
    """What the cluster knows it as."""
    on_cluster: bool = False
    seconds_alone: float | None = None
    """How long it may be without any executor before it counts as lost; None where that is no sign of anything."""
    executors: Executors | None = None
    """As last seen by `look`; None before."""
    stopped: bool = False
    """Whether Spark had ended itself when last seen by `look`."""
    ended: bool = False
    """Whether this worker ended it for work that did not end: a loss to others that they had no part in."""
    sessions_at_rest: list[SparkSession] = field(default_factory=list)
    """Of streams that have ended."""

    def session_for_job(self) -> SparkSession:
        """A session of its own for a job: settings and temporary views are not shared, the executors are."""
        session = self.root.newSession()
        session.conf.set("spark.sql.shuffle.partitions", str(self.shuffle_partitions or 2 * self.slots))
        return session

    def session_for_stream(self) -> SparkSession:
        """As for a job, but used again by one stream after the other: Spark keeps a listener for every session that
        ever ran one, and would pass its events to more of them with each run of a job that runs every minute.
        """
        with suppress(IndexError):
            return self.sessions_at_rest.pop()
        return self.session_for_job()

    def give_back(self, session: SparkSession) -> None:
        """Takes back the session of a stream that has ended."""
        self.sessions_at_rest.append(session)

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

    def label_further(self, tag: str) -> None:
        """Inside `labelled`: everything that this thread runs from now on carries `tag` too."""
        self.context.addJobTag(tag)

    def cancel(self, tag: str) -> None:
        """Cancels the Spark jobs that carry `tag` now. Those that start later need another call."""
        self.context.cancelJobsWithTag(tag)

    def ping(self) -> None:
        """One round trip to the JVM. Raises when it is gone; does not return while it hangs."""
        jvm = self.context._jvm
        if jvm is None:
            raise ConnectionError("the driver was discarded")
        jvm.java.lang.System.nanoTime()

    def look(self) -> None:
        """Notes what has become of the cluster. As `ping`, raises without a JVM and waits for one that hangs."""
        self.stopped = bool(self.context._jsc.sc().isStopped())
        if self.on_cluster and not self.stopped:
            self.executors = executors_of(self.context)
            # One that has just lost them all keeps the number for the jobs that wait for others.
            self.slots = self.executors.cores or self.slots

    def tasks_left_behind(self) -> int:
        """Tasks that go on although what they were for has ended; 0 on a cluster, where Spark ends their executors,
        and where the JVM is gone. Waits for one that hangs.
        """
        if not self.on_cluster:
            with suppress(Py4JError, OSError):
                return tasks_left_behind(self.context)
        return 0

    def tasks_left_behind_by(self, tag: str) -> int:
        """Those of the jobs that carry `tag`. As above otherwise."""
        if not self.on_cluster:
            with suppress(Py4JError, OSError):
                return tasks_left_behind_by(self.context, tag)
        return 0

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
