"""Samples of ORC and Avro files: rows from the beginnings of a few files.

ORC files have their number of rows in the footer; that of Avro files is in the head of each block, and is estimated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from service.contract.read_options import TableFormat
from service.data.avro_files import AvroFileError, AvroHeader, blocks, decoded, joined_blocks, read_header
from service.data.column_limits import ColumnLimitError
from service.data.file_io import DataFile, opened, size_of
from service.data.orc_files import first_rows, open_orc
from service.data.orc_footer import OrcFileError
from service.data.spread import spread
from workers.engine.budget import no_check
from workers.engine.spark.sampling import BYTES_PER_ROW, MAX_FILES, FileReads, Sample

_ROWS_PER_FILE = 16_384
_AVRO_ROWS_PER_FILE = 4_096
"""Fewer, since Python decodes them: all columns of a row, about 200,000 rows a second."""
_AVRO_ROWS_AT_ONCE = 256
_BYTES_PER_BLOCK = 2 << 20
"""Of a larger block, only the first bytes are decompressed: some writers make one block for a million rows."""
_FIRST_FILES = 3
_MANY_BYTES = 4 << 20
_BYTES_PER_FILE = 4 << 20
_DECOMPRESSED_BYTES = 16 << 20
_SECONDS_PER_FILE = 2.0
"""No more records of an Avro file are decoded after this time. Usual ones take a tenth of a second."""


@dataclass(frozen=True)
class FileSample:
    """Rows of a file: their number, the bytes that they take in it, and the columns of some of them.

    `is_counted` if the file has no other rows than `rows`; `is_whole` if `table` has all rows, or none was asked for.
    """

    rows: int
    bytes: int
    table: pa.Table | None
    is_counted: bool
    is_whole: bool


Sampler = Callable[[DataFile, Sequence[str]], FileSample]


def sample_rows(
    sampler: Sampler,
    files: Sequence[DataFile],
    total_bytes: int,
    columns: Sequence[str],
    check: Callable[[], None] = no_check,
    is_enough: Callable[[Sample], bool] | None = None,
) -> Sample:
    """Returns the estimated number of rows, and the `columns` of the first rows of at most 8 files. `check` is called
    before each file is read; it may raise. Of many bytes, the rows of fewer files are read first: if `is_enough`
    returns True for this sample, it is returned.
    """
    reads = FileReads(check)
    chosen = spread(files, MAX_FILES)
    if is_enough is not None and columns and len(chosen) > _FIRST_FILES and total_bytes >= _MANY_BYTES:
        small = _drawn(sampler, files, total_bytes, columns, reads, spread(chosen, _FIRST_FILES))
        if small.warnings or is_enough(small):
            return small
    return _drawn(sampler, files, total_bytes, columns, reads, chosen)


def _drawn(
    sampler: Sampler,
    files: Sequence[DataFile],
    total_bytes: int,
    columns: Sequence[str],
    reads: FileReads,
    with_rows: Sequence[DataFile],
) -> Sample:
    """Returns the number of rows by 8 files, and the rows of those in `with_rows`."""
    chosen = spread(files, MAX_FILES)
    found = [
        one
        for _, one in reads.read("A sample", chosen, lambda file: sampler(file, columns if file in with_rows else ()))
    ]
    size = sum(one.bytes for one in found)
    rows = sum(one.rows for one in found)
    is_exact = len(found) == len(files) and all(one.is_counted for one in found)
    if not is_exact:
        rows = round(total_bytes * rows / size) if size else total_bytes // BYTES_PER_ROW
    parts = [one.table for one in found if one.table is not None]
    table = None
    try:
        table = pa.concat_tables(parts, promote_options="permissive") if parts else None
    except pa.ArrowException as error:
        reads.add("A sample", None, error)
    is_cut = table is not None and any(not one.is_whole for one in found)
    cut_short = frozenset(name for name in columns if is_cut and any(_is_sorted(part.column(name)) for part in parts))
    return Sample(rows, is_exact, table, cut_short, warnings=reads.warnings())


def _is_sorted(values: pa.ChunkedArray) -> bool:
    """Whether the first rows of a file are sorted by this column, and other rows may have other values."""
    known = values.drop_null()
    earlier, later = known.slice(0, max(len(known) - 1, 0)), known.slice(1)
    try:
        return bool(
            pc.all(pc.less_equal(earlier, later), min_count=0).as_py()
            or pc.all(pc.greater_equal(earlier, later), min_count=0).as_py()
        )
    except (pa.ArrowException, TypeError):
        # Nothing is sorted by a type without an order.
        return False


def _of_orc(file: DataFile, columns: Sequence[str]) -> FileSample:
    try:
        with opened(file) as stream:
            count, size = open_orc(stream).nrows, size_of(file)
            table = first_rows(stream, columns, _ROWS_PER_FILE) if columns and count else None
            is_whole = table is None or table.num_rows == count
            return FileSample(count, size, table, is_counted=True, is_whole=is_whole)
    except (OrcFileError, ColumnLimitError) as error:
        raise ValueError(str(error)) from None


def _of_avro(file: DataFile, columns: Sequence[str]) -> FileSample:
    try:
        with opened(file) as stream:
            header = read_header(stream)
            if columns:
                return _rows_of_avro(stream, header, columns, size_of(file))
            count = 0
            for block in blocks(stream, header):
                count += block.count
                if stream.seek(0, 1) > _BYTES_PER_FILE:
                    break
            read = stream.seek(0, 1)
            return FileSample(count, read, None, is_counted=read >= size_of(file), is_whole=True)
    except AvroFileError as error:
        raise ValueError(str(error)) from None


def _rows_of_avro(stream: BinaryIO, header: AvroHeader, columns: Sequence[str], size: int) -> FileSample:
    """Returns the first rows of the blocks that were read; the number of rows is that of these blocks."""
    count = decompressed = 0
    rows: list[dict[str, object]] = []
    end = time.monotonic() + _SECONDS_PER_FILE
    for group in joined_blocks(stream, header, _BYTES_PER_BLOCK):
        count += sum(block.count for block in group)
        decompressed += sum(len(block.data) for block in group)
        for batch in decoded(group, header, _AVRO_ROWS_AT_ONCE):
            rows += batch[: _AVRO_ROWS_PER_FILE - len(rows)]
            if len(rows) >= _AVRO_ROWS_PER_FILE or time.monotonic() > end:
                break
        if (
            len(rows) >= _AVRO_ROWS_PER_FILE
            or stream.seek(0, 1) > _BYTES_PER_FILE
            or decompressed > _DECOMPRESSED_BYTES
        ):
            break
        if time.monotonic() > end:
            break
    read = stream.seek(0, 1)
    table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in columns})
    is_whole = read >= size and len(rows) == count
    return FileSample(count, read, table, is_counted=is_whole, is_whole=is_whole)


BINARY_SAMPLERS: Mapping[TableFormat, Sampler] = MappingProxyType(
    {TableFormat.ORC: _of_orc, TableFormat.AVRO: _of_avro}
)
