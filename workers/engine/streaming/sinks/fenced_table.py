"""A Delta table whose log remembers the newest fencing token, and the last mini-batch of a history of them.

Every commit is made for exactly the version behind the one that was looked at, or not at all: whoever was first may
have changed what it was decided by. It is then decided anew.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from workers.engine.streaming.sinks.sink import FenceLostError, SinkError

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
