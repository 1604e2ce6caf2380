"""The Delta sink: it merges each mini-batch into a Delta table of the user, with one row for each key.

A merge rewrites every file that contains one of the mini-batch's keys: seconds for millions of rows. The log of the
table records the newest fencing token and the last mini-batch as transactions (`FencedTable`). A commit succeeds only
if it creates the version after the one that it was computed from; if another writer was first, it is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from service.results.columns import one_row
from service.results.merge import newest_of, present
from workers.engine.streaming.sinks.base import (
    FenceLostError,
    OfNothing,
    Sink,
    SinkError,
    SinkTarget,
    Staged,
    missing_keys,
    staged_rows,
    staged_schema,
)

_TRIES = 20
"""How often a commit is tried when other writers commit first."""

_ROWS_PER_BATCH = 1 << 17
_FORBIDDEN_IN_NAMES = " ,;{}()\n\t=`"
"""Characters that Spark refuses in the names of a Delta table's columns, and the quotation mark."""


class FencedTable:
    """The table at `path`, protected by fencing tokens. `app` names the history of mini-batches,
    `fence_name` the transaction that records the newest token, and `fence` is this attempt's token.
    """

    def __init__(self, path: Path, app: str, fence_name: str, fence: int) -> None:
        self.path = path
        self._app = app
        self._fence_name = fence_name
        self._fence = fence
        self._committed: int | None = None
        """The last mini-batch that is known to be committed. Only a newer attempt can commit later ones, and `commit`
        reads the table again.
        """

    def open_or_create(self, create: Callable[[CommitProperties], DeltaTable]) -> DeltaTable:
        """Returns the table; `create` creates it if it does not exist. Raises SinkError if it cannot be created."""
        for _ in range(_TRIES):
            try:
                return DeltaTable(self.path)
            except TableNotFoundError:
                self.path.mkdir(parents=True, exist_ok=True)
            try:
                return create(self._recording(self._fence_name, self._fence))
            except DeltaError as error:
                if not DeltaTable.is_deltatable(str(self.path)):
                    raise SinkError(f"Cannot create a Delta table for the result: {error}") from error
        raise self._contended()

    def current(self) -> DeltaTable:
        """Returns the newest version. Raises FenceLostError if a newer attempt writes to the table."""
        table = DeltaTable(self.path)
        fence = table.transaction_version(self._fence_name)
        if fence is not None and fence > self._fence:
            raise FenceLostError(f"Attempt {fence} now writes to the table at {self.path}. Attempt {self._fence} ends.")
        return table

    def fence_off_older(self) -> None:
        """Records this attempt's token: attempts with older tokens can no longer commit. Raises FenceLostError."""
        for _ in range(_TRIES):
            table = self.current()
            if table.transaction_version(self._fence_name) == self._fence:
                return
            try:
                table.create_write_transaction(
                    [],
                    "append",
                    table.schema(),
                    partition_by=table.metadata().partition_columns,
                    commit_properties=self._recording(self._fence_name, self._fence),
                )
            except CommitFailedError:
                continue
            return
        raise self._contended()

    def committed(self) -> int | None:
        """Returns the last committed mini-batch; None if there is none."""
        if self._committed is None:
            self._committed = DeltaTable(self.path).transaction_version(self._app)
        return self._committed

    def commit(self, batch_id: int, write: Callable[[DeltaTable, CommitProperties], None] | None) -> int:
        """Calls `write` to create the next version of the table, unless the mini-batch is committed already. `write` is
        None if there is nothing to write. Returns a version that contains the mini-batch.

        Raises FenceLostError, SinkError, and the error of `write` if the mini-batch was not committed.
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
                write(table, self._recording(self._app, batch_id))
            except (DeltaError, OSError) as error:
                # The commit may have succeeded nevertheless: the next round checks the table.
                failed = error
            else:
                self._committed = batch_id
                return before + 1
        raise self._contended()

    def rewrite(self, app: str, version: int, write: Callable[[CommitProperties], None]) -> bool:
        """Calls `write` to create the version after the one that it has read, which records `version` of `app`. Returns
        False if another writer committed first.
        """
        try:
            write(self._recording(app, version))
        except CommitFailedError:
            return False
        return True

    def _recording(self, app: str, version: int) -> CommitProperties:
        return CommitProperties(
            app_transactions=[Transaction(app, version)],
            custom_metadata={"fence": str(self._fence)},
            max_commit_retries=0,
        )

    def _contended(self) -> SinkError:
        return SinkError(
            f"{_TRIES} commits to {self.path} failed because other writers committed first. "
            "Only this job may write to the table."
        )


class DeltaSink(Sink):
    """See the module. The sink creates the table; an existing one must have exactly the result's columns.

    `of_nothing` is inserted into an empty table, for an aggregate without GROUP BY.

    The owner of the table decides when to remove its old versions. Memory: the rows of a mini-batch, and what the merge
    needs. Groups in parts are refused, since the sink would have to read all of their parts again.
    """

    def __init__(self, path: Path, target: SinkTarget, of_nothing: OfNothing | None = None) -> None:
        self._path = path
        self._target = target
        self._of_nothing = of_nothing
        # Attempts of older generations write to the same table.
        job = target.app.rpartition("/")[0] or target.app
        self._fence_name = f"{job}/fence"
        self._fenced = FencedTable(path, target.app, self._fence_name, target.fence)

    def prepare(self) -> None:
        """See `Sink`."""
        schema = self._checked()
        table = self._fenced.open_or_create(
            lambda properties: DeltaTable.create(self._path, schema, mode="error", commit_properties=properties)
        )
        self._check_table(table, schema)
        self._check_rows(table)
        self._fenced.fence_off_older()
        if self._of_nothing is not None:
            self._insert_first_row(one_row(self._of_nothing, schema))

    def committed(self) -> int | None:
        """See `Sink`."""
        return self._fenced.committed()

    def commit(self, batch_id: int, staged: Staged) -> int:
        """See `Sink`. A mini-batch without rows does not change the table and is not recorded."""
        return self._fenced.commit(
            batch_id,
            (lambda table, properties: self._write(table, staged, properties)) if staged.rows else None,
        )

    def _write(self, table: DeltaTable, staged: Staged, properties: CommitProperties) -> None:
        schema = staged_schema(self._target.columns)
        rows = pa.Table.from_batches(staged_rows(staged, schema, _ROWS_PER_BATCH), schema)
        names = [field.name for field in self._target.output]
        keys, weight = self._target.keys, self._target.weight
        if keys is None:
            write_deltalake(table, rows.select(names), mode="append", commit_properties=properties)
        elif not keys:
            newest = newest_of(rows, keys)
            newest = newest if weight is None else present(newest, weight)
            write_deltalake(table, newest.select(names), mode="overwrite", commit_properties=properties)
        elif weight is not None:
            self._merge_changes(table, newest_of(rows, keys), keys, weight, properties)
        else:
            merge = table.merge(
                newest_of(rows, keys).select(names),
                _equal_keys(keys),
                source_alias="s",
                target_alias="t",
                commit_properties=properties,
            )
            merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def _merge_changes(
        self, table: DeltaTable, rows: pa.Table, keys: Sequence[str], weight: str, properties: CommitProperties
    ) -> None:
        """Replaces, inserts and deletes rows in one version of the table."""
        names = [field.name for field in self._target.output]
        folded = {name.casefold() for name in names}
        is_there = next(name for number in range(len(folded) + 1) if (name := f"present_{number}") not in folded)
        source = rows.select(names).append_column(is_there, pc.greater(rows.column(weight), 0))
        values = {f"`{name}`": f"s.`{name}`" for name in names}
        merge = table.merge(source, _equal_keys(keys), source_alias="s", target_alias="t", commit_properties=properties)
        (
            merge.when_matched_delete(f"NOT s.`{is_there}`")
            .when_matched_update(values)
            .when_not_matched_insert(values, predicate=f"s.`{is_there}`")
            .execute()
        )

    def _insert_first_row(self, row: pa.Table) -> None:
        """Inserts the row into an empty table."""
        table = self._fenced.current()
        if self._fenced.committed() is None and table.count() == 0:
            # If another writer commits first, the table is no longer empty.
            self._fenced.rewrite(
                f"{self._target.app}/nothing",
                0,
                lambda properties: write_deltalake(table, row, mode="append", commit_properties=properties),
            )

    def _checked(self) -> pa.Schema:
        target = self._target
        if target.final is not None:
            raise SinkError(
                "A Delta table cannot store groups whose state is kept in parts. Use sink 'managed' or 'postgres', or "
                "another distinct_method."
            )
        staged_schema(target.columns)
        schema = staged_schema(target.output)
        for name in schema.names:
            if not name or any(mark in name for mark in _FORBIDDEN_IN_NAMES):
                raise SinkError(f"Spark cannot read a Delta table with a column '{name}'. Give it an alias.")
        folded = [name.casefold() for name in schema.names]
        if len(set(folded)) < len(folded):
            raise SinkError("Several columns of the result have the same name, ignoring case. Give them aliases.")
        missing = set(target.keys or ()) - set(schema.names)
        if missing:
            raise SinkError(missing_keys(missing))
        return schema

    def _check_rows(self, table: DeltaTable) -> None:
        """Checks the rows that a new history of mini-batches would add to or overwrite. Raises SinkError."""
        keys = self._target.keys
        if keys or self._fenced.committed() is not None:
            return
        if keys is None and table.transaction_version(self._fence_name) is not None and table.count() > 0:
            raise SinkError(
                f"The table at {self._path} contains rows that this job wrote before it started from scratch. The job "
                "would add them a second time. Delete the rows of the table, then resume the job."
            )
        if keys == () and table.count() > 1:
            raise SinkError(
                f"The table at {self._path} has {table.count()} rows, but the result has one row. Choose another path."
            )

    def _check_table(self, table: DeltaTable, schema: pa.Schema) -> None:
        there = {field.name: field.type for field in pa.schema(table.schema())}
        wanted = {field.name: field.type for field in schema}
        if there != wanted:
            raise SinkError(
                f"The table at {self._path} has the columns {_listed(there)}, but the result has {_listed(wanted)}. "
                "Change the query so that the columns are the same, or choose another path."
            )


def _equal_keys(keys: Sequence[str]) -> str:
    """The condition of the merge; NULL equals NULL. In this dialect AND binds tighter, hence the parentheses."""
    return " AND ".join(f"(t.`{key}` IS NOT DISTINCT FROM s.`{key}`)" for key in keys)


def _listed(columns: dict[str, pa.DataType]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
