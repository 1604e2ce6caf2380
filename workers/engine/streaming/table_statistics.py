"""The statistics that streams are planned with, from the files that exist before a stream starts.

`gather_for_joins`: statistics of joined tables. Those of a static table are as in a batch; those of a stream describe a
mini-batch of its existing files. `values_per_block`: how close together the distinct values of a stream's groups are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from service.contract.options import JobSettings, Toggle
from service.data.file_io import DataFile, size_of
from service.data.files import TableFiles
from service.data.spread import spread
from service.sql.types.data_types import INTEGRAL
from workers.engine.budget import no_check
from workers.engine.plan.aggregates import distinct_sets
from workers.engine.plan.nodes import Aggregate, Join, Node, Scan, columns_of, scanned_columns
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.distinct.bitmaps import BLOCK
from workers.engine.rules.joins.strategy_cost import BROADCAST_PARTS, NOT_FORCED, ROW_BYTES, forced_strategy
from workers.engine.rules.required_statistics import NOT_READ, READ_IN_PART, joined_texts, statistics_keys, undecided
from workers.engine.spark.predicate_evaluation import typed
from workers.engine.spark.sources import TableInput, scans_of
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.engine.spark.table_statistics import Texts, gather_statistics, sample_columns, sizes_only
from workers.engine.statistics.cardinality import conditions_of
from workers.engine.statistics.hot_keys import estimate_groups
from workers.engine.statistics.model import KeySketch, Statistics, TableSize
from workers.engine.statistics.partitioning import is_broadcast
from workers.engine.streaming.sources import BatchBound, Input, StreamInput

MOST_FILES = 256
"""Limit of the files of a stream that are examined, spread over all of them: a directory may have a hundred thousand.
"""


def gather_for_joins(
    plan: Node,
    joins: Collection[Join],
    tables: Mapping[str, Input],
    bounds: Mapping[str, BatchBound],
    settings: JobSettings,
    slots: int,
    memory: int,
    cache: StatisticsCache,
    check: Callable[[], None] = no_check,
) -> Statistics:
    """Returns the statistics that rules need of the tables below `joins`, which are joins of `plan`.

    `tables` and `bounds` are by table name; `memory` is that of a task, in bytes. A stream without files has no
    statistics. Reads footers and a sample, and runs no Spark job. `check` is called before each file is read, and may
    raise an error to stop.
    """
    examined = {name: found for name, table in tables.items() if (found := _examined(name, table)) is not None}
    scans = tuple({scan.alias: scan for join in joins for scan in scans_of(join) if scan.table in examined}.values())
    # Other rules decide how rows are aggregated.
    joins_only = settings.model_copy(update={"eager_aggregation": Toggle.FALSE})
    is_open = frozenset(join for join in joins if undecided(join, joins_only)(join))
    by_bytes = sizes_only(scans, examined, slots, NOT_READ)
    sized = _with_mini_batches(by_bytes, scans, tables, bounds)
    if not is_open:
        warnings = by_bytes.warnings if any(join.keys for join in joins) else ()
        return replace(sized, warnings=warnings, task_memory=memory, is_adaptive=False)
    # The keys of rows that are not shuffled do not matter.
    shuffled = {join for join in is_open if not _spark_broadcasts(join, settings, sized)}
    read = {scan.table for join in shuffled for scan in scans_of(join)}
    opened = tuple(scan for scan in scans if scan.table in read or isinstance(tables[scan.table], TableInput))
    known = gather_statistics(
        frozenset(key for join in is_open for key in statistics_keys(join, is_open.__contains__)),
        opened,
        examined,
        slots,
        conditions=conditions_of(plan),
        texts=Texts(
            frozenset(name for join in is_open for name in joined_texts(join, is_open.__contains__)),
            memory / BROADCAST_PARTS / ROW_BYTES,
        ),
        cache=cache,
        check=check,
    )
    in_part = any(join.keys and join not in is_open for join in joins)
    warnings = (*known.warnings, (None, READ_IN_PART)) if in_part else known.warnings
    known = replace(known, tables={**sized.tables, **known.tables}, warnings=warnings)
    return replace(_with_mini_batches(known, opened, tables, bounds), task_memory=memory, is_adaptive=False)


def _spark_broadcasts(join: Join, settings: JobSettings, sized: Statistics) -> bool:
    """Whether the job does not set the join's strategy, and Spark broadcasts a side because its files are small."""
    return forced_strategy(join, settings.join) == NOT_FORCED and is_broadcast(join, sized)


