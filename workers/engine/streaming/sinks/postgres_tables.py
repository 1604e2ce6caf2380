"""The tables of a PostgreSQL sink: which type a column takes, making tables, and checking those that there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import psycopg
from psycopg import sql

from service.spec.types import DataType, Field, TypeName
from workers.engine.streaming.sinks.sink import SinkError

LEAST_VERSION = 150_000
"""Since then an index may say that NULLs are equal."""

LONGEST_NAME = 63
"""Bytes; PostgreSQL cuts off what is longer."""

_TYPES = {
    TypeName.BOOLEAN: ("bool",),
    TypeName.TINYINT: ("int2", "int4", "int8", "numeric"),
    TypeName.SMALLINT: ("int2", "int4", "int8", "numeric"),
    TypeName.INT: ("int4", "int8", "numeric"),
    TypeName.BIGINT: ("int8", "numeric"),
    TypeName.FLOAT: ("float4", "float8"),
    TypeName.DOUBLE: ("float8",),
    TypeName.DECIMAL: ("numeric",),
    TypeName.STRING: ("text", "varchar"),
    TypeName.BINARY: ("bytea",),
    TypeName.DATE: ("date",),
    TypeName.TIMESTAMP: ("timestamptz",),
    TypeName.TIMESTAMP_NTZ: ("timestamp",),
    TypeName.OTHER: ("jsonb", "json"),
}
"""What a column may be in a table of the user's; the first is what a column becomes in one that is made."""

_DIGITS = {TypeName.TINYINT: 3, TypeName.SMALLINT: 5, TypeName.INT: 10, TypeName.BIGINT: 19}


class TableName(NamedTuple):
    """A table and its schema, spelled as they are."""

    schema: str
    table: str

    @property
    def quoted(self) -> sql.Identifier:
        """As part of a statement."""
        return sql.Identifier(self.schema, self.table)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


class _Column(NamedTuple):
    name: str
    type: str
    modifier: int
    is_required: bool
    is_generated: bool


def wire_type(type_: DataType) -> str:
    """The name of the type by which COPY writes values. Raises SinkError where there is none."""
    names = _TYPES.get(type_.name)
    if names is None:
        raise SinkError(f"PostgreSQL has no type for {type_}. CAST the column to another type.")
    return names[0]


def column_type(type_: DataType) -> sql.Composable:
    """The type of a column of a table that is made."""
    if type_.name is TypeName.DECIMAL:
        return sql.SQL("numeric({},{})").format(type_.precision, type_.scale)
    return sql.SQL(wire_type(type_))


def check_names(columns: Sequence[Field], keys: Sequence[str]) -> None:
    """Raises SinkError for columns that no table can have, or be unique by."""
    names = [field.name for field in columns]
    for name in names:
        if not 0 < len(name.encode()) <= LONGEST_NAME or "\0" in name:
            raise SinkError(f"The column name '{name}' has more than {LONGEST_NAME} bytes. Give it a shorter alias.")
        if names.count(name) > 1:
            raise SinkError(f"Several columns of the result are called '{name}'. Give them aliases.")
    for field in columns:
        if wire_type(field.type) == "jsonb" and field.name in keys:
            raise SinkError(f"Rows cannot be unique by '{field.name}' of type {field.type}. CAST it to STRING.")


def find(connection: psycopg.Connection, name: str) -> tuple[TableName, int | None]:
    """The full name of a table, `table` or `schema.table`, and its id where there is one."""
    schema, _, table = name.rpartition(".")
    parts = [part for part in (schema, table) if part]
    if any(len(part.encode()) > LONGEST_NAME for part in parts):
        raise SinkError(f"The table name '{name}' is longer than {LONGEST_NAME} bytes.")
    row = connection.execute(
        "SELECT c.oid, n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = to_regclass(%s)",
        [sql.Identifier(*parts).as_string(connection)],
    ).fetchone()
    if row is not None:
        return TableName(row[1], table), row[0]
    if schema:
        return TableName(schema, table), None
    (current,) = connection.execute("SELECT current_schema()").fetchone() or (None,)
    if current is None:
        raise SinkError(f"The connection has no schema to make '{table}' in. Name it: 'public.{table}'.")
    return TableName(current, table), None


