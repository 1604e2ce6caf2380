"""Reads Spark's metrics of a running or finished job: its progress, stages with task quantiles, and operators.

The models of jobs and stages have the used fields of `/api/v1/applications/{id}/jobs` and `/stages` of Spark 4.3. The
figures of operators are those of Spark's SQL page.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import AliasPath, BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.alias_generators import to_camel
from pyspark import SparkContext
from pyspark.sql import DataFrame

from service.contract.reports import OperatorMetrics, OperatorReport, Progress, Quantiles, StageMetrics
from workers.engine.report.operator_tree import COLLECT
from workers.engine.spark.status_store import MOST_OPERATORS, Execution, StatusStore

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fGMT"
_SETTLE_SECONDS = 1.0
_POLL_SECONDS = 0.01
_ACTIVE, _SKIPPED = "ACTIVE", "SKIPPED"

_ROWS = {"Exchange": "shuffle records written"}
_OTHER_ROWS = "number of output rows"
_BYTES = {"Exchange": "shuffle bytes written", "BroadcastExchange": "data size"}
_OTHER_BYTES = ("size of files read", "written output")
_SPILL = ("spill size",)
_TIMES = {
    "scan time",
    "time in aggregation build",
    "sort time",
    "shuffle write time",
    "time to build",
    "time to broadcast",
    "time to build hash map",
    "task commit time",
    "job commit time",
}
"""The times of an operator itself, without the time that it waits for rows of another operator."""

_READING = ("read", "fetch", "remote", "local")
"""Words in the names of an exchange's metrics that are counted in the next stage, which reads its rows."""

_UNITS = {unit: float(1 << 10 * power) for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))}
_MILLISECONDS = {"ms": 1.0, "s": 1_000.0, "m": 60_000.0, "h": 3_600_000.0}
_TOTAL = re.compile(r"(?:total[^\n]*\n)?\s*(-?[\d,]+(?:\.\d+)?)(?: ([A-Za-z]+))?")
_STAGE = re.compile(r"\(stage (\d+)\.\d+: task \d+\)")
_PIPELINE = re.compile(r"WholeStageCodegen \((\d+)\)")
_EXCHANGES = frozenset({"Exchange", "BroadcastExchange"})
_WRITE = "Execute InsertInto"
_ADAPTIVE = "AdaptiveSparkPlan"
_FINAL = "isFinalPlan=true"


