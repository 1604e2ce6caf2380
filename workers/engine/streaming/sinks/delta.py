"""A Delta table whose log remembers the newest fencing token, and the last mini-batch of a history of them.

Every commit is made for exactly the version behind the one that was looked at, or not at all: whoever was first may
have changed what it was decided by. It is then decided anew.

A sink that keeps a Delta table of the user's: one row a key, for whoever reads Delta tables.

A mini-batch is merged, which rewrites every file that has one of its keys: seconds for millions of rows. Fencing token
and last mini-batch are remembered in the table's log, as other writers' are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from service.results.columns import one_row
from service.results.merge import newest_of
from workers.engine.streaming.sinks.base import (
    FenceLostError,
    OfNothing,
    SinkError,
    SinkTarget,
    Staged,
    staged_rows,
    staged_schema,
)

_TRIES = 20
"""So often a commit is decided anew after somebody else's came first; each time one of theirs got through."""


class FencedTable:
    """The table at `path`. `app` names the history of mini-batches, `guard` what attempts contend for, and `fence` is
    this attempt's token.
    """

    def __init__(self, path: Path, app: str, guard: str, fence: int) -> None:
        self.path = path
        self._app = app
        self._guard = guard
        self._fence = fence

    def made(self, create: Callable[[CommitProperties], DeltaTable]) -> DeltaTable:
        """The table, made by `create` where there is none. Raises SinkError where it cannot be."""
        for _ in range(_TRIES):
            try:
                return DeltaTable(self.path)
            except TableNotFoundError:
                self.path.mkdir(parents=True, exist_ok=True)
            try:
                return create(self._remembering(self._guard, self._fence))
            except DeltaError as error:
                if not DeltaTable.is_deltatable(str(self.path)):
                    raise SinkError(f"The result cannot be kept as a Delta table: {error}") from error
        raise self._crowded()

    def current(self) -> DeltaTable:
        """The newest version. Raises FenceLostError where a newer attempt has laid hands on the table."""
        table = DeltaTable(self.path)
        fence = table.transaction_version(self._guard)
        if fence is not None and fence > self._fence:
            raise FenceLostError(
                f"Attempt {fence} writes to the table at {self.path}, and this is attempt {self._fence}: it ends here."
            )
        return table

    def shut_out_older(self) -> None:
        """From here on no attempt with an older token commits anything. Raises FenceLostError."""
        for _ in range(_TRIES):
            table = self.current()
            if table.transaction_version(self._guard) == self._fence:
                return
            try:
                table.create_write_transaction(
                    [],
                    "append",
                    table.schema(),
                    partition_by=table.metadata().partition_columns,
                    commit_properties=self._remembering(self._guard, self._fence),
                )
            except CommitFailedError:
                continue
            return
        raise self._crowded()

    def committed(self) -> int | None:
        """The last mini-batch that is in."""
        last: int | None = DeltaTable(self.path).transaction_version(self._app)
        return last

    def commit(self, batch_id: int, write: Callable[[DeltaTable, CommitProperties], None] | None) -> int:
        """Has `write` make the next version of the table, with these properties, unless the mini-batch is in; None
        where there is nothing to write. Gives a version that has it.

        Raises FenceLostError, SinkError, and what `write` raises while the mini-batch is not in.
        """
        failed: Exception | None = None
        for _ in range(_TRIES):
            table = self.current()
            last = table.transaction_version(self._app)
            if write is None or (last is not None and last >= batch_id):
                return int(table.version())
            if failed is not None and not isinstance(failed, CommitFailedError):
                raise failed
            before = int(table.version())
            try:
                write(table, self._remembering(self._app, batch_id))
            except (DeltaError, OSError) as error:
                # It may be in nevertheless: the table tells.
                failed = error
            else:
                return before + 1
        raise self._crowded()

    def rewrite(self, app: str, version: int, write: Callable[[CommitProperties], None]) -> bool:
        """Has `write` make the version behind the one that it has looked at, and that remember `version` of `app`;
        False where somebody else was first.
        """
        try:
            write(self._remembering(app, version))
        except CommitFailedError:
            return False
        return True

    def _remembering(self, app: str, version: int) -> CommitProperties:
        return CommitProperties(
            app_transactions=[Transaction(app, version)],
            custom_metadata={"fence": str(self._fence)},
            max_commit_retries=0,
        )

    def _crowded(self) -> SinkError:
        return SinkError(f"Others wrote to {self.path} first, {_TRIES} times. Let none but this job write there.")


_ROWS_AT_ONCE = 1 << 17
_UNSPEAKABLE = " ,;{}()\n\t=`"
"""What Spark refuses in the names of a Delta table's columns, and the quotation mark."""


