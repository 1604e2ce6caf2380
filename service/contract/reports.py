"""What a job saved, or would save, by other settings or evenly spread work.

What the service tells about a job: progress, plan, metrics and skew. Written by workers, served as they are.

The times of a stage's tasks, as far as five quantiles of them tell.

What the service tells of a streaming job's mini-batches, and how far it is behind. Written by workers, served as it
is.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from itertools import pairwise

from pydantic import Field

from service.contract.enums import StatusText
from service.contract.model import Frozen


class StageSaving(Frozen):
    """One stage at a number of slots: as its tasks were, and had they been even."""

    stage_id: int
    stage_attempt: int
    as_is_ms: int = Field(description="Its tasks as they were, the longest first, each on the slot that is free first.")
    even_ms: int = Field(description="The same work in as many tasks that take equally long; never above `as_is_ms`.")
    saved_ms: int


class SimulatedSaving(Frozen):
    """What the stages would take on so many slots, reckoned from their tasks' quantiles and not run.

    Task times between two quantiles are taken from the line between them, those above the third quartile to be as long
    as that, the slowest aside. Stages are taken to run one after the other.
    """

    slots: int = Field(description="Tasks that run at once.")
    as_is_ms: int
    even_ms: int
    saved_ms: int
    stages: tuple[StageSaving, ...] = Field(description="Stages that were completed, in order.")


class EstimatedSaving(Frozen):
    """One choice of the cost model beside what Spark's own plan was estimated to cost, before the run."""

    rule: str = Field(examples=["skewed_join"])
    node: str = Field(description="The node that was decided on, on one line, as in the rule's trace.")
    node_id: int | None = Field(default=None, description="Its id, as in the rule's trace.")
    alternative: str = Field(description="The way that was chosen.", examples=["ISOLATE"])
    cost: float = Field(description="Rows handled by the slowest task, all phases added.")
    spark_alternative: str = Field(description="The way that Spark takes by itself.", examples=["NONE"])
    spark_cost: float
    ratio: float | None = Field(
        description="`cost` over `spark_cost`: 0.25 is a quarter, 1 that nothing changed; null where Spark's is 0."
    )
    is_wrong: bool = Field(
        default=False,
        description="Whether what was measured differs from an estimate of the chosen way by more than 10 times: the "
        "costs say nothing then.",
    )


class SavingsReport(Frozen):
    """What evenly spread work would save, and what the rules' choices were estimated to save."""

    simulated: SimulatedSaving | None = Field(
        description="At `slots` of the request, by default those that the job ran on; null where these are not known."
    )
    estimated: tuple[EstimatedSaving, ...] = Field(
        description="One for each choice with a cost where Spark's own way is among those that were weighed."
    )


class Comparison(Frozen):
    """This job beside the one that its `compare_with` names; figures are null until both SUCCEEDED."""

    job_id: str = Field(description="The other job.")
    status: StatusText = Field(description="Of the other job.")
    before_ms: int | None = Field(description="`execution_ms` of the other job, with that of a first run that failed.")
    after_ms: int | None = Field(description="The same of this one.")
    saved_ms: int | None = Field(description="The difference; below 0 where this one took longer.")
    ratio: float | None = Field(description="`after_ms` over `before_ms`; null also where that is 0.")
    same_query: bool = Field(description="Whether both ask the same of the same tables, in the same words.")
    settings_changed: dict[str, list[str]] = Field(
        description="By setting: its value in the other job, and its value in this one.",
        examples=[{"join.skew": ["AUTO", "ISOLATE"]}],
    )


class Progress(Frozen):
    """How far the running attempt is. Totals grow while Spark discovers stages."""

    stages_done: int = 0
    stages_total: int = 0
    tasks_done: int = 0
    tasks_total: int = 0


class PlanNodeReport(Frozen):
    """One node of a plan, for trees and graphs."""

    id: int = Field(
        description="Unique within its plan. A node that is in `before` and in `after` has the same id in both; in a "
        "report of an earlier version each plan counts from 0."
    )
    operator: str = Field(description="`Scan`, `Filter`, `Join`, `Aggregate`, …", examples=["Aggregate"])
    detail: str = Field(description="What the operator does, on one line.")
    inputs: tuple[int, ...] = Field(description="Ids of the inputs, left first.")
    changed_by: str | None = Field(default=None, description="The rule that made or changed this node.")
    estimated_rows: int | None = Field(default=None, description="Rows this node is expected to emit.")


