"""Where a plan tells how late rows of a stream may come: right above the scans, however deep."""

from __future__ import annotations

from dataclasses import replace

from service.spec.bound import BoundWatermark
from service.spec.scalar import Scalar, column
from service.spec.types import TIMESTAMP, TIMESTAMP_NTZ, DataType, known
from workers.engine.plan.nodes import Join, Named, Node, Project, Scan, Watermark, Within
from workers.engine.plan.scalars import compose
from workers.engine.plan.schema import output_of
from workers.engine.plan.transform import transform_up, walk_up


def with_watermarks(node: Node, marks: tuple[BoundWatermark, ...], instead: Scalar | None = None) -> Node:
    """`node` with a watermark over each scan that has one; by the column `instead`, which that makes, where given.

    A scan that has one already keeps that, and joins of streams keep what is among `marks` as an event time.
    """
    by_alias = {mark.alias: mark for mark in marks}

    def watermarked(part: Node) -> Node:
        if isinstance(part, Watermark) and isinstance(part.input, Watermark):
            return part.input
        if isinstance(part, Join) and part.within is not None:
            return replace(part, within=_seen_by(part, part.within, frozenset(by_alias)))
        mark = by_alias.get(part.alias) if isinstance(part, Scan) else None
        if mark is None:
            return part
        if instead is None:
            return Watermark(part, column(mark.column, TIMESTAMP), mark.delay_ms)
        made = Named(cast(column(mark.column, TIMESTAMP_NTZ), TIMESTAMP), instead.columns[0])
        kept = tuple(Named(column(field.name, known(field.type)), field.name) for field in output_of(part))
        return Watermark(Project(part, (*kept, made)), instead, mark.delay_ms)

    return transform_up(node, watermarked)


def without_watermarks(node: Node) -> Node:
    """`node` with joins of streams that forget no rows, and no watermarks."""

    def plain(part: Node) -> Node:
        if isinstance(part, Watermark):
            return part.input
        return replace(part, within=None) if isinstance(part, Join) else part

    return transform_up(node, plain)


def cast(value: Scalar, type_: DataType) -> Scalar:
    """`value` as a `type_`."""
    return compose(f"CAST({{0}} AS {type_})", (value,), type_)


def _seen_by(join: Join, within: Within, aliases: frozenset[str]) -> Within:
    """`within` with the side as event time that has one of the tables `aliases`."""
    for side, time in ((join.left, within.left), (join.right, within.right)):
        if any(isinstance(part, Scan) and part.alias in aliases for part in walk_up(side)):
            return replace(within, event_time=time.column)
    return within
