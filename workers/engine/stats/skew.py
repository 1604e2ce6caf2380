"""The skew report: which keys are hot, which stages waited for one task, what that cost, what would change it.

Keys come from the sample taken before the run, stages from what Spark measured in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from service.spec.options import JobSettings
from service.spec.query import JoinKind
from service.spec.reports import HotKey, HotKeyReport, RuleTrace, SkewReport
from workers.engine.plan.nodes import Aggregate, AggregateRole, Join, Node
from workers.engine.plan.transform import walk_up
from workers.engine.stats.advice import (
    Effect,
    KeyRole,
    OneTask,
    Situation,
    advise,
    effects_of,
    group_of,
    sides_of,
)
from workers.engine.stats.evidence import Evidence, Finding
from workers.engine.stats.statistics import KeySketch, Statistics

_NOTICEABLE = 0.2
"""A key with such a share is reported however few tasks there are."""


def skew_report(
    statistics: Statistics,
    plan: Node,
    evidence: Evidence,
    settings: JobSettings,
    rules: Sequence[RuleTrace],
    replan: Callable[[JobSettings], str | None],
) -> SkewReport:
    """Whether a job was skewed. `plan` is the one that ran, `evidence` and `rules` are its own; `replan` makes the text
    of the plan of the same query by other settings.

    A job is skewed when one of its stages is. Where Spark measured no stage, it is skewed when all rows of a hot key
    are one task's work by the plan. A key is hot when it has more than `skew.factor` times the rows of an average other
    key, and more than an even partition's share of them (two partitions a slot), or a fifth; how many bytes these are
    does not matter here.
    """
    keys = tuple(_hot_keys(statistics, plan, settings.skew.factor))
    situation = Situation(plan, statistics, settings, rules, evidence, replan)
    effects = [effects_of(key, situation) for key in keys]
    advice = advise([effect for of_key in effects for effect in of_key], situation)
    return SkewReport(
        skewed=bool(evidence.skewed) if evidence.is_measured else advice.hurts,
        keys=tuple(_with_load(key, of_key, evidence) for key, of_key in zip(keys, effects, strict=True)),
        stages=evidence.skewed,
        lost_ms=sum(stage.lost_ms for stage in evidence.skewed),
        advice=advice.sentence,
        setting=advice.setting,
        value=advice.value,
    )


def _with_load(key: HotKeyReport, effects: Sequence[Effect], evidence: Evidence) -> HotKeyReport:
    loads = [effect for effect in effects if isinstance(effect, OneTask)]
    rows = max((load.rows for load in loads if load.rows is not None), default=None)
    return key.model_copy(
        update={
            "rows_on_one_task": None if rows is None else round(rows),
            "estimate_is_wrong": any(evidence.of_key(load.rows, load.node_id) is Finding.WRONG for load in loads),
        }
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
