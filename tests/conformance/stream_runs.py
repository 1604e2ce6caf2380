"""Runs queries over streams mini-batch by mini-batch, with simulated kills, and reads their results."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row, SparkSession

from service.contract.enums import OutputMode
from service.contract.job import JobSpec
from service.contract.options import DistinctMethod, JobSettings, StateProvider
from service.contract.tables import TableSource
from service.results.columns import arrow_schema
from service.results.merge import finals
from service.sql.compile import compile_job
from service.sql.types.data_types import Field, Schema
from tests.conformance.laboratory import in_spark, parquet, table_input
from workers.engine.streaming.engine import PlannedStream, StreamEngine
from workers.engine.streaming.query import (
    BatchDone,
    BatchFunction,
    BatchProgress,
    RunningStream,
    Stage,
    Trigger,
)
from workers.engine.streaming.sinks.base import OF_CHANGE_LOG, Sink, SinkTarget, Staged
from workers.engine.streaming.sources import BatchBound, Input, StreamInput
from workers.engine.streaming.state import StateOptions, differences

PARTITIONS = 2
_SECONDS = 120
_FIRST_FILE = 1_700_000_000
_TINY = {
    # Generating code takes longer than processing a hundred rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_IN_ONE_PIECE = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


class Killed(Exception):  # noqa: N818 - what stands for a process that ends there
    """Raised at the named point of a mini-batch, to simulate a kill."""


@dataclass
class Kept:
    """A sink that stores rows by key in a dictionary, which survives its writers."""

    columns: tuple[Field, ...]
    output: tuple[Field, ...]
    keys: tuple[str, ...] | None
    newest: int | None = None
    identity: tuple[str, ...] | None = None
    """The columns by which a row replaces another: the keys, and the part of a group."""
    weight: str | None = None
    """The column with the number of equal rows."""
    rows: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    parts: dict[Any, dict[str, Any]] = field(default_factory=dict)
    numbers: dict[Any, int] = field(default_factory=dict)

    def prepare(self) -> None:
        """Nothing to do."""

    def committed(self) -> int | None:
        """Returns the newest mini-batch."""
        return self.newest

    def commit(self, batch_id: int, staged: Staged) -> int | None:
        """Commits a mini-batch."""
        assert self.newest is None or self.newest < batch_id
        names = [column.name for column in self.columns]
        seen = set()
        for path in staged.files:
            for row in pq.read_table(path).to_pylist():
                identity = self.identity if self.identity is not None else self.keys
                key = len(self.rows) if identity is None else tuple(repr(row[name]) for name in identity)
                assert key not in seen, f"two rows of one group in a mini-batch: {row}"
                seen.add(key)
                self.parts[key] = row
                values = tuple(_as_spark_has_it(row[name]) for name in names[: len(self.output)])
                self.rows[key] = values
                self.numbers[key] = 1 if self.weight is None else row[self.weight]
        self.newest = batch_id
        return None

    def tidy(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def _as_spark_has_it(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


@dataclass
class At:
    """A guard that simulates a kill at `point` of mini-batch `batch`."""

    point: str = ""
    batch: int = -1
    done: list[BatchDone] = field(default_factory=list)

    def begin(self, batch_id: int) -> None:
        """Called at the start of a mini-batch."""
        self.reach("begin", batch_id)

    def finish(self, done: BatchDone) -> None:
        """Called at the end of a mini-batch."""
        self.reach("sunk", done.batch_id)
        self.done.append(done)
        self.reach("finished", done.batch_id)

    def reach(self, point: str, batch_id: int) -> None:
        """Raises Killed at the chosen point."""
        if (self.point, self.batch) == (point, batch_id):
            self.point = ""
            raise Killed(point)


class _StagedThenKilled(Stage):
    at: At

    def write(self, frame: Any, batch_id: int) -> Staged:
        staged = super().write(frame, batch_id)
        self.at.reach("staged", batch_id)
        return staged


class StreamRun:
    """A run of a query over streams below `root`. Tables without `put` rows are static tables below `statics`.
    `event_time` has the column and the delay of streams that declare one, `operations` the operation columns, and
    `fields` other fields of their tables. `layout` is that of an existing state. `log` creates the sink of a change log
    for an attempt; otherwise the rows are in `sink`.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        sql: str,
        streams: Mapping[str, Schema],
        statics: Mapping[str, Path] | None = None,
        *,
        provider: StateProvider = StateProvider.ROCKSDB,
        method: DistinctMethod = DistinctMethod.AUTO,
        event_time: Mapping[str, tuple[str, str]] | None = None,
        operations: Mapping[str, str] | None = None,
        fields: Mapping[str, Mapping[str, Any]] | None = None,
        output: OutputMode | None = None,
        is_accepted: bool = False,
        layout: Mapping[str, Any] | None = None,
        log: Callable[[SinkTarget], Sink] | None = None,
    ) -> None:
        operations = operations or {}
        self._root = root
        self._files = 0
        self.fence = 0
        self._layout = layout
        self._log = log
        self.at = At()
        self.progress: list[BatchProgress] = []
        session = spark.newSession()
        for name, value in _TINY.items():
            session.conf.set(name, value)
        tables: dict[str, Input] = {}
        schemas = dict(streams)
        sources: dict[str, dict[str, Any]] = {
            name: {"format": "parquet", "path": name, "role": "stream", **(fields or {}).get(name, {})}
            for name in streams
        }
        for name, (column, delay) in (event_time or {}).items():
            sources[name]["event_time"] = {"column": column, "delay": delay}
        for name, column in operations.items():
            sources[name]["operation"] = column
        for name, schema in streams.items():
            (root / name).mkdir(parents=True)
            source = TableSource.model_validate(sources[name])
            directory = f"file://{root / name}"
            tables[name] = StreamInput(source, directory, schema, operation=source.operation, upsert=source.upsert)
        for name, path in (statics or {}).items():
            tables[name] = table_input(path, name, parquet(name))
            schemas[name] = tables[name].schema
            sources[name] = {"format": "parquet", "path": name, "role": "static"}
        spec = JobSpec.model_validate({"mode": "incremental", "tables": sources, "sql": sql})
        query = compile_job(spec, schemas, is_accepted=is_accepted)
        engine = StreamEngine(session, 2)

        def planned(settings: JobSettings) -> PlannedStream:
            return engine.plan(
                query,
                {name: self._with_files(name, table) for name, table in tables.items()},
                StateOptions(provider, PARTITIONS),
                dict.fromkeys(tables, BatchBound(files=1)),
                output=output,
                settings=settings,
                is_log=log is not None,
                state_layout=self._layout,
            )

        self._planned = planned
        self.planned = planned(JobSettings(distinct_method=method))
        plan = self.planned.plan
        identity = None if plan.final is None else (*plan.final.keys, *plan.final.parts)
        self.sink = Kept(plan.columns, plan.output, plan.keys, identity=identity, weight=plan.weight)

    def plan_again(self, **settings: Any) -> None:
        """Plans the next mini-batches with these settings and the current files."""
        self._layout = self.planned.layout
        self.planned = self._planned(JobSettings.model_validate(settings))
        assert not differences(dict(self._layout), self.planned.layout)

    def _with_files(self, name: str, table: Input) -> Input:
        return replace(table, files=tuple(self._files_of(name))) if isinstance(table, StreamInput) else table

    def _files_of(self, table: str) -> list[Path]:
        return sorted((self._root / table).glob("f*"))

    def put(self, table: str, file: Path) -> None:
        """Adds a file of rows to a stream."""
        hidden = self._root / table / f".{self._files}"
        shutil.copy(file, hidden)
        # Spark reads files by modification time, which can be equal for two files.
        os.utime(hidden, (_FIRST_FILE + self._files, _FIRST_FILE + self._files))
        hidden.rename(self._root / table / f"f{self._files:05d}{file.suffix}")
        self._files += 1

    def catch_up(self) -> Exception | None:
        """Runs mini-batches of a file each until no file is left. Returns the exception that ended it, or None."""
        self.fence += 1
        # Every second attempt lets Spark write the rows.
        collects = self.planned.collects and self.fence % 2 == 1
        stage = _StagedThenKilled(self._root / "stage", self.fence, collects, is_log=self._log is not None)
        object.__setattr__(stage, "at", self.at)
        stage.clear_older()
        changes = self.planned.changes
        computing = None if changes is None else changes.of_attempt(self._root / "changes", self.fence)
        batch = BatchFunction(stage, self._sink_of_attempt(), self.at, computing=computing)
        output: OutputMode = self.planned.output
        running = RunningStream.start(self.planned.frame, output, self._root / "checkpoint", Trigger(), batch)
        assert running.wait(_SECONDS), "the stream did not end"
        error = running.error()
        self.progress += running.progress(None)
        if error is not None and not isinstance(error, Killed):
            raise error
        return error

    def _sink_of_attempt(self) -> Sink:
        if self._log is None:
            return self.sink
        columns = (*self.planned.plan.output, *OF_CHANGE_LOG)
        sink = self._log(SinkTarget("evenkeel/job/1", self.fence, columns, columns, None))
        sink.prepare()
        return sink

    @property
    def next_batch(self) -> int:
        """Returns the number of the next mini-batch by Spark's commit log."""
        commits = self._root / "checkpoint" / "commits"
        return 1 + max((int(path.name) for path in commits.glob("[0-9]*")), default=-1)

    def forget_commit(self) -> None:
        """Removes the last commit from Spark's log, as if the process had been killed before it."""
        commits = self._root / "checkpoint" / "commits"
        newest = self.next_batch - 1
        for path in (commits / str(newest), commits / f".{newest}.crc"):
            path.unlink(missing_ok=True)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Returns the rows of the sink, with the parts of groups combined."""
        final = self.planned.plan.final
        if final is None:
            return [row for key, row in self.sink.rows.items() for _ in range(self.sink.numbers[key])]
        schema = arrow_schema(self.planned.plan.output)
        parts = pa.Table.from_pylist(list(self.sink.parts.values()), arrow_schema(self.planned.plan.columns))
        return [tuple(row.values()) for table in finals([parts], final, schema) for row in table.to_pylist()]


def write_rows(path: Path, schema: Schema, rows: Sequence[tuple[Any, ...]]) -> Path:
    """Writes rows, in the order of the schema's columns, to a Parquet file and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = [[row[place] for row in rows] for place in range(len(schema.fields))]
    wanted = arrow_schema(schema.fields)
    arrays = [pa.array(values, column.type) for values, column in zip(columns, wanted, strict=True)]
    pq.write_table(pa.Table.from_arrays(arrays, schema=wanted), path)
    return path


