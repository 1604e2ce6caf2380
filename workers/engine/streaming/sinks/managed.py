"""The managed result of a streaming job: a Delta table that each mini-batch appends its changed rows to.

Merging a mini-batch into the rows before it would rewrite most files of the table each time. As a log the table takes
a mini-batch in milliseconds: its staged files become files of the table as they are. Who reads takes the newest row of
each key (`service.results.stream_result`); `tidy` makes that one row a key now and then.

Every commit is made for exactly the version behind the one that was looked at, or not at all: the fencing token and the
last mini-batch, both of which the table's log remembers, are what the commit was decided by.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from service.results.final_merge import check_mergeable
from service.results.managed_files import ManagedFiles, files_of
from service.spec.managed_table import DESCRIPTION, ManagedTable, described
from workers.engine.streaming.sinks.compaction import compacted, is_due
from workers.engine.streaming.sinks.sink import FenceLostError, SinkError, SinkTarget, Staged
from workers.engine.streaming.sinks.staged_rows import staged_schema

_log = structlog.get_logger(__name__)

_TRIES = 20
"""So often a commit is decided anew after somebody else's came first; each time one of theirs got through."""

_CONFIGURATION = {
    # Who reads an older version has this long to finish.
    "delta.deletedFileRetentionDuration": "interval 10 minutes",
    # A commit every second would leave millions of files otherwise. Transactions are remembered for ever.
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.dataSkippingNumIndexedCols": "0",
}


