"""What is told of a streaming plan beside its shape: settings that it does not follow, and state that only grows."""

from __future__ import annotations

from collections.abc import Iterator

from service.spec.options import AggPhase, DistinctSplitSettings, JobSettings, JoinSettings, SkewSettings, Toggle
from service.spec.reports import RuleOutcome, RuleTrace
from service.spec.strategies import DistinctMethod, JoinSkew
from workers.engine.plan.explain import line_of, seconds
from workers.engine.plan.nodes import Join, Windows
from workers.engine.plan.stream_shape import Shape, StreamPlan
from workers.engine.plan.transform import walk_up
from workers.engine.streaming.static_joins import static_joins

STREAM_SHAPE = "stream_shape"
"""Who tells in the trace what a stream's state holds, and why."""

STREAM_STATE = "stream_state"
"""Who tells what becomes of it."""

STREAM_SETTINGS = "stream_settings"
"""Who tells of settings without effect."""

_GROWS = {
    Shape.DISTINCT_ROWS: "every different row",
    Shape.PLAIN: "every group",
    Shape.DISTINCT: "every distinct value of every group",
    Shape.UNITED: "every distinct value of every group",
    Shape.BITMAP: "a bitmap for each group and block of values",
    Shape.JOINED: "every key of both streams, and every distinct value of each",
}
_OF_VALUES = frozenset({Shape.DISTINCT, Shape.UNITED, Shape.BITMAP})


def traces_of(
    plan: StreamPlan, streams: frozenset[str], settings: JobSettings, *, is_changed: bool
) -> tuple[RuleTrace, ...]:
    """The traces of a streaming plan, in the order of the report. `streams` are the aliases of streams; `is_changed`
    says that the plan has nodes that the query has not.
    """
    root, root_id = line_of(plan.before), plan.before.id
    outcome = RuleOutcome.FIRED if is_changed else RuleOutcome.SKIPPED
    shape = RuleTrace(rule=STREAM_SHAPE, outcome=outcome, node=root, node_id=root_id, reason=plan.reason)
    others = ((STREAM_STATE, reason) for reason in _of_state(plan))
    idle = ((STREAM_SETTINGS, reason) for reason in _without_effect(plan, streams, settings))
    told = (
        RuleTrace(rule=rule, outcome=RuleOutcome.SKIPPED, node=root, node_id=root_id, reason=reason)
        for rule, reason in (*others, *idle)
    )
    return (shape, *told)


def _of_state(plan: StreamPlan) -> Iterator[str]:
    joins = [node for node in walk_up(plan.node) if isinstance(node, Join) and node.within is not None]
    if joins:
        yield _of_joined_rows(joins)
    kept = _GROWS.get(plan.shape)
    if kept is None:
        return
    if any(isinstance(node, Windows) for node in walk_up(plan.node)):
        yield "The state of a window is dropped once no more rows are to come for it."
        return
    yield (
        f"Nothing is ever dropped: the state keeps {kept}, and grows with them for as long as the job goes on. "
        "GET /v1/jobs/{id}/batches tells what each mini-batch added. Group by a window of event time to bound it."
    )


def _of_joined_rows(joins: list[Join]) -> str:
    within = joins[0].within
    if within is None:
        raise ValueError("a join that keeps no rows")
    left, right = (seconds(max(0, microseconds)) for microseconds in (-within.at_least_us, within.at_most_us))
    twice = "" if len(joins) == 1 else " The join is run, and its rows are kept, twice: for DISTINCT, and for the rest."
    return (
        "The state keeps the rows of both streams that may find partners: those of the left side until the watermark "
        f"is {left} beyond their time, those of the right side until it is {right} beyond. The watermark is the newest "
        "time of the stream that is furthest behind, less its delay, of what came since the job was last started; rows "
        f"without a partner, where the join emits them, come out then, and rows from before it are left out.{twice}"
    )


def _without_effect(plan: StreamPlan, streams: frozenset[str], settings: JobSettings) -> Iterator[str]:
    if settings.agg_phase is not AggPhase.AUTO:
        yield (
            "agg_phase is given: on a stream Spark always aggregates a mini-batch locally, before the shuffle and "
            "again before it looks anything up."
        )
    if settings.distinct_split != DistinctSplitSettings():
        yield (
            "distinct_split.* is given: the values of a stream are spread by group and value already, and as bitmaps "
            "by group and block; there is no hot group to split."
        )
    if settings.distinct_method not in {DistinctMethod.AUTO, DistinctMethod.BITMAP} and plan.shape not in _OF_VALUES:
        yield f"distinct_method is {settings.distinct_method.value}, but no aggregate over one stream is over DISTINCT."
    if not settings.incremental_agg:
        yield "incremental_agg is given: a stream aggregates once, so that there are no two phases to merge."
    if settings.eager_aggregation is not Toggle.AUTO:
        yield "eager_aggregation is given: two streams are aggregated without a join, and static tables after it."
    joins = tuple(static_joins(plan.node, streams))
    whole = settings.join.model_copy(update={"skew": JoinSkew.AUTO})
    if whole != JoinSettings() and not joins:
        yield "join.ship or join.local is given, but no static table is joined."
    keyed = any(join.keys for join in joins)
    if settings.join.skew is not JoinSkew.AUTO and not keyed:
        yield "join.skew is given, but no static table is joined by equal keys."
    if settings.skew != SkewSettings() and not keyed:
        yield "skew.* is given, but no static table is joined by equal keys: nothing else on a stream has hot keys."
