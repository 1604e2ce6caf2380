"""Reads what Spark stores of jobs, stages and SQL queries, as JSON.

The data is read from the stores of Spark's REST interface and SQL page, within the JVM. The first answer over HTTP
takes seconds of processor time, and HTTP returns all jobs, not those of one tag. The figures of operators are texts, as
the SQL page shows them.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

MOST_OPERATORS = 500
"""Operators of one query that are read, from the last one of the query on."""

_MOST_MEASURED = 2_000
"""For a query with more operators, no figures are read: the store returns those of all operators or none."""

_MOST_TASKS = 100_000

_MOST_EXECUTIONS = 50
"""Executions that are searched for the one that ran a job. Workers configure Spark to keep as many."""

_NO_ERROR = ("Some()", "None")

_SETTLE_SECONDS = 1.0
_POLL_SECONDS = 0.01

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
        self._java: _Java | None = None
        self._quantiles: dict[tuple[float, ...], Any] = {}

    def wait_for_events(self) -> None:
        """Waits until the stores have all events that Spark has sent, at most one second."""

        def wait(java: _Java) -> None:
            with suppress(Py4JJavaError):
                java.events.waitUntilEmpty(round(_SETTLE_SECONDS * 1000))

        self._read(wait)

    def jobs(self, tag: str) -> bytes:
        """Returns the jobs with this tag that Spark has kept: an array of `JobData` as JSON, in no order."""

        def read(java: _Java) -> bytes:
            found = java.array_list()
            for job_id in java.job_ids(tag):
                # Spark may have dropped the job since it returned the id.
                with suppress(Py4JJavaError):
                    found.add(java.store.job(job_id))
            return java.json(found)

        return self._read(read)

    def job_ids(self, tag: str) -> list[int]:
        """Returns the ids of these jobs."""
        return self._read(lambda java: java.job_ids(tag))

    def stages(self, ids: Iterable[int], quantiles: Sequence[float] = ()) -> bytes:
        """Returns all attempts of each of these stages: an array of arrays of `StageData` as JSON, with the
        distributions of their tasks at `quantiles`. An array is empty if Spark has no such stage.
        """

        def read(java: _Java) -> bytes:
            wanted, any_status, found = self._array(java, tuple(quantiles)), java.array_list(), java.array_list()
            for stage_id in ids:
                found.add(java.store.stageData(stage_id, False, any_status, bool(quantiles), wanted))
            return java.json(found)

        return self._read(read)

    def task_ids(self, stage_id: int, attempt: int) -> list[int]:
        """Returns the ids of the tasks of an attempt at a stage."""

        def read(java: _Java) -> list[int]:
            tasks = java.store.taskList(stage_id, attempt, _MOST_TASKS)
            return [task["taskId"] for task in json.loads(java.json(tasks))]

        return self._read(read)

    def remove_shuffles(self, ids: Iterable[int]) -> None:
        """Removes the files of these shuffles from all executors. Does not wait for their removal."""

        def remove(java: _Java) -> None:
            for shuffle_id in ids:
                java.shuffles.removeShuffle(shuffle_id, False)

        self._read(remove)

    def execution(self, session: SparkSession, job_ids: Collection[int]) -> Execution | None:
        """Returns the newest SQL query that ran one of these jobs, in any session of the application of `session`. None
        if there is none, if it failed, or if its end is not known.

        Waits at most one second until Spark's listener bus has delivered its end.
        """

        self.wait_for_events()

        def read(java: _Java) -> Execution | None:
            store = session._jsparkSession.sharedState().statusStore()
            execution_id = self._execution_id(store, job_ids)
            return None if execution_id is None else self._execution(java, store, execution_id)

        return self._read(read)

    def _array(self, java: _Java, values: tuple[float, ...]) -> Any:
        """Returns the values as a Java array. It is kept, since it takes a call of the JVM per value."""
        if values not in self._quantiles:
            gateway: Any = self._context._gateway
            array = gateway.new_array(java.double, len(values))
            for place, value in enumerate(values):
                array[place] = value
            self._quantiles[values] = array
        return self._quantiles[values]

    def _execution_id(self, store: Any, job_ids: Collection[int]) -> int | None:
        deadline = time.monotonic() + _SETTLE_SECONDS
        while (execution := self._newest_execution(store, job_ids)) is not None:
            if execution.completionTime().isDefined():
                succeeded = execution.errorMessage().toString() in _NO_ERROR
                return int(execution.executionId()) if succeeded else None
            if time.monotonic() >= deadline:
                return None
            self._sleep(_POLL_SECONDS)
        return None

    @staticmethod
    def _newest_execution(store: Any, job_ids: Collection[int]) -> Any:
        """Returns the newest execution that ran one of the jobs; None if there is none."""
        newest = store.executionsList(max(0, store.executionsCount() - _MOST_EXECUTIONS), _MOST_EXECUTIONS)
        for place in range(newest.size() - 1, -1, -1):
            execution = newest.apply(place)
            jobs = execution.jobs()
            if any(jobs.contains(job_id) for job_id in job_ids):
                return execution
        return None

    @staticmethod
    def _execution(java: _Java, store: Any, execution_id: int) -> Execution:
        graph = store.planGraph(execution_id)
        size = graph.allNodes().size()
        values = store.executionMetrics(execution_id) if size <= _MOST_MEASURED else java.hash_map()
        answer = java.triple(graph.nodes().take(MOST_OPERATORS), graph.edges(), values)
        nodes, edges, texts = json.loads(java.json(answer))
        return Execution(nodes, edges, texts, size > MOST_OPERATORS)

    def _read(self, read: Callable[[_Java], T]) -> T:
        application = self._context._jsc
        if self._context._jvm is None or application is None:
            raise MonitorError("the Spark application was stopped")
        try:
            if self._java is None:
                self._java = _Java(self._context._jvm, application.sc())
            return read(self._java)
        except (Py4JError, OSError) as error:
            raise MonitorError(f"Cannot read Spark's status store: {type(error).__name__}") from error


class _Java:
    """Objects and classes of the JVM. They are kept, since finding one takes a call per part of its name."""

    def __init__(self, jvm: Any, spark: Any) -> None:
        self.store = spark.statusStore()
        self.events = spark.listenerBus()
        self.shuffles = spark.shuffleDriverComponents()
        self.array_list, self.hash_map, self.triple = jvm.java.util.ArrayList, jvm.java.util.HashMap, jvm.scala.Tuple3
        self.double = jvm.double
        self._tracker = spark.statusTracker()
        self._text_of = jvm.java.util.Arrays.toString
        self._bytes, self._gzip = jvm.java.io.ByteArrayOutputStream, jvm.java.util.zip.GZIPOutputStream
        # Each new mapper inspects the classes that it writes again.
        self._mapper = jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()

    def job_ids(self, tag: str) -> list[int]:
        """Returns the ids of the jobs with this tag, in one round trip instead of one per id."""
        ids: list[int] = json.loads(self._text_of(self._tracker.getJobIdsForTag(tag)))
        return ids

    def json(self, value: Any) -> bytes:
        """Returns a Java object as JSON.

        It is sent compressed, and usually fits into one packet. A second packet would wait for 40 ms until the first
        one is acknowledged.
        """
        written = self._bytes()
        self._mapper.writeValue(self._gzip(written), value)
        return gzip.decompress(written.toByteArray())
