"""Reads what Spark stores of jobs, stages and SQL queries, as JSON.

The data is read from the stores of Spark's REST interface and SQL page, within the JVM. The first answer over HTTP
takes seconds of processor time, and HTTP returns all jobs, not those of one tag. The figures of operators are texts, as
the SQL page shows them.
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

MOST_OPERATORS = 500
"""Operators of one query that are read, from the last one of the query on."""

_MOST_MEASURED = 2_000
"""For a query with more operators, no figures are read: the store returns those of all operators or none."""

_MOST_EXECUTIONS = 50
"""Executions that are searched for the one that ran a job. Workers configure Spark to keep as many."""

_NO_ERROR = ("Some()", "None")

_SETTLE_SECONDS = 1.0
_POLL_SECONDS = 0.03

T = TypeVar("T")


class MonitorError(Exception):
    """Spark's status store cannot be read, because Spark has stopped or is about to stop."""


@dataclass(frozen=True)
class Execution:
    """One SQL query that ended. `nodes` and `edges` are those of a `SparkPlanGraph`; `values` is by accumulator id.
    `is_cut`: it had more operators than were read.
    """

    nodes: list[dict[str, Any]]
    edges: list[dict[str, int]]
    values: dict[str, str]
    is_cut: bool


class StatusStore:
    """The status stores of one application. Safe to share between threads. Methods raise MonitorError."""

    def __init__(self, context: SparkContext, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._context = context
        self._sleep = sleep
        self._mapper: Any = None

    def jobs(self, tag: str) -> list[str]:
        """Returns the jobs with this tag that Spark has kept, each a `JobData` as JSON, in no order."""

        def read(jvm: Any, spark: Any) -> list[str]:
            ids = self._job_ids(jvm, spark, tag)
            return [job for job in (self._job(spark, job_id) for job_id in ids) if job is not None]

        return self._read(read)

    def job_ids(self, tag: str) -> list[int]:
        """Returns the ids of these jobs."""
        return self._read(lambda jvm, spark: self._job_ids(jvm, spark, tag))

    def stage(self, stage_id: int, quantiles: Sequence[float] = ()) -> str:
        """Returns all attempts of a stage: an array of `StageData` as JSON, with the distributions of their tasks at
        `quantiles`.
        """

        def read(jvm: Any, spark: Any) -> str:
            gateway: Any = self._context._gateway
            wanted = gateway.new_array(jvm.double, len(quantiles))
            for place, quantile in enumerate(quantiles):
                wanted[place] = quantile
            any_status = jvm.java.util.ArrayList()
            stage = spark.statusStore().stageData(stage_id, False, any_status, bool(quantiles), wanted)
            return str(self._mapper.writeValueAsString(stage))

        return self._read(read)

    def execution(self, session: SparkSession, job_ids: Collection[int]) -> Execution | None:
        """Returns the newest SQL query that ran one of these jobs, in any session of the application of `session`. None
        if there is none, if it failed, or if its end is not known.

        Waits at most one second until Spark's listener bus has delivered its end.
        """

        def read(jvm: Any, _spark: Any) -> Execution | None:
            store = session._jsparkSession.sharedState().statusStore()
            execution_id = self._execution_id(store, job_ids)
            return None if execution_id is None else self._execution(jvm, store, execution_id)

        return self._read(read)

    @staticmethod
    def _job_ids(jvm: Any, spark: Any, tag: str) -> list[int]:
        # One round trip, instead of one per id.
        ids: list[int] = json.loads(jvm.java.util.Arrays.toString(spark.statusTracker().getJobIdsForTag(tag)))
        return ids

    def _job(self, spark: Any, job_id: int) -> str | None:
        try:
            return str(self._mapper.writeValueAsString(spark.statusStore().job(job_id)))
        except Py4JJavaError:
            # Spark has dropped the job since it returned the id.
            return None

    def _execution_id(self, store: Any, job_ids: Collection[int]) -> int | None:
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            count = store.executionsCount()
            newest = store.executionsList(max(0, count - _MOST_EXECUTIONS), _MOST_EXECUTIONS)
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

    def _execution(self, jvm: Any, store: Any, execution_id: int) -> Execution:
        graph = store.planGraph(execution_id)
        size = graph.allNodes().size()
        values = store.executionMetrics(execution_id) if size <= _MOST_MEASURED else jvm.java.util.HashMap()
        # One compressed answer, which usually fits into one packet. A second packet would wait for 40 ms until the
        # first one is acknowledged.
        answer = jvm.scala.Tuple3(graph.nodes().take(MOST_OPERATORS), graph.edges(), values)
        written = jvm.java.io.ByteArrayOutputStream()
        self._mapper.writeValue(jvm.java.util.zip.GZIPOutputStream(written), answer)
        nodes, edges, texts = json.loads(gzip.decompress(written.toByteArray()))
        return Execution(nodes, edges, texts, size > MOST_OPERATORS)

    def _read(self, read: Callable[[Any, Any], T]) -> T:
        """Calls `read` with the JVM and the Scala context."""
        jvm, application = self._context._jvm, self._context._jsc
        if jvm is None or application is None:
            raise MonitorError("the Spark application was stopped")
        try:
            # Kept, because each new mapper inspects the classes that it writes again.
            self._mapper = self._mapper or jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
            return read(jvm, application.sc())
        except (Py4JError, OSError) as error:
            raise MonitorError(f"Cannot read Spark's status store: {type(error).__name__}") from error
