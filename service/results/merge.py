"""Merges the rows of a managed table: the newest row of each key (`merged`), and final aggregates of groups (`finals`).

Keys are compared as in GROUP BY: NULL equals NULL, and NaN equals NaN. They may have any type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from service.sql.types.aggregates import FinalColumn, FinalLevel, Merge, MergedColumn

_ROWS_PER_BATCH = 1 << 20
_AGGREGATES = {Merge.SUM: "sum", Merge.MIN: "min", Merge.MAX: "max"}


class KeyCodes:
    """Integer codes for the distinct combinations of values in `columns` of one table."""

    def __init__(self, columns: Sequence[pa.ChunkedArray]) -> None:
        """Stores the distinct values of each column, and the distinct combinations of each prefix of the columns."""
        self._steps: list[tuple[pa.Array, pa.Array | None]] = []
        codes: pa.Array | None = None
        for column in _comparable(columns):
            values = pc.unique(column)
            own = pc.index_in(column, value_set=values).cast(pa.int64())
            if codes is None:
                self._steps.append((values, None))
                codes = own
            else:
                pairs = pc.add(pc.multiply(codes, len(values)), own)
                combinations = pc.unique(pairs)
                self._steps.append((values, combinations))
                codes = pc.index_in(pairs, value_set=combinations).cast(pa.int64())
        self.codes: pa.ChunkedArray | None = codes
        """The number of each row of the table, from 0 on in the order of the first rows that have it.

        None where there are no columns, and all rows are equal.
        """

    def of(self, columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
        """Returns the codes of other rows; NULL for combinations that the table does not contain. Requires at least one
        column.
        """
        codes: pa.ChunkedArray | None = None
        for column, (values, combinations) in zip(_comparable(columns), self._steps, strict=True):
            own = pc.index_in(column, value_set=values).cast(pa.int64())
            if combinations is None:
                codes = own
            else:
                pairs = pc.add(pc.multiply(codes, len(values)), own)
                codes = pc.index_in(pairs, value_set=combinations).cast(pa.int64())
        return codes


def newest_of(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Returns the last row of each combination of `keys`, in row order. Holds at most two copies of `rows`."""
    codes = KeyCodes([rows.column(name) for name in keys]).codes
    return rows.slice(max(rows.num_rows - 1, 0)) if codes is None else _newest(rows, codes)[0]


def merged(base: Iterable[pa.RecordBatch], log: pa.Table, keys: Sequence[str]) -> Iterator[pa.Table]:
    """Yields the rows of `base`, each replaced by the newest row of `log` with the same keys, in the order of `base`;
    then the remaining rows of `log`, whose rows must be ordered from oldest to newest.

    `base` has one row for each combination of `keys`; it is read in batches and may be of any size. `log` is held in
    memory with its keys.
    """
    if not log.num_rows:
        yield from (pa.Table.from_batches([batch]) for batch in base)
        return
    known = KeyCodes([log.column(name) for name in keys])
    if known.codes is None:
        yield log.slice(log.num_rows - 1)
        return
    newest, positions = _newest(log, known.codes)
    found: list[pa.Array] = []
    for batch in base:
        rows = pa.Table.from_batches([batch])
        replacing = positions.take(known.of([rows.column(name) for name in keys]).combine_chunks())
        hits = replacing.drop_null()
        if not len(hits):
            yield rows
            continue
        found.append(hits)
        yield _replaced(rows, newest.take(hits), replacing)
    if not found:
        yield newest
        return
    replaced = pc.is_in(_numbers(newest.num_rows), value_set=pa.concat_arrays(found))
    rest = newest.filter(pc.invert(replaced))
    if rest.num_rows:
        yield rest


def present(rows: pa.Table, weight: str) -> pa.Table:
    """Returns the rows whose number in the column `weight` is greater than 0."""
    return rows.filter(pc.greater(rows.column(weight), 0))


def repeated(rows: pa.Table, weight: str) -> pa.Table:
    """Returns each row as often as its number in the column `weight` says, in their order."""
    there = present(rows, weight)
    if pc.max(there.column(weight)).as_py() in {None, 1}:
        return there
    numbers = there.column(weight).to_pylist()
    return there.take(pa.array([place for place, number in enumerate(numbers) for _ in range(number)], pa.int64()))


