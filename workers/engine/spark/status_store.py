"""What Spark remembers of jobs and stages, as the JSON of its REST interface.

Read from the store behind that interface, in the JVM: its first answer over HTTP takes seconds of processor time, and
it has no answer for the jobs of one tag alone, only for all that it remembers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext

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
            raise MonitorError(f"Spark does not tell: {type(error).__name__}") from error
