"""The PostgreSQL sink: it upserts each mini-batch into a table, with one row for each key.

One transaction writes the rows of a mini-batch, records its number and checks the fencing token. The table
`evenkeel_batches`, in the same schema, has the number and the token of each history of mini-batches (`app`); a writer
locks its row. If rows are parts of groups, `<table>__parts` has the parts, and the same transaction computes the groups
of the mini-batch again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
import pyarrow as pa
import structlog
from psycopg import sql
from psycopg.types.json import Jsonb

from service.results.json_values import json_value
from service.sql.types.aggregates import FinalLevel
from workers.engine.streaming.sinks import postgres_sql as statements
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
from workers.engine.streaming.sinks.postgres_sql import (
    LEAST_VERSION,
    TableName,
    check_names,
    create_or_check,
    find,
    wire_type,
)

T = TypeVar("T")

_log = structlog.get_logger(__name__)

BATCHES = "evenkeel_batches"

_LOCK_TIMEOUT_MS = 5_000
"""How long an attempt waits for the transaction of an older attempt before it terminates it."""

_IDLE_TIMEOUT_MS = 60_000
"""How long the transaction of an attempt that hangs keeps its locks, unless a newer attempt terminates it."""

_TRIES = 8
"""With growing pauses, about one minute in total: enough for a server to restart."""

_CONNECT_SECONDS = 10
_ROWS_PER_BATCH = 16_384

_PERMANENT_ERRORS = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.ProgrammingError,
    psycopg.NotSupportedError,
    psycopg.errors.ProgramLimitExceeded,
)
"""Errors that a retry does not solve, unlike those of a server that is not reachable."""


class PostgresSink(Sink):
    """See the module. `url` is a connection string of libpq. `table` is a table name, with or without its schema; it is
    case-sensitive.

    The sink creates the table if it does not exist. `of_nothing` is inserted into an empty table, for an aggregate
    without GROUP BY. Memory: 16,384 rows.
    """

    def __init__(
        self,
        url: str,
        table: str,
        target: SinkTarget,
        of_nothing: OfNothing | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._url = url
        self._pause = pause
        self._name = table
        self._target = target
        self._of_nothing = of_nothing
        self._types = {field.name: field for field in target.columns}
        self._job = target.app.rpartition("/")[0] or target.app
        taken = {field.name for field in target.columns}
        self._row = next(name for number in range(len(taken) + 1) if (name := f"_row{number or ''}") not in taken)
        self._keys = target.keys if target.final is None else _output_keys(target.final)
        """The key columns of the table, by the names that they have there."""
        self._connection: psycopg.Connection | None = None
        self._table = TableName("", table)

    def prepare(self) -> None:
        """See `Sink`."""
        target = self._target
        missing = set(self._keys or ()) - {field.name for field in target.output}
        if missing:
            raise SinkError(missing_keys(missing))
        staged_schema(target.columns)
        check_names(target.output, self._keys or ())
        if target.final is not None:
            check_names(target.columns, (*target.final.keys, *target.final.parts))
            statements.check_final(target.final, self._types)
        self._retried(self._prepare_against_others)

    def committed(self) -> int | None:
        """See `Sink`."""
        return self._retried(lambda: self._last_batch(self._connected(), lock=False))

    def commit(self, batch_id: int, staged: Staged) -> None:
        """See `Sink`; returns no version."""
        # A commit that raised an error may have succeeded: the retry reads the table of mini-batches first.
        self._retried(lambda: self._commit(batch_id, staged))

    def close(self) -> None:
        """See `Sink`."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _retried(self, step: Callable[[], T]) -> T:
        """Returns the result of `step`, which is retried while the server is not reachable. Raises SinkError after the
        last try.
        """
        tried = 0
        with _as_sink_errors():
            while True:
                try:
                    return step()
                except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                    if isinstance(error, _PERMANENT_ERRORS):
                        raise
                    tried += 1
                    if tried == _TRIES:
                        raise SinkError(
                            f"Cannot reach PostgreSQL: {error} Resume the job when it is reachable; no rows are lost."
                        ) from error
                    _log.warning("sink_unreachable", tries=tried, error=type(error).__name__)
                    self._pause(0.25 * 2**tried)

    def _prepare_against_others(self) -> None:
        for last in (False, False, True):
            try:
                self._prepare()
                return
            except psycopg.errors.LockNotAvailable:
                if last:
                    raise
                self._terminate_older_sessions()

    def _commit(self, batch_id: int, staged: Staged) -> None:
        with self._connected().transaction():
            self._write(batch_id, staged)

    def _prepare(self) -> None:
        connection = self._connected()
        if connection.info.server_version < LEAST_VERSION:
            raise SinkError(
                f"The server is PostgreSQL {connection.info.server_version // 10_000}. The sink needs version 15 or "
                "later, for unique indexes with NULLS NOT DISTINCT."
            )
        with connection.transaction():
            connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_LOCK_TIMEOUT_MS)))
            # If two attempts created the same table, one would fail; all jobs share the table of mini-batches.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('evenkeel'), 0)")
            self._table, oid = find(connection, self._name)
            restarts = self._fence_off_older(connection)
            create_or_check(connection, self._table, oid, self._target.output, self._keys or ())
            if restarts and self._keys is None:
                self._require_empty(connection)
            if self._of_nothing is not None and self._last_batch(connection, lock=True) is None:
                row = zip(self._target.output, self._of_nothing, strict=True)
                connection.execute(statements.insert_first(self._table, list(row)))
            if self._target.final is not None:
                parts, oid = find(connection, f"{self._table}__parts")
                final = self._target.final
                create_or_check(connection, parts, oid, self._target.columns, (*final.keys, *final.parts))
                if restarts:
                    # The parts of the discarded state would be added to those of the new state.
                    connection.execute(sql.SQL("DELETE FROM {}").format(parts.quoted))

    def _require_empty(self, connection: psycopg.Connection) -> None:
        if connection.execute(sql.SQL("SELECT 1 FROM {} LIMIT 1").format(self._table.quoted)).fetchone() is not None:
            raise SinkError(
                f"{self._table} contains rows that this job wrote before it started from scratch. The job would add "
                "them a second time. Delete the rows of the table, then resume the job."
            )

    def _fence_off_older(self, connection: psycopg.Connection) -> bool:
        """Records this attempt's token, so that older attempts cannot commit. Returns whether this history of
        mini-batches is new and the job has an older one.
        """
        batches, oid = find(connection, f"{self._table.schema}.{BATCHES}")
        if oid is None:
            connection.execute(
                sql.SQL(
                    "CREATE TABLE {} (app text PRIMARY KEY, fence bigint NOT NULL, batch_id bigint NOT NULL)"
                ).format(batches.quoted)
            )
        # Attempts of older generations write to the same table: they are fenced off too.
        raised = sql.SQL(
            "INSERT INTO {0} AS b VALUES (%(app)s, %(fence)s, -1)"
            " ON CONFLICT (app) DO UPDATE SET fence = EXCLUDED.fence WHERE b.fence <= EXCLUDED.fence RETURNING fence"
        ).format(batches.quoted)
        others = sql.SQL(
            "UPDATE {0} SET fence = %(fence)s WHERE starts_with(app, %(job)s) AND fence < %(fence)s"
        ).format(batches.quoted)
        values = {"app": self._target.app, "job": f"{self._job}/", "fence": self._target.fence}
        known = sql.SQL(
            "SELECT count(*) FILTER (WHERE app = %(app)s), count(*) FROM {} WHERE starts_with(app, %(job)s)"
        ).format(batches.quoted)
        own, every = connection.execute(known, values).fetchone() or (0, 0)
        if connection.execute(raised, values).fetchone() is None:
            raise self._fence_lost(self._recorded(connection, lock=False)[0])
        connection.execute(others, values)
        return every > own and self._recorded(connection, lock=False)[1] < 0

    def _last_batch(self, connection: psycopg.Connection, *, lock: bool) -> int | None:
        """Returns the newest committed mini-batch; None if there is none. Raises FenceLostError."""
        fence, batch_id = self._recorded(connection, lock=lock)
        if fence > self._target.fence:
            raise self._fence_lost(fence)
        return None if batch_id < 0 else batch_id

    def _recorded(self, connection: psycopg.Connection, *, lock: bool) -> tuple[int, int]:
        """Returns the recorded fencing token and mini-batch; -1 if there is no mini-batch."""
        batches = TableName(self._table.schema, BATCHES)
        query = sql.SQL("SELECT fence, batch_id FROM {} WHERE app = %s{}").format(
            batches.quoted, sql.SQL(" FOR UPDATE" if lock else "")
        )
        row = connection.execute(query, [self._target.app]).fetchone()
        if row is None:
            raise SinkError(f"The row of {self._target.app} is missing from {batches}. Resume the job from scratch.")
        return int(row[0]), int(row[1])

    def _fence_lost(self, fence: int) -> FenceLostError:
        return FenceLostError(f"Attempt {fence} now writes to {self._table}. Attempt {self._target.fence} ends.")

    def _write(self, batch_id: int, staged: Staged) -> None:
        connection = self._connected()
        last = self._last_batch(connection, lock=True)
        if last is not None and last >= batch_id:
            return
        if staged.rows:
            self._copy(connection, staged)
            self._apply_stage(connection)
        connection.execute(
            sql.SQL("UPDATE {} SET batch_id = %s WHERE app = %s").format(TableName(self._table.schema, BATCHES).quoted),
            [batch_id, self._target.app],
        )

    def _copy(self, connection: psycopg.Connection, staged: Staged) -> None:
        connection.execute(statements.create_stage(self._target.columns, self._row))
        types = [wire_type(field.type) for field in self._target.columns]
        with (
            connection.cursor() as cursor,
            cursor.copy(sql.SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(statements.STAGE)) as copy,
        ):
            copy.set_types([*types, "int8"])
            number = 0
            for batch in staged_rows(staged, staged_schema(self._target.columns), _ROWS_PER_BATCH):
                columns = [_values(column, type_) for column, type_ in zip(batch.columns, types, strict=True)]
                rows = zip(*columns, range(number, number + batch.num_rows), strict=True)
                for row in rows:
                    copy.write_row(row)
                number += batch.num_rows
        if self._target.final is not None:
            # A join follows.
            connection.execute(sql.SQL("ANALYZE {}").format(statements.STAGE))

    def _apply_stage(self, connection: psycopg.Connection) -> None:
        target = self._target
        names = [field.name for field in target.columns]
        if target.final is None:
            output = [field.name for field in target.output]
            self._replace(connection, self._table, output, target.keys)
            return
        final = target.final
        parts = TableName(self._table.schema, f"{self._table.table}__parts")
        self._replace(connection, parts, names, (*final.keys, *final.parts))
        output = [column.field.name for column in final.output]
        groups = statements.touched_groups(parts, final, self._types)
        if self._keys:
            connection.execute(statements.upsert(self._table, output, self._keys, groups))
        else:
            self._replace_only_row(connection, output, groups)

    def _replace(
        self,
        connection: psycopg.Connection,
        table: TableName,
        names: list[str],
        keys: tuple[str, ...] | None,
    ) -> None:
        if keys is None:
            connection.execute(statements.insert(table, names, statements.rows_of_stage(names)))
            return
        newest = statements.newest_of_stage(names, keys, self._row)
        if not keys:
            if self._target.weight is not None:
                self._delete(connection, table, keys, self._target.weight)
                newest = statements.present_rows_of_stage(names, self._target.weight)
            self._replace_only_row(connection, names, newest)
            return
        if self._target.weight is not None:
            # Each key is staged once.
            self._delete(connection, table, keys, self._target.weight)
            rows = statements.present_rows_of_stage(names, self._target.weight)
            connection.execute(statements.upsert(table, names, keys, rows))
            return
        try:
            with connection.transaction():
                rows = statements.rows_of_stage(names)
                connection.execute(statements.upsert(table, names, keys, rows))
        except psycopg.errors.CardinalityViolation:
            # A key was staged twice, which is rare: the query that sorts is run only in this case.
            connection.execute(statements.upsert(table, names, keys, newest))

    def _delete(self, connection: psycopg.Connection, table: TableName, keys: tuple[str, ...], weight: str) -> None:
        for statement in statements.deletions(table, keys, weight):
            connection.execute(statement)

    def _replace_only_row(self, connection: psycopg.Connection, names: list[str], rows: sql.Composed) -> None:
        replaced = connection.execute(statements.replace_only_row(self._table, names, rows)).rowcount
        if replaced > 1:
            raise SinkError(f"{self._table} has {replaced} rows, but the result has one row. Choose another table.")
        if replaced == 0:
            connection.execute(statements.insert(self._table, names, rows))

    def _connected(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed or self._connection.broken:
            connection = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=_CONNECT_SECONDS,
                application_name=f"{self._session_prefix}{self._target.fence}",
            )
            # As statements: connection poolers refuse connection options.
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute(sql.SQL("SET idle_in_transaction_session_timeout = {}").format(_IDLE_TIMEOUT_MS))
            self._connection = connection
        return self._connection

    @property
    def _session_prefix(self) -> str:
        """The prefix of `application_name` of all attempts of the job."""
        return f"evenkeel-{hashlib.sha256(self._job.encode()).hexdigest()[:16]}-"

    def _terminate_older_sessions(self) -> None:
        """Terminates the sessions of older attempts: one that hangs in a transaction keeps its locks."""
        self._connected().execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE usename = current_user AND datname = current_database()"
            # CASE, since PostgreSQL evaluates the operands of AND in any order, and casting other names would fail.
            " AND CASE WHEN application_name ~ %(name)s"
            " THEN split_part(application_name, '-', 3)::bigint < %(fence)s ELSE false END",
            {"name": f"^{self._session_prefix}[0-9]{{1,18}}$", "fence": self._target.fence},
        )


@contextmanager
def _as_sink_errors() -> Iterator[None]:
    try:
        yield
    except _PERMANENT_ERRORS as error:
        raise SinkError(f"PostgreSQL returned an error: {error}") from error


def _values(column: pa.Array, type_: str) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as error:
        raise SinkError(f"A date or time is outside the years 1 to 9999: {error}") from error
    convert: Callable[[Any], Any] = Jsonb
    return [None if value is None else convert(json_value(value)) for value in values] if type_ == "jsonb" else values


def _output_keys(final: FinalLevel) -> tuple[str, ...]:
    """The keys of groups by their names in the output; by their own names if the output does not have them."""
    names = {column.source: column.field.name for column in reversed(final.output) if column.divisor is None}
    return tuple(names.get(key, key) for key in final.keys)