class ManagedSink:
    """See the module. `of_nothing` is the result's one row while no mini-batch has given any (`ManagedTable`)."""

    def __init__(
        self, path: Path, target: SinkTarget, of_nothing: tuple[bool | int | float | str | None, ...] | None = None
    ) -> None:
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
        )

    def prepare(self) -> None:
        """See `Sink`."""
        self._check_columns()
        table = self._made()
        if not self._is_ours(table.metadata().configuration.get(DESCRIPTION)):
            raise SinkError(
                f"The table at {self._path} holds another result: its columns or keys are not this query's. "
                "Resume the job from scratch, or submit it anew."
            )
        for _ in range(_TRIES):
            table = self._current()
            if table.transaction_version(self._table.fence) == self._target.fence:
                break
            try:
                self._append(table, [], [Transaction(self._table.fence, self._target.fence)])
                break
            except CommitFailedError:
                continue
        else:
            raise self._crowded()
        self._remove_orphans()

    def committed(self) -> int | None:
        """See `Sink`."""
        version: int | None = DeltaTable(self._path).transaction_version(self._target.app)
        return version

    def commit(self, batch_id: int, staged: Staged) -> int:
        """See `Sink`. A mini-batch without rows leaves the table as it is, and is not remembered."""
        added: list[AddAction] | None = None
        failed: Exception | None = None
        for _ in range(_TRIES):
            table = self._current()
            done = table.transaction_version(self._target.app)
            if staged.rows == 0 or (done is not None and done >= batch_id):
                return int(table.version())
            if failed is not None and not isinstance(failed, CommitFailedError):
                raise failed
            if added is None:
                added = self._adopt(batch_id, staged.files)
            try:
                self._append(table, added, [Transaction(self._target.app, batch_id)])
                return int(table.version()) + 1
            except (DeltaError, OSError) as error:
                # It may be in nevertheless: the table tells.
                failed = error
        raise self._crowded()

    def tidy(self) -> None:
        """Rewrites the table as one row a key, once the log has grown long; and removes files that no version of the
        last ten minutes has. Holds the log's rows, at most 5 million and a mini-batch.
        """
        table = self._current()
        files = files_of(table, self._path)
        if not is_due(files):
            return
        written = self._compact(table, files)
        if written is None:
            return
        try:
            self._current().vacuum(dry_run=False)
        except CommitFailedError:
            # Another writer has come in between; the next time will do.
            return

    def close(self) -> None:
        """Nothing is held open."""

    def _compact(self, table: DeltaTable, files: ManagedFiles) -> int | None:
        """The version that it made; None where another writer was first."""
        last = max(file.batch for file in files.log)
        started = time.monotonic()
        written = compacted(files, self._path, self._name(last, "base"))
        actions = [self._action(self._path / name, last, rows) for name, rows in written]
        before = table.transaction_version(self._table.compacted)
        # Where no row replaces another, the base stays as it is.
        only = None if files.table.identity is not None or before is None else [(self._table.batch, ">", str(before))]
        try:
            self._append(table, actions, [Transaction(self._table.compacted, last)], "overwrite", only)
        except CommitFailedError:
            for name, _ in written:
                (self._path / name).unlink(missing_ok=True)
            return None
        _log.info(
            "result_compacted",
            rows=sum(rows for _, rows in written),
            log_rows=sum(file.rows for file in files.log),
            elapsed_ms=int((time.monotonic() - started) * 1000),
        )
        return int(table.version()) + 1

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
            raise SinkError(f"The result has several columns {', '.join(twice)}; case does not count. Rename them.")

    def _is_ours(self, description: str | None) -> bool:
        try:
            return described(description or "") == self._table
        except ValueError:
            return False

    def _made(self) -> DeltaTable:
        for _ in range(_TRIES):
            try:
                return DeltaTable(self._path)
            except TableNotFoundError:
                self._path.mkdir(parents=True, exist_ok=True)
            try:
                return DeltaTable.create(
                    self._path,
                    self._schema(),
                    mode="error",
                    partition_by=[self._table.batch],
                    configuration={**_CONFIGURATION, DESCRIPTION: self._table.to_json()},
                    commit_properties=CommitProperties(
                        app_transactions=[Transaction(self._table.fence, self._target.fence)], max_commit_retries=0
                    ),
                    raise_if_key_not_exists=False,
                )
            except DeltaError as error:
                if not DeltaTable.is_deltatable(str(self._path)):
                    raise SinkError(f"The result cannot be kept as a Delta table: {error}") from error
        raise self._crowded()

    def _schema(self) -> pa.Schema:
        return staged_schema(self._table.columns).append(pa.field(self._table.batch, pa.int64()))

    def _current(self) -> DeltaTable:
        """The newest version, which no newer attempt has laid hands on."""
        table = DeltaTable(self._path)
        fence = table.transaction_version(self._table.fence)
        if fence is not None and fence > self._target.fence:
            raise FenceLostError(
                f"Attempt {fence} writes to this result, and this is attempt {self._target.fence}: it ends here."
            )
        return table

    def _append(
        self,
        table: DeltaTable,
        actions: Sequence[AddAction],
        transactions: list[Transaction],
        mode: str = "append",
        only: list[tuple[str, str, str]] | None = None,
    ) -> None:
        """Makes the version behind that of `table`, or raises CommitFailedError. `only` are the partitions that are
        overwritten.
        """
        table.create_write_transaction(
            list(actions),
            mode,
            self._schema(),
            partition_by=[self._table.batch],
            partition_filters=only,
            commit_properties=CommitProperties(
                app_transactions=transactions,
                custom_metadata={"fence": str(self._target.fence)},
                # None: whoever was first may have changed what this was decided by.
                max_commit_retries=0,
            ),
        )

    def _adopt(self, batch_id: int, files: Iterable[Path]) -> list[AddAction]:
        """Makes the staged files, in order, files below the table: as other names of theirs where that goes."""
        added: list[AddAction] = []
        name = self._name(batch_id, "part")
        for file in files:
            rows = pq.read_metadata(file).num_rows
            if not rows:
                continue
            path = self._path / f"{name}-{len(added):05}.parquet"
            try:
                os.link(file, path)
            except OSError:
                # Another file system, or one without links.
                shutil.copyfile(file, path)
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
        """Names sort by attempt and mini-batch, and none comes twice."""
        return f"f{self._target.fence:010}-b{batch_id:012}-{kind}-{uuid.uuid4().hex[:12]}"

    def _remove_orphans(self) -> None:
        """Removes files that earlier attempts wrote and never committed, which none of them can do any more.

        What only older versions have is left to `tidy`: it may still be read.
        """
        table = self._current()
        unused, still_read = (
            set(table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=full)) for full in (True, False)
        )
        for name in unused - still_read:
            attempt, _, _ = name.removeprefix("f").partition("-")
            if name.startswith("f") and attempt.isdecimal() and int(attempt) <= self._target.fence:
                (self._path / name).unlink(missing_ok=True)

    def _crowded(self) -> SinkError:
        return SinkError(
            f"Other writers to {self._path} were faster {_TRIES} times. Let none but this job write there."
        )
