"""Two streams whose joined rows are asked for: which such joins forget the rows that find no partner any more.

Spark keeps the rows of both sides, and drops those that the watermarks have passed. So both streams need event time,
and the condition of the join has to bound the time between the rows of a pair (`service/spec/time_bounds.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from service.spec.bound import BoundJoin, BoundQuery, BoundSource, sources_of
from service.spec.errors import Issue
from service.spec.event_windows import EventTimes
from service.spec.joined_streams import issue_of_kind
from service.spec.query import JoinKind
from service.spec.time_bounds import example_of_bounds, has_state, tables_without_event_time


@dataclass(frozen=True)
class JoinOfStreams:
    """The join number `place` of `query`, of streams on both its sides; `pointer` tells where it stands."""

    query: BoundQuery
    place: int
    pointer: str

    @property
    def join(self) -> BoundJoin:
        """The join."""
        return self.query.joins[self.place]

    @property
    def alias(self) -> str:
        """What its right side is called."""
        return self.join.right.alias

    @property
    def sides(self) -> tuple[BoundSource, ...]:
        """Everything that it joins."""
        return (*sources_of(self.query)[: self.place + 1], self.join.right)


def issues_of_unbounded_join(of: JoinOfStreams, event_times: EventTimes) -> Iterator[Issue]:
    """Why rows of a join cannot be had that does not bound the time between them."""
    of_kind = issue_of_kind(of.join, of.pointer)
    if of_kind is not None:
        yield of_kind
        return
    without = tables_without_event_time(of.sides, event_times)
    example = example_of_bounds(of.sides, event_times)
    beside = "Or aggregate, with the join key in GROUP BY, or give one of the two tables the role 'static'."
    if without:
        detail = (
            f"Two streams are joined, as with {of.alias}, and their rows are asked for: without watermarks every row "
            f"would be kept for ever. Declare 'event_time' on {' and '.join(without)}, and bound the time between the "
            f"rows of a pair in ON, as with {example}. {beside}"
        )
        yield Issue(code="stream_join_needs_watermark", detail=detail, pointer=of.pointer)
        return
    detail = (
        f"Two streams are joined, as with {of.alias}, and their rows are asked for, but nothing tells how far apart in "
        "time the rows of a pair are: every row would be kept for ever. Bound it from both ends in ON, by the event "
        f"times (of type TIMESTAMP) and intervals of days or shorter units, as with {example}. {beside}"
    )
    yield Issue(code="stream_join_not_bounded", detail=detail, pointer=of.pointer)


def issues_of_empty_bound(of: JoinOfStreams) -> Iterator[Issue]:
    """Why no rows can be a pair for a join, where the bounds of the time between them contradict each other."""
    within = of.join.within
    if within is None or within.at_least_us <= within.at_most_us:
        return
    left, right = (time.column or time.sql for time in (within.left, within.right))
    least, most = (_shifted_by(right, microseconds) for microseconds in (within.at_least_us, within.at_most_us))
    detail = (
        f"No rows can be a pair for the join with {of.alias}: {left} would have to be at least {least}, and at most "
        f"{most}, which is earlier. Exchange the two bounds: the earlier one comes first, as in {left} BETWEEN {most} "
        f"AND {least}."
    )
    yield Issue(code="stream_join_always_empty", detail=detail, pointer=of.pointer)


def _shifted_by(name: str, microseconds: int) -> str:
    if not microseconds:
        return name
    seconds = abs(microseconds) / 1_000_000
    return f"{name} {'+' if microseconds > 0 else '-'} INTERVAL '{seconds:.6f}".rstrip("0").rstrip(".") + "' SECOND"


def issues_of_bounded_join(of: JoinOfStreams, event_times: EventTimes, *, updates: bool) -> Iterator[Issue]:
    """Why rows of a join cannot be had that bounds the time between them. `updates`: they are aggregated, and groups
    come out as they change.
    """
    if any(has_state(side, event_times) for side in of.sides):
        detail = (
            f"Two streams are joined, as with {of.alias}, one of which is grouped or made DISTINCT before: a join "
            "of streams takes their rows as they come. Aggregate behind the join, or in a job of its own."
        )
        yield Issue(code="stream_join_not_first", detail=detail, pointer=of.pointer)
    if updates and of.join.kind is not JoinKind.INNER:
        kind = of.join.kind.value.upper().replace("_", " ")
        detail = (
            f"The {kind} JOIN of two streams with {of.alias} waits for watermarks, which Spark does below an output of "
            "'append' alone. Use an INNER JOIN, or group by a window (TUMBLE, HOP) with the output 'append', or by the "
            "join key alone without a bound of time."
        )
        yield Issue(code="outer_stream_join_updated", detail=detail, pointer=of.pointer)
