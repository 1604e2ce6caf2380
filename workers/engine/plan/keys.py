"""Which keys of a plan are worth a sketch before the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from service.spec.scalar import Scalar
from workers.engine.plan.nodes import Aggregate, Join, Node, Scan
from workers.engine.plan.transform import walk_up


def statistics_keys(node: Node) -> frozenset[tuple[str, ...]]:
    """Tuples of emitted column names, each of one scan: join keys, group keys, distinct arguments, and group keys with
    a distinct argument, the group keys first. Keys that are expressions, or of several tables, are left out.
    """
    table_of = {field.name: scan.alias for scan in walk_up(node) if isinstance(scan, Scan) for field, _ in scan.columns}
    candidates = (columns_of(scalars) for part in walk_up(node) for scalars in _candidates(part))
    return frozenset(
        columns for columns in candidates if columns and len({table_of.get(name) for name in columns}) == 1
    )


def columns_of(scalars: Iterable[Scalar]) -> tuple[str, ...] | None:
    """The names of `scalars` that are columns, each once, in order; None where one is an expression."""
    names = [scalar.column for scalar in scalars]
    known = [name for name in names if name is not None]
    return tuple(dict.fromkeys(known)) if len(known) == len(names) else None


def _candidates(node: Node) -> Iterator[tuple[Scalar, ...]]:
    if isinstance(node, Join):
        yield tuple(left for left, _ in node.keys)
        yield tuple(right for _, right in node.keys)
    if isinstance(node, Aggregate):
        keys = tuple(key.expression for key in node.keys)
        yield keys
        for call in node.calls:
            if call.distinct:
                yield call.arguments
                yield (*keys, *call.arguments)
