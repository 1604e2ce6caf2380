"""What a job saved, or would save, by other settings or evenly spread work."""

from __future__ import annotations

from pydantic import Field

from service.spec.model import Frozen
from service.spec.status import StatusText


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
