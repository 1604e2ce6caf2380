"""How close together the distinct values of a stream's groups are, told by a sample of the files that are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from service.datasets.reading import size_of
from service.spec.job import TableFormat
from service.spec.types import INTEGRAL
from workers.engine.budget import go_on
from workers.engine.plan.bitmaps import BLOCK
from workers.engine.plan.distinct import distinct_sets
from workers.engine.plan.keys import columns_of, scanned_columns
from workers.engine.plan.nodes import Aggregate, Scan
from workers.engine.plan.transform import walk_up
from workers.engine.spark.conditions import typed
from workers.engine.spark.sampling import sample_parquet, sample_text
from workers.engine.stats.distinct import estimate_distinct
from workers.engine.streaming.sources import Input, StreamInput


def values_per_block(node: Aggregate, tables: Mapping[str, Input], check: Callable[[], None] = go_on) -> float | None:
    """How many distinct values a group has on average in a block of 32,768 neighbours where it has any, of all rows
    that are there now; None where no sample tells: no file is there, a key or the value is computed, or no integer.
    `check` is called before each file is read; what it raises is passed on.
    """
    value = distinct_sets(node)[0][0]
    keys = scanned_columns(node.input, columns_of(key.expression for key in node.keys))
    values = scanned_columns(node.input, columns_of((value,)))
    if keys is None or values is None:
        return None
    wanted = {*keys, *values}
    scans = (part for part in walk_up(node) if isinstance(part, Scan))
    scan = next((one for one in scans if wanted <= {field.name for field, _ in one.columns}), None)
    table = None if scan is None else tables[scan.table]
    if scan is None or not isinstance(table, StreamInput) or not table.files:
        return None
    in_files = {field.name: name for field, name in scan.columns}
    type_ = next(field.type for field, _ in scan.columns if field.name == values[0])
    if type_.name not in INTEGRAL:
        return None
    sample, rows = _sampled(table, [in_files[name] for name in dict.fromkeys((*keys, *values))], check)
    if sample is None:
        return None
    integers = typed(sample.column(in_files[values[0]]), type_)
    if not pa.types.is_integer(integers.type):
        return None
    groups = {f"k{place}": sample.column(in_files[key]) for place, key in enumerate(keys)}
    blocks = pc.shift_right(integers.cast(pa.int64()), BLOCK.bit_length() - 1)
    apart = pa.table({**groups, "v": integers, "b": blocks}).filter(pc.is_valid(integers))
    if not apart.num_rows:
        return None
    return _distinct(apart, [*groups, "v"], rows) / _distinct(apart, [*groups, "b"], rows)


def _sampled(table: StreamInput, columns: list[str], check: Callable[[], None]) -> tuple[pa.Table | None, int]:
    """A sample of these columns, and the number of all rows as far as it is known."""
    size = sum(map(size_of, table.files))
    if table.source.format is TableFormat.PARQUET:
        sample = sample_parquet(table.files, size, columns, check=check)
    else:
        sample = sample_text(table.source, table.files, size, table.schema.names, columns, check)
    return sample.table, sample.rows


def _distinct(table: pa.Table, columns: list[str], rows: int) -> int:
    counts = table.group_by(columns).aggregate([([], "count_all")]).column("count_all")
    frequencies = {entry["values"].as_py(): entry["counts"].as_py() for entry in pc.value_counts(counts)}
    return estimate_distinct(frequencies, max(rows, table.num_rows))
