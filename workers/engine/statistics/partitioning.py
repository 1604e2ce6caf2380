"""The keys by which a node's rows are already partitioned, as far as that is known before the run.

Spark runs an aggregate in one phase if its input is hash-partitioned by some of the group keys. Then all rows of a
frequent value of these keys are in one task, also with more group keys.
"""

from __future__ import annotations

from collections.abc import Iterable

from service.contract.options import JoinLocal, JoinShip
from service.contract.query import JoinKind
from service.sql.expressions.nodes import Column, Over
from service.sql.expressions.scalar import Scalar, quoted
from service.sql.joins import BROADCASTS_LEFT, BROADCASTS_RIGHT, ONE_SIDED
from service.sql.types.data_types import DataType, TypeName
from workers.engine.plan.aggregates import spark_expands
from workers.engine.plan.nodes import (
    Aggregate,
    Exchange,
    Expand,
    Generate,
    Join,
    MultisetOperation,
    Named,
    Node,
    Project,
    Recursion,
    Scan,
    StepRows,
    Union,
    Values,
    WindowFunctions,
    output_of,
)
from workers.engine.statistics.model import Statistics, once_per_node

_BYTES_OF_VALUE = 20
_ROW_BYTES = 8
_LONG_DIGITS = 18
_DEFAULT_BYTES = {
    TypeName.NULL: 1,
    TypeName.BOOLEAN: 1,
    TypeName.TINYINT: 1,
    TypeName.SMALLINT: 2,
    TypeName.INT: 4,
    TypeName.BIGINT: 8,
    TypeName.FLOAT: 4,
    TypeName.DOUBLE: 8,
    TypeName.DATE: 4,
    TypeName.TIMESTAMP: 8,
    TypeName.TIMESTAMP_NTZ: 8,
    TypeName.STRING: 20,
    TypeName.BINARY: 100,
}
"""Spark's `DataType.defaultSize`."""

BROADCAST_BYTES = 10 << 20
"""`spark.sql.autoBroadcastJoinThreshold`: a join side estimated below it is broadcast, and nothing is shuffled."""

_KEEPS_LEFT = frozenset({JoinKind.INNER, JoinKind.LEFT}) | ONE_SIDED
_KEEPS_RIGHT = frozenset({JoinKind.INNER, JoinKind.RIGHT})


@once_per_node
def partitionings_of(node: Node, statistics: Statistics) -> tuple[frozenset[str], ...]:
    """Returns each set of expressions, as Spark SQL, by which `node`'s rows are hash-partitioned; empty if none is
    known.
    """
    match node:
        case Exchange():
            return (_texts(node.keys),) if node.keys else ()
        case Join():
            return _of_join(node, statistics)
        case Project():
            return _renamed(partitionings_of(node.input, statistics), node.items)
        case Aggregate():
            return _of_aggregate(node, statistics)
        case WindowFunctions():
            return _of_windows(node, statistics)
        case Scan() | Values() | Expand() | Generate() | Union() | MultisetOperation() | Recursion() | StepRows():
            return ()
        case _:
            return partitionings_of(node.input, statistics)


def is_partitioned_by(node: Node, keys: Iterable[Scalar], statistics: Statistics) -> bool:
    """Whether all rows of `node` that are equal in `keys` are known to be in one task already."""
    texts = _texts(keys)
    return any(parts <= texts for parts in partitionings_of(node, statistics))


@once_per_node
def size_of(node: Node, statistics: Statistics) -> int | None:
    """Returns Spark's size estimate without column statistics: the files' bytes, in proportion to the columns that are
    read; the product of a join's sides.
    """
    match node:
        case Scan():
            return _size_of_scan(node, statistics)
        case Values():
            return len(node.rows) * (1 + len(node.columns)) * _BYTES_OF_VALUE
        case Join():
            left, right = size_of(node.left, statistics), size_of(node.right, statistics)
            if left is None or right is None:
                return None
            return left if node.kind in ONE_SIDED else left * right
        case Union():
            sizes = [size_of(branch, statistics) for branch in node.inputs]
            return None if None in sizes else sum(size for size in sizes if size is not None)
        case Recursion() | StepRows():
            return None
        case MultisetOperation():
            # Spark expects more rows of what it computes this by than it has.
            return None
        case _:
            return size_of(node.input, statistics)


def _size_of_scan(scan: Scan, statistics: Statistics) -> int | None:
    size = statistics.tables.get(scan.alias)
    if size is None or size.row_bytes is None:
        return None if size is None else size.bytes
    return size.bytes * row_bytes(field.type for field, _ in scan.columns) // size.row_bytes


def row_bytes(types: Iterable[DataType | None]) -> int:
    """Returns Spark's estimate for a row with columns of these types (`EstimationUtils.getSizePerRow`)."""
    return _ROW_BYTES + sum(map(_value_bytes, types))


def _value_bytes(type_: DataType | None) -> int:
    if type_ is None or type_.name is TypeName.OTHER:
        return _BYTES_OF_VALUE
    if type_.name is TypeName.DECIMAL:
        return 8 if (type_.precision or 0) <= _LONG_DIGITS else 16
    return sum(map(_value_bytes, type_.parts)) if type_.is_nested else _DEFAULT_BYTES[type_.name]


