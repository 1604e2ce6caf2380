"""What is known before a stream is started of the tables that it joins: of static ones as of those of a batch, of a
stream what a mini-batch of the files that are there would be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from service.datasets.files import TableFiles
from service.datasets.reading import size_of
from service.spec.options import JobSettings
from service.spec.strategies import Toggle
from workers.engine.budget import go_on
from workers.engine.plan.join_demand import NOTHING, demand_of
from workers.engine.plan.nodes import Join, Node, Scan
from workers.engine.plan.statistics_keys import statistics_keys
from workers.engine.spark.sampling import spread
from workers.engine.spark.sources import TableInput, scans_of
from workers.engine.spark.statistics import Texts, gather_statistics, sizes_alone
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.engine.stats.join_cost import BROADCAST_PARTS, ROW_BYTES
from workers.engine.stats.needs import NOT_READ, READ_IN_PART, joined_texts, undecided
from workers.engine.stats.partitioning import is_broadcast
from workers.engine.stats.selectivity import conditions_of
from workers.engine.stats.statistics import KeySketch, Statistics, TableSize
from workers.engine.streaming.sources import BatchBound, Input, StreamInput

MOST_FILES = 256
"""Files of a stream that are looked at, spread over all that are there: a directory may have a hundred thousand."""


def gather_for_joins(
    plan: Node,
    joins: Collection[Join],
    tables: Mapping[str, Input],
    bounds: Mapping[str, BatchBound],
    settings: JobSettings,
    slots: int,
    memory: int,
    cache: StatisticsCache,
    check: Callable[[], None] = go_on,
) -> Statistics:
    """What the rules look at, of the tables below `joins`, which are among those of `plan`.

    `tables` and `bounds` are by table name; `memory` is a task's, in bytes. Nothing is known of a stream without files.
    Reads footers and a sample, and runs no Spark job. `check` is called before each file is read; what it raises is
    passed on.
    """
    seen = {name: seen for name, table in tables.items() if (seen := _seen(name, table)) is not None}
    scans = tuple({scan.alias: scan for join in joins for scan in scans_of(join) if scan.table in seen}.values())
    # How rows are aggregated, other rules decide.
    alone = settings.model_copy(update={"eager_aggregation": Toggle.FALSE})
    is_open = frozenset(join for join in joins if undecided(join, alone)(join))
    by_bytes = sizes_alone(scans, seen, slots, NOT_READ)
    sized = _with_mini_batches(by_bytes, scans, tables, bounds)
    if not is_open:
        warnings = by_bytes.warnings if any(join.keys for join in joins) else ()
        return replace(sized, warnings=warnings, task_memory=memory, is_adaptive=False)
    # Of rows that stay where they are read, and are sent to no task for their key, nothing need be known.
    shuffled = {join for join in is_open if not _is_sent_by_spark(join, settings, sized)}
    read = {scan.table for join in shuffled for scan in scans_of(join)}
    opened = tuple(scan for scan in scans if scan.table in read or isinstance(tables[scan.table], TableInput))
    known = gather_statistics(
        frozenset(key for join in is_open for key in statistics_keys(join, is_open.__contains__)),
        opened,
        seen,
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


def _is_sent_by_spark(join: Join, settings: JobSettings, sized: Statistics) -> bool:
    """Whether nothing is demanded of the join, and Spark sends one of its sides whole, for its files are small."""
    return demand_of(join, settings.join.ship, settings.join.local) == NOTHING and is_broadcast(join, sized)


def _seen(name: str, table: Input) -> TableInput | None:
    """A table whose files can be looked at, or those of a stream that are; None where there are none."""
    if isinstance(table, TableInput):
        return table
    if not isinstance(table, StreamInput) or not table.files:
        return None
    files, size = [], 0
    for file in spread(table.files, MOST_FILES):
        try:
            size += size_of(file)
        except OSError:
            # Gone since they were listed: for Spark to tell, if it still is to read it.
            continue
        files.append(file)
    if not files:
        return None
    return TableInput(table.source, TableFiles(name, Path(table.directory), tuple(files), size), table.schema)


def _with_mini_batches(
    known: Statistics, scans: Sequence[Scan], tables: Mapping[str, Input], bounds: Mapping[str, BatchBound]
) -> Statistics:
    """What is known of `scans`, each stream by a mini-batch; it is about the files that were looked at before."""
    sizes = dict(known.tables)
    for scan in scans:
        table = tables[scan.table]
        if isinstance(table, StreamInput):
            sizes[scan.alias] = _of_mini_batch(sizes[scan.alias], table, bounds.get(scan.table, BatchBound()))
    return replace(
        known, tables=sizes, keys={name: _of_rows(sketch, sizes[sketch.alias]) for name, sketch in known.keys.items()}
    )


def _of_mini_batch(size: TableSize, table: StreamInput, bound: BatchBound) -> TableSize:
    """`size` is of the files that were looked at. Of no table that grows are the rows ever exact."""
    each = size.bytes / max(1, size.files)
    there = each * len(table.files)
    # Whole files are taken, one at least.
    taken = there if bound.bytes is None else max(bound.bytes, each)
    taken = min(there, taken if bound.files is None else each * bound.files)
    share = taken / size.bytes if size.bytes else 0.0
    return replace(
        size,
        files=max(1, round(taken / each)) if each else size.files,
        bytes=round(taken),
        rows=round(size.rows * share),
        rows_are_exact=False,
    )


def _of_rows(sketch: KeySketch, size: TableSize) -> KeySketch:
    hot = tuple(key.model_copy(update={"estimated_rows": round(key.share * size.rows)}) for key in sketch.hot_keys)
    return replace(sketch, distinct_keys=min(sketch.distinct_keys, max(1, size.rows)), hot_keys=hot)
