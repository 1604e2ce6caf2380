"""The plan of GROUP BY with a window of event time."""

from __future__ import annotations

from service.spec.bound import BoundWindow
from service.spec.query import AggregateFunction
from service.spec.scalar import Scalar, column
from service.spec.types import BIGINT, TIMESTAMP, TIMESTAMP_NTZ, Field, known
from workers.engine.plan.nodes import Aggregate, Call, Named, Node, Project, Windows
from workers.engine.plan.scalars import compose, fresh_name
from workers.engine.plan.schema import names_of, output_of, window_type
from workers.engine.plan.watermarks import cast, with_watermarks


def by_window(node: Node, window: BoundWindow, keys: tuple[Named, ...], calls: tuple[Call, ...]) -> Node:
    """Groups of `node` by the window and `keys`: emits the window's start and end, the keys, then the calls' outputs.

    The aggregate has the window in one piece: a stream drops by it what it keeps of the groups. It has a call, since
    one without would come out before its window is closed.
    """
    time = window.column
    if window.start.type == TIMESTAMP_NTZ:
        # Spark has watermarks for instants alone. Times without a zone are told apart by them as if they were UTC's.
        time = column(fresh_name("$time", names_of(node)), TIMESTAMP)
    below = with_watermarks(node, window.watermarks, None if time == window.column else time)
    taken = names_of(below) | {item.name for item in keys} | {call.output.name for call in calls}
    taken |= {window.start.name, window.end.name}
    name = fresh_name("$window", taken)
    rows = Windows(below, time, window.size_ms, window.slide_ms, name)
    whole = column(name, window_type(TIMESTAMP))
    grouped = Aggregate(
        rows,
        (Named(whole, name), *keys),
        calls or (Call(AggregateFunction.COUNT, (), Field(fresh_name("$rows", taken), BIGINT)),),
    )
    ends = (_end(whole, "start", window.start), _end(whole, "end", window.end))
    shown = output_of(grouped)[1 : 1 + len(keys) + len(calls)]
    others = tuple(Named(column(field.name, known(field.type)), field.name) for field in shown)
    return Project(grouped, (*ends, *others))


def _end(whole: Scalar, part: str, field: Field) -> Named:
    instant = compose(f"{{0}}.`{part}`", (whole,), TIMESTAMP)
    return Named(instant if field.type == TIMESTAMP else cast(instant, field.type), field.name)
