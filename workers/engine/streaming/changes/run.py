"""Runs the mini-batches of a query that is computed by changes.

One streaming query of Spark reads all streams, so that its checkpoint says which rows a mini-batch has. Each mini-batch
then runs batch queries: for every step, one that reads the state of the changed keys and writes their changes
(`StateTask`), and the ones that compute the changes of the operator. The state of a step is in the directories
`<state>/<step>/<bucket>`. It is written before the sink gets the rows, so that a mini-batch that the sink has committed
needs no repetition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.contract.tables import ADDING, REMOVING
from service.results.columns import arrow_schema
from service.sql.expressions.scalar import Scalar, quoted
from service.sql.types.data_types import BIGINT, INT, Field
from workers.engine.plan.nodes import Node, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.spark.logical_plans import is_partitioned_by, partitioned_by
from workers.engine.spark.lowering import lower
from workers.engine.spark.small_results import estimated_bytes
from workers.engine.spark.sources import ddl_of
from workers.engine.spark.status_store import MonitorError
from workers.engine.spark.stored_rows import StoredRows, stored
from workers.engine.streaming.changes import state_files, state_tasks
from workers.engine.streaming.changes.state_files import KEY, WEIGHT, read_manifest, undo
from workers.engine.streaming.changes.state_tasks import BUCKET, PORT, StateTask, TooManyRowsError, value_of
from workers.engine.streaming.changes.steps import JOINED, KEPT, ChangePlan, Step
from workers.engine.streaming.query import StateProgress
from workers.engine.streaming.sources import OPERATION

# Executors need not have this package: the modules are sent to them with the task.
for _module in (state_files, state_tasks):
    cloudpickle.register_pickle_by_value(_module)  # type: ignore[no-untyped-call]

_log = logging.getLogger(__name__)

_SOURCE = "$source"
_REPORTED = 100
"""Of how many mini-batches the state is reported, as by Spark."""

SMALL_BYTES = 1 << 20
"""The most bytes of the files of a small mini-batch."""

SMALL_ROWS = 20_000
"""The most changes of a step, and the most rows of the state of their keys, that the driver reads."""


def one_frame(scans: Sequence[Scan], frames: Mapping[str, DataFrame]) -> DataFrame:
    """Returns the rows of several streams as those of one, with the place of the stream in `scans` in a column, and
    NULL in the columns of the others. If a stream has operations, all rows have a weight.
    """
    has_weights = any(OPERATION in frames[scan.alias].columns for scan in scans)
    fields = [field for scan in scans for field, _ in _without_weight(scan)]
    united: DataFrame | None = None
    for place, scan in enumerate(scans):
        own = {field.name for field, _ in _without_weight(scan)}
        columns = [
            F.col(quoted(field.name)) if field.name in own else F.lit(None).cast(str(field.type)).alias(field.name)
            for field in fields
        ]
        if has_weights:
            columns.append(_weight_of(frames[scan.alias], scan.table).alias(WEIGHT))
        part = frames[scan.alias].select(F.lit(place).alias(_SOURCE), *columns)
        united = part if united is None else united.union(part)
    if united is None:
        raise ValueError("the query reads no stream")
    return united


def _weight_of(frame: DataFrame, table: str) -> Column:
    one = F.lit(1).cast("BIGINT")
    if OPERATION not in frame.columns:
        return one
    operation = F.lower(F.col(quoted(OPERATION)))
    known = f"It must be one of {', '.join((*ADDING, *REMOVING))}."
    given = F.coalesce(F.concat(F.lit("'"), F.substring(F.col(quoted(OPERATION)), 1, 20), F.lit("'")), F.lit("NULL"))
    unknown = F.raise_error(F.concat(F.lit(f"A row of table '{table}' has the operation "), given, F.lit(f". {known}")))
    return (
        F.when(operation.isin(*map(str.lower, ADDING)), one)
        .when(operation.isin(*map(str.lower, REMOVING)), -one)
        .otherwise(unknown.cast("BIGINT"))
    )


def _without_weight(scan: Scan) -> tuple[tuple[Field, str], ...]:
    return tuple(column for column in scan.columns if column[0].name != WEIGHT)


@dataclass
class Changes:
    """Computes the result of each mini-batch. `scans` are those of streams, in the order of `one_frame`; `statics` are
    the rows of static tables, by alias. A mini-batch of at most `small_bytes` of files is small.
    """

    plan: ChangePlan
    scans: tuple[Scan, ...]
    statics: Mapping[str, DataFrame]
    buckets: int
    small_bytes: int = SMALL_BYTES
    state: tuple[StateProgress, ...] = ()
    """The state of each step after the newest mini-batch."""

    def of_attempt(self, directory: Path, fence: int) -> ChangesOfAttempt:
        """Returns what computes the mini-batches of an attempt."""
        return ChangesOfAttempt(self, directory, fence)

    @contextmanager
    def of_batch(self, frame: DataFrame, batch_id: int, directory: Path, fence: int) -> Iterator[DataFrame]:
        """Returns the rows that the mini-batch emits, after its changes have been written to the state below
        `directory`. Inside the context, the rows that it needs are kept.
        """
        batch = _Batch(self, frame, batch_id, directory, fence)
        try:
            yield batch.result()
            self.state = tuple(batch.states)
        finally:
            batch.release()


class ChangesOfAttempt:
    """Computes the mini-batches of one attempt, for the state below `directory`; `fence` is its fencing token.

    The first call undoes what earlier attempts have written of the same mini-batch: a repetition may have other
    changes, as with sums of DOUBLE.
    """

    def __init__(self, changes: Changes, directory: Path, fence: int) -> None:
        self._changes = changes
        self._directory = directory
        self._fence = fence
        self._is_first = True
        self._states: dict[int, tuple[StateProgress, ...]] = {}

    @contextmanager
    def __call__(self, frame: DataFrame, batch_id: int) -> Iterator[DataFrame]:
        """Returns the rows that a mini-batch emits (`Changes.of_batch`)."""
        if self._is_first:
            undo(self._directory, batch_id, self._fence, len(self._changes.plan.steps), self._changes.buckets)
            self._is_first = False
        with self._changes.of_batch(frame, batch_id, self._directory, self._fence) as rows:
            yield rows
        while len(self._states) >= _REPORTED:
            del self._states[min(self._states)]
        self._states[batch_id] = self._changes.state

    def state_of(self, batch_id: int) -> tuple[StateProgress, ...]:
        """Returns the state of each step after a mini-batch; empty for one that this attempt did not compute."""
        return self._states.get(batch_id, ())


class _Batch:
    """One mini-batch. A small one is computed by the driver as far as possible: it collects the changes of a step, and
    reads and writes the state itself. Jobs with Python tasks take ten times as long for a few rows.
    """

    def __init__(self, changes: Changes, frame: DataFrame, batch_id: int, directory: Path, fence: int) -> None:
        self._changes = changes
        self._session = frame.sparkSession
        self._batch_id = batch_id
        self._directory = directory
        self._fence = fence
        self._is_small = estimated_bytes(frame) <= changes.small_bytes
        self._kept: list[StoredRows] = []
        self.states: list[StateProgress] = []
        self._frames = dict(changes.statics)
        self._use(in_driver=self._is_small)
        if not self._is_small and _uses(changes) > 1:
            # Spark would read all files of all streams for each use.
            frame = self._stored(frame, eager=False)
        for place, scan in enumerate(changes.scans):
            columns = [quoted(field.name) for field, _ in _without_weight(scan)]
            of_scan = frame.where(f"{quoted(_SOURCE)} = {place}") if len(changes.scans) > 1 else frame
            weight = quoted(WEIGHT) if WEIGHT in frame.columns else f"1L AS {quoted(WEIGHT)}"
            self._frames[scan.alias] = of_scan.selectExpr(*columns, weight)

    def _use(self, *, in_driver: bool) -> None:
        """Sets the properties of the following queries, whose rows the driver reads or not; the session belongs to the
        stream.
        """
        self._in_driver = in_driver
        properties = {
            # Only queries with a state in Spark need them excluded.
            "spark.sql.optimizer.excludedRules": "",
            "spark.sql.shuffle.partitions": "1" if in_driver else str(self._changes.buckets),
            "spark.sql.adaptive.enabled": str(not in_driver).lower(),
            # A bucket is a partition.
            "spark.sql.adaptive.coalescePartitions.enabled": "false",
            "spark.sql.adaptive.localShuffleReader.enabled": "false",
            "spark.sql.adaptive.skewJoin.enabled": "false",
            # To generate code takes longer than to process a few rows.
            "spark.sql.codegen.wholeStage": str(not in_driver).lower(),
            "spark.sql.codegen.factoryMode": "NO_CODEGEN" if in_driver else "FALLBACK",
        }
        for name, value in properties.items():
            self._session.conf.set(name, value)

    def result(self) -> DataFrame:
        """Returns the rows that the mini-batch emits."""
        for step in self._changes.plan.steps:
            # A step may have few changes although the one before had many.
            self._use(in_driver=self._is_small)
            for rows in (rows for rows in self._changes.plan.shared if rows.step == step.number):
                shared = self._lowered(rows.node)
                self._frames[rows.alias] = shared if self._is_small else self._stored(shared, eager=False)
            self._frames[step.alias] = self._run(step)
            self.states.append(self._state_of(step))
        return self._lowered(self._changes.plan.node)

    def _state_of(self, step: Step) -> StateProgress:
        directory = self._directory / str(step.number)
        buckets = range(self._changes.buckets)
        files = [file for bucket in buckets for file in read_manifest(directory / str(bucket)).files]
        return StateProgress(
            operator=step.text,
            rows=None,
            updated=sum(file.rows for file in files if file.batch_id == self._batch_id),
            removed=0,
            memory_bytes=0,
            state_bytes=sum(file.bytes for file in files),
            late_rows=0,
            reads=None if step.is_join else self._read,
            partitions=self._changes.buckets,
            commit_ms=0,
        )

    def release(self) -> None:
        """Removes the rows that were kept. An error is only logged: another one may have ended the mini-batch."""
        while self._kept:
            try:
                self._kept.pop().release()
            except (MonitorError, Py4JError):
                _log.warning("rows of a mini-batch were not removed", exc_info=True)

    def _run(self, step: Step) -> DataFrame:
        """Returns the changes of the step's output."""
        is_first = self._batch_id == 0
        self._read: int | None = 0
        parts = [_Part(place, port.fields, port.keys) for place, port in enumerate(step.ports)]
        second = step.second
        if second is not None and second.port >= len(parts):
            parts.append(_Part(second.port, second.fields, second.keys))
        changes = [(part, self._lowered(port.changes)) for part, port in zip(parts, step.ports, strict=False)]
        if step.is_join:
            pairs = self._joined(step, parts, changes)
            return self._computed(self._lowered(step.result, {JOINED: pairs}), step.output)
        read = self._through_state(step, parts, changes, step.fetched, step.applied)
        # Without changes, an aggregate without GROUP BY would have a row.
        if not parts[0].keys and not (is_first and step.always) and read.is_empty():
            return self._frame(step.output, None)
        result = step.first if is_first and step.first is not None else step.result
        node = result if second is None else second.node
        used = {part.alias for part in walk_up(node) if isinstance(part, Scan)}
        frames = {
            alias: read.rows(part, is_old=is_old)
            for part in parts
            for alias, is_old in ((f"$old{part.port}", True), (f"$delta{part.port}", False))
            if alias in used
        }
        if second is None:
            return self._computed(self._lowered(node, frames), step.output)
        part = next(part for part in parts if part.port == second.port)
        nothing: tuple[tuple[int, ...], ...] = tuple(() for _ in parts)
        changes = [(part, self._lowered(node, frames))]
        written = self._through_state(step, parts, changes, nothing, frozenset({second.port}))
        return self._lowered(step.result, {KEPT: written.rows(part, is_old=False)})

    def _lowered(self, node: Node, frames: Mapping[str, DataFrame] | None = None) -> DataFrame:
        known = {**self._frames, **(frames or {})}
        used = {part.alias: known[part.alias] for part in walk_up(node) if isinstance(part, Scan)}
        return lower(node, used, self._session)

    def _computed(self, frame: DataFrame, fields: Sequence[Field]) -> DataFrame:
        """Returns the rows of `frame`, which are computed once."""
        rows = self._collected(frame)
        return self._stored(frame) if rows is None else self._frame(fields, rows)

    def _stored(self, frame: DataFrame, *, eager: bool = True) -> DataFrame:
        """Computes `frame`, if not `eager` when it is first used, and returns its rows, which executors keep until the
        end of the mini-batch. The plan of the result is only a scan: otherwise the plans of later steps would contain
        those of earlier ones many times.
        """
        rows = stored(frame, eager=eager)
        self._kept.append(rows)
        return rows.frame

    def _collected(self, frame: DataFrame) -> pa.Table | None:
        """Returns the rows of a small mini-batch; None if they are too many. Then tasks of Spark compute the rest of
        the step.
        """
        if not self._in_driver:
            return None
        rows = frame.limit(SMALL_ROWS + 1).toArrow()
        if rows.num_rows <= SMALL_ROWS:
            return rows
        self._use(in_driver=False)
        return None

    def _frame(self, fields: Sequence[Field], rows: pa.Table | None) -> DataFrame:
        """Returns collected rows with the columns `fields` and the weight; None for no rows."""
        if rows is None:
            rows = arrow_schema((*fields, Field(WEIGHT, BIGINT))).empty_table()
        return self._session.createDataFrame(rows)

    def _through_state(
        self,
        step: Step,
        parts: Sequence[_Part],
        changes: Sequence[tuple[_Part, DataFrame]],
        fetched: tuple[tuple[int, ...], ...],
        applied: frozenset[int],
    ) -> _Read:
        """Reads the state of the keys that changed, and writes the changes of the inputs `applied`."""
        task = self._task(step, parts, fetched, applied)
        united = self._united(parts, changes)
        read: _Read | None = self._by_driver(task, united)
        if read is None:
            # Python only gets the rows that it writes, and only returns those that it reads.
            placed = self._stored(self._placed(changes, united), eager=False)
            rows = placed if applied else placed.selectExpr(*map(quoted, (PORT, BUCKET, KEY)))
            returned = [parts[port] for port in task.returned]
            old = rows.mapInArrow(task, ddl_of((Field(PORT, INT), *_values_in(returned), Field(WEIGHT, BIGINT))))
            if returned:
                # Later queries need it; one of them runs the tasks.
                old = self._stored(old, eager=False)
            else:
                old.count()
            read = _Distributed(placed, old, self._changes.buckets)
        self._read = None if self._read is None or read.read is None else self._read + read.read
        return read

    def _joined(self, step: Step, parts: Sequence[_Part], changes: Sequence[tuple[_Part, DataFrame]]) -> DataFrame:
        """Returns the changes of the pairs of rows of both inputs with the same hash of their keys."""
        task = replace(self._task(step, parts, step.fetched, step.applied), is_join=True)
        united = self._united(parts, changes)
        read = self._by_driver(task, united)
        if read is None:
            placed = self._placed(changes, united)
            pairs = placed.mapInArrow(task, ddl_of((*_values_in(parts), Field(WEIGHT, BIGINT))))
            return pairs.selectExpr(*(one for part in parts for one in part.columns), quoted(WEIGHT))
        return self._frame(step.output, read.pairs(parts))

    def _task(
        self, step: Step, parts: Sequence[_Part], fetched: tuple[tuple[int, ...], ...], applied: frozenset[int]
    ) -> StateTask:
        widths = tuple(len(part.fields) for part in parts)
        return StateTask(str(self._directory / str(step.number)), self._batch_id, self._fence, widths, fetched, applied)

    def _united(self, parts: Sequence[_Part], changes: Sequence[tuple[_Part, DataFrame]]) -> DataFrame:
        """Returns the changes of all inputs, with the bucket and the hash of their keys."""
        branches = []
        for own, frame in changes:
            keys = ", ".join(key.sql for key in own.keys)
            # Spark's partitioning by these keys: see `_Distributed.rows`.
            bucket = f"CAST(pmod(hash({keys}), {self._changes.buckets}) AS INT)" if keys else "0"
            # The columns of a sum may have more digits than those of its parts.
            values = [
                f"CAST({quoted(field.name) if part is own else 'NULL'} AS {field.type}) AS {quoted(name)}"
                for part in parts
                for field, name in zip(part.fields, part.names, strict=True)
            ]
            # As strings: each Column would take several calls of the JVM.
            branches.append(
                frame.selectExpr(
                    f"{own.port} AS {quoted(PORT)}",
                    f"{bucket} AS {quoted(BUCKET)}",
                    f"{f'xxhash64({keys})' if keys else '0L'} AS {quoted(KEY)}",
                    *values,
                    quoted(WEIGHT),
                )
            )
        return reduce(DataFrame.union, branches)

    def _by_driver(self, task: StateTask, united: DataFrame) -> _Collected | None:
        """Runs the tasks of all buckets of a small mini-batch in this process; None if it has too many rows."""
        rows = self._collected(united)
        if rows is None:
            return None
        task = replace(task, most_rows=SMALL_ROWS)
        made: list[pa.RecordBatch] = []
        try:
            for bucket in pc.unique(rows.column(BUCKET)).to_pylist():
                own = rows.filter(pc.equal(rows.column(BUCKET), bucket)).combine_chunks()
                made += task(iter(own.to_batches()))
        except TooManyRowsError:
            # The tasks of Spark read them. They write again what is already written.
            self._use(in_driver=False)
            return None
        return _Collected(rows, pa.Table.from_batches(made) if made else None, self._frame)

    def _placed(self, changes: Sequence[tuple[_Part, DataFrame]], united: DataFrame) -> DataFrame:
        """Returns the changes with those of each bucket in the partition of its number, where those of a single input
        may be already.
        """
        buckets = self._changes.buckets
        keys = changes[0][0].key_names if len(changes) == 1 else None
        if keys is not None and is_partitioned_by(united, keys, buckets):
            return united
        return united.repartitionById(buckets, F.col(quoted(BUCKET)))


