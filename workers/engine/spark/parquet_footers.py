"""Where a footer tells of a column.

How wide a column is, by the footers of Parquet files.

The smallest and the largest value of columns of integers, by the footers of Parquet files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal

import pyarrow.parquet as pq

from workers.engine.statistics.model import ValueRange


def column_leaves(footer: pq.FileMetaData) -> dict[str, int]:
    """The numbers of the leaves that are columns, by name; fields of structs, lists and maps are not among them.

    A field's path is joined by dots, and may read like a column's name; but only a column's path is its name alone.
    """
    leaves = ((index, footer.schema.column(index)) for index in range(footer.num_columns))
    return {leaf.name: index for index, leaf in leaves if leaf.name == leaf.path}


_FOOTERS = 8
"""Footers that are asked; each for its first row group."""


def width_of(column: str, footers: Iterable[pq.FileMetaData]) -> float:
    """Bytes of a value as it is encoded, before compression; 0 where no footer tells."""
    rows = size = 0
    for footer in list(footers)[:_FOOTERS]:
        indices = column_leaves(footer)
        if footer.num_row_groups and column in indices:
            group = footer.row_group(0)
            rows += group.num_rows
            size += group.column(indices[column]).total_uncompressed_size
    return size / rows if rows else 0.0


_MAX_ROW_GROUPS = 64
"""Row groups of a file whose statistics are read; of more, as many from all over it."""

_EPOCH = date(1970, 1, 1)


def ranges_of(footers: Iterable[pq.FileMetaData], columns: Collection[str]) -> dict[str, ValueRange]:
    """The range of each of `columns` that has integers, dates (as days since 1970) or decimals (unscaled), over all
    footers; columns of which a row group with values says nothing are left out.

    Of files with very many row groups some are read: the range is then that of these, and not whole.
    """
    footers = list(footers)
    is_whole = all(footer.num_row_groups <= _MAX_ROW_GROUPS for footer in footers)
    found: dict[str, ValueRange] = {}
    unknown: set[str] = set()
    for footer in footers:
        indices = column_leaves(footer)
        for name in columns:
            if name in unknown:
                continue
            bounds = _bounds(footer, indices.get(name))
            if bounds is None:
                unknown.add(name)
            elif bounds:
                known = [found[name]] if name in found else []
                low = min([*bounds, *(one.low for one in known)])
                found[name] = ValueRange(low, max([*bounds, *(one.high for one in known)]), is_whole)
    return {name: value_range for name, value_range in found.items() if name not in unknown}


def _bounds(footer: pq.FileMetaData, index: int | None) -> list[int] | None:
    """Smallest and largest values of the file's row groups; None where one of them is not told."""
    if index is None:
        return None
    bounds: list[int] = []
    step = -(-footer.num_row_groups // _MAX_ROW_GROUPS) or 1
    for number in range(0, footer.num_row_groups, step):
        if not footer.row_group(number).num_rows:
            continue
        statistics = footer.row_group(number).column(index).statistics
        if statistics is None:
            return None
        if not statistics.has_min_max:
            if statistics.null_count != footer.row_group(number).num_rows:
                return None
            continue
        values: Sequence[int | None] = (_whole(statistics.min), _whole(statistics.max))
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        bounds += known
    return bounds


def _whole(value: object) -> int | None:
    """The value as the integer that tells it from others of its column; None for types without one."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Decimal):
        return int("".join(map(str, value.as_tuple().digits))) * (-1 if value.is_signed() else 1)
    if isinstance(value, date) and not isinstance(value, datetime):
        return (value - _EPOCH).days
    return None