def catch_up_roughly(run: StreamRun, random: Random, story: list[str]) -> None:
    """Runs until no file is left, with random kills, which are added to `story`."""
    if random.random() < 0.5:
        point = random.choice(["begin", "staged", "sunk", "finished"])
        run.at.point, run.at.batch = point, run.next_batch + random.randint(0, 1)
        story.append(f"{point} of {run.at.batch}")
        if run.catch_up() is None:
            run.at.point = ""
            return
    run.catch_up()
    if run.next_batch and random.random() < 0.3:
        story.append(f"{run.next_batch - 1} again")
        run.forget_commit()


def in_batch(
    spark: SparkSession, sql: str, tables: Mapping[str, Sequence[Path]], empty: Mapping[str, str]
) -> list[Row]:
    """Returns Spark's batch result over the same files; `empty` has the DDL of tables without files."""
    session = in_one_piece(spark)
    for name, paths in tables.items():
        frame = session.read.parquet(*map(str, paths)) if paths else session.createDataFrame([], empty[name])
        frame.createOrReplaceTempView(name)
    return session.sql(in_spark(sql)).collect()


def in_one_piece(spark: SparkSession) -> SparkSession:
    """Returns a session for batch results over few rows."""
    session = spark.newSession()
    for name, value in _IN_ONE_PIECE.items():
        session.conf.set(name, value)
    return session
