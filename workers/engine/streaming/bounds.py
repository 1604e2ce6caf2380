"""How much a mini-batch takes: rows, as the job says, in the files' bytes, as Spark counts.

Spark takes whole files while they stay within the bound, and one at least. Half a file on top makes that the number of
files that comes closest, where files are alike: without it, a mini-batch would be half a file short on average. Where a
file has more than the rows that are wanted, there is nothing on top: one is taken, and of later ones, which may be much
smaller, as many as fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq

from service.datasets.csv_text import rows_in, text_of
from service.datasets.reading import DataFile, opened, size_of
from service.spec.job import TableFormat, TableSource
from service.spec.options import MiniBatchSettings
from service.spec.strategies import Toggle
from workers.engine.streaming.sources import BatchBound

DEFAULT_ROWS = 2_000_000
"""Rows of a mini-batch where the job sets none: smaller ones cost more for their own sake (distinct texts: 357, 401 and
392 thousand rows a second with 1, 2 and 4 million), and larger ones are more to do again after a crash."""

_FILES_READ = 8
_HEAD_BYTES = 1 << 16
_BYTES_PER_ROW = {TableFormat.PARQUET: 16.0, TableFormat.CSV: 48.0, TableFormat.JSON: 96.0}
"""Where no file tells."""


def bound_of(settings: MiniBatchSettings, source: TableSource, files: Sequence[DataFile]) -> BatchBound:
    """The bound of a mini-batch; `files` are some that are there already, by which bytes a row are told."""
    if settings.enabled is Toggle.FALSE:
        return BatchBound(files=1)
    rows = settings.size or DEFAULT_ROWS
    wanted, file = rows * bytes_per_row(source, files), _bytes_per_file(files)
    return BatchBound(bytes=max(1, round(wanted + (file / 2 if file <= wanted else 0))))


def bytes_per_row(source: TableSource, files: Sequence[DataFile]) -> float:
    """Bytes of a file for each of its rows, on average of a few files; a guess where there are none to read."""
    size = rows = 0.0
    for file in islice(files, _FILES_READ):
        try:
            is_parquet = source.format is TableFormat.PARQUET
            found_size, found_rows = _of_parquet(file) if is_parquet else _of_text(file, source)
        except (OSError, pa.ArrowInvalid):
            # Its rows will fail the mini-batch that reads it, or it is gone.
            continue
        size += found_size
        rows += found_rows
    return size / rows if rows else _BYTES_PER_ROW[source.format]


def _bytes_per_file(files: Sequence[DataFile]) -> float:
    sizes = []
    for file in islice(files, _FILES_READ):
        with suppress(OSError):  # it is gone
            sizes.append(size_of(file))
    return sum(sizes) / len(sizes) if sizes else 0.0


def _of_parquet(file: DataFile) -> tuple[float, float]:
    with opened(file) as stream:
        return size_of(file), pq.read_metadata(stream).num_rows


def _of_text(file: DataFile, source: TableSource) -> tuple[float, float]:
    with opened(file) as stream:
        head: bytes = stream.read(_HEAD_BYTES)
    if source.format is TableFormat.CSV and source.options.multi_line:
        return len(head), max(1, rows_in(text_of(head), source.options))
    return len(head), max(1, head.count(b"\n"))
