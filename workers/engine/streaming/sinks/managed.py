"""The managed result of a streaming job: a Delta table to which each mini-batch appends its changed rows.

The table is a base with one row for each key, and a log of newer rows. To append takes milliseconds, since the staged
files become files of the table as they are; to merge would rewrite most files each time. Readers take the newest row of
each key (`service.results.stream_result`). `tidy` merges the log into the base from time to time.

`FencedTable` fences off older attempts and makes sure that each mini-batch is committed once.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from service.results.columns import arrow_schema
from service.results.merge import check_mergeable, merged, present
from service.results.stream_result import DESCRIPTION, FORMAT, ManagedFiles, ManagedTable, described, files_of
from workers.engine.streaming.sinks.base import (
    OfNothing,
    Sink,
    SinkError,
    SinkTarget,
    Staged,
    link_or_copy,
    staged_schema,
)
from workers.engine.streaming.sinks.delta import FencedTable

_log = structlog.get_logger(__name__)

LEAST_ROWS = 200_000
"""A log of up to this many rows costs readers next to nothing."""

MOST_ROWS = 5_000_000
"""Limit of the log's rows: readers and the compaction hold them in memory."""

LEAST_FILES = 64
_ROWS_A_FILE = 50_000
"""The log may have one more file for this many rows of the base: to rewrite these rows takes about as long as to read
one more file.
"""

_FILE_ROWS = 1 << 20
_GROUP_ROWS = 1 << 17
_BATCH_ROWS = 1 << 20

_CONFIGURATION = {
    # Readers of an older version have this long to finish.
    "delta.deletedFileRetentionDuration": "interval 10 minutes",
    # Otherwise a commit every second would leave millions of files. Transactions are kept for ever.
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.dataSkippingNumIndexedCols": "0",
}