def _newest(rows: pa.Table, codes: pa.ChunkedArray) -> tuple[pa.Table, pa.Array]:
    """Returns the last row of each code, in row order; and its position in that result, by code."""
    numbered = pa.table({"code": codes, "row": _numbers(rows.num_rows)})
    # Groups are in the order of their first rows, which is the order of codes.
    last = numbered.group_by("code", use_threads=False).aggregate([("row", "max")]).column("row_max").combine_chunks()
    order = pc.sort_indices(last)
    newest = rows if len(last) == rows.num_rows else rows.take(last.take(order))
    # The sort indices of a permutation are its inverse.
    return newest, pc.sort_indices(order)


def _numbers(count: int) -> pa.Array:
    """Returns the first `count` integers from 0."""
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count)), 1)


def _replaced(rows: pa.Table, newer: pa.Table, positions: pa.Array) -> pa.Table:
    """Replaces each row that has a position by the next row of `newer`."""
    hit = pc.is_valid(positions)
    newer_positions = pc.add(pc.cumulative_sum(hit.cast(pa.int64())), rows.num_rows - 1)
    taken = pc.if_else(hit, newer_positions, _numbers(rows.num_rows))
    return pa.concat_tables([rows, newer]).combine_chunks().take(taken)


def _comparable(columns: Iterable[pa.ChunkedArray]) -> Iterator[pa.ChunkedArray]:
    """Yields columns of atomic types that are equal in the same rows."""
    for column in columns:
        kind = column.type
        if pa.types.is_struct(kind):
            yield pc.is_null(column)
            yield from _comparable(pc.struct_field(column, [index]) for index in range(kind.num_fields))
        elif pa.types.is_nested(kind):
            yield pa.chunked_array(
                [[None if value is None else repr(value) for value in column.to_pylist()]], pa.string()
            )
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            # An array with more than 2 GiB of text requires 64-bit offsets.
            yield column.cast(pa.large_string() if pa.types.is_string(kind) else pa.large_binary())
        else:
            yield column


def finals(parts: Iterable[pa.Table], final: FinalLevel, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yields one row for each group of `parts`, in the order in which groups first appear, in `schema`: that of
    `final.output`.

    Holds one row for each group, and parts of at most 1 Mi rows or the number of groups, whichever is larger. Raises
    pa.ArrowInvalid if a sum does not fit the type of its column.
    """
    groups: pa.Table | None = None
    waiting: list[pa.Table] = []
    rows = 0
    for table in parts:
        waiting.append(_summands(table, final))
        rows += table.num_rows
        if rows >= max(_ROWS_PER_BATCH, 0 if groups is None else groups.num_rows):
            groups = _grouped([*([] if groups is None else [groups]), *waiting], final)
            waiting, rows = [], 0
    if waiting or groups is None:
        groups = _grouped([*([] if groups is None else [groups]), *waiting], final)
    if groups is None or not groups.num_rows:
        return
    columns = [_final(groups, column, final, schema.field(index).type) for index, column in enumerate(final.output)]
    yield pa.Table.from_arrays(columns, schema=schema)


def check_mergeable(final: FinalLevel, schema: pa.Schema) -> None:
    """Raises ValueError, naming the column, if a column of `schema` cannot be merged as `final` requires."""
    for column in final.merged:
        kind = schema.field(column.name).type
        numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        if pa.types.is_nested(kind) or (column.merge is Merge.SUM and not numeric):
            raise ValueError(f"The column {column.name} of type {kind} does not support {column.merge}.")


def _summands(table: pa.Table, final: FinalLevel) -> pa.Table:
    """Returns keys and merged columns only, with sums in the widest type, in which they do not overflow."""
    arrays = [table.column(name) for name in final.keys]
    arrays += [_widened(table.column(column.name), column) for column in final.merged]
    return pa.table(arrays, names=_names(final))


def _names(final: FinalLevel) -> list[str]:
    """Returns names by position, since the names of columns are not necessarily distinct."""
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
    # For Spark, NaN is greater than all numbers; Arrow's max ignores it.
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
        # Division of a double by 0 is infinite; the result must be NULL.
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
