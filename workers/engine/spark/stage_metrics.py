"""Progress and task quantiles of running and finished jobs, as Spark's own REST interface would tell them.

The shapes below are those of `/api/v1/applications/{id}/jobs` and `/stages` of Spark 4.3, the used fields alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.alias_generators import to_camel
from pyspark import SparkContext
from pyspark.sql import DataFrame

from service.spec.reports import OperatorReport, Progress, Quantiles, StageMetrics
from workers.engine.spark.operators import operators_of
from workers.engine.spark.sql_executions import SqlExecutions
from workers.engine.spark.status_store import StatusStore

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fGMT"
_SETTLE_SECONDS = 1.0
_POLL_SECONDS = 0.03
_ACTIVE, _SKIPPED = "ACTIVE", "SKIPPED"


class _FromSpark(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)


class _Job(_FromSpark):
    job_id: int
    stage_ids: tuple[int, ...]
    status: str
    num_tasks: int
    num_completed_tasks: int
    num_skipped_tasks: int
    num_active_stages: int
    num_completed_stages: int
    num_failed_stages: int

    @property
    def is_running(self) -> bool:
        return self.status == "RUNNING"


class _InputDistribution(_FromSpark):
    records_read: tuple[float, ...]


class _ShuffleReadDistribution(_FromSpark):
    read_bytes: tuple[float, ...]
    read_records: tuple[float, ...]


class _Distributions(_FromSpark):
    """Each has the five values of `_QUANTILES`."""

    duration: tuple[float, ...]
    disk_bytes_spilled: tuple[float, ...]
    input_metrics: _InputDistribution
    shuffle_read_metrics: _ShuffleReadDistribution


class _Stage(_FromSpark):
    stage_id: int
    attempt_id: int
    status: str
    num_tasks: int
    num_complete_tasks: int
    num_failed_tasks: int
    submission_time: str | None = None
    completion_time: str | None = None
    input_bytes: int
    input_records: int
    output_records: int
    shuffle_read_bytes: int
    shuffle_read_records: int
    shuffle_write_bytes: int
    shuffle_write_records: int
    disk_bytes_spilled: int
    task_metrics_distributions: _Distributions | None = None


_STAGES = TypeAdapter(tuple[_Stage, ...])


class SparkMonitor:
    """Reads one application's jobs and stages. May be shared between threads.

    Jobs are found by a job tag (`SparkContext.addJobTag`). Methods raise MonitorError when Spark does not answer; a JVM
    that hangs keeps them waiting until it is killed.
    """

    def __init__(self, context: SparkContext, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._status = StatusStore(context)
        self._executions = SqlExecutions(sleep=sleep)
        self._sleep = sleep

    def progress(self, tag: str) -> Progress:
        """How far the jobs with `tag` are. Stages that Spark skips, or has not started yet, are not in the totals."""
        return self._progress(self._jobs(tag))

    def stages(self, tag: str) -> tuple[StageMetrics, ...]:
        """The stages of `outcome`."""
        return self.outcome(tag)[0]

    def outcome(self, tag: str) -> tuple[tuple[StageMetrics, ...], Progress]:
        """Every stage attempt that ran for the jobs with `tag`, in order of their ids, and how far those jobs came.

        Waits, a second at most, until the end of these jobs has come through Spark's listener bus. Stages that were
        skipped because an earlier job had computed them are left out.
        """
        jobs = self._settled_jobs(tag)
        ids = sorted({stage_id for job in jobs for stage_id in job.stage_ids})
        found = self._stages(ids, summaries=True)
        return tuple(_metrics(stage) for stage in found if stage.status != _SKIPPED), self._progress(jobs)

    def operators(self, tag: str, frame: DataFrame) -> OperatorReport:
        """The operators of the newest query that ran jobs with `tag`, in the application of `frame`, by none of our
        nodes yet; none where Spark does not tell, or not of its last plan.

        Waits as `outcome` does.
        """
        found = self._executions.of_jobs(frame.sparkSession, self._status.job_ids(tag))
        if found is None:
            return OperatorReport()
        return OperatorReport(operators=operators_of(found), is_cut=found.is_cut)

    def _progress(self, jobs: Sequence[_Job]) -> Progress:
        running = {stage_id for job in jobs if job.is_running for stage_id in job.stage_ids}
        active = [stage for stage in self._stages(running, summaries=False) if stage.status == _ACTIVE]
        done = sum(job.num_completed_tasks for job in jobs)
        ended = [job for job in jobs if not job.is_running]
        still_running = sum(job.num_completed_tasks for job in jobs if job.is_running)
        waiting = sum(stage.num_tasks - stage.num_complete_tasks for stage in active)
        return Progress(
            stages_done=sum(job.num_completed_stages for job in jobs),
            stages_total=sum(job.num_completed_stages + job.num_active_stages + job.num_failed_stages for job in jobs),
            tasks_done=done,
            tasks_total=sum(job.num_tasks - job.num_skipped_tasks for job in ended) + still_running + waiting,
        )

    def _settled_jobs(self, tag: str) -> tuple[_Job, ...]:
        deadline = time.monotonic() + _SETTLE_SECONDS
        before: tuple[_Job, ...] = ()
        while True:
            jobs = self._jobs(tag)
            # Seen twice alike: a job that has only just started is not in the first answer.
            settled = bool(jobs) and jobs == before and not any(job.is_running for job in jobs)
            if settled or time.monotonic() >= deadline:
                return jobs
            before = jobs
            self._sleep(_POLL_SECONDS)

    def _jobs(self, tag: str) -> tuple[_Job, ...]:
        return tuple(_Job.model_validate_json(job) for job in self._status.jobs(tag))

    def _stages(self, ids: Iterable[int], *, summaries: bool) -> Iterator[_Stage]:
        """Every attempt of these stages; none of one that Spark has dropped, or never submitted."""
        for stage_id in ids:
            yield from _STAGES.validate_json(self._status.stage(stage_id, _QUANTILES if summaries else ()))


def _metrics(stage: _Stage) -> StageMetrics:
    tasks = stage.task_metrics_distributions
    return StageMetrics(
        stage_id=stage.stage_id,
        stage_attempt=stage.attempt_id,
        name=_name(stage),
        status=stage.status,
        tasks=stage.num_tasks,
        failed_tasks=stage.num_failed_tasks,
        wall_ms=_wall_ms(stage),
        input_rows=stage.input_records,
        input_bytes=stage.input_bytes,
        shuffle_read_rows=stage.shuffle_read_records,
        shuffle_read_bytes=stage.shuffle_read_bytes,
        shuffle_write_rows=stage.shuffle_write_records,
        shuffle_write_bytes=stage.shuffle_write_bytes,
        spilled_bytes=stage.disk_bytes_spilled,
        duration_ms=_quantiles(tasks.duration) if tasks else None,
        # Exact where a stage reads files or shuffles; where it reads both, the sum of two quantiles is a bound.
        records=_quantiles(tasks.input_metrics.records_read, tasks.shuffle_read_metrics.read_records)
        if tasks
        else None,
        shuffle_bytes=_quantiles(tasks.shuffle_read_metrics.read_bytes) if tasks else None,
        spill_bytes=_quantiles(tasks.disk_bytes_spilled) if tasks else None,
    )


def _name(stage: _Stage) -> str:
    """What the stage reads and writes; Spark's own name is the line of its code that started the job."""
    reads = (("tables", stage.input_records), ("shuffle", stage.shuffle_read_records))
    writes = (("shuffle", stage.shuffle_write_records), ("files", stage.output_records))
    return f"{_named(reads) or 'nothing'} -> {_named(writes) or 'driver'}"


def _named(counts: tuple[tuple[str, int], ...]) -> str:
    return " and ".join(name for name, count in counts if count)


def _wall_ms(stage: _Stage) -> int:
    if stage.submission_time is None or stage.completion_time is None:
        return 0
    start, end = (datetime.strptime(text, _TIME_FORMAT) for text in (stage.submission_time, stage.completion_time))  # noqa: DTZ007 - both are GMT
    return round((end - start).total_seconds() * 1000)


def _quantiles(*distributions: tuple[float, ...]) -> Quantiles:
    low, first, median, third, high = (sum(values) for values in zip(*distributions, strict=True))
    return Quantiles(min=low, p25=first, median=median, p75=third, max=high)