class PlanTree(Frozen):
    """A plan as nodes, as indented text and as SQL."""

    nodes: tuple[PlanNodeReport, ...] = Field(description="Inputs before the nodes that read them; the root is last.")
    text: str
    sql: str = Field(
        default="",
        description="What the plan is equivalent to in Spark SQL over the job's tables, a step of WITH for each part.",
    )


class RuleOutcome(StrEnum):
    """Whether a rule changed the plan."""

    FIRED = "fired"
    SKIPPED = "skipped"


class Alternative(Frozen):
    """One way of running a node that the cost model weighed."""

    name: str = Field(examples=["TWO_PHASE"])
    cost: float = Field(description="Rows handled by the slowest task, all phases added: lower is better.")
    rows_shuffled: int = Field(description="Estimated rows that cross the network.")
    rows_on_hottest_task: int = Field(description="Estimated rows of the busiest task after the shuffle.")
    chosen: bool


class RuleTrace(Frozen):
    """What one rule did at one node, and why."""

    rule: str = Field(examples=["split_distinct_aggregate"])
    outcome: RuleOutcome
    node: str = Field(description="The node looked at, on one line.")
    node_id: int | None = Field(
        default=None,
        description="Its id: of a node of `before`, of `after`, or of a plan between the two. Null in a report of an "
        "earlier version.",
    )
    reason: str = Field(description="Why it fired, or why not, in one sentence.")
    alternatives: tuple[Alternative, ...] = ()


class HotKey(Frozen):
    """A frequent value of a key, from the sample taken before the run."""

    value: str = Field(description="The key as text, columns separated by `, `; NULL as `NULL`.")
    share: float = Field(ge=0, le=1, description="Its share of the table's rows.")
    estimated_rows: int
    is_null: bool = Field(default=False, description="Whether a column of the key is NULL, and not the text `NULL`.")


class KeyStatistics(Frozen):
    """What is known of one key of one table before the run."""

    table: str
    columns: tuple[str, ...]
    rows: int = Field(description="Rows of the table (from file footers where there are any).")
    rows_are_exact: bool
    sampled_rows: int
    distinct_keys: int = Field(description="Estimated number of distinct keys.")
    null_share: float = Field(ge=0, le=1)
    hot_keys: tuple[HotKey, ...]


class TableStatistics(Frozen):
    """Size of one table before the run."""

    table: str
    files: int
    bytes: int
    rows: int
    rows_are_exact: bool
    cached: bool = Field(
        default=False, description="Whether an earlier query of the worker had read the same files, and none was now."
    )


class FirstRun(Frozen):
    """A run that memory did not suffice for; the attempt then ran the query again, by the plan that is told beside."""

    after: PlanTree = Field(description="The plan that it ran by.")
    rules: tuple[RuleTrace, ...] = Field(description="What each rule did to make it.")
    physical_plan: str | None = Field(default=None, description="Spark's physical plan of it, as Spark prints it.")
    failure: str = Field(description="What Spark said.")
    execution_ms: int = Field(description="From its begin to its failure; no part of the metrics' `execution_ms`.")


class PlanReport(Frozen):
    """The query before and after the rules, what each rule did, and Spark's own plan."""

    before: PlanTree
    after: PlanTree
    rules: tuple[RuleTrace, ...]
    tables: tuple[TableStatistics, ...]
    keys: tuple[KeyStatistics, ...]
    statistics_ms: int = Field(description="What gathering the statistics took.")
    physical_plan: str | None = Field(default=None, description="Spark's physical plan, as Spark prints it.")
    first_run: FirstRun | None = Field(
        default=None, description="The run before this one, where the attempt ran out of memory and fell back."
    )


class Quantiles(Frozen):
    """Minimum, quartiles and maximum over the tasks of a stage."""

    min: float
    p25: float
    median: float
    p75: float
    max: float


class StageMetrics(Frozen):
    """One Spark stage of the attempt that ended the job."""

    stage_id: int
    stage_attempt: int
    name: str
    status: str
    tasks: int
    failed_tasks: int
    wall_ms: int = Field(description="From the stage's submission to its end.")
    input_rows: int
    input_bytes: int
    shuffle_read_rows: int
    shuffle_read_bytes: int
    shuffle_write_rows: int
    shuffle_write_bytes: int
    spilled_bytes: int = Field(description="Bytes spilled to disk.")
    duration_ms: Quantiles | None = Field(description="Task run time; null while no task has ended.")
    records: Quantiles | None = Field(description="Rows read per task, from files and shuffles together.")
    shuffle_bytes: Quantiles | None = Field(description="Shuffle bytes read per task.")
    spill_bytes: Quantiles | None = Field(description="Bytes spilled to disk per task.")


