"""What is known of a query's tables before it runs: row counts, and key sketches from a bounded sample.

Read with pyarrow, not with Spark: a sample costs milliseconds and no job. The same files give the same sample.
Whatever goes wrong here costs a sketch and never the job: a file that cannot be read is for Spark to report.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from service.spec.job import TableFormat
from service.spec.reports import HotKey
from workers.engine.plan.nodes import Scan
from workers.engine.spark.sampling import Sample, sample_parquet, sample_text
from workers.engine.spark.sources import TableInput
from workers.engine.stats.distinct import estimate_distinct
from workers.engine.stats.statistics import KeySketch, Statistics, TableSize

HOT_KEYS = 10
"""Heavy hitters kept of each key."""

MIN_OCCURRENCES = 5
"""A value seen less often in the sample may be there by chance."""

MIN_SHARE = 0.001
"""A value with a smaller share of the rows keeps no task waiting."""

_MAX_VALUE_LENGTH = 120

_log = logging.getLogger(__name__)

Key = tuple[str, ...]
"""Emitted column names (`("o.uid",)`), all of one scan."""


def gather_statistics(
    keys: Collection[Key], scans: Sequence[Scan], tables: Mapping[str, TableInput], slots: int
) -> Statistics:
    """Sizes of the scanned tables and a sketch of each key that can be sampled.

    `scans` has one scan an alias; `tables` is by table name; `slots` is the number of tasks that run at once. At most
    64 Ki rows of each of at most 8 files are kept of a table, however many keys and aliases it has.
    """
    start = time.monotonic()
    sizes: dict[str, TableSize] = {}
    sketches: dict[Key, KeySketch] = {}
    for table in dict.fromkeys(scan.table for scan in scans):
        aliases = [scan for scan in scans if scan.table == table]
        wanted = {
            key: columns
            for scan in aliases
            for key in sorted(keys)
            if (columns := _file_columns(scan, key)) is not None
        }
        sample = _sample(tables[table], {name for columns in wanted.values() for name in columns})
        for scan in aliases:
            sizes[scan.alias] = _size(scan.alias, tables[table], sample)
        for key, columns in wanted.items():
            alias = next(scan.alias for scan in aliases if _file_columns(scan, key) is not None)
            sketch = _sketch(alias, key, columns, sample)
            if sketch is not None:
                sketches[key] = sketch
    return Statistics(sizes, sketches, slots, elapsed_ms=round((time.monotonic() - start) * 1000))


def _file_columns(scan: Scan, key: Key) -> Key | None:
    names = {field.name: name for field, name in scan.columns}
    return tuple(names[column] for column in key) if key and all(column in names for column in key) else None


def _sample(table: TableInput, columns: set[str]) -> Sample:
    ordered = [name for name in table.schema.names if name in columns]
    if table.source.format is TableFormat.PARQUET:
        return sample_parquet(table.files.files, table.files.bytes, ordered)
    return sample_text(table.source, table.files.files, table.files.bytes, table.schema.names, ordered)


def _size(alias: str, table: TableInput, sample: Sample) -> TableSize:
    return TableSize(alias, len(table.files.files), table.files.bytes, sample.rows, sample.rows_are_exact)


def _sketch(alias: str, key: Key, columns: Key, sample: Sample) -> KeySketch | None:
    if sample.table is None or not sample.table.num_rows or not set(columns) <= set(sample.table.column_names):
        return None
    try:
        groups = _groups(sample.table, columns)
    except (pa.ArrowException, ValueError, TypeError) as error:
        _log.warning("no sketch of %s: %s", ", ".join(key), error)
        return None
    sampled = sample.table.num_rows
    counts = groups.column("count_all")
    frequencies = {entry["values"].as_py(): entry["counts"].as_py() for entry in pc.value_counts(counts)}
    return KeySketch(
        alias=alias,
        columns=key,
        sampled_rows=sampled,
        distinct_in_sample=groups.num_rows,
        distinct_keys=estimate_distinct(frequencies, max(sample.rows, sampled)),
        null_share=_null_share(groups, columns, sampled),
        hot_keys=_hot_keys(groups, columns, sampled, sample.rows),
        representative=sample.cut_short.isdisjoint(columns),
    )


def _groups(table: pa.Table, columns: Key) -> pa.Table:
    """The distinct keys of the sample, each with its number of rows in `count_all`; a column may occur twice."""
    names = [f"k{index}" for index in range(len(columns))]
    arrays = [_normalized(table.column(column)) for column in columns]
    return pa.table(arrays, names=names).group_by(names).aggregate([([], "count_all")])


def _normalized(values: pa.ChunkedArray) -> pa.ChunkedArray:
    # Spark groups -0.0 with 0.0; Arrow does not.
    return pc.add(values, pa.scalar(0.0, values.type)) if pa.types.is_floating(values.type) else values


def _null_share(groups: pa.Table, columns: Key, sampled: int) -> float:
    is_null = pc.is_null(groups.column("k0"))
    for index in range(1, len(columns)):
        is_null = pc.or_(is_null, pc.is_null(groups.column(f"k{index}")))
    nulls = pc.sum(groups.filter(is_null).column("count_all")).as_py() or 0
    return float(nulls / sampled)


def _hot_keys(groups: pa.Table, columns: Key, sampled: int, rows: int) -> tuple[HotKey, ...]:
    least = max(MIN_OCCURRENCES, sampled * MIN_SHARE)
    frequent = groups.filter(pc.greater_equal(groups.column("count_all"), pa.scalar(least)))
    entries = [(row["count_all"], [row[f"k{index}"] for index in range(len(columns))]) for row in frequent.to_pylist()]
    hot = [
        HotKey(
            value=", ".join(_text(part) for part in key),
            share=count / sampled,
            estimated_rows=round(count / sampled * rows),
            is_null=None in key,
        )
        for count, key in entries
    ]
    # By value where counts are equal: Arrow's order of groups depends on its threads.
    return tuple(sorted(hot, key=lambda key: (-key.share, key.value, key.is_null))[:HOT_KEYS])


def _text(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else text[: _MAX_VALUE_LENGTH - 1] + "…"
