"""Samples of tables before a run: what all formats share, and the samples of CSV and JSON files.

A sample is limited and repeatable: the same files give the same rows. `workers.engine.spark.parquet_sampling` has the
samples of Parquet files.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
import pyarrow.csv as pa_csv

from service.contract.read_options import ParseMode, ReadOptions, TableFormat
from service.contract.tables import TableSource
from service.data.compression import CorruptTextError
from service.data.file_io import (
    COMPRESSED,
    DataFile,
    bytes_of,
    for_each,
    may_break_lines,
    opened,
    rows_in,
    size_of,
    text_of,
    whole_rows,
)
from service.data.roots import StoreUnavailableError
from service.data.spread import spread
from service.data.text_heads import Head, plain_text, read_head
from workers.engine.budget import no_check
from workers.engine.statistics.model import ValueRange

MAX_FILES = 8
"""Sampled files of a table, if they have enough rows."""

BYTES_PER_ROW = 100
"""Assumed for compressed text and for documents over several lines, whose rows are not counted."""

_BLOCKS_PER_FILE = 4
_BLOCK_BYTES = 64 << 10

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sample:
    """Rows of a table: the requested columns under their names in the files; `table` is None if nothing was read.

    `cut_short` are the columns by which a file is sorted and of which only the first rows were read. `ranges` are those
    of the requested columns that the footers have. `warnings` are sentences on what could not be read.
    """

    rows: int
    rows_are_exact: bool
    table: pa.Table | None
    cut_short: frozenset[str] = frozenset()
    ranges: Mapping[str, ValueRange] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class FileReads:
    """Reads files of a table, and collects the errors: in full for the log, as one sentence each for the plan report.

    `check` is called before each file. It raises as soon as the statistics are no longer needed.
    """

    def __init__(self, check: Callable[[], None] = no_check) -> None:
        self._check = check
        self._errors: list[tuple[str, str, str]] = []

    def read(self, what: str, files: Sequence[DataFile], read: Callable[[DataFile], T]) -> list[tuple[DataFile, T]]:
        """Returns the result of `read` for each file that can be read, in order; files of a store are read in parallel.

        `what` is read of each file, such as `The footer`. No more files are read once their store is unavailable.
        """

        def read_one(file: DataFile) -> tuple[DataFile, T] | None:
            self._check()
            try:
                return file, read(file)
            except (OSError, pa.ArrowException, KeyError, ValueError) as error:
                self.add(what, file, error)
                return None

        results: list[tuple[DataFile, T]] = []
        try:
            for result in for_each(files, read_one):
                if result is not None:
                    results.append(result)  # noqa: PERF401 - those before an error are kept
        except StoreUnavailableError as error:  # each of the other files would take as long to fail
            self.add(what, None, error)
        return results

    def add(self, what: str, file: DataFile | None, error: Exception) -> None:
        """Records that `what` of `file` cannot be read; None if the error is not that of one file."""
        _log.warning("statistics: %s of %s cannot be read: %s", what, file, error)
        self._errors.append((what, "" if file is None else file.name, _reason(error)))

    def warnings(self) -> tuple[str, ...]:
        """Returns one sentence for each `what`: the first file, by its name only, and the number of the others."""
        sentences = []
        for what in dict.fromkeys(what for what, _, _ in self._errors):
            failed = [(name, reason) for one, name, reason in self._errors if one == what]
            name, reason = min(failed)
            others = f" and of {len(failed) - 1} more" if len(failed) > 1 else ""
            sentences.append(f"{what}{f' of {name}' if name else ''}{others} cannot be read: {reason}.")
        return tuple(sentences)


def _reason(error: Exception) -> str:
    if isinstance(error, StoreUnavailableError):
        return str(error).rstrip(".")
    if isinstance(error, OSError) and error.errno is not None:
        # Without the message of the error, in which Arrow puts the whole path.
        return os.strerror(error.errno)
    return "its content does not match its format"


def sample_text(
    source: TableSource,
    files: Sequence[DataFile],
    total_bytes: int,
    names: Sequence[str],
    columns: Sequence[str],
    check: Callable[[], None] = no_check,
) -> Sample:
    """Returns the number of rows, by the average length of the lines in a few blocks of at most 8 files, and the
    `columns` of these lines as strings. The number is exact if all files are small and each line is a row.

    `names` are all declared columns, in order. Documents over several lines are not sampled. Of compressed files, the
    beginnings are read. For CSV with values over several lines, only the rows are estimated, from the beginnings of the
    files. `check` is called before each file is read; it may raise.
    """
    is_csv = source.format is TableFormat.CSV
    is_document = source.format is TableFormat.XML or (source.options.multi_line and not is_csv)
    is_compressed = any(path.suffix.lower() in COMPRESSED for path in files)
    if is_document or (is_compressed and source.options.multi_line):
        return Sample(total_bytes // BYTES_PER_ROW, False, None)
    reads = FileReads(check)
    not_empty = [path for path in files if _may_have_lines(path)]
    chosen = spread(not_empty, MAX_FILES)
    skip_header = is_csv and source.options.has_header
    found = reads.read("A sample", chosen, lambda path: _lines(path, source.options, skip_header))
    lines = [line for _, (of_file, _) in found for line in of_file]
    if not lines and not reads.warnings() and _are_read_whole(not_empty):
        # The files have nothing but headers.
        return Sample(0, True, None)
    read_bytes = sum(stored for _, (_, stored) in found)
    rows = round(total_bytes * len(lines) / read_bytes) if read_bytes else total_bytes // BYTES_PER_ROW
    has_line_breaks = is_csv and source.options.multi_line and may_break_lines(lines, source.options.quote)
    if has_line_breaks:
        rows = _rows_from_beginnings(source.options, chosen, total_bytes, reads) or rows
    table = None
    if columns and lines and not has_line_breaks:
        try:
            table = _csv_table(lines, source.options, names, columns) if is_csv else _json_table(lines, columns)
        except (pa.ArrowException, ValueError) as error:
            reads.add("A sample", None, error)
    warnings = reads.warnings()
    is_exact = not warnings and _are_read_whole(not_empty) and _are_rows(lines, source, has_line_breaks)
    return Sample(len(lines) if is_exact else rows, is_exact, table, warnings=warnings)


def _are_rows(lines: Sequence[bytes], source: TableSource, has_line_breaks: bool) -> bool:
    """Whether Spark reads each of the lines as one row, given that a CSV value may have line breaks."""
    options = source.options
    if options.mode is ParseMode.DROPMALFORMED or options.comment is not None or has_line_breaks:
        return False
    # Spark reads a row for each element of a JSON array.
    return source.format is TableFormat.CSV or all(line.lstrip().startswith(b"{") for line in lines)


def _may_have_lines(path: DataFile) -> bool:
    try:
        return size_of(path) > 0
    except OSError:  # reading it reports the error
        return True


def _lines(path: DataFile, options: ReadOptions, skip_header: bool) -> tuple[list[bytes], int]:
    """Returns the lines that are complete in the blocks of one file, or at the beginning of a compressed one, and the
    bytes that they take in the file; all lines of a small file.
    """
    size = size_of(path)
    if path.suffix.lower() in COMPRESSED:
        head = _head(path, options)
        lines = head.data.splitlines()[int(skip_header) : None if head.is_whole else -1]
        return [line for line in lines if line.strip()], head.stored_bytes
    lines = []
    with opened(path) as file:
        if size <= _BLOCKS_PER_FILE * _BLOCK_BYTES:
            lines = [line for line in file.read().splitlines() if line.strip()][int(skip_header) :]
        else:
            for offset in spread(range(0, size - _BLOCK_BYTES + 1, _BLOCK_BYTES), _BLOCKS_PER_FILE):
                file.seek(offset)
                block = file.read(_BLOCK_BYTES).splitlines()
                # The lines at both ends of a block may be incomplete.
                lines.extend(block[1 if offset or skip_header else 0 : -1])
    kept = [line for line in lines if line.strip()]
    stored = sum(len(line) + 1 for line in kept)
    return [line for line in plain_text(b"\n".join(kept), options).split(b"\n") if line], stored


def _head(path: DataFile, options: ReadOptions) -> Head:
    try:
        return read_head(path, options, _BLOCKS_PER_FILE * _BLOCK_BYTES)
    except CorruptTextError as error:
        raise ValueError("damaged") from error


def _are_read_whole(files: Sequence[DataFile]) -> bool:
    return (
        not any(path.suffix.lower() in COMPRESSED for path in files)
        and len(files) <= MAX_FILES
        and all(size_of(path) <= _BLOCKS_PER_FILE * _BLOCK_BYTES for path in files)
    )


def _rows_from_beginnings(
    options: ReadOptions, files: Sequence[DataFile], total_bytes: int, reads: FileReads
) -> int | None:
    """Returns the rows of all files, estimated from the beginnings of some: at any other place it is not known whether
    a line is within quotes. None if no row ends there.
    """

    def rows_and_bytes(path: DataFile) -> tuple[int, int]:
        with opened(path) as file:
            whole = whole_rows(text_of(file.read(_BLOCKS_PER_FILE * _BLOCK_BYTES)), options)
        return rows_in(whole, options), len(bytes_of(whole))

    found = [result for _, result in reads.read("A sample", files, rows_and_bytes)]
    rows = sum(rows for rows, _ in found)
    return round(total_bytes * rows / sum(read_bytes for _, read_bytes in found)) if rows else None


def _csv_table(lines: list[bytes], options: ReadOptions, names: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """Returns the `columns` of lines of CSV, as strings. Raises ArrowException if the lines are not CSV."""
    # By position, since names may differ in case only.
    positions = {name: str(index) for index, name in enumerate(names)}
    wanted = [positions[column] for column in columns]
    table = pa_csv.read_csv(
        pa.BufferReader(b"\n".join(lines) + b"\n"),
        read_options=pa_csv.ReadOptions(column_names=list(positions.values())),
        parse_options=pa_csv.ParseOptions(
            delimiter=options.delimiter,
            quote_char=options.quote,
            double_quote=options.escape_character == options.quote,
            escape_char=False if options.escape_character == options.quote else options.escape_character,
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


def _json_table(lines: list[bytes], columns: Sequence[str]) -> pa.Table:
    """Returns the `columns` of lines of JSON, as strings. Raises ValueError if the lines are not JSON."""
    # All lines as one array: to parse each line by itself takes three times as long.
    documents = [document for document in json.loads(b"[" + b",".join(lines) + b"]") if isinstance(document, dict)]
    return pa.table(
        {
            column: pa.array([_json_text(document.get(column)) for document in documents], pa.string())
            for column in columns
        }
    )


def _json_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return str(value) if type(value) is int else json.dumps(value)
