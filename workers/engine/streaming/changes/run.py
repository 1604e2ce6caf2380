"""Runs the mini-batches of a query that is computed by changes.

One streaming query of Spark reads all streams, so that its checkpoint says which rows a mini-batch has. Each mini-batch
then runs batch queries: for every step, one that reads the state of the changed keys and writes their changes
(`StateTask`), and the ones that compute the changes of the operator. The state of a step is in the directory
`<state>/<step>`, in one file for each bucket of keys. It is written before the sink gets the rows, so that a mini-batch
that the sink has committed needs no repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel, cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.results.columns import arrow_schema
from service.sql.expressions.scalar import Scalar, quoted
from service.sql.types.data_types import BIGINT, BOOLEAN, INT, Field, struct
from workers.engine.plan.nodes import Node, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.spark.lowering import lower
from workers.engine.spark.small_results import estimated_bytes
from workers.engine.spark.sources import ddl_of
from workers.engine.streaming.changes import state_files
from workers.engine.streaming.changes.plan import ChangePlan
from workers.engine.streaming.changes.state_files import (
    BUCKET,
    KEY,
    OLD,
    PORT,
    ROW,
    WEIGHT,
    StateTask,
    TooManyRowsError,
    undo,
)
from workers.engine.streaming.changes.steps import KEPT, Step
from workers.engine.streaming.query import StateProgress

# Executors need not have this package: the module is sent to them with the task.
cloudpickle.register_pickle_by_value(state_files)  # type: ignore[no-untyped-call]

_SOURCE = "$source"
_REPORTED = 100
"""Of how many mini-batches the state is reported, as by Spark."""

SMALL_BYTES = 1 << 20
"""The most bytes of the files of a small mini-batch."""

SMALL_ROWS = 20_000
"""The most changes of a step, and the most rows of the state of their keys, that the driver reads."""


def one_frame(scans: Sequence[Scan], frames: Mapping[str, DataFrame]) -> DataFrame:
    """Returns the rows of several streams as those of one, with the place of the stream in `scans` in a column, and
    NULL in the columns of the others.
    """
    fields = [field for scan in scans for field, _ in _without_weight(scan)]
    united: DataFrame | None = None
    for place, scan in enumerate(scans):
        own = {field.name for field, _ in _without_weight(scan)}
        columns = [
            F.col(quoted(field.name)) if field.name in own else F.lit(None).cast(str(field.type)).alias(field.name)
            for field in fields
        ]
        part = frames[scan.alias].select(F.lit(place).alias(_SOURCE), *columns)
        united = part if united is None else united.union(part)
    if united is None:
        raise ValueError("the query reads no stream")
    return united


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
            undo(self._directory, batch_id, self._fence)
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
        self._kept: list[DataFrame] = []
        self.states: list[StateProgress] = []
        self._frames = dict(changes.statics)
        self._prepare_session()
        for place, scan in enumerate(changes.scans):
            columns = [F.col(quoted(field.name)) for field, _ in _without_weight(scan)]
            of_scan = frame.where(F.col(quoted(_SOURCE)) == place) if len(changes.scans) > 1 else frame
            self._frames[scan.alias] = of_scan.select(*columns, F.lit(1).cast("BIGINT").alias(WEIGHT))

    def _prepare_session(self) -> None:
        """Sets the properties of the queries of this mini-batch; the session belongs to the stream."""
        properties = {
            # Only queries with a state in Spark need them excluded.
            "spark.sql.optimizer.excludedRules": "",
            "spark.sql.shuffle.partitions": "1" if self._is_small else str(self._changes.buckets),
            "spark.sql.adaptive.enabled": str(not self._is_small).lower(),
            # To generate code takes longer than to process a few rows.
            "spark.sql.codegen.wholeStage": str(not self._is_small).lower(),
            "spark.sql.codegen.factoryMode": "NO_CODEGEN" if self._is_small else "FALLBACK",
        }
        for name, value in properties.items():
            self._session.conf.set(name, value)

    def result(self) -> DataFrame:
        """Returns the rows that the mini-batch emits."""
        for step in self._changes.plan.steps:
            self._frames[step.alias] = self._run(step)
            self.states.append(self._state_of(step))
        return self._lowered(self._changes.plan.node)

    def _state_of(self, step: Step) -> StateProgress:
        files = (self._directory / str(step.number)).glob("*.sqlite*")
        return StateProgress(
            operator=step.text,
            rows=None,
            updated=self._updated,
            removed=0,
            memory_bytes=0,
            state_bytes=sum(path.stat().st_size for path in files),
            late_rows=0,
            reads=self._read,
            partitions=self._changes.buckets,
            commit_ms=0,
        )

    def release(self) -> None:
        """Removes the rows that were kept."""
        while self._kept:
            # The node of a checkpointed frame has the RDD with its rows.
            self._kept.pop()._jdf.queryExecution().analyzed().rdd().unpersist(False)

    def _run(self, step: Step) -> DataFrame:
        """Returns the changes of the step's output."""
        is_first = self._batch_id == 0
        self._updated = self._read = 0
        parts = [_Part(place, port.fields, port.keys) for place, port in enumerate(step.ports)]
        second = step.second
        if second is not None and second.port >= len(parts):
            parts.append(_Part(second.port, second.fields, second.keys))
        changes = [(part, self._lowered(port.changes)) for part, port in zip(parts, step.ports, strict=False)]
        read = self._through_state(step, parts, changes, step.fetched, step.applied)
        if not read.changed and not (is_first and step.always):
            return self._frame(step.output, None)
        frames = {}
        for part in parts:
            frames[f"$old{part.port}"] = read.rows(part, is_old=True)
            frames[f"$delta{part.port}"] = read.rows(part, is_old=False)
        if second is None:
            result = step.first if is_first and step.first is not None else step.result
            return self._computed(self._lowered(result, frames), step.output)
        part = next(part for part in parts if part.port == second.port)
        nothing = tuple(() for _ in parts)
        changes = [(part, self._lowered(second.node, frames))]
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

    def _stored(self, frame: DataFrame) -> DataFrame:
        """Computes `frame` and returns its rows, which executors keep until the end of the mini-batch. The plan of the
        result is only a scan: otherwise the plans of later steps would contain those of earlier ones many times.
        """
        stored = frame.localCheckpoint(eager=True, storageLevel=StorageLevel.MEMORY_AND_DISK)
        self._kept.append(stored)
        return stored

    def _collected(self, frame: DataFrame) -> pa.Table | None:
        """Returns the rows of a small mini-batch; None if they are too many."""
        if not self._is_small:
            return None
        rows = frame.limit(SMALL_ROWS + 1).toArrow()
        return rows if rows.num_rows <= SMALL_ROWS else None

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
        types = [struct([Field(f"c{n}", field.type) for n, field in enumerate(part.fields)]) for part in parts]
        united: DataFrame | None = None
        for own, frame in changes:
            key = F.xxhash64(*(F.expr(key.sql) for key in own.keys)) if own.keys else F.lit(0).cast("BIGINT")
            structs = [
                F.struct(*(F.col(quoted(field.name)).alias(f"c{n}") for n, field in enumerate(own.fields)))
                if part.port == own.port
                else F.lit(None).cast(str(type_))
                for part, type_ in zip(parts, types, strict=True)
            ]
            branch = frame.select(
                F.lit(own.port).alias(PORT),
                F.pmod(key, F.lit(self._changes.buckets)).cast("INT").alias(BUCKET),
                key.alias(KEY),
                *(one.alias(f"{ROW}{port}") for port, one in enumerate(structs)),
                F.col(quoted(WEIGHT)),
            )
            united = branch if united is None else united.union(branch)
        if united is None:
            raise ValueError(f"{step.text} has no input")
        task = StateTask(str(self._directory / str(step.number)), self._batch_id, self._fence, fetched, applied)
        rows = self._collected(united)
        if rows is not None:
            try:
                return self._counted(
                    _Collected(_by_driver(replace(task, most_rows=SMALL_ROWS), rows), self._frame), task
                )
            except TooManyRowsError:
                # The tasks of Spark read them. They write again what is already written.
                self._is_small = False
                self._prepare_session()
        returned = (
            Field(PORT, INT),
            Field(OLD, BOOLEAN),
            *(Field(f"{ROW}{port}", type_) for port, type_ in enumerate(types)),
            Field(WEIGHT, BIGINT),
        )
        placed = united.repartitionById(self._changes.buckets, F.col(quoted(BUCKET)))
        done = self._stored(placed.mapInArrow(task, ddl_of(returned)))
        counts = {row[OLD]: row["count"] for row in done.groupBy(quoted(OLD)).count().collect()}
        return self._counted(_Distributed(done, counts.get(False, 0), counts.get(True, 0)), task)

    def _counted(self, read: _Read, task: StateTask) -> _Read:
        self._read += read.read
        self._updated += read.changed if task.applied else 0
        return read