class DeltaSink:
    """See the module. The table is made where there is none; one that is there has exactly the result's columns.

    `of_nothing` is put into a table without rows, for an aggregate over everything.

    Memory: a mini-batch's rows, and what merging takes. Groups in parts are refused: they would have to be read again.
    """

    def __init__(self, path: Path, target: SinkTarget, of_nothing: OfNothing | None = None) -> None:
        self._path = path
        self._target = target
        self._of_nothing = of_nothing
        # Attempts of older generations write to the same table.
        job = target.app.rpartition("/")[0] or target.app
        self._fence = f"{job}/fence"
        self._fenced = FencedTable(path, target.app, self._fence, target.fence)

    def prepare(self) -> None:
        """See `Sink`."""
        schema = self._checked()
        table = self._fenced.made(
            lambda properties: DeltaTable.create(self._path, schema, mode="error", commit_properties=properties)
        )
        self._check_table(table, schema)
        self._check_rows(table)
        self._fenced.shut_out_older()
        if self._of_nothing is not None:
            self._begin(one_row(self._of_nothing, schema))

    def committed(self) -> int | None:
        """See `Sink`."""
        return self._fenced.committed()

    def commit(self, batch_id: int, staged: Staged) -> int:
        """See `Sink`. A mini-batch without rows leaves the table as it is, and is not remembered."""
        return self._fenced.commit(
            batch_id,
            (lambda table, properties: self._write(table, staged, properties)) if staged.rows else None,
        )

    def tidy(self) -> None:
        """Nothing: when versions of the table may go is for its owner to say."""

    def close(self) -> None:
        """Nothing is held open."""

    def _write(self, table: DeltaTable, staged: Staged, properties: CommitProperties) -> None:
        schema = staged_schema(self._target.columns)
        rows = pa.Table.from_batches(staged_rows(staged, schema, _ROWS_AT_ONCE), schema)
        names = [field.name for field in self._target.output]
        keys = self._target.keys
        if keys is None:
            write_deltalake(table, rows.select(names), mode="append", commit_properties=properties)
        elif not keys:
            newest = newest_of(rows, keys).select(names)
            write_deltalake(table, newest, mode="overwrite", commit_properties=properties)
        else:
            merge = table.merge(
                newest_of(rows, keys).select(names),
                _same(keys),
                source_alias="s",
                target_alias="t",
                commit_properties=properties,
            )
            merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def _begin(self, row: pa.Table) -> None:
        """Puts the row into a table that has none."""
        table = self._fenced.current()
        if self._fenced.committed() is None and table.count() == 0:
            # Of who was first there is a row now.
            self._fenced.rewrite(
                f"{self._target.app}/nothing",
                0,
                lambda properties: write_deltalake(table, row, mode="append", commit_properties=properties),
            )

    def _checked(self) -> pa.Schema:
        target = self._target
        if target.final is not None:
            raise SinkError(
                "A Delta table cannot take groups whose state is kept in parts. Use sink 'managed' or 'postgres', or "
                "set distinct_method to another one."
            )
        staged_schema(target.columns)
        schema = staged_schema(target.output)
        for name in schema.names:
            if not name or any(mark in name for mark in _UNSPEAKABLE):
                raise SinkError(f"A Delta table has no column '{name}' that Spark would read. Give it an alias.")
        folded = [name.casefold() for name in schema.names]
        if len(set(folded)) < len(folded):
            raise SinkError("Several columns of the result have one name; case does not count. Give them aliases.")
        missing = set(target.keys or ()) - set(schema.names)
        if missing:
            names = ", ".join(sorted(missing))
            raise SinkError(f"Rows are told apart by {names}, which the result has not. SELECT it.")
        return schema

    def _check_rows(self, table: DeltaTable) -> None:
        """What this history of mini-batches would add to, or overwrite, where it has not begun."""
        keys = self._target.keys
        if keys or self._fenced.committed() is not None:
            return
        if keys is None and table.transaction_version(self._fence) is not None and table.count() > 0:
            raise SinkError(
                f"The table at {self._path} has the rows of this job's state before it began from scratch, and all "
                "would come again. Empty the table, and resume the job."
            )
        if keys == () and table.count() > 1:
            raise SinkError(
                f"The table at {self._path} has {table.count()} rows, and the result has one. Give it one of its own."
            )

    def _check_table(self, table: DeltaTable, schema: pa.Schema) -> None:
        there = {field.name: field.type for field in pa.schema(table.schema())}
        wanted = {field.name: field.type for field in schema}
        if there != wanted:
            raise SinkError(
                f"The table at {self._path} has the columns {_told(there)}, and the result has {_told(wanted)}. "
                "Let them be the same, or name another path."
            )


def _same(keys: Sequence[str]) -> str:
    """Compares keys, NULL being equal to NULL. Without parentheses AND would bind closer in this dialect."""
    return " AND ".join(f"(t.`{key}` IS NOT DISTINCT FROM s.`{key}`)" for key in keys)


def _told(columns: dict[str, pa.DataType]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
