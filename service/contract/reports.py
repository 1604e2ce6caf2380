"""The reports of a job: progress, plan, skew, estimates, operators, savings and metrics.

Workers write and store them, and the API returns them. Savings and the comparison with another job are calculated when
the metrics are read. `task_times` estimates the durations of a stage's tasks from the five stored quantiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise

from pydantic import Field

from .enums import StatusText
from .model import Frozen


class Progress(Frozen):
    """Progress of the running attempt. The totals grow while Spark discovers stages."""

    stages_done: int = 0
    stages_total: int = 0
    tasks_done: int = 0
    tasks_total: int = 0


class PlanNodeReport(Frozen):
    """One node of a plan, for trees and graphs."""

    id: int = Field(
        description="Unique within the plan. A node that is in both `before` and `after` has the same id in both; in "
        "reports of earlier versions, the ids of each plan start at 0."
    )
    operator: str = Field(description="`Scan`, `Filter`, `Join`, `Aggregate`, …", examples=["Aggregate"])
    detail: str = Field(description="What the operator does, on one line.")
    inputs: tuple[int, ...] = Field(description="Ids of the inputs, left first.")
    changed_by: str | None = Field(default=None, description="The rule that created or changed this node.")
    estimated_rows: int | None = Field(default=None, description="Estimated number of rows that the node returns.")


class PlanTree(Frozen):
    """A plan as nodes, as indented text and as SQL."""

    nodes: tuple[PlanNodeReport, ...] = Field(description="Each node comes after its inputs; the root is the last one.")
    text: str
    sql: str = Field(
        default="",
        description="An equivalent query in Spark SQL over the job's tables. Each part of the plan is a common table "
        "expression.",
    )


class RuleOutcome(StrEnum):
    """Whether a rule changed the plan."""

    FIRED = "fired"
    SKIPPED = "skipped"


class Alternative(Frozen):
    """An alternative for running a node, with its estimated cost."""

    name: str = Field(examples=["TWO_PHASE"])
    cost: float = Field(description="Rows that the slowest task processes, summed over all phases; lower is better.")
    rows_shuffled: int = Field(description="Estimated number of rows that are shuffled.")
    rows_on_hottest_task: int = Field(description="Estimated number of rows of the busiest task after the shuffle.")
    chosen: bool


class RuleTrace(Frozen):
    """What a rule did at one node, and why."""

    rule: str = Field(examples=["split_distinct_aggregate"])
    outcome: RuleOutcome
    node: str = Field(description="The node that the rule examined, on one line.")
    node_id: int | None = Field(
        default=None,
        description="Id of the node in `before`, in `after`, or in a plan between the two. Null in reports of earlier "
        "versions.",
    )
    reason: str = Field(description="One sentence: why the rule fired, or why it did not.")
    alternatives: tuple[Alternative, ...] = ()


class HotKey(Frozen):
    """A frequent value of a key, from the sample taken before the run."""

    value: str = Field(description="The key as text, with columns separated by `, `; NULL is written as `NULL`.")
    share: float = Field(ge=0, le=1, description="Share of the table's rows that have this key.")
    estimated_rows: int
    is_null: bool = Field(default=False, description="Whether a column of the key is NULL, and not the text `NULL`.")


class KeyStatistics(Frozen):
    """Statistics of one key of a table, collected before the run."""

    table: str
    columns: tuple[str, ...]
    rows: int = Field(description="Rows of the table, from the footers of its files if they have footers.")
    rows_are_exact: bool
    sampled_rows: int
    distinct_keys: int = Field(description="Estimated number of distinct keys.")
    null_share: float = Field(ge=0, le=1)
    hot_keys: tuple[HotKey, ...]


class TableStatistics(Frozen):
    """Size of a table before the run."""

    table: str
    files: int
    bytes: int
    rows: int
    rows_are_exact: bool
    cached: bool = Field(
        default=False,
        description="Whether the worker reused statistics of an earlier query over the same files, and read none of "
        "the files for this one.",
    )


class FirstRun(Frozen):
    """A run that failed because memory was not sufficient; the attempt then ran the query again with another plan."""

    after: PlanTree = Field(description="The plan of this run.")
    rules: tuple[RuleTrace, ...] = Field(description="What each rule did to this plan.")
    physical_plan: str | None = Field(default=None, description="Spark's physical plan, as Spark prints it.")
    failure: str = Field(description="The error from Spark.")
    execution_ms: int = Field(
        description="From the start of the run to its failure. Not included in `execution_ms` of the metrics."
    )


class PlanReport(Frozen):
    """The query before and after the rules, what each rule did, and Spark's physical plan."""

    before: PlanTree
    after: PlanTree
    rules: tuple[RuleTrace, ...]
    tables: tuple[TableStatistics, ...]
    keys: tuple[KeyStatistics, ...]
    statistics_ms: int = Field(description="Time to collect the statistics.")
    physical_plan: str | None = Field(default=None, description="Spark's physical plan, as Spark prints it.")
    first_run: FirstRun | None = Field(
        default=None, description="The first run, if the attempt ran out of memory and ran the query a second time."
    )


