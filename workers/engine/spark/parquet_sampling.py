"""Reads Parquet files before a run: the footers, a sample of the rows, and the widths of text columns.

- Footers have the number of rows, the ranges of columns, and the encoded width of a value.
- The sample is limited and repeatable. Its rows are spread over the files, and over the rows of each file.
- The width of a string in memory is measured in a few slices of rows. It may be much larger than the encoded width: a
  repeated string takes almost nothing in a file, and its whole length in a hash table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.data.file_io import DataFile, local_path, opened, size_of
from service.data.spread import spread
from workers.engine.budget import no_check
from workers.engine.spark.sampling import BYTES_PER_ROW, MAX_FILES, FileReads, Sample
from workers.engine.statistics.model import ValueRange

MAX_FOOTERS = 64
"""Footers that are read for row counts. The rows of further files are extrapolated by bytes."""

MAX_ROWS_PER_FILE = 65_536
"""Rows of one file in a sample."""

MAX_WIDTH = 64
"""Encoded bytes of a value. A wider column takes more time to decode than its statistics save, unless it is a key."""

MARGIN = 1.5
"""Factor of the widest slice, since other parts of the table may be wider."""


@dataclass(frozen=True)
class _Amount:
    """How many rows of a table are sampled. At most `share` of the rows of its files are kept, if that is more than the
    target of one file. To draw them, `decoded_share` of the rows are decoded, but not fewer than the first number in
    `decoded`, and not more than the second. In files, `row_groups` are opened: at least (if the file has them), and at
    most (if they are small).
    """

    share: float
    decoded: tuple[int, int]
    decoded_share: float
    row_groups: tuple[int, int]
    least_per_group: int


_TARGET_ROWS_PER_FILE = 64_000
"""Less than the maximum, since each row is drawn independently and their number varies."""

_FULL = _Amount(1 / 16, (500_000, 2_000_000), 1 / 8, (8, 64), 16_384)
"""To group more rows would take longer than a query over the same files. The rows that are decoded take a quarter of a
second at most. A query that reads the same columns decodes all."""

_SMALL = _Amount(0.0, (128_000, 128_000), 0.0, (8, 8), 2_048)
"""Enough for keys with few values."""

_SMALL_FOOTERS = 16
_SMALL_TABLE_ROWS = 2_000_000
"""For fewer rows, the full sample takes little time."""

_FEW_VALUES = 1_000
"""A larger range of a column shows that the small sample would not be enough."""

_SORTED_ROWS = 256
"""Rows of a row group that decide whether it can be sorted by a column."""

_REMOTE_ROW_GROUPS = (8, 8)
"""The row groups that are opened of a file in a store, where each column of a row group is a request."""

_BUFFER_BYTES = 256 << 10
"""Bytes that are read at once. Without this limit, Arrow fetches the whole column of a row group for its first page."""

_BATCH_ROWS = 16_384
_SEED = 20_130_101

_WIDTH_FOOTERS = 8
"""Footers whose first row group is used for the encoded width."""

_RANGE_ROW_GROUPS = 64
"""Row groups of a file whose ranges are read. Of more row groups, this many are chosen, evenly spread."""

_SLICES = 4
"""Slices of a table in which widths are measured: at the first rows of row groups, of four files or of one, and also
within a row group if there are fewer."""

_SLICE_ROWS = 4_096
_SLICE_BYTES = 1 << 20
_MIN_SLICE_ROWS = 64
"""Rows of a slice: fewer if values are wide."""

_MAX_SLICED_BYTES = 32 << 20
"""Encoded bytes of a row group in which several slices are read. Everything before a slice must be read, so a larger
row group of which several slices are needed is not measured."""

_EPOCH = date(1970, 1, 1)


def column_leaves(footer: pq.FileMetaData) -> dict[str, int]:
    """Returns the indexes of the leaves that are columns, by name; without the fields of structs, lists and maps.

    The path of a field has dots and may equal the name of a column, but only the path of a column equals its leaf name.
    """
    leaves = ((index, footer.schema.column(index)) for index in range(footer.num_columns))
    return {leaf.name: index for index, leaf in leaves if leaf.name == leaf.path}


def encoded_width(column: str, footers: Iterable[pq.FileMetaData]) -> float:
    """Returns the bytes of a value as it is encoded, before compression; 0 if no footer has the column."""
    rows = size = 0
    for footer in list(footers)[:_WIDTH_FOOTERS]:
        indices = column_leaves(footer)
        if footer.num_row_groups and column in indices:
            group = footer.row_group(0)
            rows += group.num_rows
            size += group.column(indices[column]).total_uncompressed_size
    return size / rows if rows else 0.0


def ranges_of(footers: Iterable[pq.FileMetaData], columns: Collection[str]) -> dict[str, ValueRange]:
    """Returns the ranges of those `columns` that have integers, dates (in days since 1970) or decimals (unscaled).

    A column is left out if a row group with values has no range of it. If a file has very many row groups, only some
    are read, and the range is not whole.
    """
    footers = list(footers)
    is_whole = all(footer.num_row_groups <= _RANGE_ROW_GROUPS for footer in footers)
    leaves = [(footer, column_leaves(footer)) for footer in footers]
    ranges = {}
    for name in columns:
        bounds = [_bounds(footer, indices.get(name)) for footer, indices in leaves]
        known = [value for of_file in bounds if of_file is not None for value in of_file]
        if known and None not in bounds:
            ranges[name] = ValueRange(min(known), max(known), is_whole)
    return ranges


def _bounds(footer: pq.FileMetaData, index: int | None) -> list[int] | None:
    """Returns the smallest and largest values of the file's row groups; None if one of them is not known."""
    if index is None:
        return None
    bounds: list[int] = []
    step = -(-footer.num_row_groups // _RANGE_ROW_GROUPS) or 1
    for number in range(0, footer.num_row_groups, step):
        group = footer.row_group(number)
        if not group.num_rows:
            continue
        statistics = group.column(index).statistics
        if statistics is None:
            return None
        if not statistics.has_min_max:
            if statistics.null_count != group.num_rows:
                return None
            continue
        low, high = _integer_of(statistics.min), _integer_of(statistics.max)
        if low is None or high is None:
            return None
        bounds += [low, high]
    return bounds


def _integer_of(value: object) -> int | None:
    """Returns the integer that represents the value in a range; None for types without one."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Decimal):
        return int("".join(map(str, value.as_tuple().digits))) * (-1 if value.is_signed() else 1)
    if isinstance(value, date) and not isinstance(value, datetime):
        return (value - _EPOCH).days
    return None


def sample_parquet(
    files: Sequence[DataFile],
    total_bytes: int,
    columns: Sequence[str],
    optional: Collection[str] = (),
    ranged: Collection[str] = (),
    check: Callable[[], None] = no_check,
    is_enough: Callable[[Sample], bool] | None = None,
) -> Sample:
    """Returns the number of rows, which is exact up to 64 files, and at most 64 Ki rows of `columns` from each of 8
    files, together at most the larger of 64,000 rows and a sixteenth. Of a large table, a small sample is drawn first:
    if `is_enough` returns True for it, it is returned.

    If these 8 files have fewer than 64,000 rows, more files are read, up to 64. Those of `columns` that are `optional`
    are left out if they are wide. Ranges include those of `ranged`. `check` is called before each file is read; it may
    raise.
    """
    reads = FileReads(check)
    if is_enough is not None and columns:
        # The rows of more files than have their footers read are extrapolated anyway.
        some = files if len(files) <= MAX_FOOTERS else spread(files, _SMALL_FOOTERS)
        table = _Table(files, total_bytes, dict(reads.read("The footer", some, _footer)), columns, optional, ranged)
        if table.has_few_values and table.rows >= _SMALL_TABLE_ROWS:
            small = table.sample(reads, _SMALL)
            if small.warnings or is_enough(small):
                return small
        if some is files:
            return table.sample(reads, _FULL)
    footers = dict(reads.read("The footer", spread(files, MAX_FOOTERS), _footer))
    return _Table(files, total_bytes, footers, columns, optional, ranged).sample(reads, _FULL)


class _Table:
    """A table of which some `footers` were read. `columns` are without the `optional` ones that are wide."""

    def __init__(
        self,
        files: Sequence[DataFile],
        total_bytes: int,
        footers: dict[DataFile, pq.FileMetaData],
        columns: Sequence[str],
        optional: Collection[str],
        ranged: Collection[str],
    ) -> None:
        self._footers = footers
        self._is_exact = len(footers) == len(files)
        self.rows = sum(footer.num_rows for footer in footers.values())
        if not self._is_exact:
            read_bytes = sum(size_of(file) for file in footers)
            self.rows = round(self.rows * total_bytes / read_bytes) if read_bytes else total_bytes // BYTES_PER_ROW
        self._columns = [
            name for name in columns if name not in optional or encoded_width(name, footers.values()) <= MAX_WIDTH
        ]
        self._ranges = {
            name: replace(found, is_whole=found.is_whole and self._is_exact)
            for name, found in ranges_of(footers.values(), {*self._columns, *ranged}).items()
        }

    @property
    def has_few_values(self) -> bool:
        """Whether no range of a column shows that a small sample would not be enough."""
        known = [self._ranges[name] for name in self._columns if name in self._ranges]
        return bool(self._columns) and all(found.high - found.low < _FEW_VALUES for found in known)

    def sample(self, reads: FileReads, amount: _Amount) -> Sample:
        """Returns a sample of the columns."""
        nothing: tuple[pa.Table | None, frozenset[str]] = None, frozenset()
        table, cut_short = _sampled_rows(self._footers, self._columns, reads, amount) if self._columns else nothing
        return Sample(self.rows, self._is_exact, table, cut_short, self._ranges, reads.warnings())


def _footer(file: DataFile) -> pq.FileMetaData:
    with opened(file) as stream:
        return pq.read_metadata(stream)


def _sampled_rows(
    footers: dict[DataFile, pq.FileMetaData], columns: Sequence[str], reads: FileReads, amount: _Amount
) -> tuple[pa.Table | None, frozenset[str]]:
    chosen = _files_to_sample({file: footer.num_rows for file, footer in footers.items() if footer.num_rows})
    if not chosen:
        return None, frozenset()
    # The same rate for all files, so that a row of a large file is as likely to be kept as one of a small file.
    rows = [footers[file].num_rows for file in chosen]
    rate = min(1.0, _TARGET_ROWS_PER_FILE / max(rows), max(_TARGET_ROWS_PER_FILE / sum(rows), amount.share))
    seeds = {file: _SEED + number for number, file in enumerate(chosen)}
    least, most = amount.decoded
    decoded = min(max(least, round(amount.decoded_share * sum(footer.num_rows for footer in footers.values()))), most)
    found = reads.read(
        "A sample",
        chosen,
        lambda file: _sample_file(file, columns, rate, decoded // len(chosen), seeds[file], amount),
    )
    parts: list[pa.Table] = []
    cut_short: frozenset[str] = frozenset()
    for _, (part, cut) in found:
        try:
            parts.append(_like(part, parts[0].schema) if parts else part)
            cut_short |= cut
        except (pa.ArrowException, ValueError) as error:
            reads.add("A sample", None, error)
    return _concatenated(parts, reads), cut_short


def _concatenated(parts: Sequence[pa.Table], reads: FileReads) -> pa.Table | None:
    """Returns all rows; columns that a file does not have are NULL there."""
    try:
        return pa.concat_tables(parts, promote_options="permissive") if parts else None
    except (pa.ArrowException, ValueError) as error:
        reads.add("A sample", None, error)
        return None


def _like(part: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the columns of a part with other types of numbers as the first part has them, if it has the same columns.
    Otherwise parts are put together as they are.
    """
    return part.cast(schema) if part.schema.names == schema.names else part


def _files_to_sample(rows: Mapping[DataFile, int]) -> list[DataFile]:
    chosen = spread(list(rows), MAX_FILES)
    while len(chosen) < len(rows) and sum(rows[path] for path in chosen) < _TARGET_ROWS_PER_FILE:
        chosen = spread(list(rows), 2 * len(chosen))
    return chosen


def _sample_file(
    path: DataFile, columns: Sequence[str], rate: float, max_decoded: int, seed: int, amount: _Amount
) -> tuple[pa.Table, set[str]]:
    """Returns about `rate` of the file's rows, from row groups spread over the file, and the columns that are cut short
    in one of the row groups.

    Each row group is decoded up to its part of `max_decoded` rows; the pages after that are not read.
    """
    with _parquet_file(path) as file:
        fewest, most = amount.row_groups if local_path(path) else _REMOTE_ROW_GROUPS
        enough = max_decoded * file.num_row_groups // max(1, file.metadata.num_rows) + 1
        groups = spread(range(file.num_row_groups), min(max(fewest, enough), most))
        per_group = max(amount.least_per_group, max_decoded // len(groups))
        decoded = sum(min(per_group, file.metadata.row_group(group).num_rows) for group in groups)
        keep = min(1.0, rate * file.metadata.num_rows / max(1, decoded))
        batches: list[pa.RecordBatch] = []
        cut_short: set[str] = set()
        for group in groups:
            head = list(_head(file, group, columns, per_group))
            batches.extend(_thinned(batch, keep, seed + number) for number, batch in enumerate(head, len(batches)))
            cut_short |= _cut_short(file.metadata.row_group(group), pa.Table.from_batches(head))
        return pa.Table.from_batches(batches).slice(0, MAX_ROWS_PER_FILE), cut_short


@contextmanager
def _parquet_file(path: DataFile) -> Iterator[pq.ParquetFile]:
    if local_path(path) is not None:
        # By the open descriptor: the name may refer to another file by now.
        with opened(path) as stream, pq.ParquetFile(f"/dev/fd/{stream.fileno()}", memory_map=True) as file:
            yield file
    else:
        with opened(path) as stream, pq.ParquetFile(stream, buffer_size=_BUFFER_BYTES) as file:
            yield file


def _head(file: pq.ParquetFile, group: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    read = 0
    for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=list(columns), use_threads=False):
        yield _without_views(batch.slice(0, rows - read))
        read += batch.num_rows
        if read >= rows:
            return


def _without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch with plain strings instead of string views, which Arrow can neither filter nor compare."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    if not any(field.type in plain for field in batch.schema):
        return batch
    return batch.cast(pa.schema([field.with_type(plain.get(field.type, field.type)) for field in batch.schema]))


def _thinned(batch: pa.RecordBatch, keep: float, seed: int) -> pa.RecordBatch:
    if keep >= 1.0:
        return batch
    # Each row independently, not every n-th row: data often repeats in periods.
    return batch.filter(pc.less(pc.random(batch.num_rows, initializer=seed), pa.scalar(keep)))


def _cut_short(group: pq.RowGroupMetaData, head: pa.Table) -> set[str]:
    """Returns the columns by which the rows of `head` are sorted and which have other values after `head`."""
    if head.num_rows >= group.num_rows:
        return set()
    known = {chunk.path_in_schema: chunk.statistics for chunk in map(group.column, range(group.num_columns))}
    return {name for name in head.column_names if _continues(head.column(name), known.get(name))}


def _continues(head: pa.ChunkedArray, known: pq.Statistics | None) -> bool:
    try:
        # Nearly all columns that are not sorted show it in a few rows.
        if not any(_orders(head.slice(0, _SORTED_ROWS).drop_null())):
            return False
        values = head.drop_null()
        is_rising, is_falling = _orders(values)
        if not (is_rising or is_falling):
            return False
        if not len(values) or known is None or not known.has_min_max:
            return True
        more_nulls = not known.has_null_count or known.null_count > head.null_count
        first, last = values[0].as_py(), values[-1].as_py()
        low, high = (first, last) if is_rising else (last, first)
        return more_nulls or bool(known.max > high) or bool(known.min < low)
    except (pa.ArrowException, TypeError):
        # Nothing is sorted by a type without an order.
        return False


def _orders(values: pa.ChunkedArray) -> tuple[bool, bool]:
    """Returns whether the values rise, and whether they fall; neighbours may be equal."""
    earlier, later = values.slice(0, max(len(values) - 1, 0)), values.slice(1)
    rises = pc.all(pc.less_equal(earlier, later), min_count=0).as_py()
    falls = pc.all(pc.greater_equal(earlier, later), min_count=0).as_py()
    return bool(rises), bool(falls)


def decoded_widths(files: Sequence[DataFile], columns: Collection[str], reads: FileReads) -> dict[str, float | None]:
    """Returns the bytes of a value of each of these text or binary columns in memory, with a margin; None if not known.

    The width is the mean of the widest of a few slices of the table, or the encoded width if that is larger.
    """
    if not columns:
        return {}
    chosen = spread(files, _SLICES)
    found = reads.read("A sample", chosen, lambda file: _widths_of_file(file, columns, -(-_SLICES // len(chosen))))
    return {name: max((widths[name] for _, widths in found if name in widths), default=None) for name in columns}


def _widths_of_file(path: DataFile, columns: Collection[str], slices: int) -> dict[str, float]:
    with opened(path) as stream:
        footer = pq.read_metadata(stream)
        names = sorted({*columns} & column_leaves(footer).keys())
        if not names:
            return {}
        # Keeps the dictionaries of the file, so that a repeated string of a megabyte is read once.
        with pq.ParquetFile(stream, metadata=footer, buffer_size=_BUFFER_BYTES, read_dictionary=names) as file:
            return _widths(file, names, slices)


def _widths(file: pq.ParquetFile, columns: Sequence[str], slices: int) -> dict[str, float]:
    encoded = {name: encoded_width(name, [file.metadata]) for name in columns}
    rows = max(_MIN_SLICE_ROWS, min(_SLICE_ROWS, round(_SLICE_BYTES / max([1.0, *encoded.values()]))))
    widths: dict[str, float] = {}
    groups = spread(range(file.num_row_groups), slices)
    for group in groups:
        for batch in _slices(file, group, columns, rows, -(-slices // len(groups))):
            for name in columns:
                mean = _mean_length(batch.column(name))
                widths[name] = max(widths.get(name, encoded[name]), MARGIN * mean)
    return widths


def _slices(
    file: pq.ParquetFile, group: int, columns: Sequence[str], rows: int, count: int
) -> Iterator[pa.RecordBatch]:
    """Yields at most `count` slices of `rows` rows, spread over a row group; the first one begins at its first row."""
    metadata = file.metadata.row_group(group)
    starts = range(0, max(metadata.num_rows - rows, 0) + 1, rows)
    places = spread(starts, count) if count > 1 else [0]
    if len(places) > 1 and _encoded_bytes(metadata, columns) > _MAX_SLICED_BYTES:
        return
    end = 0
    for batch in file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False):
        end += batch.num_rows
        if places[0] < end:
            yield batch
            places = [place for place in places if place >= end]
        if not places:
            return


def _encoded_bytes(group: pq.RowGroupMetaData, columns: Sequence[str]) -> int:
    chunks = (group.column(index) for index in range(group.num_columns))
    return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema in columns)


def _mean_length(values: pa.Array) -> float:
    if isinstance(values, pa.DictionaryArray):
        lengths = pc.binary_length(values.dictionary).take(values.indices)
    else:
        lengths = pc.binary_length(values)
    return float((pc.sum(lengths).as_py() or 0) / len(values))
