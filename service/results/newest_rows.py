"""Of rows with equal keys, the newest: a base of rows with unequal keys, and a log of newer rows, as one table.

Keys are told apart as GROUP BY tells them: NULL is equal to NULL, and NaN to NaN. They may have any type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc


class KeyCodes:
    """Numbers for the combinations of values that `columns`, of one table, have."""

    def __init__(self, columns: Sequence[pa.ChunkedArray]) -> None:
        """Holds the unequal values of each column, and the unequal combinations of any first columns."""
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
        """The numbers of other rows; NULL for a combination that the table has not. Not where there are no columns."""
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
    """The last row of each combination of `keys`, in the order of these rows. Holds `rows` twice at most."""
    codes = KeyCodes([rows.column(name) for name in keys]).codes
    return rows.slice(max(rows.num_rows - 1, 0)) if codes is None else _newest(rows, codes)[0]


def merged(base: Iterable[pa.RecordBatch], log: pa.Table, keys: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of `base`, each replaced by the newest one of `log` with its keys, in their order; then what is left of
    `log`, whose rows stand from the oldest on.

    `base` has one row for each combination of `keys` and may be of any size: it is read a batch at a time. `log` is
    held, with its keys.
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


def _newest(rows: pa.Table, codes: pa.ChunkedArray) -> tuple[pa.Table, pa.Array]:
    """The last row of each code, in the order of these rows; and at which position it is there, by code."""
    numbered = pa.table({"code": codes, "row": _numbers(rows.num_rows)})
    # Groups come in the order of their first rows, as codes are given.
    last = numbered.group_by("code", use_threads=False).aggregate([("row", "max")]).column("row_max").combine_chunks()
    order = pc.sort_indices(last)
    newest = rows if len(last) == rows.num_rows else rows.take(last.take(order))
    # Sorted, a permutation gives its inverse.
    return newest, pc.sort_indices(order)


def _numbers(count: int) -> pa.Array:
    """0, 1, 2 and so on."""
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count)), 1)


def _replaced(rows: pa.Table, newer: pa.Table, positions: pa.Array) -> pa.Table:
    """`rows`, with the next one of `newer` in the place of each that has a position."""
    hit = pc.is_valid(positions)
    behind = pc.add(pc.cumulative_sum(hit.cast(pa.int64())), rows.num_rows - 1)
    taken = pc.if_else(hit, behind, _numbers(rows.num_rows))
    return pa.concat_tables([rows, newer]).combine_chunks().take(taken)


def _comparable(columns: Iterable[pa.ChunkedArray]) -> Iterator[pa.ChunkedArray]:
    """Columns of atomic types that are equal in the same rows."""
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
            # More than 2 GiB of texts in one array take wider offsets.
            yield column.cast(pa.large_string() if pa.types.is_string(kind) else pa.large_binary())
        else:
            yield column
