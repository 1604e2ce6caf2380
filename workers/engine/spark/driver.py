"""A running Spark driver, as whoever runs jobs on it sees it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from workers.engine.spark.ended_tasks import tasks_left_behind, tasks_left_behind_by
from workers.engine.spark.executors import Executors, executors_of
from workers.engine.spark.stage_metrics import SparkMonitor

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
