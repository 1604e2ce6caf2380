"""Puts groups together from the rows of their parts: the last level of an aggregate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from service.results.newest_rows import KeyCodes
from service.spec.final_level import FinalColumn, FinalLevel, Merge, MergedColumn

_ROWS_AT_ONCE = 1 << 20
_AGGREGATES = {Merge.SUM: "sum", Merge.MIN: "min", Merge.MAX: "max"}


def finals(parts: Iterable[pa.Table], final: FinalLevel, schema: pa.Schema) -> Iterator[pa.Table]:
    """One row for each group of `parts`, in the order in which groups first come, in `schema`: that of `final.output`.

    Holds one row a group, and at most 1 Mi rows of parts or as many as there are groups. Raises pa.ArrowInvalid where
    a sum does not go into the type of its column.
    """
    groups: pa.Table | None = None
    waiting: list[pa.Table] = []
    rows = 0
    for table in parts:
        waiting.append(_summands(table, final))
        rows += table.num_rows
        if rows >= max(_ROWS_AT_ONCE, 0 if groups is None else groups.num_rows):
            groups = _grouped([*([] if groups is None else [groups]), *waiting], final)
            waiting, rows = [], 0
    if waiting or groups is None:
        groups = _grouped([*([] if groups is None else [groups]), *waiting], final)
    if groups is None or not groups.num_rows:
        return
    columns = [_final(groups, column, final, schema.field(index).type) for index, column in enumerate(final.output)]
    yield pa.Table.from_arrays(columns, schema=schema)


def check_mergeable(final: FinalLevel, schema: pa.Schema) -> None:
    """Raises ValueError, which names the column, where a column of `schema` cannot be merged as `final` says."""
    for column in final.merged:
        kind = schema.field(column.name).type
        numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        if pa.types.is_nested(kind) or (column.merge is Merge.SUM and not numeric):
            raise ValueError(f"The column {column.name} of type {kind} has no {column.merge}.")


def _summands(table: pa.Table, final: FinalLevel) -> pa.Table:
    """Keys and merged columns alone; sums in the widest type, in which none overflows."""
    arrays = [table.column(name) for name in final.keys]
    arrays += [_widened(table.column(column.name), column) for column in final.merged]
    return pa.table(arrays, names=_names(final))


def _names(final: FinalLevel) -> list[str]:
    """By position: the names of the columns may be those of the calls' own making."""
    return [f"k{index}" for index in range(len(final.keys))] + [f"m{index}" for index in range(len(final.merged))]


def _widened(values: pa.ChunkedArray, column: MergedColumn) -> pa.ChunkedArray:
    if column.merge is not Merge.SUM:
        return values
    if pa.types.is_integer(values.type):
        return values.cast(pa.int64()).cast(pa.decimal128(38, 0))
    if pa.types.is_decimal(values.type):
        return values.cast(pa.decimal256(76, values.type.scale))
    return values.cast(pa.float64())


def _grouped(tables: Sequence[pa.Table], final: FinalLevel) -> pa.Table | None:
    rows = pa.concat_tables(tables) if tables else None
    if rows is None or not rows.num_rows:
        return rows
    keys, merged = rows.column_names[: len(final.keys)], rows.column_names[len(final.keys) :]
    codes = KeyCodes([rows.column(name) for name in keys]).codes
    if codes is None:
        codes = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    numbered = pa.table(
        [codes, pa.array(range(rows.num_rows), pa.int64()), *(rows.column(name) for name in merged)],
        names=["code", "row", *merged],
    )
    calls = [(name, _AGGREGATES[column.merge]) for name, column in zip(merged, final.merged, strict=True)]
    # NaN is above all numbers, and Arrow leaves it out.
    nans = [name for name, column in zip(merged, final.merged, strict=True) if _hides_nan(rows.column(name), column)]
    for name in nans:
        numbered = numbered.append_column(f"nan_{name}", pc.is_nan(numbered.column(name)))
    grouped = numbered.group_by("code", use_threads=False).aggregate(
        [("row", "min"), *calls, *((f"nan_{name}", "max") for name in nans)]
    )
    first = grouped.column("row_min")
    order = pc.sort_indices(first)
    grouped = grouped.take(order)
    columns = [rows.column(name).take(grouped.column("row_min")) for name in keys]
    for name, call in calls:
        values = grouped.column(f"{name}_{call}")
        if name in nans:
            values = pc.if_else(grouped.column(f"nan_{name}_max"), pa.scalar(float("nan"), values.type), values)
        columns.append(values.cast(rows.column(name).type))
    return pa.table(columns, names=rows.column_names)


def _hides_nan(values: pa.ChunkedArray, column: MergedColumn) -> bool:
    return column.merge is Merge.MAX and bool(pa.types.is_floating(values.type))


def _final(groups: pa.Table, column: FinalColumn, final: FinalLevel, kind: pa.DataType) -> pa.ChunkedArray:
    values = _column_of(groups, column.source, final)
    if column.divisor is not None:
        divisor = _as_double(_column_of(groups, column.divisor, final))
        # Divided by 0, a double is infinite: NULL here.
        values = pc.divide(_as_double(values), pc.if_else(pc.equal(divisor, 0.0), None, divisor))
    if column.zero:
        values = pc.fill_null(values, pa.scalar(0, pa.int64()).cast(values.type))
    return values.cast(kind)


def _as_double(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values.cast(pa.float64())


def _column_of(groups: pa.Table, name: str, final: FinalLevel) -> pa.ChunkedArray:
    if name in final.keys:
        return groups.column(final.keys.index(name))
    names = [column.name for column in final.merged]
    return groups.column(len(final.keys) + names.index(name))