class StageSkew(Frozen):
    """A stage whose slowest task stands out."""

    stage_id: int
    max_over_median: float = Field(description="Slowest task over the median one; does not dilute with parallelism.")
    slowest_task_ms: float
    median_task_ms: float = Field(description="Of two tasks, the shorter one.")
    stage_impact: float = Field(ge=0, le=1, description="Slowest task over the wall time of its stage (at most 1).")
    lost_ms: int = Field(description="What the stage would have saved had its tasks been even.")


class HotKeyReport(Frozen):
    """Hot keys of one key of one table, and what they do to this query."""

    table: str
    columns: tuple[str, ...]
    role: str = Field(description="`group key`, `join key` or `distinct value`.")
    hot_keys: tuple[HotKey, ...]
    sampled_rows: int
    rows_on_one_task: int | None = Field(
        default=None,
        description="Rows of the hottest key that one task was estimated to read by the plan that ran; null where the "
        "plan spreads, aggregates or does not move them, and where their number is not known.",
    )
    estimate_is_wrong: bool = Field(
        default=False,
        description="Whether no task read a tenth of `rows_on_one_task`, or the estimated rows of the operator were "
        "wrong: no advice follows from this key then.",
    )


class SkewReport(Frozen):
    """Is the job skewed, by which keys, what did it cost, and which setting would change it."""

    skewed: bool = Field(
        description="Whether the slowest task of a stage took more than `skew.factor` times the median one and 100 ms "
        "or more. Where no stage was measured, whether the plan gives one task all rows of a hot key."
    )
    keys: tuple[HotKeyReport, ...]
    stages: tuple[StageSkew, ...] = Field(description="Stages above the skew factor, worst first.")
    lost_ms: int = Field(description="Sum over these stages.")
    advice: str = Field(description="One sentence: what to change, or that nothing needs to.")
    setting: str | None = Field(default=None, description="The setting to change.", examples=["distinct_split.enabled"])
    value: str | None = Field(default=None, description="The value to give it.", examples=["true"])


class ChoiceOutcome(Frozen):
    """One choice of the cost model: what the chosen way was estimated to do, and what it did."""

    rule: str = Field(examples=["two_phase_aggregate"])
    node: str = Field(description="The node that was decided on, on one line, as in the rule's trace.")
    node_id: int | None = Field(default=None, description="Its id, as in the rule's trace.")
    alternative: str = Field(description="The way that was chosen.", examples=["TWO_PHASE"])
    estimated_rows_shuffled: int
    estimated_rows_on_hottest_task: int
    measured_rows_shuffled: int | None = Field(
        description="Null where the query sends rows for another operator too: Spark tells stages and not operators."
    )
    measured_rows_on_hottest_task: int | None = Field(description="Null where the rows shuffled are.")
    is_wrong: bool = Field(default=False, description="Whether `wrong` of the report names an estimate of this choice.")


class Quantity(StrEnum):
    """What an estimate is about."""

    ROWS_READ = "rows_read"
    ROWS_SHUFFLED = "rows_shuffled"
    ROWS_ON_HOTTEST_TASK = "rows_on_hottest_task"
    ROWS_EMITTED = "rows_emitted"


class WrongEstimate(Frozen):
    """An estimate that is more than 10 times as high, or as low, as what was measured."""

    quantity: Quantity
    node_id: int | None = Field(
        description="The node that it is about, by its id in the plan report; null where it is about the whole query."
    )
    node: str | None = Field(description="This node on one line.")
    rule: str | None = Field(default=None, description="The rule that estimated it, where it is of a rule's choice.")
    estimated: int
    measured: int = Field(
        description="What was measured; for a choice of a rule, the nearest number that the measurements of the whole "
        "query leave possible."
    )
    factor: float = Field(description="How many times as high, or as low, as what was measured.")


