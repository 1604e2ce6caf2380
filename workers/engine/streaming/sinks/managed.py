"""The managed result of a streaming job: a Delta table that each mini-batch appends its changed rows to.

Merging a mini-batch into the rows before it would rewrite most files of the table each time. As a log the table takes
a mini-batch in milliseconds: its staged files become files of the table as they are. Who reads takes the newest row of
each key (`service.results.stream_result`); `tidy` makes that one row a key now and then.

What keeps other attempts out, and each mini-batch in once, is `fenced_table`.
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
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from service.results.final_merge import check_mergeable
from service.results.managed_files import ManagedFiles, files_of
from service.spec.managed_table import DESCRIPTION, ManagedTable, described
from workers.engine.streaming.sinks.compaction import compacted, is_due
from workers.engine.streaming.sinks.fenced_table import FencedTable
from workers.engine.streaming.sinks.sink import OfNothing, SinkError, SinkTarget, Staged
from workers.engine.streaming.sinks.staged_rows import staged_schema

_log = structlog.get_logger(__name__)

_CONFIGURATION = {
    # Who reads an older version has this long to finish.
    "delta.deletedFileRetentionDuration": "interval 10 minutes",
    # A commit every second would leave millions of files otherwise. Transactions are remembered for ever.
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.dataSkippingNumIndexedCols": "0",
}


class ManagedSink:
    """See the module. `of_nothing` is the result's one row while no mini-batch has given any (`ManagedTable`)."""

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
        )

        self._fenced = FencedTable(path, target.app, self._table.fence, target.fence)

    def prepare(self) -> None:
        """See `Sink`."""
        self._check_columns()
        table = self._fenced.made(self._create)
        if not self._is_ours(table.metadata().configuration.get(DESCRIPTION)):
            raise SinkError(
                f"The table at {self._path} holds another result: its columns or keys are not this query's. "
                "Resume the job from scratch, or submit it anew."
            )
        self._fenced.shut_out_older()
        self._remove_orphans()

    def committed(self) -> int | None:
        """See `Sink`."""
        return self._fenced.committed()

    def commit(self, batch_id: int, staged: Staged) -> int:
        """See `Sink`. A mini-batch without rows leaves the table as it is, and is not remembered."""
        added: list[AddAction] = []

        def append(table: DeltaTable, properties: CommitProperties) -> None:
            if not added:
                added.extend(self._adopt(batch_id, staged.files))
            self._write(table, added, properties)

        return self._fenced.commit(batch_id, append if staged.rows else None)

    def tidy(self) -> None:
        """Rewrites the table as one row a key, once the log has grown long; and removes files that no version of the
        last ten minutes has. Holds the log's rows, at most 5 million and a mini-batch.
        """
        table = self._fenced.current()
        files = files_of(table, self._path)
        if not is_due(files) or not self._compact(table, files):
            return
        try:
            self._fenced.current().vacuum(dry_run=False)
        except CommitFailedError:
            # Another writer has come in between; the next time will do.
            return

    def close(self) -> None:
        """Nothing is held open."""

    def _compact(self, table: DeltaTable, files: ManagedFiles) -> bool:
        """Whether it was the first to make the next version."""
        last = max(file.batch for file in files.log)
        started = time.monotonic()
        written = compacted(files, self._path, self._name(last, "base"))
        actions = [self._action(self._path / name, last, rows) for name, rows in written]
        before = table.transaction_version(self._table.compacted)
        # Where no row replaces another, the base stays as it is.
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
            raise SinkError(f"The result has several columns {', '.join(twice)}; case does not count. Rename them.")

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
        """Adds files, or overwrites the partitions `only` with them; None: all."""
        table.create_write_transaction(
            list(actions),
            mode,
            self._schema(),
            partition_by=[self._table.batch],
            partition_filters=only,
            commit_properties=properties,
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
        table = self._fenced.current()
        unused, still_read = (
            set(table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=full)) for full in (True, False)
        )
        for name in unused - still_read:
            attempt, _, _ = name.removeprefix("f").partition("-")
            if name.startswith("f") and attempt.isdecimal() and int(attempt) <= self._target.fence:
                (self._path / name).unlink(missing_ok=True)
