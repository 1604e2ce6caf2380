"""Where a footer tells of a column."""

from __future__ import annotations

import pyarrow.parquet as pq


def column_leaves(footer: pq.FileMetaData) -> dict[str, int]:
    """The numbers of the leaves that are columns, by name; fields of structs, lists and maps are not among them.

    A field's path is joined by dots, and may read like a column's name; but only a column's path is its name alone.
    """
    leaves = ((index, footer.schema.column(index)) for index in range(footer.num_columns))
    return {leaf.name: index for index, leaf in leaves if leaf.name == leaf.path}
