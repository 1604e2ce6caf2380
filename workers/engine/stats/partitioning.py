"""By which keys a node's rows are already parted over tasks, so far as that is known before the run.

Spark runs an aggregate in one phase where its input is hash-partitioned by some of the group keys, and then a frequent
key is one task's whatever else it is grouped by.
"""

from __future__ import annotations

from collections.abc import Iterable

from service.spec.query import JoinKind
from service.spec.scalar import Scalar, quoted
from workers.engine.plan.nodes import Aggregate, Exchange, Expand, Join, Node, Project, Scan
from workers.engine.plan.schema import ONE_SIDED
from workers.engine.stats.statistics import Statistics

BROADCAST_BYTES = 10 << 20
"""`spark.sql.autoBroadcastJoinThreshold`: a join side estimated below it is broadcast, and nothing is shuffled."""

_LEFT_MAY_BROADCAST = frozenset({JoinKind.INNER, JoinKind.RIGHT, JoinKind.CROSS})
_RIGHT_MAY_BROADCAST = frozenset({JoinKind.INNER, JoinKind.LEFT, JoinKind.CROSS}) | ONE_SIDED
_KEEPS_LEFT = frozenset({JoinKind.INNER, JoinKind.LEFT}) | ONE_SIDED
_KEEPS_RIGHT = frozenset({JoinKind.INNER, JoinKind.RIGHT})


def partitionings_of(node: Node, statistics: Statistics) -> tuple[frozenset[str], ...]:
    """Every set of expressions, as Spark SQL, by whose hash `node`'s rows are parted; empty where none is known."""
    match node:
        case Exchange():
            return (_texts(node.keys),)
        case Join():
            return _of_join(node, statistics)
        case Project():
            return _of_project(node, statistics)
        case Scan() | Aggregate() | Expand():
            return ()
        case _:
            return partitionings_of(node.input, statistics)


def is_partitioned_by(node: Node, keys: Iterable[Scalar], statistics: Statistics) -> bool:
    """Whether all rows of `node` that are equal in `keys` are known to be on one task already."""
    wanted = _texts(keys)
    return any(parts <= wanted for parts in partitionings_of(node, statistics))


def size_of(node: Node, statistics: Statistics) -> int | None:
    """Bytes as Spark estimates them without column statistics: files in full, the product of a join's sides."""
    match node:
        case Scan():
            size = statistics.tables.get(node.alias)
            return None if size is None else size.bytes
        case Join():
            left, right = size_of(node.left, statistics), size_of(node.right, statistics)
            if left is None or right is None:
                return None
            return left if node.kind in ONE_SIDED else left * right
        case _:
            return size_of(node.input, statistics)


def _of_join(join: Join, statistics: Statistics) -> tuple[frozenset[str], ...]:
    left, right = size_of(join.left, statistics), size_of(join.right, statistics)
    if left is None or right is None or not join.keys:
        return ()
    # Keys of different types are compared, and hashed, under a cast that no group key has.
    if any(one.type is None or one.type != other.type for one, other in join.keys):
        return ()
    # Spark broadcasts the right side first where both are small enough; what streams by keeps its partitioning.
    if right <= BROADCAST_BYTES and join.kind in _RIGHT_MAY_BROADCAST:
        return partitionings_of(join.left, statistics)
    if left <= BROADCAST_BYTES and join.kind in _LEFT_MAY_BROADCAST:
        return partitionings_of(join.right, statistics)
    found = [_texts(key for key, _ in join.keys)] if join.kind in _KEEPS_LEFT else []
    found += [_texts(key for _, key in join.keys)] if join.kind in _KEEPS_RIGHT else []
    return tuple(found)


def _of_project(project: Project, statistics: Statistics) -> tuple[frozenset[str], ...]:
    renamed = {item.expression.sql: quoted(item.name) for item in project.items}
    below = partitionings_of(project.input, statistics)
    return tuple(frozenset(renamed[part] for part in parts) for parts in below if parts <= renamed.keys())


def _texts(scalars: Iterable[Scalar]) -> frozenset[str]:
    return frozenset(scalar.sql for scalar in scalars)
