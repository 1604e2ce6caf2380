"""What could not be read of a table before the run: in full for the log, in a sentence each for the plan report.

Sampled lines of text as Arrow tables, all of whose values are texts.

A bounded, repeatable sample of a table's files: spread over the files, and over the rows within each.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from service.contract.job import ReadOptions, TableFormat, TableSource
from service.data.file_io import (
    COMPRESSED,
    DataFile,
    bytes_of,
    for_each,
    local_path,
    may_break_lines,
    opened,
    rows_in,
    size_of,
    text_of,
    whole_rows,
)
from service.data.roots import StoreUnavailableError
from workers.engine.budget import no_check
from workers.engine.spark.parquet_footers import ranges_of, width_of
from workers.engine.statistics.model import ValueRange

_log = logging.getLogger(__name__)


class Troubles:
    """Collects them. Several threads read the files of a store, and all of them may add to one object.

    Callers run `check` before each file; it raises once the statistics are no longer needed.
    """

    def __init__(self, check: Callable[[], None] = no_check) -> None:
        self.check = check
        self._found: list[tuple[str, str, str]] = []

    def add(self, what: str, file: DataFile | None, error: Exception) -> None:
        """`what` could not be read, such as `The footer`, of `file` or of no file that is known."""
        _log.warning("statistics: %s of %s cannot be read: %s", what, file, error)
        self._found.append((what, "" if file is None else file.name, _reason(error)))

    def sentences(self) -> tuple[str, ...]:
        """One for each thing that could not be read, with the first file and how many more; no path beyond its name."""
        told = []
        for what in dict.fromkeys(what for what, _, _ in self._found):
            names = [(name, reason) for one, name, reason in self._found if one == what]
            name, reason = min(names)
            others = f" and of {len(names) - 1} more" if len(names) > 1 else ""
            told.append(f"{what}{f' of {name}' if name else ''}{others} cannot be read: {reason}.")
        return tuple(told)


def _reason(error: Exception) -> str:
    if isinstance(error, StoreUnavailableError):
        return str(error).rstrip(".")
    if isinstance(error, OSError):
        # Not its text, into which Arrow puts the whole path.
        return os.strerror(error.errno) if error.errno is not None else "what it holds is not what its format has"
    return "what it holds is not what its format has"


def csv_table(lines: list[bytes], options: ReadOptions, names: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """The `columns` of these lines of CSV, as text; `names` are all declared columns, in order.

    Raises ArrowException for what is no CSV.
    """
    # By position, since names may repeat in another case.
    positions = {name: str(index) for index, name in enumerate(names)}
    wanted = [positions[column] for column in columns]
    table = pa_csv.read_csv(
        pa.BufferReader(b"\n".join(lines) + b"\n"),
        read_options=pa_csv.ReadOptions(column_names=list(positions.values())),
        parse_options=pa_csv.ParseOptions(
            delimiter=options.delimiter,
            quote_char=options.quote,
            invalid_row_handler=lambda _row: "skip",
        ),
        convert_options=pa_csv.ConvertOptions(
            include_columns=wanted,
            column_types=dict.fromkeys(wanted, pa.string()),
            strings_can_be_null=True,
            null_values=[options.null_value],
        ),
    )
    return table.rename_columns(list(columns))


def json_table(lines: list[bytes], columns: Sequence[str]) -> pa.Table:
    """The `columns` of these lines of JSON, as text. Raises ValueError for what is no JSON."""
    documents = [document for line in lines if isinstance(document := json.loads(line), dict)]
    return pa.table(
        {
            column: pa.array(
                [None if (value := document.get(column)) is None else _json_text(value) for document in documents],
                pa.string(),
            )
            for column in columns
        }
    )


def _json_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


MAX_FILES = 8
"""Files of a table that are sampled, where these have enough rows."""

MAX_ROWS_PER_FILE = 65_536
"""Rows kept of one file."""

_TARGET_ROWS_PER_FILE = 64_000
"""Aimed at, since each row is drawn by itself: no draw comes to much more than the maximum."""

MAX_FOOTERS = 64
"""Footers read for row counts; the rows of more files are extrapolated by bytes."""

_MAX_DECODED_ROWS = 2_000_000
"""Rows of a table that are decoded to choose the kept ones from: a quarter of a second at most."""

_ROW_GROUPS = (8, 64)
"""Row groups of a file that are opened: at least, if it has them, and at most, where they are small."""

_REMOTE_ROW_GROUPS = (8, 8)
"""The same of a file in a store, where each column of a row group is a request."""

_REMOTE_BUFFER_BYTES = 256 << 10
"""Read at once from a store; without, Arrow fetches the whole column of a row group for its first page."""

MAX_WIDTH = 64
"""Bytes of a value above which decoding a column takes longer than knowing it is worth, unless it is a key."""

_BATCH_ROWS = 16_384
_SEED = 20_130_101

_BLOCKS_PER_FILE = 4
_BLOCK_BYTES = 64 << 10
BYTES_PER_ROW = 100
"""Assumed where nothing can be measured: compressed text, and documents over several lines."""


T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    """Rows of a table, with the columns asked for under their names in the files; None where none could be read.

    `cut_short` are the columns that a file is sorted by of which the beginning alone was read. `ranges` are those of
    the columns asked for, as far as the footers that were read tell them. `warnings` tell what could not be read.
    """

    rows: int
    rows_are_exact: bool
    table: pa.Table | None
    cut_short: frozenset[str] = frozenset()
    ranges: Mapping[str, ValueRange] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most `count` of the items, evenly spread, the first and the last among them; in order.

    >>> spread(range(10), 4)
    [0, 3, 6, 9]
    """
    if len(items) <= count:
        return list(items)
    if count == 1:
        return [items[len(items) // 2]]
    return [items[round(index * (len(items) - 1) / (count - 1))] for index in range(count)]


def sample_parquet(
    files: Sequence[DataFile],
    total_bytes: int,
    columns: Sequence[str],
    optional: Collection[str] = (),
    ranged: Collection[str] = (),
    check: Callable[[], None] = no_check,
) -> Sample:
    """Rows by the footers, exact up to 64 files, and at most 64 Ki rows of `columns` from each of 8 files.

    Where these 8 are too small for 64,000 rows, as many more are read as it takes, up to the 64. Those of `columns`
    that are `optional` are left out where they are wide. Ranges are those of `ranged`, too. `check` is called before
    each file is read; what it raises is passed on.
    """
    troubles = Troubles(check)
    footers = _footers(spread(files, MAX_FOOTERS), troubles)
    rows = sum(footer.num_rows for footer in footers.values())
    exact = len(footers) == len(files)
    if not exact:
        read_bytes = sum(size_of(file) for file in footers)
        rows = round(rows * total_bytes / read_bytes) if read_bytes else total_bytes // BYTES_PER_ROW
    columns = [name for name in columns if name not in optional or width_of(name, footers.values()) <= MAX_WIDTH]
    table, cut_short = _parquet_rows(footers, columns, troubles) if columns else (None, set())
    told = ranges_of(footers.values(), {*columns, *ranged})
    ranges = {name: replace(found, is_whole=found.is_whole and exact) for name, found in told.items()}
    return Sample(rows, exact, table, frozenset(cut_short), ranges, troubles.sentences())


def _footers(files: Sequence[DataFile], troubles: Troubles) -> dict[DataFile, pq.FileMetaData]:
    """The footers that can be read."""

    def read(file: DataFile) -> pq.FileMetaData | None:
        troubles.check()
        try:
            with opened(file) as stream:
                return pq.read_metadata(stream)
        except (OSError, pa.ArrowException) as error:
            troubles.add("The footer", file, error)
            return None

    footers: dict[DataFile, pq.FileMetaData] = {}
    try:
        for file, footer in zip(files, for_each(files, read), strict=True):
            if footer is not None:
                footers[file] = footer  # noqa: PERF403 - those before a failure are kept
    except StoreUnavailableError as error:  # each of the others would wait as long to fail
        troubles.add("The footer", None, error)
    return footers


def _parquet_rows(
    footers: dict[DataFile, pq.FileMetaData], columns: Sequence[str], troubles: Troubles
) -> tuple[pa.Table | None, set[str]]:
    chosen = _files_to_sample({file: footer.num_rows for file, footer in footers.items() if footer.num_rows})
    cut_short: set[str] = set()
    if not chosen:
        return None, cut_short
    # One rate for all files, so that a row of a large file is as likely to be kept as one of a small file.
    rate = min(1.0, _TARGET_ROWS_PER_FILE / max(footers[file].num_rows for file in chosen))
    seeds = {file: _SEED + number for number, file in enumerate(chosen)}

    def read(file: DataFile) -> tuple[pa.Table, set[str]] | None:
        troubles.check()
        try:
            return _sample_file(file, columns, rate, _MAX_DECODED_ROWS // len(chosen), seeds[file])
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            troubles.add("A sample", file, error)
            return None

    parts: list[pa.Table] = []
    try:
        for sampled in for_each(chosen, read):
            if sampled is not None and _add(parts, sampled[0], troubles):
                cut_short |= sampled[1]
    except StoreUnavailableError as error:
        troubles.add("A sample", None, error)
    return (pa.concat_tables(parts) if parts else None), cut_short


def _add(parts: list[pa.Table], part: pa.Table, troubles: Troubles) -> bool:
    try:
        parts.append(part if not parts else part.cast(parts[0].schema))
    except (pa.ArrowException, ValueError) as error:
        troubles.add("A sample", None, error)
        return False
    return True


def _files_to_sample(rows: Mapping[DataFile, int]) -> list[DataFile]:
    chosen = spread(list(rows), MAX_FILES)
    while len(chosen) < len(rows) and sum(rows[path] for path in chosen) < _TARGET_ROWS_PER_FILE:
        chosen = spread(list(rows), 2 * len(chosen))
    return chosen


def _sample_file(
    path: DataFile, columns: Sequence[str], rate: float, max_decoded: int, seed: int
) -> tuple[pa.Table, set[str]]:
    """About `rate` of the file's rows, from row groups spread over the file, and the columns cut short in one of them.

    Of each group at most its share of `max_decoded` rows is decoded: a page that is not reached is not read.
    """
    with _parquet_file(path) as file:
        fewest, most = _ROW_GROUPS if local_path(path) else _REMOTE_ROW_GROUPS
        enough = max_decoded * file.num_row_groups // max(1, file.metadata.num_rows) + 1
        groups = spread(range(file.num_row_groups), min(max(fewest, enough), most))
        per_group = max(_BATCH_ROWS, max_decoded // len(groups))
        decoded = sum(min(per_group, file.metadata.row_group(group).num_rows) for group in groups)
        keep = min(1.0, rate * file.metadata.num_rows / max(1, decoded))
        batches: list[pa.RecordBatch] = []
        cut_short: set[str] = set()
        for group in groups:
            head = list(_head(file, group, columns, per_group))
            batches.extend(_thin(batch, keep, seed + number) for number, batch in enumerate(head, start=len(batches)))
            cut_short |= _cut_short(file.metadata.row_group(group), pa.Table.from_batches(head))
        return pa.Table.from_batches(batches).slice(0, MAX_ROWS_PER_FILE), cut_short


@contextmanager
def _parquet_file(path: DataFile) -> Iterator[pq.ParquetFile]:
    if local_path(path) is not None:
        # By what was opened, and not by its name, which may lead elsewhere by now.
        with opened(path) as stream, pq.ParquetFile(f"/dev/fd/{stream.fileno()}", memory_map=True) as file:
            yield file
    else:
        with opened(path) as stream, pq.ParquetFile(stream, buffer_size=_REMOTE_BUFFER_BYTES) as file:
            yield file


def _head(file: pq.ParquetFile, group: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    read = 0
    for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=list(columns), use_threads=False):
        yield _without_views(batch.slice(0, rows - read))
        read += batch.num_rows
        if read >= rows:
            return


def _without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with plain strings in place of views, which Arrow neither filters nor compares."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    if not any(field.type in plain for field in batch.schema):
        return batch
    return batch.cast(pa.schema([field.with_type(plain.get(field.type, field.type)) for field in batch.schema]))


def _cut_short(group: pq.RowGroupMetaData, head: pa.Table) -> set[str]:
    """The columns of `head` that the row group is sorted by, as far as it was read, and that go on behind it."""
    if head.num_rows >= group.num_rows:
        return set()
    known = {chunk.path_in_schema: chunk.statistics for chunk in map(group.column, range(group.num_columns))}
    return {name for name in head.column_names if _goes_on(head.column(name), known.get(name))}


def _goes_on(head: pa.ChunkedArray, known: pq.Statistics | None) -> bool:
    values = head.drop_null()
    earlier, later = values.slice(0, max(len(values) - 1, 0)), values.slice(1)
    try:
        rises = pc.all(pc.less_equal(earlier, later), min_count=0).as_py()
        falls = pc.all(pc.greater_equal(earlier, later), min_count=0).as_py()
        if not (rises or falls):
            return False
        if not len(values) or known is None or not known.has_min_max:
            return True
        more_nulls = not known.has_null_count or known.null_count > head.null_count
        first, last = (values[0].as_py(), values[-1].as_py()) if rises else (values[-1].as_py(), values[0].as_py())
        return more_nulls or bool(known.max > last) or bool(known.min < first)
    except (pa.ArrowException, TypeError):
        # A type without an order is not sorted by.
        return False


def _thin(batch: pa.RecordBatch, keep: float, seed: int) -> pa.RecordBatch:
    if keep >= 1.0:
        return batch
    # Each row by itself, and not every n-th: data repeats in periods more often than by a pseudo-random sequence.
    return batch.filter(pc.less(pc.random(batch.num_rows, initializer=seed), pa.scalar(keep)))


def sample_text(
    source: TableSource,
    files: Sequence[DataFile],
    total_bytes: int,
    names: Sequence[str],
    columns: Sequence[str],
    check: Callable[[], None] = no_check,
) -> Sample:
    """Rows by the average line of a few blocks of at most 8 files, and these blocks' `columns`, as text.

    `names` are all declared columns, in order. Compressed files and documents over several lines are not sampled, nor
    are the values of CSV where one of them goes over several lines; its rows are counted from the files' beginnings.
    `check` is as in `sample_parquet`.
    """
    is_csv = source.format is TableFormat.CSV
    is_document = source.options.multi_line and not is_csv
    if is_document or any(path.suffix.lower() in COMPRESSED for path in files):
        return Sample(total_bytes // BYTES_PER_ROW, False, None)
    lines: list[bytes] = []
    troubles = Troubles(check)
    skip_header = is_csv and source.options.header
    for path in spread([path for path in files if _may_have_lines(path)], MAX_FILES):
        troubles.check()
        try:
            lines.extend(_lines(path, skip_header))
        except OSError as error:
            troubles.add("A sample", path, error)
        except StoreUnavailableError as error:
            troubles.add("A sample", None, error)
            break
    if not lines and not troubles.sentences() and _are_read_whole(files):
        # A header at most.
        return Sample(0, True, None)
    read_bytes = sum(len(line) + 1 for line in lines)
    rows = round(total_bytes * len(lines) / read_bytes) if read_bytes else total_bytes // BYTES_PER_ROW
    is_broken = is_csv and source.options.multi_line and may_break_lines(lines, source.options.quote)
    if is_broken:
        rows = _rows_from_beginnings(source.options, files, total_bytes, troubles) or rows
    if not columns or not lines or is_broken:
        return Sample(rows, False, None, warnings=troubles.sentences())
    try:
        table = csv_table(lines, source.options, names, columns) if is_csv else json_table(lines, columns)
    except (pa.ArrowException, ValueError) as error:
        troubles.add("A sample", None, error)
        table = None
    return Sample(rows, False, table, warnings=troubles.sentences())


def _rows_from_beginnings(
    options: ReadOptions, files: Sequence[DataFile], total_bytes: int, troubles: Troubles
) -> int | None:
    """Of all files, by the rows at the beginnings of some: elsewhere in a file, nobody knows what is in quotes. None
    where no row ends there.
    """
    rows = read_bytes = 0
    for path in spread([path for path in files if _may_have_lines(path)], MAX_FILES):
        troubles.check()
        try:
            with opened(path) as file:
                text = text_of(file.read(_BLOCKS_PER_FILE * _BLOCK_BYTES))
        except OSError as error:
            troubles.add("A sample", path, error)
            continue
        except StoreUnavailableError as error:
            troubles.add("A sample", None, error)
            break
        whole = whole_rows(text, options)
        rows += rows_in(whole, options)
        read_bytes += len(bytes_of(whole))
    return round(total_bytes * rows / read_bytes) if rows else None


def _are_read_whole(files: Sequence[DataFile]) -> bool:
    with_lines = [path for path in files if _may_have_lines(path)]
    return len(with_lines) <= MAX_FILES and all(size_of(path) <= _BLOCKS_PER_FILE * _BLOCK_BYTES for path in with_lines)


def _may_have_lines(path: DataFile) -> bool:
    try:
        return size_of(path) > 0
    except OSError:  # told by whoever opens it
        return True


def _lines(path: DataFile, skip_header: bool) -> Iterable[bytes]:
    """Whole lines from the blocks of one file; all lines of a small one."""
    size = size_of(path)
    lines: list[bytes] = []
    with opened(path) as file:
        if size <= _BLOCKS_PER_FILE * _BLOCK_BYTES:
            lines = file.read().splitlines()[int(skip_header) :]
            return [line for line in lines if line.strip()]
        for offset in spread(range(0, size - _BLOCK_BYTES + 1, _BLOCK_BYTES), _BLOCKS_PER_FILE):
            file.seek(offset)
            block = file.read(_BLOCK_BYTES).splitlines()
            # What stands at both ends of a block is part of a line, or may be.
            lines.extend(block[1 if offset or skip_header else 0 : -1])
    return [line for line in lines if line.strip()]
