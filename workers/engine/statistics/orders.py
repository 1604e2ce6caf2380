"""Finds values that divide the rows of a hot key into ranges of about the same size, in a sample of a table's rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import DataType
from workers.engine.plan.expressions import literal
from workers.engine.statistics.hot_keys import frequent_groups, literals_of
from workers.engine.statistics.model import OrderedKey

RANGES = 64
"""The most ranges of a key."""

MAX_VALUES = 1 << 15
"""The values of a key that are sorted. The share of rows in a range has an error of half a percent or less."""


def ordered_keys(
    keys: Sequence[pa.ChunkedArray], types: Sequence[DataType], order: pa.ChunkedArray, order_type: DataType
) -> tuple[OrderedKey, ...]:
    """Returns the boundaries for each hot key that has literals. `keys` are the sampled values of the key's columns,
    `order` those of the order column, each with its type. Without columns, all rows are one key.

    Raises ArrowException, ValueError or TypeError for values that Arrow cannot group or sort.
    """
    if not keys:
        return (_ordered((), order, order_type),)
    hot = ((key, literals_of(key, types)) for key in frequent_groups(keys))
    return tuple(
        _ordered(literals, order.filter(_has_key(keys, key)), order_type)
        for key, literals in hot
        if literals is not None
    )


def _has_key(columns: Sequence[pa.ChunkedArray], key: Sequence[object]) -> pa.ChunkedArray:
    mask = None
    for column, value in zip(columns, key, strict=True):
        own = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type))
        mask = own if mask is None else pc.and_(mask, own)
    return pc.fill_null(mask, False)


def _ordered(literals: tuple[Scalar, ...], order: pa.ChunkedArray, type_: DataType) -> OrderedKey:
    step = max(1, len(order) // MAX_VALUES)
    values = order.take(pa.array(range(0, len(order), step))) if step > 1 else order
    counts = pc.max(pc.value_counts(values).field("counts")).as_py() if len(values) else 0
    known = pc.drop_null(values)
    ascending = known.take(pc.sort_indices(known))
    found = dict.fromkeys(_quantiles(ascending))
    boundaries = [literal(value, type_) for value in found]
    return OrderedKey(
        literals,
        tuple(boundary for boundary in boundaries if boundary is not None),
        (counts or 0) / max(len(values), 1),
    )


def _quantiles(ascending: pa.ChunkedArray) -> Iterator[object]:
    """Yields the values at which ranges begin, without the smallest value: no row is before it."""
    for number in range(1, RANGES):
        place = number * len(ascending) // RANGES
        if place and ascending[place] != ascending[0]:
            yield ascending[place].as_py()