class EstimateReport(Frozen):
    """The estimates that the plan was chosen by, beside what was measured when it ran."""

    choices: tuple[ChoiceOutcome, ...] = Field(description="One for each trace of the plan report with alternatives.")
    estimated_rows_read: int | None = Field(
        description="Rows of all scans, a table that is read twice counted twice; null where a table's are not known."
    )
    measured_rows_read: int = Field(description="Less where Spark passed over row groups that hold no such rows.")
    estimated_rows_shuffled: int | None = Field(
        description="The sum over the operators that were decided by cost; null where there is none."
    )
    measured_rows_shuffled: int = Field(description="Of the whole query, operators without an estimate included.")
    estimated_rows_on_hottest_task: int | None = Field(description="The largest of these operators' estimates.")
    measured_rows_on_hottest_task: int | None = Field(
        description="The most rows that one task took from a shuffle; at most so many where its stage reads files too. "
        "Spark joins small partitions into one task."
    )
    estimated_result_rows: int | None = Field(description="To compare with `result_rows`.")
    all_estimated: bool = Field(
        description="Whether every operator that may send rows was decided by cost, so that the sums can be compared."
    )
    summary: str = Field(description="One sentence: how far the estimate was from what happened.")
    wrong: tuple[WrongEstimate, ...] = Field(
        default=(),
        description="Estimates that were wrong by more than 10 times, the worst first. Numbers of rows below 1,000 are "
        "not compared with each other.",
    )


class OperatorMetrics(Frozen):
    """One physical operator of Spark, as it ran; null where Spark measures nothing. Sizes and times are as exact as
    Spark tells them, to one decimal of their unit.
    """

    id: int = Field(description="Unique within the plan; `inputs` name it by this.")
    operator: str = Field(description="Spark's name of it.", examples=["HashAggregate"])
    detail: str = Field(description="What it does, as Spark prints it, cut where it is long.")
    inputs: tuple[int, ...] = Field(description="Ids of the operators whose rows it takes, left first.")
    rows: int | None = Field(
        description="Rows that it put out; of an exchange, rows sent. Null also where Spark ran it twice, to take "
        "samples for a sort."
    )
    bytes: int | None = Field(
        description="Of a scan, the size of the files that it read, all columns of them; of an exchange, what it sent; "
        "of a broadcast, what it takes in memory; of the write, what it wrote."
    )
    time_ms: int | None = Field(
        description="What Spark counts for it, over all tasks. Of an aggregate the time of its inputs in the same "
        "pipeline is in it."
    )
    spilled_bytes: int | None = Field(description="What did not fit in memory, as it was there.")
    stage_ids: tuple[int, ...] = Field(default=(), description="Stages that it ran in, as far as Spark tells.")
    pipeline: int | None = Field(
        default=None, description="Number of the pipeline that Spark compiled it into, together with others."
    )
    pipeline_ms: int | None = Field(default=None, description="What that pipeline took as a whole, over all tasks.")
    node: int | None = Field(
        default=None, description="Id of the node of `PlanReport.after` that it runs, where that can be told."
    )


class NodeFigures(Frozen):
    """What was measured of a node of `PlanReport.after`; null where Spark's operators cannot be told apart so far."""

    id: int = Field(description="Id of the node.")
    rows: int | None = Field(
        description="Rows that the node put out; of a scan, rows read, which are less where Spark passed over parts of "
        "files or stopped early."
    )
    bytes: int | None = Field(description="The sum over the operators that run it, by their own meaning.")
    time_ms: int | None = Field(description="The sum over the operators that run it, by their own meaning.")


class OperatorReport(Frozen):
    """What ran a query, and how that and its plan go together. `is_cut`: there were more operators."""

    operators: tuple[OperatorMetrics, ...] = ()
    is_cut: bool = False
    nodes: tuple[NodeFigures, ...] = ()


class RunFigures(Frozen):
    """What a worker stores of a run beside stages, skew and estimates."""

    slots: int
    run_by: OperatorReport = OperatorReport()
    estimated: tuple[EstimatedSaving, ...] = ()


class MetricsReport(Frozen):
    """Measured facts of the attempt that ended the job."""

    stages: tuple[StageMetrics, ...]
    operators: tuple[OperatorMetrics, ...] = Field(
        default=(),
        description="Spark's physical operators as they ran, the last one first; empty where it did not tell.",
    )
    operators_cut: bool = Field(default=False, description="Whether there were more operators than are told here.")
    nodes: tuple[NodeFigures, ...] = Field(
        default=(), description="What was measured of nodes of `PlanReport.after`, those of which anything can be told."
    )
    skew: SkewReport
    estimates: EstimateReport | None = Field(
        default=None, description="What was estimated beside what happened; null for a job of an earlier version."
    )
    slots: int | None = Field(
        default=None, description="Tasks that ran at once when it was planned; null for a job of an earlier version."
    )
    savings: SavingsReport
    comparison: Comparison | None = Field(
        default=None, description="This job beside that of its `compare_with`; null where there is none (any more)."
    )
    planning_ms: int
    execution_ms: int = Field(
        description="Of the run that ended the job. Where it fell back, `first_run` of the plan has the other's."
    )
    result_rows: int | None
    result_bytes: int | None