def make(connection: psycopg.Connection, name: TableName, columns: Sequence[Field], keys: Sequence[str]) -> None:
    """Makes a table, unique by `keys` where there are any, NULL being equal to NULL."""
    parts: list[sql.Composable] = [
        sql.SQL("{} {}").format(sql.Identifier(field.name), column_type(field.type)) for field in columns
    ]
    if keys:
        parts.append(sql.SQL("UNIQUE NULLS NOT DISTINCT ({})").format(identifiers(keys)))
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(name.quoted, sql.SQL(", ").join(parts)))


def check(
    connection: psycopg.Connection, name: TableName, oid: int, columns: Sequence[Field], keys: Sequence[str]
) -> None:
    """Raises SinkError, which says what to do, where a table cannot take the rows."""
    (kind,) = connection.execute("SELECT relkind FROM pg_class WHERE oid = %s", [oid]).fetchone() or ("",)
    if kind not in {"r", "p", b"r", b"p"}:
        raise SinkError(f"{name} is not a table. Name a table, or one that is to be made.")
    there = {column.name: column for column in _columns(connection, oid)}
    for field in columns:
        column = there.pop(field.name, None)
        if column is None:
            raise SinkError(
                f"{name} has no column '{field.name}'. Add it with ALTER TABLE ... ADD COLUMN "
                f"{sql.Identifier(field.name).as_string(connection)} {column_type(field.type).as_string(connection)}, "
                "or give the result's column another alias."
            )
        if column.is_generated:
            raise SinkError(f"PostgreSQL makes the values of '{field.name}' of {name} itself. Write to another column.")
        if not _takes(column, field.type):
            raise SinkError(
                f"'{field.name}' of {name} is of type {column.type}, which cannot take every {field.type}. "
                f"Let it be {column_type(field.type).as_string(connection)}, or CAST the result's column."
            )
    required = sorted(column.name for column in there.values() if column.is_required)
    if required:
        raise SinkError(
            f"{name} demands values for {', '.join(required)}, which the result has not. "
            "Give them defaults, or let them be NULL."
        )
    if keys and not _is_unique(connection, oid, keys):
        raise SinkError(
            f"{name} is not unique by {', '.join(keys)}. Run: CREATE UNIQUE INDEX ON "
            f"{name.quoted.as_string(connection)} ({identifiers(keys).as_string(connection)}) NULLS NOT DISTINCT"
        )


def identifiers(names: Sequence[str]) -> sql.Composed:
    """Quoted names with commas in between."""
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _columns(connection: psycopg.Connection, oid: int) -> list[_Column]:
    found = connection.execute(
        "SELECT attname, typname, atttypmod, attnotnull AND NOT atthasdef AND attidentity = '',"
        " attgenerated <> '' OR attidentity = 'a'"
        " FROM pg_attribute JOIN pg_type t ON t.oid = atttypid"
        " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped",
        [oid],
    )
    return [_Column(*row) for row in found]


def _takes(column: _Column, type_: DataType) -> bool:
    if column.type not in _TYPES.get(type_.name, ()):
        return False
    if column.type != "numeric" or column.modifier < 0:
        return True
    precision, scale = (column.modifier - 4) >> 16 & 0xFFFF, (column.modifier - 4) & 0x7FF
    # Scales from -1000 on, in eleven bits.
    scale -= 2048 if scale >= 1024 else 0
    wanted = type_.scale or 0
    digits = (type_.precision or _DIGITS.get(type_.name, 0)) - wanted
    return scale >= wanted and precision - scale >= digits


def _is_unique(connection: psycopg.Connection, oid: int, keys: Sequence[str]) -> bool:
    """Whether an index that ON CONFLICT can name lets each combination of `keys` in once."""
    found = connection.execute(
        "SELECT indnullsnotdistinct OR bool_and(attnotnull), array_agg(attname::text)"
        " FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey[0:indnkeyatts - 1])"
        " WHERE indrelid = %s AND indisunique AND indisvalid AND indimmediate"
        " AND indpred IS NULL AND indexprs IS NULL GROUP BY indexrelid, indnullsnotdistinct",
        [oid],
    )
    return any(is_strict and sorted(names) == sorted(keys) for is_strict, names in found)
