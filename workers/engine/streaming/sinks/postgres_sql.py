"""The SQL of the PostgreSQL sink: types of columns, creating and checking tables, and writing a staged mini-batch.

The statements are composed with `psycopg.sql`. SQLAlchemy Core would need as many lines and a second map of types: COPY
needs PostgreSQL's names, and its reflection does not report deferrable unique indexes, which ON CONFLICT cannot use. It
also doubles a % in names unless there are parameters, and wraps the driver's errors, which the sink distinguishes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import psycopg
from psycopg import sql

from service.sql.types.aggregates import FinalColumn, FinalLevel, Merge
from service.sql.types.data_types import BOOLEAN, NESTED, DataType, Field, TypeName
from workers.engine.streaming.sinks.base import SinkError

LEAST_VERSION = 150_000
"""The first version with NULLS NOT DISTINCT."""

LONGEST_NAME = 63
"""Bytes; PostgreSQL truncates longer names."""

STAGE = sql.Identifier("pg_temp", "evenkeel_stage")

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
    **dict.fromkeys((TypeName.OTHER, *NESTED), ("jsonb", "json")),
}
"""The types that a column may have in an existing table; the first is used in tables that the sink creates."""

_DIGITS = {TypeName.TINYINT: 3, TypeName.SMALLINT: 5, TypeName.INT: 10, TypeName.BIGINT: 19}


class TableName(NamedTuple):
    """The names of a table and its schema, without quotation marks."""

    schema: str
    table: str

    @property
    def quoted(self) -> sql.Identifier:
        """The quoted name, for statements."""
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
    """Returns the name of the type in which COPY writes values. Raises SinkError if there is none."""
    names = _TYPES.get(type_.name)
    if names is None:
        raise SinkError(f"PostgreSQL has no type for {type_}. CAST the column to another type.")
    return names[0]


def column_type(type_: DataType) -> sql.Composable:
    """Returns the type of a column in a table that the sink creates."""
    if type_.name is TypeName.DECIMAL:
        return sql.SQL("numeric({},{})").format(type_.precision, type_.scale)
    return sql.SQL(wire_type(type_))


def check_names(columns: Sequence[Field], keys: Sequence[str]) -> None:
    """Raises SinkError for names that a table cannot have, and for keys that a unique index cannot have."""
    names = [field.name for field in columns]
    for name in names:
        if not 0 < len(name.encode()) <= LONGEST_NAME or "\0" in name:
            raise SinkError(
                f"PostgreSQL does not support the column name '{name}': names have 1 to {LONGEST_NAME} bytes. "
                "Give the column another alias."
            )
        if names.count(name) > 1:
            raise SinkError(f"Several columns of the result have the name '{name}'. Give them aliases.")
    for field in columns:
        if wire_type(field.type) == "jsonb" and field.name in keys:
            raise SinkError(f"'{field.name}' of type {field.type} cannot be a key in PostgreSQL. CAST it to STRING.")


def find(connection: psycopg.Connection, name: str) -> tuple[TableName, int | None]:
    """Returns the full name of a table, given as `table` or `schema.table`, and its oid; None if it does not exist."""
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
        raise SinkError(
            f"The connection has no current schema in which to create '{table}'. Name one, such as 'public.{table}'."
        )
    return TableName(current, table), None


def create_or_check(
    connection: psycopg.Connection, name: TableName, oid: int | None, columns: Sequence[Field], keys: Sequence[str]
) -> None:
    """Creates a table that does not exist (`oid` is None); else checks that it can store the rows. `keys` are unique,
    and NULL equals NULL. Raises SinkError, whose message says what to change.
    """
    if oid is not None:
        _check(connection, name, oid, columns, keys)
        return
    parts: list[sql.Composable] = [
        sql.SQL("{} {}").format(sql.Identifier(field.name), column_type(field.type)) for field in columns
    ]
    if keys:
        parts.append(sql.SQL("UNIQUE NULLS NOT DISTINCT ({})").format(identifiers(keys)))
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(name.quoted, sql.SQL(", ").join(parts)))


def _check(
    connection: psycopg.Connection, name: TableName, oid: int, columns: Sequence[Field], keys: Sequence[str]
) -> None:
    (kind,) = connection.execute("SELECT relkind FROM pg_class WHERE oid = %s", [oid]).fetchone() or ("",)
    if kind not in {"r", "p", b"r", b"p"}:
        raise SinkError(f"{name} is not a table. Name a table, or a name that does not exist yet.")
    there = {column.name: column for column in _columns(connection, oid)}
    for field in columns:
        column = there.pop(field.name, None)
        if column is None:
            raise SinkError(
                f"{name} has no column '{field.name}'. Add it with ALTER TABLE ... ADD COLUMN "
                f"{sql.Identifier(field.name).as_string(connection)} {column_type(field.type).as_string(connection)}, "
                "or give the column of the result another alias."
            )
        if column.is_generated:
            raise SinkError(
                f"'{field.name}' of {name} is a generated column. Give the column of the result another alias."
            )
        if not _accepts(column, field.type):
            raise SinkError(
                f"'{field.name}' of {name} is of type {column.type}, which cannot store every {field.type}. Change it "
                f"to {column_type(field.type).as_string(connection)}, or CAST the column of the result."
            )
    required = sorted(column.name for column in there.values() if column.is_required)
    if required:
        raise SinkError(
            f"The result has no values for required columns of {name}: {', '.join(required)}. "
            "Give them a DEFAULT, or remove NOT NULL."
        )
    if keys and not _is_unique(connection, oid, keys):
        raise SinkError(
            f"{name} has no unique index on {', '.join(keys)}. Run: CREATE UNIQUE INDEX ON "
            f"{name.quoted.as_string(connection)} ({identifiers(keys).as_string(connection)}) NULLS NOT DISTINCT"
        )


def identifiers(names: Sequence[str]) -> sql.Composed:
    """Returns the quoted names, separated by commas."""
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


def _accepts(column: _Column, type_: DataType) -> bool:
    """Whether the column can store every value of the type."""
    if column.type not in _TYPES.get(type_.name, ()):
        return False
    if column.type != "numeric" or column.modifier < 0:
        return True
    precision, scale = (column.modifier - 4) >> 16 & 0xFFFF, (column.modifier - 4) & 0x7FF
    # The scale is a signed number of eleven bits, at least -1000.
    scale -= 2048 if scale >= 1024 else 0
    wanted = type_.scale or 0
    digits = (type_.precision or _DIGITS.get(type_.name, 0)) - wanted
    return scale >= wanted and precision - scale >= digits


def _is_unique(connection: psycopg.Connection, oid: int, keys: Sequence[str]) -> bool:
    """Whether there is a unique index on `keys` that ON CONFLICT can use."""
    found = connection.execute(
        "SELECT indnullsnotdistinct OR bool_and(attnotnull), array_agg(attname::text)"
        " FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey[0:indnkeyatts - 1])"
        " WHERE indrelid = %s AND indisunique AND indisvalid AND indimmediate"
        " AND indpred IS NULL AND indexprs IS NULL GROUP BY indexrelid, indnullsnotdistinct",
        [oid],
    )
    return any(is_strict and sorted(names) == sorted(keys) for is_strict, names in found)


def create_stage(columns: Sequence[Field], row: str) -> sql.Composed:
    """Creates a temporary table, empty at the start of each transaction: `columns` and the number of the row."""
    parts = [sql.SQL("{} {}").format(sql.Identifier(field.name), column_type(field.type)) for field in columns]
    return sql.SQL("CREATE TEMP TABLE IF NOT EXISTS evenkeel_stage ({}, {} int8) ON COMMIT DELETE ROWS").format(
        sql.SQL(", ").join(parts), sql.Identifier(row)
    )


def rows_of_stage(names: Sequence[str]) -> sql.Composed:
    """Selects all staged rows."""
    return sql.SQL("SELECT {} FROM {}").format(identifiers(names), STAGE)


def present_rows_of_stage(names: Sequence[str], weight: str) -> sql.Composed:
    """Selects the staged rows that are in the result."""
    return sql.SQL("{} WHERE {} > 0").format(rows_of_stage(names), sql.Identifier(weight))


def deletions(table: TableName, keys: Sequence[str], weight: str) -> list[sql.Composed]:
    """Delete the rows whose staged rows are no longer in the result; without keys, the only row."""
    gone = sql.SQL("DELETE FROM {} t USING {} s WHERE s.{} = 0").format(table.quoted, STAGE, sql.Identifier(weight))
    if not keys:
        return [gone]
    names = [sql.Identifier(key) for key in keys]
    equal = sql.SQL(" AND ").join(sql.SQL("t.{0} = s.{0}").format(name) for name in names)
    # IS NOT DISTINCT FROM does not use an index, so it is only for the few rows with a NULL key.
    alike = sql.SQL(" AND ").join(sql.SQL("t.{0} IS NOT DISTINCT FROM s.{0}").format(name) for name in names)
    some_null = sql.SQL(" OR ").join(sql.SQL("s.{} IS NULL").format(name) for name in names)
    return [
        sql.SQL("{} AND {}").format(gone, equal),
        sql.SQL("{} AND ({}) AND {}").format(gone, some_null, alike),
    ]


def newest_of_stage(names: Sequence[str], keys: Sequence[str], row: str) -> sql.Composed:
    """Selects the last staged row of each key."""
    if not keys:
        return sql.SQL("{} ORDER BY {} DESC LIMIT 1").format(rows_of_stage(names), sql.Identifier(row))
    return sql.SQL("SELECT DISTINCT ON ({keys}) {names} FROM {stage} ORDER BY {keys}, {row} DESC").format(
        keys=identifiers(keys), names=identifiers(names), stage=STAGE, row=sql.Identifier(row)
    )


def insert(table: TableName, names: Sequence[str], rows: sql.Composed) -> sql.Composed:
    """Inserts rows."""
    return sql.SQL("INSERT INTO {} ({}) {}").format(table.quoted, identifiers(names), rows)


def insert_first(table: TableName, row: Sequence[tuple[Field, object]]) -> sql.Composed:
    """Inserts a row into an empty table."""
    values = sql.SQL(", ").join(
        sql.SQL("({})::{}").format(sql.Literal(value), column_type(field.type)) for field, value in row
    )
    rows = sql.SQL("SELECT {} WHERE NOT EXISTS (SELECT FROM {})").format(values, table.quoted)
    return insert(table, [field.name for field, _ in row], rows)


def upsert(table: TableName, names: Sequence[str], keys: Sequence[str], rows: sql.Composed) -> sql.Composed:
    """Inserts rows; a row replaces an existing one with the same keys."""
    values = [name for name in names if name not in keys]
    action = (
        sql.SQL("UPDATE SET {}").format(
            sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in values)
        )
        if values
        else sql.SQL("NOTHING")
    )
    return sql.SQL("{} ON CONFLICT ({}) DO {}").format(insert(table, names, rows), identifiers(keys), action)


def replace_only_row(table: TableName, names: Sequence[str], rows: sql.Composed) -> sql.Composed:
    """Updates the only row of a table."""
    return sql.SQL("UPDATE {} SET ({}) = ({})").format(table.quoted, identifiers(names), rows)


def touched_groups(parts: TableName, final: FinalLevel, types: dict[str, Field]) -> sql.Composed:
    """Selects the output of the groups that have staged parts, computed from all of their parts."""
    columns = sql.SQL(", ").join(_output(column, final, types) for column in final.output)
    groups = sql.SQL("SELECT {} FROM {} p").format(columns, parts.quoted)
    if not final.keys:
        return groups
    keys = [sql.Identifier(key) for key in final.keys]
    by = sql.SQL(", ").join(sql.SQL("p.{}").format(key) for key in keys)
    # IN never matches NULL, and IS NOT DISTINCT FROM uses neither an index nor a hash table. So groups with a NULL key
    # are found by a second query, which compares all keys as one JSON array.
    some_null = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(key) for key in keys)
    whole = sql.SQL("jsonb_build_array({})").format(sql.SQL(", ").join(sql.SQL("{}::text").format(key) for key in keys))
    return sql.SQL(
        "{groups} WHERE ({by}) IN (SELECT {keys} FROM {stage}) GROUP BY {by} UNION ALL "
        "{groups} WHERE ({some_null}) AND {whole} IN (SELECT {whole} FROM {stage} WHERE {some_null}) GROUP BY {by}"
    ).format(groups=groups, by=by, keys=identifiers(final.keys), stage=STAGE, some_null=some_null, whole=whole)


def check_final(final: FinalLevel, types: dict[str, Field]) -> None:
    """Raises SinkError for a column that PostgreSQL cannot merge."""
    for column in final.merged:
        type_ = types[column.name].type
        if column.merge is Merge.SUM and not type_.is_numeric:
            raise SinkError(f"PostgreSQL has no SUM of {type_} ('{column.name}'). CAST it to a numeric type.")
        if column.merge is not Merge.SUM and (type_.name is TypeName.BINARY or not type_.is_atomic):
            raise SinkError(f"PostgreSQL has no {column.merge} of {type_} ('{column.name}'). CAST it to STRING.")


def _output(column: FinalColumn, final: FinalLevel, types: dict[str, Field]) -> sql.Composed:
    value = _merged(column.source, final, types)
    if column.divisor is not None:
        divisor = _merged(column.divisor, final, types)
        value = sql.SQL("({})::float8 / nullif(({})::float8, 0)").format(value, divisor)
    if column.zero:
        value = sql.SQL("coalesce({}, 0)").format(value)
    return sql.SQL("({})::{} AS {}").format(value, column_type(column.field.type), sql.Identifier(column.field.name))


def _merged(name: str, final: FinalLevel, types: dict[str, Field]) -> sql.Composed:
    column = sql.SQL("p.{}").format(sql.Identifier(name))
    if name in final.keys:
        return column
    merge = next(merged.merge for merged in final.merged if merged.name == name)
    type_ = types[name].type
    if merge is Merge.SUM:
        # The sum of float4 values would be a float4.
        return sql.SQL("sum({}::float8)" if type_.is_fractional else "sum({})").format(column)
    if type_ == BOOLEAN:
        return sql.SQL("bool_and({})" if merge is Merge.MIN else "bool_or({})").format(column)
    if type_.name is TypeName.STRING:
        # Spark compares texts by their bytes.
        column = sql.SQL('{} COLLATE "C"').format(column)
    return sql.SQL("min({})" if merge is Merge.MIN else "max({})").format(column)