class Quantiles(Frozen):
    """Minimum, quartiles and maximum over the tasks of a stage."""

    min: float
    p25: float
    median: float
    p75: float
    max: float


class StageMetrics(Frozen):
    """A Spark stage of the attempt that ended the job."""

    stage_id: int
    stage_attempt: int
    name: str
    status: str
    tasks: int
    failed_tasks: int
    wall_ms: int = Field(description="From the submission of the stage to its end.")
    input_rows: int
    input_bytes: int
    shuffle_read_rows: int
    shuffle_read_bytes: int
    shuffle_write_rows: int
    shuffle_write_bytes: int
    spilled_bytes: int = Field(description="Bytes spilled to disk.")
    duration_ms: Quantiles | None = Field(description="Run time per task; null until a task has ended.")
    records: Quantiles | None = Field(description="Rows read per task, from files and shuffles together.")
    shuffle_bytes: Quantiles | None = Field(description="Shuffle bytes read per task.")
    spill_bytes: Quantiles | None = Field(description="Bytes spilled to disk per task.")


class StageSkew(Frozen):
    """A stage whose slowest task took much longer than the others."""

    stage_id: int
    max_over_median: float = Field(
        description="Time of the slowest task divided by that of the median task; does not depend on the number of "
        "parallel tasks."
    )
    slowest_task_ms: float
    median_task_ms: float = Field(description="If the stage has two tasks, the time of the faster one.")
    stage_impact: float = Field(
        ge=0, le=1, description="Time of the slowest task divided by the wall time of the stage, at most 1."
    )
    lost_ms: int = Field(description="Time that the stage would have saved if all its tasks had taken equally long.")


class HotKeyReport(Frozen):
    """Hot keys of one key of a table, and their effect on this query."""

    table: str
    columns: tuple[str, ...]
    role: str = Field(description="`group key`, `join key`, `partition key` or `distinct value`.")
    hot_keys: tuple[HotKey, ...]
    sampled_rows: int
    rows_on_one_task: int | None = Field(
        default=None,
        description="Estimated rows of the hottest key that one task reads in the plan that ran. Null if the "
        "plan distributes, aggregates or does not shuffle these rows, and if their number is unknown.",
    )
    estimate_is_wrong: bool = Field(
        default=False,
        description="Whether no task read a tenth of `rows_on_one_task`, or the estimated rows of the operator were "
        "wrong. Then this key leads to no advice.",
    )


class SkewReport(Frozen):
    """Whether the job is skewed, by which keys, what that cost, and which setting would help."""

    skewed: bool = Field(
        description="Whether the slowest task of a stage took more than `skew.factor` times as long as the median "
        "task, and at least 100 ms. If no stage was measured: whether the plan sends all rows of a hot key to one task."
    )
    keys: tuple[HotKeyReport, ...]
    stages: tuple[StageSkew, ...] = Field(description="Stages above the skew factor, worst first.")
    lost_ms: int = Field(description="Sum over these stages.")
    advice: str = Field(description="One sentence: what to change, or that no change is needed.")
    setting: str | None = Field(default=None, description="The setting to change.", examples=["distinct_split.enabled"])
    value: str | None = Field(default=None, description="The value to set.", examples=["true"])