def _uses(changes: Changes) -> int:
    """Returns how often the plan reads a stream."""
    aliases = {scan.alias for scan in changes.scans}
    nodes = (part for node in changes.plan.sources for part in walk_up(node))
    return sum(isinstance(part, Scan) and part.alias in aliases for part in nodes)


@dataclass(frozen=True)
class _Part:
    """A part of the state of a step: the rows of an input, or those that it emitted."""

    port: int
    fields: tuple[Field, ...]
    keys: tuple[Scalar, ...]

    @property
    def names(self) -> list[str]:
        """The names of its columns in the rows of a task."""
        return [value_of(self.port, place) for place in range(len(self.fields))]

    @property
    def key_names(self) -> list[str] | None:
        """The columns of its keys in the rows of a task; None if a key is an expression, or there are none."""
        names = {field.name: name for field, name in zip(self.fields, self.names, strict=True)}
        keys = [names[key.column] for key in self.keys if key.column is not None]
        return keys if keys and len(keys) == len(self.keys) else None

    @property
    def columns(self) -> list[str]:
        """The columns of the rows of a task, with the names of the part."""
        return [f"{quoted(name)} AS {quoted(field.name)}" for name, field in zip(self.names, self.fields, strict=True)]


def _values_in(parts: Sequence[_Part]) -> list[Field]:
    return [replace(field, name=name) for part in parts for field, name in zip(part.fields, part.names, strict=True)]


