"""What the service tells about a job: progress, plan, metrics and skew. Written by workers, served as they are."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from service.spec.model import Frozen


class Progress(Frozen):
    """How far the running attempt is. Totals grow while Spark discovers stages."""

    stages_done: int = 0
    stages_total: int = 0
    tasks_done: int = 0
    tasks_total: int = 0


class PlanNodeReport(Frozen):
    """One node of a plan, for trees and graphs."""

    id: int = Field(description="Unique within its plan; parents have larger ids than their inputs.")
    operator: str = Field(description="`Scan`, `Filter`, `Join`, `Aggregate`, …", examples=["Aggregate"])
    detail: str = Field(description="What the operator does, on one line.")
    inputs: tuple[int, ...] = Field(description="Ids of the inputs, left first.")
    changed_by: str | None = Field(default=None, description="The rule that made or changed this node.")
    estimated_rows: int | None = Field(default=None, description="Rows this node is expected to emit.")


class PlanTree(Frozen):
    """A plan as nodes and as indented text."""

    nodes: tuple[PlanNodeReport, ...]
    text: str


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


class PlanReport(Frozen):
    """The query before and after the rules, what each rule did, and Spark's own plan."""

    before: PlanTree
    after: PlanTree
    rules: tuple[RuleTrace, ...]
    tables: tuple[TableStatistics, ...]
    keys: tuple[KeyStatistics, ...]
    statistics_ms: int = Field(description="What gathering the statistics took.")
    physical_plan: str | None = Field(default=None, description="Spark's physical plan, as Spark prints it.")


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
    median_task_ms: float
    stage_impact: float = Field(ge=0, le=1, description="Slowest task over the wall time of its stage (at most 1).")
    lost_ms: int = Field(description="What the stage would have saved had its tasks been even.")


class HotKeyReport(Frozen):
    """Hot keys of one key of one table, and what they do to this query."""

    table: str
    columns: tuple[str, ...]
    role: str = Field(description="`group key`, `join key` or `distinct value`.")
    hot_keys: tuple[HotKey, ...]
    sampled_rows: int


class SkewReport(Frozen):
    """Is the job skewed, by which keys, what did it cost, and which setting would change it."""

    skewed: bool
    keys: tuple[HotKeyReport, ...]
    stages: tuple[StageSkew, ...] = Field(description="Stages above the skew factor, worst first.")
    lost_ms: int = Field(description="Sum over these stages.")
    advice: str = Field(description="One sentence: what to change, or that nothing needs to.")
    setting: str | None = Field(default=None, description="The setting to change.", examples=["distinct_split.enabled"])
    value: str | None = Field(default=None, description="The value to give it.", examples=["true"])


class MetricsReport(Frozen):
    """Measured facts of the attempt that ended the job."""

    stages: tuple[StageMetrics, ...]
    skew: SkewReport
    planning_ms: int
    execution_ms: int
    result_rows: int | None
    result_bytes: int | None
