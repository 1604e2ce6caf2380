"""Statistics of partition columns, from the names of directories and the sizes of the files in them.

A sample of a few files has few of the partitions. These statistics have all of them: a partition counts as many rows as
its share of the table's bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from service.data.file_io import size_of
from service.sql.types.data_types import TypeName
from workers.engine.spark.predicate_evaluation import typed
from workers.engine.spark.sources import TableInput
from workers.engine.statistics.model import ValueRange

_RANGED = frozenset({TypeName.INT, TypeName.BIGINT, TypeName.DATE})
_ROWS = 64_000
"""Rows of the sample. Every partition has at least two, so that it does not look as if it were one of many."""


def partition_sample(table: TableInput) -> pa.Table | None:
    """Returns rows with the partition columns of a table, under their names; None if it is not partitioned.

    Raises OSError if the size of a file is not known and the file was removed.
    """
    names, partitions = table.partition_names, table.files.partitions
    if not names:
        return None
    versions = table.files.versions or (None,) * len(table.files.files)
    sizes: Counter[tuple[str | None, ...]] = Counter()
    for values, file, version in zip(partitions.values, table.files.files, versions, strict=True):
        sizes[values] += version[0] if version else size_of(file)
    total = max(1, sum(sizes.values()))
    rows = {values: max(2, round(_ROWS * size / total)) for values, size in sizes.items()}
    types = {field.name: field.type for field in table.schema.fields}
    columns = {}
    for place, name in enumerate(names):
        repeated = pa.chunked_array(
            [pa.repeat(pa.scalar(values[place], pa.string()), count) for values, count in rows.items()], pa.string()
        )
        columns[name] = typed(repeated.combine_chunks(), types[name])
    return pa.table(columns)


def partition_ranges(sample: pa.Table | None, table: TableInput) -> Mapping[str, ValueRange]:
    """Returns the ranges of the partition columns that are integers or dates, in days since 1970."""
    if sample is None:
        return {}
    ranges = {}
    for field in table.schema.fields:
        if field.name not in sample.column_names or field.type.name not in _RANGED:
            continue
        values = sample.column(field.name)
        if pa.types.is_date32(values.type):
            values = values.cast(pa.int32())
        if pa.types.is_integer(values.type) and values.null_count < len(values):
            found = pc.min_max(values).as_py()
            ranges[field.name] = ValueRange(found["min"], found["max"], True)
    return ranges