def _examined(name: str, table: Input) -> TableInput | None:
    """Returns the table with the files to examine: of a stream, some of those that exist; None if there are none."""
    if isinstance(table, TableInput):
        return table
    if not isinstance(table, StreamInput) or not table.files:
        return None
    files, size = [], 0
    for file in spread(table.files, MOST_FILES):
        try:
            size += size_of(file)
        except OSError:
            # It was removed after it was listed. Spark reports that if it still has to read it.
            continue
        files.append(file)
    return _with_files(name, table, files, size) if files else None


def _with_files(name: str, table: StreamInput, files: Sequence[DataFile], size: int) -> TableInput:
    """Returns the stream as a table of some of its files, which have `size` bytes."""
    return TableInput(table.source, TableFiles(name, Path(table.directory), tuple(files), size), table.schema)


def _with_mini_batches(
    known: Statistics, scans: Sequence[Scan], tables: Mapping[str, Input], bounds: Mapping[str, BatchBound]
) -> Statistics:
    """Returns `known`, which describes the examined files, with the size of a mini-batch for each stream."""
    sizes = dict(known.tables)
    for scan in scans:
        table = tables[scan.table]
        if isinstance(table, StreamInput):
            sizes[scan.alias] = _mini_batch_size(sizes[scan.alias], table, bounds.get(scan.table, BatchBound()))
    keys = {name: _scaled_keys(sketch, sizes[sketch.alias]) for name, sketch in known.keys.items()}
    return replace(known, tables=sizes, keys=keys)


def _mini_batch_size(size: TableSize, table: StreamInput, bound: BatchBound) -> TableSize:
    """Returns the size of a mini-batch; `size` is that of the examined files. Its rows are an estimate, since the table
    grows.
    """
    each = size.bytes / max(1, size.files)
    existing = each * len(table.files)
    # Complete files are read, at least one.
    read = existing if bound.bytes is None else max(bound.bytes, each)
    read = min(existing, read if bound.files is None else each * bound.files)
    share = read / size.bytes if size.bytes else 0.0
    return replace(
        size,
        files=max(1, round(read / each)) if each else size.files,
        bytes=round(read),
        rows=round(size.rows * share),
        rows_are_exact=False,
    )


def _scaled_keys(sketch: KeySketch, size: TableSize) -> KeySketch:
    hot = tuple(key.model_copy(update={"estimated_rows": round(key.share * size.rows)}) for key in sketch.hot_keys)
    return replace(sketch, distinct_keys=min(sketch.distinct_keys, max(1, size.rows)), hot_keys=hot)


def values_per_block(
    node: Aggregate, tables: Mapping[str, Input], check: Callable[[], None] = no_check
) -> float | None:
    """Estimates how many distinct values a group has on average in each block of 32,768 neighbours that it uses, over
    all existing rows. Returns None if there is no file, if a key or the value is computed, or if the value is not an
    integer. `check` is as in `gather_for_joins`.
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
    existing = _with_files(scan.table, table, table.files, sum(map(size_of, table.files)))
    sampled = sample_columns(existing, {in_files[name] for name in wanted}, check)
    sample, rows = sampled.table, sampled.rows
    if sample is None:
        return None
    integers = typed(sample.column(in_files[values[0]]), type_)
    if not pa.types.is_integer(integers.type):
        return None
    groups = {f"k{place}": sample.column(in_files[key]) for place, key in enumerate(keys)}
    blocks = pc.shift_right(integers.cast(pa.int64()), BLOCK.bit_length() - 1)
    found = pa.table({**groups, "v": integers, "b": blocks}).filter(pc.is_valid(integers))
    if not found.num_rows:
        return None
    return _estimated_distinct(found, [*groups, "v"], rows) / _estimated_distinct(found, [*groups, "b"], rows)


def _estimated_distinct(table: pa.Table, columns: list[str], rows: int) -> int:
    counts = table.group_by(columns).aggregate([([], "count_all")]).column("count_all")
    return estimate_groups(counts, max(rows, table.num_rows))
