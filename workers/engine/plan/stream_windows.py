"""Where a plan groups by windows of event time, and what tells such groups apart where they are shown."""

from __future__ import annotations

from service.spec.types import Field
from workers.engine.plan.nodes import Aggregate, Filter, Node, Project, Windows
from workers.engine.plan.schema import output_of
from workers.engine.plan.transform import walk_up


def windows_of(node: Aggregate) -> Windows | None:
    """The windows that `node` groups by; None where it groups by none."""
    below = node.input
    grouped = isinstance(below, Windows) and any(key.expression.column == below.name for key in node.keys)
    return below if isinstance(below, Windows) and grouped else None


def windowed_in(node: Node) -> Aggregate | None:
    """An aggregate by windows somewhere in `node`; None where there is none."""
    found = (part for part in walk_up(node) if isinstance(part, Aggregate) and windows_of(part) is not None)
    return next(found, None)


def without_ends(node: Node) -> Node:
    """The aggregate by windows whose start and end `node` puts in their place; else `node`."""
    over = node.input if isinstance(node, Project) else None
    return over if isinstance(over, Aggregate) and windows_of(over) is not None else node


def ends_of(select: Project, having: Filter | None) -> Project | None:
    """What puts start and end in the place of windows below SELECT and HAVING; None where there are none."""
    below = select.input if having is None else having.input
    return below if isinstance(below, Project) and without_ends(below) is not below else None


def told_apart_by(ends: Project, select: Project) -> Field:
    """The start or the end of the windows, either of which tells them apart: the one that SELECT shows, if any."""
    start, end = output_of(ends)[:2]
    shown = {item.expression.column for item in select.items}
    return end if end.name in shown and start.name not in shown else start