class SparkMonitor:
    """Reads the jobs, stages and operators of one application. Safe to share between threads.

    Jobs are found by a job tag (`SparkContext.addJobTag`). Methods raise MonitorError if Spark does not answer. If the
    JVM hangs, they wait until it is killed.
    """

    def __init__(self, context: SparkContext, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._status = StatusStore(context, sleep=sleep)
        self._sleep = sleep

    def progress(self, tag: str) -> Progress:
        """Returns the progress of the jobs with `tag`. The totals exclude stages that are skipped or not started."""
        return self._progress(self._jobs(tag))

    def final_progress(self, tag: str) -> Progress:
        """As `progress`, after the run of all jobs with `tag` has succeeded: all that was to be done is done. Spark's
        own counts can be lower, if the listener bus is late, or if jobs shared a stage of which some tasks had ended
        before the second job began. Waits as `outcome` does.
        """
        found = self._progress(self._settled_jobs(tag))
        return found.model_copy(update={"stages_done": found.stages_total, "tasks_done": found.tasks_total})

    def outcome(self, tag: str) -> tuple[tuple[StageMetrics, ...], Progress]:
        """Returns all stage attempts of the jobs with `tag`, in order of their ids, and the progress of these jobs.

        Waits at most one second until Spark's listener bus has delivered the end of the jobs. Stages that were skipped,
        because an earlier job had computed them, are left out.
        """
        jobs = self._settled_jobs(tag)
        ids = sorted({stage_id for job in jobs for stage_id in job.stage_ids})
        found = self._stages(ids, summaries=True)
        return tuple(_metrics(stage) for stage in found if stage.status != _SKIPPED), self._progress(jobs)

    def operators(self, tag: str, frame: DataFrame) -> OperatorReport:
        """Returns the operators of the newest query that ran jobs with `tag`, in the application of `frame`, without
        the plan nodes that they run. Empty if Spark has no such query, or not its last plan. Waits as `outcome` does.
        """
        execution = self._status.execution(frame.sparkSession, self._status.job_ids(tag))
        if execution is None:
            return OperatorReport()
        return OperatorReport(operators=operators_of(execution), is_cut=execution.is_cut)

    @staticmethod
    def with_collected(report: OperatorReport, rows: int, size: int) -> OperatorReport:
        """Returns the report with an operator that collects the result, of `rows` rows and `size` bytes, on top."""
        if not report.operators:
            return report
        collect = OperatorMetrics(
            id=1 + max(each.id for each in report.operators),
            operator=COLLECT,
            detail="",
            inputs=(report.operators[0].id,),
            rows=rows,
            bytes=size,
            time_ms=None,
            spilled_bytes=None,
        )
        return report.model_copy(update={"operators": (collect, *report.operators)})

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
        while True:
            self._status.wait_for_events()
            jobs = self._jobs(tag)
            # Spark reports a failed job to its caller before it sends the event of its end.
            if not any(job.is_running for job in jobs) or time.monotonic() >= deadline:
                return jobs
            self._sleep(_POLL_SECONDS)

    def _jobs(self, tag: str) -> tuple[_Job, ...]:
        return _JOBS.validate_json(self._status.jobs(tag))

    def _stages(self, ids: Iterable[int], *, summaries: bool) -> Iterator[_Stage]:
        """Yields all attempts of these stages that Spark submitted and has kept."""
        known = list(ids)
        if known:
            for attempts in _STAGES.validate_json(self._status.stages(known, _QUANTILES if summaries else ())):
                yield from attempts


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


class _Distributions(_FromSpark):
    """Each tuple has the values of the five `_QUANTILES`."""

    duration: tuple[float, ...]
    disk_bytes_spilled: tuple[float, ...]
    input_records: tuple[float, ...] = Field(validation_alias=AliasPath("inputMetrics", "recordsRead"))
    shuffle_records: tuple[float, ...] = Field(validation_alias=AliasPath("shuffleReadMetrics", "readRecords"))
    shuffle_bytes: tuple[float, ...] = Field(validation_alias=AliasPath("shuffleReadMetrics", "readBytes"))


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


_JOBS = TypeAdapter(tuple[_Job, ...])
_STAGES = TypeAdapter(tuple[tuple[_Stage, ...], ...])


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
        # Exact if a stage reads only files or only shuffles; if it reads both, the sum of two quantiles is a bound.
        records=_quantiles(tasks.input_records, tasks.shuffle_records) if tasks else None,
        shuffle_bytes=_quantiles(tasks.shuffle_bytes) if tasks else None,
        spill_bytes=_quantiles(tasks.disk_bytes_spilled) if tasks else None,
    )


def _name(stage: _Stage) -> str:
    """Returns what the stage reads and writes. Spark's own name is the line of code that started the job."""
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


def operators_of(execution: Execution) -> tuple[OperatorMetrics, ...]:
    """Returns the operators in Spark's order, the last one of the query first; empty if the plan was not final when the
    query ended. The node of adaptive execution is left out. A pipeline is a field of its operators.
    """
    found = list(_operators(execution.nodes, execution.values))
    if any(each.name == _ADAPTIVE and _FINAL not in each.detail for each in found):
        return ()
    named = {each.id: each for each in found if each.name != _ADAPTIVE}
    named = dict(list(named.items())[:MOST_OPERATORS])
    inputs: dict[int, list[int]] = defaultdict(list)
    for edge in execution.edges:
        if edge["fromId"] in named and edge["toId"] in named:
            inputs[edge["toId"]].append(edge["fromId"])
    stages = _stages(named, inputs)
    sampled = _run_twice(named, inputs)
    return tuple(
        OperatorMetrics(
            id=each.id,
            operator=each.name,
            # The detail of a write has the attempt's directory and options of stores.
            detail="" if each.name.startswith(_WRITE) else each.detail,
            inputs=tuple(inputs[each.id]),
            rows=None if each.id in sampled else each.first((_ROWS.get(each.name, _OTHER_ROWS),)),
            bytes=each.first((_BYTES[each.name],) if each.name in _BYTES else _OTHER_BYTES),
            time_ms=each.time_ms,
            spilled_bytes=each.first(_SPILL),
            stage_ids=stages[each.id],
            pipeline=each.pipeline,
            pipeline_ms=each.pipeline_ms,
        )
        for each in named.values()
    )


