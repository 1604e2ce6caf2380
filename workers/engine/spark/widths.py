"""How wide a column is, by the footers of Parquet files."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow.parquet as pq

from workers.engine.spark.leaves import column_leaves

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
