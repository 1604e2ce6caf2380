"""How wide the texts of a table are in memory, by a few rows of some of its Parquet files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.datasets.reading import DataFile, for_each, opened
from service.datasets.stores import StoreUnavailableError
from workers.engine.spark.leaves import column_leaves
from workers.engine.spark.sampling import spread
from workers.engine.spark.troubles import Troubles
from workers.engine.spark.widths import width_of

_SLICES = 4
"""Places of a table that widths are measured at: the beginnings of row groups, of four files or of one, and places all
over a row group where there are fewer."""

_SLICE_ROWS = 4_096
_SLICE_BYTES = 1 << 20
_LEAST_ROWS = 64
"""Rows of a slice: fewer where values are wide."""

_MOST_BYTES = 32 << 20
"""Encoded bytes of a row group that are read for more than its beginning: there is no way to a place but through all
that is before it. A row group of more, where it is needed for several places, is not measured."""

_BUFFER_BYTES = 256 << 10
"""Read at once: without, Arrow fetches the whole column of a row group for its first page."""

MARGIN = 1.5
"""What the widest slice is multiplied by: others may be wider."""


def decoded_widths(files: Sequence[DataFile], columns: Collection[str], troubles: Troubles) -> dict[str, float | None]:
    """Bytes of a value of each of these columns of texts or bytes in memory, with a margin; None where no file tells.

    The mean of the widest of a few slices from all over the table, or what a value takes as it is encoded, if that is
    more. What repeats takes hardly anything in a file, and all of its length in a hash table.
    """
    if not columns:
        return {}
    chosen = spread(files, _SLICES)

    def read(file: DataFile) -> Mapping[str, float]:
        troubles.check()
        try:
            return _widths_of_file(file, sorted(columns), -(-_SLICES // len(chosen)))
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            troubles.add("A sample", file, error)
            return {}

    found: list[Mapping[str, float]] = []
    try:
        found.extend(for_each(chosen, read))
    except StoreUnavailableError as error:
        troubles.add("A sample", None, error)
    return {name: max((one[name] for one in found if name in one), default=None) for name in columns}


def _widths_of_file(path: DataFile, columns: Sequence[str], slices: int) -> dict[str, float]:
    with opened(path) as stream:
        footer = pq.read_metadata(stream)
        held = sorted({*columns} & column_leaves(footer).keys())
        # Texts as indices into a dictionary, where the file has them so: one of a megabyte that repeats is read once.
        with pq.ParquetFile(stream, metadata=footer, buffer_size=_BUFFER_BYTES, read_dictionary=held) as file:
            return _widths(file, held, slices) if held else {}


def _widths(file: pq.ParquetFile, columns: Sequence[str], slices: int) -> dict[str, float]:
    encoded = {name: width_of(name, [file.metadata]) for name in columns}
    rows = max(_LEAST_ROWS, min(_SLICE_ROWS, round(_SLICE_BYTES / max([1.0, *encoded.values()]))))
    found: dict[str, float] = {}
    groups = spread(range(file.num_row_groups), slices)
    for group in groups:
        for batch in _slices(file, group, columns, rows, -(-slices // len(groups))):
            for name in columns:
                mean = _mean_length(batch.column(name))
                found[name] = max(found.get(name, encoded[name]), MARGIN * mean)
    return found


def _slices(
    file: pq.ParquetFile, group: int, columns: Sequence[str], rows: int, count: int
) -> Iterator[pa.RecordBatch]:
    """At most `count` slices of so many rows from all over a row group, of which the first is its beginning."""
    metadata = file.metadata.row_group(group)
    begins = range(0, max(metadata.num_rows - rows, 0) + 1, rows)
    places = spread(begins, count) if count > 1 else [0]
    if len(places) > 1 and _encoded_bytes(metadata, columns) > _MOST_BYTES:
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