class _Read(Protocol):
    """The changes of a step, and the rows of the state of their keys."""

    @property
    def read(self) -> int | None:
        """The number of rows of the state; None if they are not counted."""

    def is_empty(self) -> bool:
        """Whether there are no changes."""

    def rows(self, part: _Part, *, is_old: bool) -> DataFrame:
        """Returns the changes of a part, or its rows in the state before the mini-batch."""


@dataclass(frozen=True)
class _Distributed:
    """Rows that the tasks of Spark returned, with those of a bucket in the partition of its number."""

    changes: DataFrame
    old: DataFrame
    buckets: int

    @property
    def read(self) -> None:
        """See `_Read`. To count rows takes a job of Spark."""
        return None

    def is_empty(self) -> bool:
        """See `_Read`."""
        return self.changes.isEmpty()

    def rows(self, part: _Part, *, is_old: bool) -> DataFrame:
        """See `_Read`."""
        keys = part.key_names
        frame = self.old if is_old else self.changes
        if keys is not None:
            frame = partitioned_by(frame, keys, self.buckets)
        return frame.where(f"{quoted(PORT)} = {part.port}").selectExpr(*part.columns, quoted(WEIGHT))


@dataclass(frozen=True)
class _Collected:
    """Rows that the driver has read."""

    changes: pa.Table
    old: pa.Table | None
    frame: Callable[[Sequence[Field], pa.Table | None], DataFrame]

    @property
    def read(self) -> int:
        """See `_Read`."""
        return 0 if self.old is None else int(self.old.num_rows)

    def is_empty(self) -> bool:
        """See `_Read`."""
        return not self.changes.num_rows

    def rows(self, part: _Part, *, is_old: bool) -> DataFrame:
        """See `_Read`."""
        rows = self.old if is_old else self.changes
        if rows is None:
            return self.frame(part.fields, None)
        return self.frame(part.fields, _values_of(rows.filter(pc.equal(rows.column(PORT), part.port)), (part,)))

    def pairs(self, parts: Sequence[_Part]) -> pa.Table | None:
        """Returns the pairs of rows of a join; None for none."""
        return None if self.old is None else _values_of(self.old, parts)


def _values_of(rows: pa.Table, parts: Sequence[_Part]) -> pa.Table | None:
    """Returns the columns of parts and the weight; None for no rows."""
    rows = rows.combine_chunks()
    if not rows.num_rows:
        return None
    columns = {
        field.name: rows.column(name) for part in parts for field, name in zip(part.fields, part.names, strict=True)
    }
    return pa.table({**columns, WEIGHT: rows.column(WEIGHT)})


def source_scans(plan: ChangePlan, streams: frozenset[str]) -> tuple[Scan, ...]:
    """Returns the scans of streams in a plan, each once."""
    return tuple(scan for scan in _scans(plan) if scan.alias in streams)


def static_scans(plan: ChangePlan, streams: frozenset[str]) -> tuple[Scan, ...]:
    """Returns the scans of static tables in a plan."""
    return tuple(scan for scan in _scans(plan) if scan.alias not in streams | plan.made)


def _scans(plan: ChangePlan) -> Iterable[Scan]:
    nodes = (node for source in plan.sources for node in walk_up(source))
    return {node.alias: node for node in nodes if isinstance(node, Scan)}.values()