def is_broadcast(join: Join, statistics: Statistics) -> bool:
    """Whether one side is broadcast, by the join's strategy or by Spark, so the other side is not shuffled."""
    return broadcast_side(join, statistics) is not None


@once_per_node
def broadcast_side(join: Join, statistics: Statistics) -> JoinShip | None:
    """Returns BROADCAST_LEFT or BROADCAST_RIGHT for the side that is broadcast; None if none is known to be.

    If both are small enough, it is the right one.
    """
    if join.strategy.ship in {JoinShip.BROADCAST_LEFT, JoinShip.BROADCAST_RIGHT}:
        return join.strategy.ship
    if not is_left_to_spark(join):
        return None
    for ship, side, kinds in (
        (JoinShip.BROADCAST_RIGHT, join.right, BROADCASTS_RIGHT),
        (JoinShip.BROADCAST_LEFT, join.left, BROADCASTS_LEFT),
    ):
        size = size_of(side, statistics) if join.kind in kinds else None
        if size is not None and size <= BROADCAST_BYTES:
            return ship
    return None


def _of_join(join: Join, statistics: Statistics) -> tuple[frozenset[str], ...]:
    ship = broadcast_side(join, statistics)
    if ship is not None:
        # The rows of the other side are not shuffled.
        return partitionings_of(join.right if ship is JoinShip.BROADCAST_LEFT else join.left, statistics)
    if is_left_to_spark(join) and None in {size_of(join.left, statistics), size_of(join.right, statistics)}:
        # Spark may broadcast the side whose size is not known here.
        return ()
    return _partitioned_by_key(join)


def is_left_to_spark(join: Join) -> bool:
    """Whether Spark chooses the algorithm of the join."""
    return join.strategy.ship is JoinShip.AUTO and join.strategy.local is JoinLocal.AUTO


def _partitioned_by_key(join: Join) -> tuple[frozenset[str], ...]:
    # Keys of different types are compared, and hashed, under a cast that no group key has; `<=>` hashes a replacement
    # for NULL and whether it was replaced.
    if not join.keys or join.null_safe or any(one.type is None or one.type != other.type for one, other in join.keys):
        return ()
    found = [_texts(key for key, _ in join.keys)] if join.kind in _KEEPS_LEFT else []
    found += [_texts(key for _, key in join.keys)] if join.kind in _KEEPS_RIGHT else []
    return tuple(found)


def _of_windows(node: WindowFunctions, statistics: Statistics) -> tuple[frozenset[str], ...]:
    """Returns the partitioning of the input, if it has all rows of each partition in one task; otherwise by the keys of
    PARTITION BY, if all calls have the same ones.

    For different keys, Spark has an operator each, and it is not known which of them is last.
    """
    fields = {field.name: field.type for field in output_of(node.input)}
    trees = [call.expression.tree for call in node.calls]
    keys = {tree.partition_by for tree in trees if isinstance(tree, Over)}
    by_call = [frozenset(Scalar(key, None).sql for key in one) for one in keys]
    below = partitionings_of(node.input, statistics)
    kept = tuple(parts for parts in below if all(parts <= own for own in by_call))
    if kept or len(keys) != 1 or not all(isinstance(key, Column) for key in next(iter(keys))):
        return kept
    # Spark partitions by a normalized form of fractions, as it does for an aggregate.
    types = [fields[key.name] for key in next(iter(keys)) if isinstance(key, Column)]
    is_exact = all(type_.is_groupable and not (type_.is_fractional or type_.nests_fractions) for type_ in types)
    return tuple(by_call) if types and is_exact else ()


def _of_aggregate(node: Aggregate, statistics: Statistics) -> tuple[frozenset[str], ...]:
    """Returns the partitioning of the input, if it has all rows of a group in one task; otherwise by all group keys.

    The role and the phases do not matter: each aggregate is a separate GROUP BY for Spark.
    """
    # A single row has no partitioning, and Spark also partitions the copies for grouping sets by the number of the set.
    if not node.keys or node.grouping_sets:
        return ()
    below = () if spark_expands(node) else partitionings_of(node.input, statistics)
    return _renamed(below, node.keys) or _by_all_keys(node)


def _by_all_keys(node: Aggregate) -> tuple[frozenset[str], ...]:
    # Spark groups by a normalized form of fractions, which may differ from the group keys of an aggregate above.
    types = [key.expression.type for key in node.keys]
    if any(type_ is None or not type_.is_atomic or type_.is_fractional for type_ in types):
        return ()
    return (frozenset(quoted(key.name) for key in node.keys),)


def _renamed(below: Iterable[frozenset[str]], items: Iterable[Named]) -> tuple[frozenset[str], ...]:
    """Returns the partitionings whose expressions are all among `items`, with the names of the items."""
    names = {item.expression.sql: quoted(item.name) for item in items}
    return tuple(frozenset(names[part] for part in parts) for parts in below if parts <= names.keys())


def _texts(scalars: Iterable[Scalar]) -> frozenset[str]:
    return frozenset(scalar.sql for scalar in scalars)
