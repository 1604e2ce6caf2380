"""Measures the skew of a run's tasks: which stages waited for one task, and how many rows one task read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from service.contract.reports import OperatorMetrics, StageMetrics, StageSkew, total_task_time
from workers.engine.report.estimates import COMPLETE, FEW_ROWS, WRONG, is_wrong, max_shuffle_rows
from workers.engine.report.operator_tree import name_of

MIN_TASK_MS = 100.0
"""A stage whose slowest task takes less time than this is never skewed: the user would not notice the loss."""

_BROADCASTS = frozenset({"BroadcastHashJoin", "BroadcastNestedLoopJoin"})


class Finding(Enum):
    """What a run shows about a key whose rows one task was estimated to read."""

    UNMEASURED = auto()
    """Spark reported no task times."""
    CONFIRMED = auto()
    """One task had far more work than the others, or was the only one, and read about as many rows as estimated."""
    EVEN = auto()
    """No task that read a shuffle had far more work than the others."""
    WRONG = auto()
    """Every task read less than a tenth of the estimated rows."""


@dataclass(frozen=True)
class ShuffleReads:
    """A stage that read a shuffle. `most_rows` are those of the task with the most rows, `over_others` is their ratio
    to the mean of the other tasks.
    """

    most_rows: int
    over_others: float
    is_skewed: bool


@dataclass(frozen=True)
class Evidence:
    """Measurements of a run. `skewed` are the skewed stages, the one that lost most time first; `shuffled` are the
    stages that read a shuffle; `broadcast` are the ids of joins for which Spark broadcast a side; `wrong` are the ids
    of nodes whose estimated rows were wrong.
    """

    factor: float
    is_measured: bool = False
    skewed: tuple[StageSkew, ...] = ()
    shuffled: tuple[ShuffleReads, ...] = ()
    broadcast: frozenset[int] = frozenset()
    wrong: frozenset[int] = frozenset()

    @property
    def most_rows(self) -> int:
        """The most rows that one task read from a shuffle."""
        return max((stage.most_rows for stage in self.shuffled), default=0)

    def finding_on(self, rows: float | None, node_id: int) -> Finding:
        """Returns what the run shows about a key of which one task was estimated to read `rows` rows for the node."""
        if not self.is_measured:
            return Finding.UNMEASURED
        if node_id in self.wrong or (rows is not None and rows > self.most_rows and is_wrong(rows, self.most_rows)):
            return Finding.WRONG
        busy = [stage for stage in self.shuffled if rows is None or stage.most_rows * WRONG >= rows]
        is_uneven = any(
            stage.is_skewed or (stage.over_others > self.factor and stage.most_rows >= FEW_ROWS) for stage in busy
        )
        return Finding.CONFIRMED if is_uneven else Finding.EVEN


def evidence_of(
    stages: Sequence[StageMetrics],
    slots: int,
    factor: float,
    operators: Sequence[OperatorMetrics] = (),
    wrong: Collection[int] = (),
) -> Evidence:
    """Returns the evidence of a run with these stages and operators. A stage is skewed if its slowest task took at
    least `MIN_TASK_MS` and more than `factor` times the median. The median of two tasks is the shorter one.
    """
    skewed = sorted(_skewed(stages, slots, factor), key=lambda stage: -stage.lost_ms)
    ids = {stage.stage_id for stage in skewed}
    return Evidence(
        factor=factor,
        is_measured=any(stage.duration_ms is not None for stage in stages),
        skewed=tuple(skewed),
        shuffled=tuple(_shuffle_reads(stages, ids)),
        broadcast=frozenset(each.node for each in operators if each.node is not None and name_of(each) in _BROADCASTS),
        wrong=frozenset(wrong),
    )


def _skewed(stages: Sequence[StageMetrics], slots: int, factor: float) -> Iterator[StageSkew]:
    for stage in stages:
        times = stage.duration_ms
        if times is None or stage.tasks < 2:
            continue
        # Spark takes the longer of two tasks as their median, which no task can exceed.
        median = times.min if stage.tasks == 2 else times.median
        if times.max < MIN_TASK_MS or times.max <= factor * median:
            continue
        yield StageSkew(
            stage_id=stage.stage_id,
            max_over_median=round(times.max / max(median, 1.0), 2),
            slowest_task_ms=times.max,
            median_task_ms=median,
            stage_impact=min(1.0, times.max / stage.wall_ms) if stage.wall_ms else 1.0,
            lost_ms=lost_ms(stage, slots),
        )


def _shuffle_reads(stages: Sequence[StageMetrics], skewed: Collection[int]) -> Iterator[ShuffleReads]:
    for stage in stages:
        most = max_shuffle_rows(stage) if stage.status == COMPLETE else None
        if most is not None:
            others = (stage.shuffle_read_rows - most) / (stage.tasks - 1) if stage.tasks > 1 else 0.0
            yield ShuffleReads(most, most / max(others, 1.0), stage.stage_id in skewed)


def lost_ms(stage: StageMetrics, slots: int) -> int:
    """Returns the milliseconds that even tasks would have saved: the time of the slowest task, less the time that the
    slots would need if they shared the work evenly.

    A stage ends no sooner than its slowest task. Its work W, distributed evenly, would take W / min(tasks, slots); the
    difference is the loss. If many tasks are nearly as slow as the slowest one, W is a little underestimated and the
    loss overestimated (see `service.contract.reports.task_times`).
    """
    if stage.duration_ms is None:
        return 0
    total = total_task_time(stage.duration_ms, stage.tasks)
    return max(0, round(stage.duration_ms.max - total / max(1, min(stage.tasks, slots))))