@dataclass(frozen=True)
class _Part:
    """A part of the state of a step: the rows of an input, or those that it emitted."""

    port: int
    fields: tuple[Field, ...]
    keys: tuple[Scalar, ...]


class _Read(Protocol):
    """The changes of a step, and the rows of the state of their keys."""

    @property
    def changed(self) -> int:
        """The number of changes."""

    @property
    def read(self) -> int:
        """The number of rows of the state."""

    def rows(self, part: _Part, *, is_old: bool) -> DataFrame:
        """Returns the changes of a part, or its rows in the state before the mini-batch."""


@dataclass(frozen=True)
class _Distributed:
    """Rows that the tasks of Spark returned."""

    frame: DataFrame
    changed: int
    read: int

    def rows(self, part: _Part, *, is_old: bool) -> DataFrame:
        """See `_Read`."""
        own = quoted(f"{ROW}{part.port}")
        chosen = self.frame.where((F.col(quoted(PORT)) == part.port) & (F.col(quoted(OLD)) == is_old))
        columns = [F.col(f"{own}.c{n}").alias(field.name) for n, field in enumerate(part.fields)]
        return chosen.select(*columns, F.col(quoted(WEIGHT)))


@dataclass(frozen=True)
class _Collected:
    """Rows that the driver has read."""

    table: pa.Table | None
    frame: Callable[[Sequence[Field], pa.Table | None], DataFrame]

    @property
    def changed(self) -> int:
        """See `_Read`."""
        return 0 if self.table is None else self.table.num_rows - self.read

    @property
    def read(self) -> int:
        """See `_Read`."""
        return 0 if self.table is None else int(pc.sum(self.table.column(OLD)).as_py() or 0)

    def rows(self, part: _Part, *, is_old: bool) -> DataFrame:
        """See `_Read`."""
        if self.table is None:
            return self.frame(part.fields, None)
        of_part = pc.and_(pc.equal(self.table.column(PORT), part.port), pc.equal(self.table.column(OLD), is_old))
        chosen = self.table.filter(of_part).combine_chunks()
        if not chosen.num_rows:
            return self.frame(part.fields, None)
        values = chosen.column(f"{ROW}{part.port}")
        columns = [pc.struct_field(values, [n]) for n in range(len(part.fields))]
        names = [*(field.name for field in part.fields), WEIGHT]
        return self.frame(part.fields, pa.table([*columns, chosen.column(WEIGHT)], names=names))


def _by_driver(task: StateTask, rows: pa.Table) -> pa.Table | None:
    """Runs the tasks of all buckets in this process. Returns their rows; None if there are no changes."""
    made = []
    for bucket in pc.unique(rows.column(BUCKET)).to_pylist():
        own = rows.filter(pc.equal(rows.column(BUCKET), bucket)).combine_chunks()
        made += list(task(iter(own.to_batches())))
    return pa.Table.from_batches(made) if made else None


def source_scans(plan: ChangePlan, streams: frozenset[str]) -> tuple[Scan, ...]:
    """Returns the scans of streams in a plan, each once."""
    return tuple(scan for scan in _scans(plan) if scan.alias in streams)


def static_scans(plan: ChangePlan, streams: frozenset[str]) -> tuple[Scan, ...]:
    """Returns the scans of static tables in a plan."""
    made = {step.alias for step in plan.steps}
    return tuple(scan for scan in _scans(plan) if scan.alias not in streams | made)


def _scans(plan: ChangePlan) -> Iterable[Scan]:
    nodes = [node for step in plan.steps for port in step.ports for node in walk_up(port.changes)]
    return {node.alias: node for node in (*nodes, *walk_up(plan.node)) if isinstance(node, Scan)}.values()