def task_times(times: Quantiles, tasks: int) -> Iterator[float]:
    """The time of each of `tasks`, shortest first, as far as five of them tell it; exact for five tasks and fewer.

    Spark's quantile q of n sorted times is number floor(q n). Between two that are known the times lie on a straight
    line, but for those above the third quartile: they take as long as that one, the slowest being by itself. So the
    slowest task of 100 does not stand for 25 slow ones.
    """
    known = _known(times, tasks)
    places = sorted(known)
    for low, high in pairwise(places):
        begin, end = known[low], known[low] if high == tasks - 1 else known[high]
        yield known[low]
        yield from (begin + (end - begin) * (place - low) / (high - low) for place in range(low + 1, high))
    yield known[tasks - 1]


def work(times: Quantiles, tasks: int) -> float:
    """The sum of `task_times`, without making them: the milliseconds of all tasks together."""
    known = _known(times, tasks)
    places, total = sorted(known), 0.0
    for low, high in pairwise(places):
        end = known[low] if high == tasks - 1 else known[high]
        total += known[low] + (high - low - 1) * (known[low] + end) / 2
    return total + known[tasks - 1]


def _known(times: Quantiles, tasks: int) -> dict[int, float]:
    values = (times.min, times.p25, times.median, times.p75, times.max)
    return {min(tasks * quarter // 4, tasks - 1): value for quarter, value in enumerate(values)}


class StateMetrics(Frozen):
    """What a mini-batch did to the state of one operator."""

    operator: str = Field(description="As Spark calls it.", examples=["stateStoreSave"])
    rows: int | None = Field(
        description="Keys that the state has, of the provider `memory`; RocksDB would look before every write to know."
    )
    updated: int = Field(description="Keys that the mini-batch wrote, new ones and known ones.")
    removed: int = Field(description="Keys that it dropped, since their window was over.")
    late_rows: int = Field(description="Rows that it left out, since their window was over.")
    memory_bytes: int = Field(
        description="What the state's stores hold in memory; of RocksDB caches and buffers, which say nothing of its "
        "size."
    )
    state_bytes: int | None = Field(
        description="Size of the state. Of RocksDB, of its files: it writes new ones after ten mini-batches or more, "
        "this does not change until then, and they hold replaced values until they are compacted. Before the first "
        "ones, of all changes that the checkpoint holds, compressed. Null where that is not known."
    )
    partitions: int = Field(description="Parts of the state, each with a task of its own.")
    commit_ms: int = Field(description="What it took all of them together to keep their changes.")
    changed_bytes: int | None = Field(
        default=None,
        description="What the mini-batch wrote to the checkpoint for its changes, compressed, of all partitions.",
    )
    largest_changed_bytes: int | None = Field(default=None, description="The same, of the partition with the most.")
    skew: float | None = Field(
        default=None,
        description="The largest partition's changed bytes by the median one's: 1 where all have the same to do. Null "
        "where half of them had nothing.",
    )


class BatchMetrics(Frozen):
    """What was measured of a mini-batch after its end."""

    duration_ms: int = Field(description="From the look for new files to the end of all.")
    busy: float | None = Field(
        description="`duration_ms` by `mini_batch.allow_latency`. Above 1, rows wait longer than was asked for, since "
        "the next mini-batch cannot begin in time. Null where none is waited for."
    )
    rows_per_second: float | None
    durations_ms: dict[str, int] = Field(description="Spark's own parts of the duration.")
    watermark: str | None = Field(description="Rows from before are late.")
    state_operations_per_row: float | None = Field(
        description="Looks into the state and writes, by row that was read: larger mini-batches have fewer."
    )
    state: tuple[StateMetrics, ...]
    versions: dict[str, int] | None = Field(
        default=None, description="Of each table that is followed, the version that the mini-batch read."
    )


class TableBacklog(Frozen):
    """What a stream has that no mini-batch took yet, not even the one that is under way."""

    files: int = Field(description="Files in the directory; of posted rows, batches that were accepted.")
    rows: int | None = Field(description="Rows of posted batches; null for a directory, whose files are not read.")
    bytes: int = Field(description="Size of these files.")
    oldest_seconds: float | None = Field(
        description="How long the oldest of it has been there, by its time of change or acceptance. Null where there "
        "is none."
    )


class Backlog(Frozen):
    """How far a job is behind its streams."""

    at: datetime = Field(
        description="When this was found out. Directories are listed for it, at most a fiftieth of the time."
    )
    tables: dict[str, TableBacklog | None] = Field(
        description="By table, those of made-up rows aside; null where its directory could not be listed."
    )
