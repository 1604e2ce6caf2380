"""Finds the hot keys of a table in a sample of its rows, and estimates the number of distinct keys.

`key_sketch` groups the sample by one key. A key is hot if it has a large part of the sampled rows. Rows are grouped by
numbers that stand for the values of a column: several keys of a sample share the numbers of a column, and numbers are
grouped several times faster than strings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

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
_MOST_NUMBERS = 1 << 62


@dataclass(frozen=True)
class Numbered:
    """The sampled values of a column, or of several: a number for each row, the same for equal values. All numbers are
    below `limit`.
    """

    numbers: pa.Array
    limit: int

    @property
    def are_unique(self) -> bool:
        """Whether each row is known to have a value of its own."""
        return self.limit == len(self.numbers)

    def combined_with(self, other: Numbered) -> Numbered:
        """Returns the numbers of the pairs."""
        if self.are_unique or other.are_unique:
            return self if self.are_unique else other
        if self.limit * other.limit >= _MOST_NUMBERS:
            return _numbered(self.numbers).combined_with(other)
        pairs = pc.add(pc.multiply(self.numbers, pa.scalar(other.limit)), other.numbers)
        return Numbered(pairs, self.limit * other.limit)

    def counts(self) -> tuple[pa.Array, pa.Array]:
        """Returns the distinct numbers, and for each the number of its rows."""
        if self.are_unique:
            return self.numbers, pa.repeat(1, len(self.numbers))
        counted = pc.value_counts(self.numbers)
        return counted.field("values"), counted.field("counts")


def numbered(values: pa.ChunkedArray) -> Numbered:
    """Numbers the values of a column from 0 to the limit. NULL has a number, too. Raises ArrowException for values that
    Arrow cannot compare.
    """
    return _numbered(_normalized(values))


def _numbered(values: pa.Array | pa.ChunkedArray) -> Numbered:
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    encoded = values.dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        # All chunks have the same dictionary.
        indices = pa.chunked_array([chunk.indices for chunk in encoded.chunks]).combine_chunks()
        return Numbered(indices.cast(pa.int64()), len(encoded.chunk(0).dictionary))
    return Numbered(encoded.indices.cast(pa.int64()), len(encoded.dictionary))


def key_sketch(
    columns: tuple[str, ...],
    values: Sequence[pa.ChunkedArray],
    types: Sequence[DataType],
    table_rows: int,
    *,
    is_representative: bool,
    number: Callable[[pa.ChunkedArray], Numbered] = numbered,
) -> KeySketch:
    """Returns the sketch of a key. `values` are the sampled values of its `columns`, at least one row; `table_rows` is
    the number of rows of the table. `number` may return what it returned before for the same values. The sketch has no
    alias yet.

    Raises ArrowException, ValueError or TypeError for values that Arrow cannot group.
    """
    sampled_rows = len(values[0])
    groups = reduce(Numbered.combined_with, map(number, values))
    keys, counts = groups.counts()
    frequent = _frequent(groups, keys, counts, [*map(_normalized, values)])
    hot_keys, literals = _hot_keys(frequent, types, sampled_rows, table_rows)
    return KeySketch(
        alias="",
        columns=columns,
        sampled_rows=sampled_rows,
        distinct_keys=estimate_groups(counts, max(table_rows, sampled_rows)),
        null_share=_null_share(values, sampled_rows),
        hot_keys=hot_keys,
        representative=is_representative,
        literals=literals,
    )


def estimate_groups(counts: pa.Array | pa.ChunkedArray, rows: int) -> int:
    """Returns the estimated number of groups in all `rows`; `counts` has the number of sampled rows of each group."""
    frequencies = {entry["values"].as_py(): entry["counts"].as_py() for entry in pc.value_counts(counts)}
    return estimate_distinct(frequencies, rows)


def _normalized(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_floating(values.type):
        return values
    # Spark groups -0.0 with 0.0, and all NaN values with each other; Arrow does not.
    one_nan = pc.if_else(pc.is_nan(values), pa.scalar(math.nan, values.type), values)
    return pc.add(one_nan, pa.scalar(0.0, values.type))


def _null_share(values: Sequence[pa.ChunkedArray], sampled_rows: int) -> float:
    with_nulls = [pc.is_null(each) for each in values if each.null_count]
    return float(pc.sum(reduce(pc.or_, with_nulls)).as_py() / sampled_rows) if with_nulls else 0.0


def _hot_keys(
    frequent: Sequence[tuple[tuple[object, ...], int]],
    types: Sequence[DataType],
    sampled_rows: int,
    table_rows: int,
) -> tuple[tuple[HotKey, ...], tuple[tuple[Scalar, ...] | None, ...]]:
    """Returns the hot keys in descending order of share, and the literals of each."""
    hot = []
    for key, count in frequent:
        share = count / sampled_rows
        text = ", ".join(map(_text, key))
        hot_key = HotKey(value=text, share=share, estimated_rows=round(share * table_rows), is_null=None in key)
        hot.append((hot_key, literals_of(key, types)))
    # Keys with the same share are sorted by value: which of them has the first row depends on the sample.
    hot = sorted(hot, key=lambda pair: (-pair[0].share, pair[0].value, pair[0].is_null))[:HOT_KEYS]
    return tuple(key for key, _ in hot), tuple(literals for _, literals in hot)


def _frequent(
    groups: Numbered, keys: pa.Array, counts: pa.Array, values: Sequence[pa.ChunkedArray]
) -> list[tuple[tuple[object, ...], int]]:
    """Returns the keys with the most rows, each with their number: those that may be hot, the largest number first.
    There are more than `HOT_KEYS` only if the last of these has as many rows as others.
    """
    rows = len(groups.numbers)
    least = max(MIN_OCCURRENCES, rows * MIN_SHARE)
    places = pc.indices_nonzero(pc.greater_equal(counts, pa.scalar(least))).to_pylist()
    found = sorted(((counts[place].as_py(), keys[place]) for place in places), key=lambda pair: -pair[0])
    if len(found) > HOT_KEYS:
        found = [pair for pair in found if pair[0] >= found[HOT_KEYS - 1][0]]
    first = [pc.index(groups.numbers, key).as_py() for _, key in found]
    return [(tuple(each[row].as_py() for each in values), count) for (count, _), row in zip(found, first, strict=True)]


def frequent_groups(values: Sequence[pa.ChunkedArray]) -> list[tuple[object, ...]]:
    """Returns the most frequent keys of a sample, as key_sketch finds them, with a value per column; the most frequent
    one first.
    """
    normalized = [_normalized(each) for each in values]
    groups = reduce(Numbered.combined_with, map(numbered, normalized))
    return [key for key, _ in _frequent(groups, *groups.counts(), normalized)[:HOT_KEYS]]


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