class ChoiceOutcome(Frozen):
    """One choice of the cost model: the estimates for the chosen alternative, and the measurements."""

    rule: str = Field(examples=["two_phase_aggregate"])
    node: str = Field(description="The node of the choice, on one line, as in the rule's trace.")
    node_id: int | None = Field(default=None, description="Its id, as in the rule's trace.")
    alternative: str = Field(description="The chosen alternative.", examples=["TWO_PHASE"])
    estimated_rows_shuffled: int
    estimated_rows_on_hottest_task: int
    measured_rows_shuffled: int | None = Field(
        description="Null if the query also shuffles rows for another operator: Spark measures stages, not operators."
    )
    measured_rows_on_hottest_task: int | None = Field(description="Null if `measured_rows_shuffled` is null.")
    is_wrong: bool = Field(
        default=False, description="Whether `wrong` of the report contains an estimate of this choice."
    )


class Quantity(StrEnum):
    """The quantity that was estimated."""

    ROWS_READ = "rows_read"
    ROWS_SHUFFLED = "rows_shuffled"
    ROWS_ON_HOTTEST_TASK = "rows_on_hottest_task"
    ROWS_EMITTED = "rows_emitted"


class WrongEstimate(Frozen):
    """An estimate that is more than 10 times higher or lower than the measured value."""

    quantity: Quantity
    node_id: int | None = Field(
        description="Id of the estimated node in the plan report; null if the estimate is for the whole query."
    )
    node: str | None = Field(description="The node, on one line.")
    rule: str | None = Field(default=None, description="The rule, if the estimate belongs to a choice of a rule.")
    estimated: int
    measured: int = Field(
        description="The measured value. For a choice of a rule: the value nearest to the estimate that the "
        "measurements of the whole query permit."
    )
    factor: float = Field(description="How many times too high or too low the estimate is.")


class EstimateReport(Frozen):
    """The estimates by which the plan was chosen, and the measurements of its run."""

    choices: tuple[ChoiceOutcome, ...] = Field(
        description="One for each rule trace of the plan report that has alternatives."
    )
    estimated_rows_read: int | None = Field(
        description="Rows of all scans; a table that is read twice counts twice. Null if the rows of a table are "
        "unknown."
    )
    measured_rows_read: int = Field(description="Lower than the estimate if Spark skipped row groups without matches.")
    estimated_rows_shuffled: int | None = Field(
        description="Sum over the operators that were chosen by cost; null if there are none."
    )
    measured_rows_shuffled: int = Field(description="Rows of the whole query, including operators without an estimate.")
    estimated_rows_on_hottest_task: int | None = Field(
        description="The largest estimate among the operators that were chosen by cost."
    )
    measured_rows_on_hottest_task: int | None = Field(
        description="The most rows that one task read from a shuffle; an upper bound if the stage also reads files. "
        "Spark coalesces small partitions into one task."
    )
    estimated_result_rows: int | None = Field(description="Compare it with `result_rows`.")
    all_estimated: bool = Field(
        description="Whether every operator that may shuffle rows was chosen by cost, so that the sums are comparable."
    )
    summary: str = Field(description="One sentence: how far the estimates were from the measurements.")
    wrong: tuple[WrongEstimate, ...] = Field(
        default=(),
        description="Estimates that were wrong by more than 10 times, the worst first. An estimate is not compared if "
        "both numbers of rows are below 1,000.",
    )