@dataclass(frozen=True)
class _Operator:
    """An operator with the texts of its metrics, by name."""

    id: int
    name: str
    detail: str
    pipeline: int | None
    pipeline_ms: int | None
    texts: Mapping[str, str] = field(default_factory=dict)

    def first(self, names: Iterable[str]) -> int | None:
        """Returns the value of the first of these metrics that the operator has."""
        return next((value for name in names if (value := amount(self.texts.get(name))) is not None), None)

    @property
    def time_ms(self) -> int | None:
        times = [value for name, text in self.texts.items() if name in _TIMES and (value := amount(text)) is not None]
        return sum(times) if times else None


def _operators(
    nodes: list[dict[str, Any]], values: Mapping[str, str], pipeline: int | None = None, pipeline_ms: int | None = None
) -> Iterator[_Operator]:
    for node in nodes:
        texts = {one["name"]: values.get(str(one["accumulatorId"]), "") for one in node["metrics"]}
        match = _PIPELINE.fullmatch(node["name"])
        if match is not None:
            yield from _operators(node["nodes"], values, int(match[1]), amount(texts.get("duration")))
        elif "nodes" in node:
            # A subquery, whose operators are nested.
            yield _Operator(node["id"], node["name"].strip(), node["desc"], None, None, texts)
            yield from _operators(node["nodes"], values)
        else:
            yield _Operator(node["id"], node["name"].strip(), node["desc"], pipeline, pipeline_ms, texts)


def amount(text: str | None) -> int | None:
    """Returns the total of a metric: a number, bytes or milliseconds; None if the text has no total.

    >>> amount("59,899"), amount("1.5 KiB"), amount("2.3 s"), amount("")
    (59899, 1536, 2300, None)
    >>> amount("total (min, med, max (stageId: taskId))\\n22 ms (5 ms, 16 ms, 16 ms (stage 4.0: task 7))")
    22
    """
    match = _TOTAL.match(text or "")
    if match is None:
        return None
    number, unit = float(match[1].replace(",", "")), match[2]
    if unit in _UNITS:
        return round(number * _UNITS[unit])
    if unit is None:
        return int(match[1].replace(",", "")) if "." not in match[1] else None
    return round(number * _MILLISECONDS[unit]) if unit in _MILLISECONDS else None


def _stages(operators: Mapping[int, _Operator], inputs: Mapping[int, list[int]]) -> dict[int, tuple[int, ...]]:
    """Returns the stages of each operator: those that Spark names with the largest value of a task, for any operator
    between the same two exchanges. An exchange belongs to the stage of its input, which writes its rows.
    """
    group = {key: key for key in operators}

    def top(key: int) -> int:
        while group[key] != key:
            group[key] = key = group[group[key]]
        return key

    for key, below in inputs.items():
        for child in below:
            if operators[child].name not in _EXCHANGES:
                group[top(child)] = top(key)
    found: dict[int, set[int]] = defaultdict(set)
    for key, each in operators.items():
        for name, text in each.texts.items():
            if each.name in _EXCHANGES and any(word in name for word in _READING):
                continue
            found[top(key)].update(int(stage) for stage in _STAGE.findall(text))
    return {key: tuple(sorted(found[top(key)])) for key in operators}


def _run_twice(operators: Mapping[int, _Operator], inputs: Mapping[int, list[int]]) -> frozenset[int]:
    """Returns the operators of a stage that writes a range exchange. Spark runs them twice, once to sample the rows,
    and their metrics include both runs.
    """
    found: set[int] = set()
    waiting = [
        child
        for key, each in operators.items()
        if each.name == "Exchange" and "rangepartitioning" in each.detail
        for child in inputs.get(key, ())
    ]
    while waiting:
        key = waiting.pop()
        if key not in found and operators[key].name not in _EXCHANGES:
            found.add(key)
            waiting += inputs.get(key, ())
    return frozenset(found)
