"""A sink that keeps a Delta table of the user's: one row a key, for whoever reads Delta tables.

A mini-batch is merged, which rewrites every file that has one of its keys: seconds for millions of rows. Fencing token
and last mini-batch are remembered in the table's log, as other writers' are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from service.results.arrow_types import one_row
from service.results.newest_rows import newest_of
from workers.engine.streaming.sinks.fenced_table import FencedTable
from workers.engine.streaming.sinks.sink import OfNothing, SinkError, SinkTarget, Staged
from workers.engine.streaming.sinks.staged_rows import staged_rows, staged_schema

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