class OperatorMetrics(Frozen):
    """A physical operator of Spark as it ran. A field is null if Spark does not measure it.

    Sizes and times have the precision of Spark's metrics: one decimal of their unit.
    """

    id: int = Field(description="Unique within the plan; `inputs` refer to it.")
    operator: str = Field(description="Spark's name of the operator.", examples=["HashAggregate"])
    detail: str = Field(description="What it does, as Spark prints it; long texts are cut.")
    inputs: tuple[int, ...] = Field(description="Ids of the operators whose rows it reads, left first.")
    rows: int | None = Field(
        description="Rows that it returned; for an exchange, rows that it sent. Also null if Spark ran the operator "
        "twice to sample rows for a sort."
    )
    bytes: int | None = Field(
        description="For a scan, the size of the files that it read, with all their columns; for an exchange, the "
        "bytes that it sent; for a broadcast, its size in memory; for a write, the bytes written."
    )
    time_ms: int | None = Field(
        description="The time that Spark measures for it, summed over all tasks. For an aggregate, this includes its "
        "inputs in the same pipeline."
    )
    spilled_bytes: int | None = Field(description="Size in memory of the data that was spilled.")
    stage_ids: tuple[int, ...] = Field(default=(), description="Stages in which it ran, as far as Spark reports them.")
    pipeline: int | None = Field(
        default=None,
        description="Number of the pipeline into which Spark compiled it together with other operators (whole-stage "
        "code generation).",
    )
    pipeline_ms: int | None = Field(default=None, description="Time of the whole pipeline, summed over all tasks.")
    node: int | None = Field(
        default=None, description="Id of the node of `PlanReport.after` that it executes; null if unknown."
    )


class NodeFigures(Frozen):
    """Measurements of a node of `PlanReport.after`. A field is null if it cannot be attributed to the node."""

    id: int = Field(description="Id of the node.")
    rows: int | None = Field(
        description="Rows that the node returned; for a scan, rows that it read, which are fewer if Spark skipped "
        "parts of files or stopped early."
    )
    bytes: int | None = Field(description="Sum of `bytes` over the operators that execute the node.")
    time_ms: int | None = Field(description="Sum of `time_ms` over the operators that execute the node.")


class OperatorReport(Frozen):
    """The operators that ran a query, and the measurements of the plan's nodes. `is_cut`: there were more operators."""

    operators: tuple[OperatorMetrics, ...] = ()
    is_cut: bool = False
    nodes: tuple[NodeFigures, ...] = ()


class StageSaving(Frozen):
    """The simulated times of one stage: with its tasks as measured, and with tasks of equal length."""

    stage_id: int
    stage_attempt: int
    actual_ms: int = Field(
        description="Time with the tasks as measured: the longest task first, each in the slot that becomes free first."
    )
    balanced_ms: int = Field(
        description="Time with the same work in the same number of tasks of equal length; never above `actual_ms`."
    )
    saved_ms: int


class SimulatedSaving(Frozen):
    """The times that the stages would take in so many slots, one after the other.

    Simulated: task times between two quantiles are interpolated; those above the third quartile are set to it, except
    for the slowest task.
    """

    slots: int = Field(description="Number of tasks that run at the same time.")
    actual_ms: int
    balanced_ms: int
    saved_ms: int
    stages: tuple[StageSaving, ...] = Field(description="The completed stages, in order.")


class EstimatedSaving(Frozen):
    """One choice of the cost model, compared with the estimated cost of Spark's own plan."""

    rule: str = Field(examples=["skewed_join"])
    node: str = Field(description="The node of the choice, on one line, as in the rule's trace.")
    node_id: int | None = Field(default=None, description="Its id, as in the rule's trace.")
    alternative: str = Field(description="The chosen alternative.", examples=["ISOLATE"])
    cost: float = Field(description="Rows that the slowest task processes, summed over all phases.")
    spark_alternative: str = Field(description="The alternative that Spark chooses by default.", examples=["NONE"])
    spark_cost: float
    ratio: float | None = Field(
        description="`cost` divided by `spark_cost`: 0.25 means a quarter, 1 no change; null if `spark_cost` is 0."
    )
    is_wrong: bool = Field(
        default=False,
        description="Whether an estimate for the chosen alternative differs from the measurement by more than 10 "
        "times. Then the costs have no meaning.",
    )


class SavingsReport(Frozen):
    """The time that evenly distributed work would save, and the estimated savings of the rules' choices."""

    simulated: SimulatedSaving | None = Field(
        description="For `slots` of the request, by default those of the job's run; null if these are unknown."
    )
    estimated: tuple[EstimatedSaving, ...] = Field(
        description="One for each choice by cost whose alternatives include that of Spark."
    )