def is_due(files: ManagedFiles) -> bool:
    """Whether compaction pays off: the log is too large compared to the base or for memory, or has too many files."""
    base, log = sum(file.rows for file in files.base), sum(file.rows for file in files.log)
    if files.table.keys is None:
        return len(files.log) > LEAST_FILES
    return log > min(max(LEAST_ROWS, base // 2), MOST_ROWS) or len(files.log) > LEAST_FILES + base // _ROWS_A_FILE


def compacted(files: ManagedFiles, directory: Path, name: str) -> list[tuple[str, int]]:
    """Writes the newest row of each key to files `<name>-<number>.parquet` in `directory`. Returns their names and
    numbers of rows.

    The rows keep the order of the base; new keys follow. Memory: the rows of the log and 1 Mi rows of the base.
    """
    schema = arrow_schema(files.table.columns)
    return list(_written(_rows(files), schema, directory, name))


def _rows(files: ManagedFiles) -> Iterator[pa.Table]:
    identity = files.table.identity
    if identity is None:
        for batch in files.rows_of(files.log).batches(batch_rows=_BATCH_ROWS):
            yield pa.Table.from_batches([batch])
        return
    log = files.rows_of(files.log)
    rows = pa.Table.from_batches(log.batches(batch_rows=_BATCH_ROWS), log.schema)
    weight = files.table.weight
    for table in merged(files.rows_of(files.base).batches(batch_rows=_BATCH_ROWS), rows, identity):
        yield table if weight is None else present(table, weight)


def _written(tables: Iterable[pa.Table], schema: pa.Schema, directory: Path, name: str) -> Iterator[tuple[str, int]]:
    writer: pq.ParquetWriter | None = None
    rows = number = 0
    file = ""
    try:
        for table in tables:
            if writer is None:
                file = f"{name}-{number:05}.parquet"
                writer = pq.ParquetWriter(directory / file, schema, compression="zstd")
            writer.write_table(table.cast(schema), row_group_size=_GROUP_ROWS)
            rows += table.num_rows
            if rows >= _FILE_ROWS:
                writer.close()
                yield file, rows
                writer, rows, number = None, 0, number + 1
    finally:
        if writer is not None:
            writer.close()
    if rows:
        yield file, rows


class ManagedSink(Sink):
    """See the module. `of_nothing` is the only row of the result until a mini-batch emits rows (`ManagedTable`)."""

    def __init__(self, path: Path, target: SinkTarget, of_nothing: OfNothing | None = None) -> None:
        self._path = path
        self._target = target
        taken = {field.name.casefold() for field in target.columns}
        self._table = ManagedTable(
            target.app,
            target.columns,
            target.output,
            target.keys,
            target.final,
            of_nothing,
            next(name for number in range(len(taken) + 1) if (name := f"_batch{number or ''}") not in taken),
            format=1 if target.weight is None else FORMAT,
            weight=target.weight,
        )

        self._fenced = FencedTable(path, target.app, self._table.fence, target.fence)

    def prepare(self) -> None:
        """See `Sink`."""
        self._check_columns()
        table = self._fenced.open_or_create(self._create)
        if not self._is_ours(table.metadata().configuration.get(DESCRIPTION)):
            raise SinkError(
                f"The table at {self._path} has other columns or keys than the result of this query. "
                "Resume the job from scratch, or submit it again as a new job."
            )
        self._fenced.fence_off_older()
        self._remove_orphans()

    def committed(self) -> int | None:
        """See `Sink`."""
        return self._fenced.committed()

    def commit(self, batch_id: int, staged: Staged) -> int:
        """See `Sink`. A mini-batch without rows does not change the table and is not recorded."""
        added: list[AddAction] = []

        def append(table: DeltaTable, properties: CommitProperties) -> None:
            if not added:
                added.extend(self._adopt(batch_id, staged.files))
            self._write(table, added, properties)

        return self._fenced.commit(batch_id, append if staged.rows else None)

    def tidy(self) -> None:
        """Merges the log into the base if that is due, and removes files that no version of the last ten minutes uses.
        Memory: the rows of the log, at most 5 million and a mini-batch.
        """
        table = self._fenced.current()
        files = files_of(table, self._path)
        if not is_due(files) or not self._compact(table, files):
            return
        try:
            self._fenced.current().vacuum(dry_run=False)
        except CommitFailedError:
            # Another writer committed in the meantime; the next call removes the files.
            return

    def _compact(self, table: DeltaTable, files: ManagedFiles) -> bool:
        """Writes the compacted table. Returns False if another writer created the next version first."""
        last = max(file.batch for file in files.log)
        started = time.monotonic()
        written = compacted(files, self._path, self._name(last, "base"))
        actions = [self._action(self._path / name, last, rows) for name, rows in written]
        before = table.transaction_version(self._table.compacted)
        # If rows are only appended, the base stays unchanged.
        only = None if files.table.identity is not None or before is None else [(self._table.batch, ">", str(before))]
        if not self._fenced.rewrite(
            self._table.compacted, last, lambda properties: self._write(table, actions, properties, "overwrite", only)
        ):
            for name, _ in written:
                (self._path / name).unlink(missing_ok=True)
            return False
        _log.info(
            "result_compacted",
            rows=sum(rows for _, rows in written),
            log_rows=sum(file.rows for file in files.log),
            elapsed_ms=int((time.monotonic() - started) * 1000),
        )
        return True

    def _check_columns(self) -> None:
        schema = staged_schema(self._table.columns)
        staged_schema(self._table.output)
        if self._table.final is not None:
            try:
                check_mergeable(self._table.final, schema)
            except ValueError as error:
                raise SinkError(f"{error} CAST it to another type.") from error
        names = [name.casefold() for name in schema.names]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SinkError(
                f"The result has several columns with the same name, ignoring case: {', '.join(twice)}. "
                "Give them aliases."
            )

    def _is_ours(self, description: str | None) -> bool:
        try:
            return described(description or "") == self._table
        except ValueError:
            return False

    def _create(self, properties: CommitProperties) -> DeltaTable:
        return DeltaTable.create(
            self._path,
            self._schema(),
            mode="error",
            partition_by=[self._table.batch],
            configuration={**_CONFIGURATION, DESCRIPTION: self._table.to_json()},
            commit_properties=properties,
            raise_if_key_not_exists=False,
        )

    def _schema(self) -> pa.Schema:
        return staged_schema(self._table.columns).append(pa.field(self._table.batch, pa.int64()))

    def _write(
        self,
        table: DeltaTable,
        actions: Sequence[AddAction],
        properties: CommitProperties,
        mode: str = "append",
        only: list[tuple[str, str, str]] | None = None,
    ) -> None:
        """Adds files, or overwrites the partitions `only` with them; None means all partitions."""
        table.create_write_transaction(
            list(actions),
            mode,
            self._schema(),
            partition_by=[self._table.batch],
            partition_filters=only,
            commit_properties=properties,
        )

    def _adopt(self, batch_id: int, files: Iterable[Path]) -> list[AddAction]:
        """Links the staged files into the table's directory, in order; copies them if hard links are not possible."""
        added: list[AddAction] = []
        name = self._name(batch_id, "part")
        for file in files:
            rows = pq.read_metadata(file).num_rows
            if not rows:
                continue
            path = self._path / f"{name}-{len(added):05}.parquet"
            link_or_copy(file, path)
            added.append(self._action(path, batch_id, rows))
        return added

    def _action(self, path: Path, batch_id: int, rows: int) -> AddAction:
        return AddAction(
            path=path.name,
            size=path.stat().st_size,
            partition_values={self._table.batch: str(batch_id)},
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=json.dumps({"numRecords": rows}),
        )

    def _name(self, batch_id: int, kind: str) -> str:
        """Returns a unique name; names sort by attempt and mini-batch."""
        return f"f{self._target.fence:010}-b{batch_id:012}-{kind}-{uuid.uuid4().hex[:12]}"

    def _remove_orphans(self) -> None:
        """Removes files that earlier attempts wrote but did not commit, and can no longer commit.

        `tidy` removes files that only older versions use: they may still be read.
        """
        table = self._fenced.current()
        unused, still_read = (
            set(table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=full)) for full in (True, False)
        )
        for name in unused - still_read:
            attempt, _, _ = name.removeprefix("f").partition("-")
            if name.startswith("f") and attempt.isdecimal() and int(attempt) <= self._target.fence:
                (self._path / name).unlink(missing_ok=True)
