"""The skew report: which keys are hot, which stages waited for one task, what that cost, what would change it.

Numbers in, words out. Keys come from the sample taken before the run, stages from what Spark measured in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.spec.options import JobSettings
from service.spec.query import JoinKind
from service.spec.reports import HotKey, HotKeyReport, RuleTrace, SkewReport, StageMetrics, StageSkew
from service.spec.task_times import work
from workers.engine.plan.nodes import Aggregate, AggregateRole, Join, Node
from workers.engine.plan.transform import walk_up
from workers.engine.stats.advice import KeyRole, Situation, advise, group_of, sides_of
from workers.engine.stats.statistics import KeySketch, Statistics

MIN_TASK_MS = 100.0
"""A stage whose slowest task is shorter has lost nothing that anyone would notice."""

_NOTICEABLE = 0.2
"""A key with such a share is reported however few tasks there are."""


def skew_report(
    statistics: Statistics,
    plan: Node,
    stages: Sequence[StageMetrics],
    settings: JobSettings,
    rules: Sequence[RuleTrace],
) -> SkewReport:
    """Whether a job was skewed. `plan` is the one that ran, `stages` and `rules` are its own.

    A key is hot when it has more than `skew.factor` times the rows of an average other key, and more than an even
    partition's share of them (two partitions a slot), or a fifth; how many bytes these are does not matter here. A
    stage is skewed when its slowest task took more than `skew.factor` times the median one and 100 ms or more. The job
    is skewed when a stage is, when a setting would help, or when all rows of a hot join key are on one task.
    """
    keys = tuple(_hot_keys(statistics, plan, settings.skew.factor))
    skewed = sorted(_skewed_stages(stages, statistics.slots, settings.skew.factor), key=lambda stage: -stage.lost_ms)
    advice = advise(keys, Situation(plan, statistics, settings, rules, skewed))
    return SkewReport(
        skewed=bool(skewed) or advice.hurts,
        keys=keys,
        stages=tuple(skewed),
        lost_ms=sum(stage.lost_ms for stage in skewed),
        advice=advice.sentence,
        setting=advice.setting,
        value=advice.value,
    )


@dataclass(frozen=True)
class _Use:
    """Columns that the plan hashes rows by. `meets_null`: rows with NULL in them are hashed too, and not dropped."""

    role: KeyRole
    columns: frozenset[str]
    meets_null: bool


_KEEPS_LEFT = frozenset({JoinKind.LEFT, JoinKind.FULL, JoinKind.LEFT_ANTI})
_KEEPS_RIGHT = frozenset({JoinKind.RIGHT, JoinKind.FULL})


def _uses(plan: Node) -> Iterator[_Use]:
    for node in walk_up(plan):
        if isinstance(node, Join):
            left, right = sides_of(node)
            yield _Use(KeyRole.JOIN, left, node.kind in _KEEPS_LEFT)
            yield _Use(KeyRole.JOIN, right, node.kind in _KEEPS_RIGHT)
        # The final part of a split aggregate has the same group keys under other names.
        if isinstance(node, Aggregate) and node.role is not AggregateRole.FINAL:
            yield _Use(KeyRole.GROUP, group_of(node), True)
            for call in node.calls:
                if call.distinct and all(argument.column is not None for argument in call.arguments):
                    columns = frozenset(name for argument in call.arguments for name in argument.columns)
                    yield _Use(KeyRole.DISTINCT, columns, False)


def _hot_keys(statistics: Statistics, plan: Node, factor: float) -> Iterator[HotKeyReport]:
    sketches = {frozenset(sketch.columns): sketch for sketch in statistics.keys.values()}
    for use in dict.fromkeys(_uses(plan)):
        sketch = sketches.get(use.columns)
        hot = _standing_out(sketch, use, factor, statistics.slots) if sketch is not None else ()
        if sketch is not None and hot:
            yield HotKeyReport(
                table=sketch.alias,
                columns=sketch.columns,
                role=use.role,
                hot_keys=hot,
                sampled_rows=sketch.sampled_rows,
            )


def _standing_out(sketch: KeySketch, use: _Use, factor: float, slots: int) -> tuple[HotKey, ...]:
    least = min(_NOTICEABLE, 1 / (2 * max(1, slots)))
    others = max(1, sketch.distinct_keys - 1)
    return tuple(
        key
        for key in sketch.hot_keys
        if key.share >= least and key.share > factor * (1 - key.share) / others and (use.meets_null or not key.is_null)
    )


def _skewed_stages(stages: Sequence[StageMetrics], slots: int, factor: float) -> Iterator[StageSkew]:
    for stage in stages:
        times = stage.duration_ms
        if times is None or stage.tasks < 2 or times.max < MIN_TASK_MS or times.max <= factor * times.median:
            continue
        yield StageSkew(
            stage_id=stage.stage_id,
            max_over_median=round(times.max / max(times.median, 1.0), 2),
            slowest_task_ms=times.max,
            median_task_ms=times.median,
            stage_impact=min(1.0, times.max / stage.wall_ms) if stage.wall_ms else 1.0,
            lost_ms=lost_ms(stage, slots),
        )


def lost_ms(stage: StageMetrics, slots: int) -> int:
    """What even tasks would have saved: the slowest task, less the time in which the slots could share all the work.

    A stage ends no sooner than its slowest task. Its work W, spread evenly over min(tasks, slots), would take
    W / min(tasks, slots); the difference is the loss. Where many tasks are nearly as slow as the slowest, W and with it
    the gain of evenness is a little underestimated and the loss overestimated (see `task_times`).
    """
    if stage.duration_ms is None:
        return 0
    total = work(stage.duration_ms, stage.tasks)
    return max(0, round(stage.duration_ms.max - total / max(1, min(stage.tasks, slots))))