class Comparison(Frozen):
    """This job compared with that of its `compare_with`. Times and ratio are null until both jobs have SUCCEEDED."""

    job_id: str = Field(description="The other job.")
    status: StatusText = Field(description="State of the other job.")
    before_ms: int | None = Field(description="`execution_ms` of the other job, plus that of a first run that failed.")
    after_ms: int | None = Field(description="The same for this job.")
    saved_ms: int | None = Field(description="The difference; negative if this job took longer.")
    ratio: float | None = Field(description="`after_ms` divided by `before_ms`; also null if `before_ms` is 0.")
    same_query: bool = Field(description="Whether both jobs have the same text of the query and the same tables.")
    settings_changed: dict[str, list[str]] = Field(
        description="By setting: its value in the other job and its value in this one.",
        examples=[{"join.skew": ["AUTO", "ISOLATE"]}],
    )


class RunFigures(Frozen):
    """Measurements of a run that a worker stores in addition to stages, skew and estimates."""

    slots: int
    run_by: OperatorReport = OperatorReport()
    estimated: tuple[EstimatedSaving, ...] = ()
    corrupt_records: dict[str, int] = Field(default_factory=dict)


class MetricsReport(Frozen):
    """Measurements of the attempt that ended the job."""

    stages: tuple[StageMetrics, ...]
    operators: tuple[OperatorMetrics, ...] = Field(
        default=(), description="Spark's physical operators as they ran, the last one first; empty if unknown."
    )
    operators_truncated: bool = Field(default=False, description="Whether there were more operators than are listed.")
    nodes: tuple[NodeFigures, ...] = Field(
        default=(), description="Measurements of those nodes of `PlanReport.after` for which there are any."
    )
    skew: SkewReport
    estimates: EstimateReport | None = Field(
        default=None, description="Estimates and measurements; null for a job of an earlier version."
    )
    slots: int | None = Field(
        default=None,
        description="Number of tasks that could run at the same time when the job was planned; null for a job of an "
        "earlier version.",
    )
    savings: SavingsReport
    comparison: Comparison | None = Field(
        default=None,
        description="Comparison with the job of `compare_with`; null without `compare_with`, or if that job was "
        "deleted.",
    )
    planning_ms: int
    execution_ms: int = Field(
        description="Time of the run that ended the job. If there was a first run that failed, its time is in "
        "`first_run` of the plan."
    )
    result_rows: int | None
    result_bytes: int | None
    corrupt_records: dict[str, int] = Field(
        default_factory=dict, description="Records that do not match the schema, by table; without `failfast`."
    )


def task_times(times: Quantiles, tasks: int) -> Iterator[float]:
    """Yields the time of each of `tasks`, shortest first, estimated from five quantiles; exact for up to five tasks.

    Spark's quantile q of n sorted times is number floor(q n). Times between two known ones are interpolated linearly.
    Those above the third quartile are set to the third quartile, except for the slowest. So the slowest task of 100
    does not count as 25 slow tasks.
    """
    known = _known_times(times, tasks)
    places = sorted(known)
    for low, high in pairwise(places):
        begin, end = known[low], known[low] if high == tasks - 1 else known[high]
        yield known[low]
        yield from (begin + (end - begin) * (place - low) / (high - low) for place in range(low + 1, high))
    yield known[tasks - 1]


def total_task_time(times: Quantiles, tasks: int) -> float:
    """Returns the sum of `task_times` in constant time."""
    known = _known_times(times, tasks)
    places, total = sorted(known), 0.0
    for low, high in pairwise(places):
        end = known[low] if high == tasks - 1 else known[high]
        total += known[low] + (high - low - 1) * (known[low] + end) / 2
    return total + known[tasks - 1]


def _known_times(times: Quantiles, tasks: int) -> dict[int, float]:
    """Returns the five known times by their place in the sorted times."""
    values = (times.min, times.p25, times.median, times.p75, times.max)
    return {min(tasks * quarter // 4, tasks - 1): value for quarter, value in enumerate(values)}
