"""Finds the hot keys of a table in a sample of its rows, and estimates the number of distinct keys.

`key_sketch` groups the sample by one key. A key is hot if it has a large part of the sampled rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from service.contract.reports import HotKey
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import DataType
from workers.engine.plan.expressions import literal
from workers.engine.statistics.cardinality import NULL_KEY, estimate_distinct
from workers.engine.statistics.model import KeySketch

HOT_KEYS = 10
"""The most hot keys of a sketch."""

MIN_OCCURRENCES = 5
"""A key with fewer rows in the sample may be there by chance."""

MIN_SHARE = 0.001
"""A key with a smaller share of the rows makes no task slow."""

_MAX_VALUE_LENGTH = 120
_COUNT = "count_all"


def key_sketch(
    columns: tuple[str, ...],
    values: Sequence[pa.ChunkedArray],
    types: Sequence[DataType],
    table_rows: int,
    *,
    is_representative: bool,
) -> KeySketch:
    """Returns the sketch of a key. `values` are the sampled values of its `columns`, at least one row; `table_rows` is
    the number of rows of the table. The sketch has no alias yet.

    Raises ArrowException, ValueError or TypeError for values that Arrow cannot group.
    """
    sampled_rows = len(values[0])
    groups = _groups(values)
    hot_keys, literals = _hot_keys(groups, types, sampled_rows, table_rows)
    return KeySketch(
        alias="",
        columns=columns,
        sampled_rows=sampled_rows,
        distinct_keys=estimate_groups(groups.column(_COUNT), max(table_rows, sampled_rows)),
        null_share=_null_share(groups, sampled_rows),
        hot_keys=hot_keys,
        representative=is_representative,
        literals=literals,
    )


def estimate_groups(counts: pa.ChunkedArray, rows: int) -> int:
    """Returns the estimated number of groups in all `rows`; `counts` has the number of sampled rows of each group."""
    frequencies = {entry["values"].as_py(): entry["counts"].as_py() for entry in pc.value_counts(counts)}
    return estimate_distinct(frequencies, rows)


def _groups(values: Sequence[pa.ChunkedArray]) -> pa.Table:
    """Returns the distinct keys with their numbers of rows, which are the last column."""
    names = [f"k{index}" for index in range(len(values))]
    counted = pa.table([*map(_normalized, values)], names=names).group_by(names).aggregate([([], _COUNT)])
    return counted.select([*names, _COUNT])


def _normalized(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_floating(values.type):
        return values
    # Spark groups -0.0 with 0.0, and all NaN values with each other; Arrow does not.
    one_nan = pc.if_else(pc.is_nan(values), pa.scalar(math.nan, values.type), values)
    return pc.add(one_nan, pa.scalar(0.0, values.type))


def _null_share(groups: pa.Table, sampled_rows: int) -> float:
    is_null = pc.is_null(groups.column(0))
    for column in groups.columns[1:-1]:
        is_null = pc.or_(is_null, pc.is_null(column))
    return float((pc.sum(groups.filter(is_null).column(_COUNT)).as_py() or 0) / sampled_rows)


def _hot_keys(
    groups: pa.Table, types: Sequence[DataType], sampled_rows: int, table_rows: int
) -> tuple[tuple[HotKey, ...], tuple[tuple[Scalar, ...] | None, ...]]:
    """Returns the hot keys in descending order of share, and the literals of each."""
    hot = []
    for row in _frequent(groups, sampled_rows).to_pylist():
        *key, count = row.values()
        share = count / sampled_rows
        text = ", ".join(map(_text, key))
        hot_key = HotKey(value=text, share=share, estimated_rows=round(share * table_rows), is_null=None in key)
        hot.append((hot_key, literals_of(key, types)))
    # Keys with the same share are sorted by value, because Arrow's order of the groups depends on its threads.
    hot = sorted(hot, key=lambda pair: (-pair[0].share, pair[0].value, pair[0].is_null))[:HOT_KEYS]
    return tuple(key for key, _ in hot), tuple(literals for _, literals in hot)


def _frequent(groups: pa.Table, sampled_rows: int) -> pa.Table:
    least = max(MIN_OCCURRENCES, sampled_rows * MIN_SHARE)
    return groups.filter(pc.greater_equal(groups.column(_COUNT), pa.scalar(least)))


def frequent_groups(values: Sequence[pa.ChunkedArray]) -> list[tuple[object, ...]]:
    """Returns the most frequent keys of a sample, as key_sketch finds them, with a value per column; the most frequent
    one first.
    """
    rows = [tuple(row.values()) for row in _frequent(_groups(values), len(values[0])).to_pylist()]
    return [row[:-1] for row in sorted(rows, key=lambda row: -int(row[-1]))[:HOT_KEYS]]


def literals_of(key: Sequence[object], types: Sequence[DataType]) -> tuple[Scalar, ...] | None:
    """Returns a literal of each type for the values of a key; None if one has no exact literal."""
    literals = [literal(part, type_) for part, type_ in zip(key, types, strict=True)]
    return None if None in literals else tuple(each for each in literals if each is not None)


def _text(value: object) -> str:
    if value is None:
        return NULL_KEY
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else text[: _MAX_VALUE_LENGTH - 1] + "…"
