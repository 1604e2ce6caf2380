"""What Spark remembers of jobs and stages, as the JSON of its REST interface.

Read from the store behind that interface, in the JVM: its first answer over HTTP takes seconds of processor time, and
it has no answer for the jobs of one tag alone, only for all that it remembers.

What Spark remembers of SQL queries that ran: their operators and what these counted, as JSON.

Read from the store behind Spark's SQL page, in the JVM. Its figures are texts, as that page shows them.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

T = TypeVar("T")


class MonitorError(Exception):
    """Spark did not tell: it is gone, or about to go."""


class StatusStore:
    """One application's `AppStatusStore`. Safe to share between threads. Methods raise MonitorError."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._mapper: Any = None

    def jobs(self, tag: str) -> list[str]:
        """The jobs with this tag that Spark remembers, a `JobData` in JSON each, by no order."""

        def read(jvm: Any, spark: Any, write: Callable[[Any], str]) -> list[str]:
            ids = self._job_ids(jvm, spark, tag)
            return [job for job in (self._job(spark, write, job_id) for job_id in ids) if job is not None]

        return self._read(read)

    def job_ids(self, tag: str) -> list[int]:
        """The numbers of these jobs."""
        return self._read(lambda jvm, spark, _: self._job_ids(jvm, spark, tag))

    def stage(self, stage_id: int, quantiles: Sequence[float] = ()) -> str:
        """Every attempt of a stage: an array of `StageData` in JSON, with its tasks' distributions at `quantiles`."""

        def read(jvm: Any, spark: Any, write: Callable[[Any], str]) -> str:
            gateway: Any = self._context._gateway
            wanted = gateway.new_array(jvm.double, len(quantiles))
            for place, quantile in enumerate(quantiles):
                wanted[place] = quantile
            no_statuses = jvm.java.util.ArrayList()
            return write(spark.statusStore().stageData(stage_id, False, no_statuses, bool(quantiles), wanted))

        return self._read(read)

    @staticmethod
    def _job_ids(jvm: Any, spark: Any, tag: str) -> list[int]:
        found = spark.statusTracker().getJobIdsForTag(tag)
        # One round trip, and not one for each.
        ids: list[int] = json.loads(jvm.java.util.Arrays.toString(found))
        return ids

    @staticmethod
    def _job(spark: Any, write: Callable[[Any], str], job_id: int) -> str | None:
        try:
            return write(spark.statusStore().job(job_id))
        except Py4JJavaError:
            # Spark has dropped it since it told its number.
            return None

    def _read(self, read: Callable[[Any, Any, Callable[[Any], str]], T]) -> T:
        jvm, application = self._context._jvm, self._context._jsc
        if jvm is None or application is None:
            raise MonitorError("the Spark application was stopped")
        try:
            # Kept, since a mapper learns the classes that it writes anew.
            self._mapper = self._mapper or jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
            return read(jvm, application.sc(), self._mapper.writeValueAsString)
        except (Py4JError, OSError) as error:
            raise MonitorError(f"Cannot read Spark's status store: {type(error).__name__}") from error


MOST_OPERATORS = 500
"""Operators that are read of one query, from the last one down."""

_MOST_MEASURED = 2_000
"""Operators above which what they counted is not read: it is there for all of them or for none."""

_LOOKED_AT = 50
"""Executions that are looked at for the one that ran a job: as many as workers have Spark keep."""

_NO_ERROR = ("Some()", "None")

_SETTLE_SECONDS = 1.0
_POLL_SECONDS = 0.03


@dataclass(frozen=True)
class Execution:
    """One query as it ran. `nodes` and `edges` are those of a `SparkPlanGraph`, `values` is by accumulator id."""

    nodes: list[dict[str, Any]]
    edges: list[dict[str, int]]
    values: dict[str, str]
    is_cut: bool


class SqlExecutions:
    """The SQL queries of one application. Safe to share between threads."""

    def __init__(self, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep
        self._writer: Any = None

    def of_jobs(self, session: SparkSession, job_ids: Collection[int]) -> Execution | None:
        """The newest query that ran one of these Spark jobs, in any session of the application of `session`; None where
        Spark remembers none, or not yet its end, and where it failed.

        Waits, a second at most, until its end has come through Spark's listener bus. Raises MonitorError.
        """
        try:
            store = session._jsparkSession.sharedState().statusStore()
            found = self._find(store, job_ids)
            return None if found is None else self._read(session._jvm, store, found)
        except (Py4JError, OSError) as error:
            raise MonitorError(f"Cannot read Spark's status store: {type(error).__name__}") from error

    def _find(self, store: Any, job_ids: Collection[int]) -> int | None:
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            count = store.executionsCount()
            newest = store.executionsList(max(0, count - _LOOKED_AT), _LOOKED_AT)
            for place in range(newest.size() - 1, -1, -1):
                execution = newest.apply(place)
                jobs = execution.jobs()
                if any(jobs.contains(job_id) for job_id in job_ids):
                    if execution.completionTime().isDefined():
                        succeeded = execution.errorMessage().toString() in _NO_ERROR
                        return int(execution.executionId()) if succeeded else None
                    break
            if time.monotonic() >= deadline:
                return None
            self._sleep(_POLL_SECONDS)

    def _read(self, jvm: Any, store: Any, execution_id: int) -> Execution:
        graph = store.planGraph(execution_id)
        size = graph.allNodes().size()
        values = store.executionMetrics(execution_id) if size <= _MOST_MEASURED else jvm.java.util.HashMap()
        if self._writer is None:
            # Kept, since a mapper learns the classes that it writes anew.
            self._writer = jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
        # One answer, and not one for each. Compressed it is one packet as a rule: of more, the second one waits for
        # 40 ms until the first is acknowledged.
        told = jvm.scala.Tuple3(graph.nodes().take(MOST_OPERATORS), graph.edges(), values)
        written = jvm.java.io.ByteArrayOutputStream()
        self._writer.writeValue(jvm.java.util.zip.GZIPOutputStream(written), told)
        nodes, edges, counted = json.loads(gzip.decompress(written.toByteArray()))
        return Execution(nodes, edges, counted, size > MOST_OPERATORS)
