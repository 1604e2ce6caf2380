"""The statements by which a PostgreSQL sink takes the rows of a staged mini-batch."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from service.spec.final_level import FinalColumn, FinalLevel, Merge
from service.spec.types import BOOLEAN, Field, TypeName
from workers.engine.streaming.sinks.postgres_tables import TableName, column_type, identifiers
from workers.engine.streaming.sinks.sink import SinkError

STAGE = sql.Identifier("pg_temp", "evenkeel_stage")


def make_stage(columns: Sequence[Field], row: str) -> sql.Composed:
    """A table of the session's own, empty in each transaction: `columns`, and the number of the row."""
    parts = [sql.SQL("{} {}").format(sql.Identifier(field.name), column_type(field.type)) for field in columns]
    return sql.SQL("CREATE TEMP TABLE IF NOT EXISTS evenkeel_stage ({}, {} int8) ON COMMIT DELETE ROWS").format(
        sql.SQL(", ").join(parts), sql.Identifier(row)
    )


def rows_of_stage(names: Sequence[str]) -> sql.Composed:
    """All staged rows."""
    return sql.SQL("SELECT {} FROM {}").format(identifiers(names), STAGE)


def newest_of_stage(names: Sequence[str], keys: Sequence[str], row: str) -> sql.Composed:
    """The last staged row of each key."""
    if not keys:
        return sql.SQL("{} ORDER BY {} DESC LIMIT 1").format(rows_of_stage(names), sql.Identifier(row))
    return sql.SQL("SELECT DISTINCT ON ({keys}) {names} FROM {stage} ORDER BY {keys}, {row} DESC").format(
        keys=identifiers(keys), names=identifiers(names), stage=STAGE, row=sql.Identifier(row)
    )


def insert(table: TableName, names: Sequence[str], rows: sql.Composed) -> sql.Composed:
    """Adds rows."""
    return sql.SQL("INSERT INTO {} ({}) {}").format(table.quoted, identifiers(names), rows)


def insert_first(table: TableName, row: Sequence[tuple[Field, object]]) -> sql.Composed:
    """Adds a row to a table that has none."""
    values = sql.SQL(", ").join(
        sql.SQL("({})::{}").format(sql.Literal(value), column_type(field.type)) for field, value in row
    )
    rows = sql.SQL("SELECT {} WHERE NOT EXISTS (SELECT FROM {})").format(values, table.quoted)
    return insert(table, [field.name for field, _ in row], rows)


def upsert(table: TableName, names: Sequence[str], keys: Sequence[str], rows: sql.Composed) -> sql.Composed:
    """Adds rows, each in the place of one with its keys."""
    values = [name for name in names if name not in keys]
    action = (
        sql.SQL("UPDATE SET {}").format(
            sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in values)
        )
        if values
        else sql.SQL("NOTHING")
    )
    return sql.SQL("{} ON CONFLICT ({}) DO {}").format(insert(table, names, rows), identifiers(keys), action)


def replace_the_row(table: TableName, names: Sequence[str], rows: sql.Composed) -> sql.Composed:
    """Sets all values of the one row that there is."""
    return sql.SQL("UPDATE {} SET ({}) = ({})").format(table.quoted, identifiers(names), rows)


def touched_groups(parts: TableName, final: FinalLevel, types: dict[str, Field]) -> sql.Composed:
    """The output of the groups of which staged rows have parts, from all of their parts."""
    columns = sql.SQL(", ").join(_output(column, final, types) for column in final.output)
    groups = sql.SQL("SELECT {} FROM {} p").format(columns, parts.quoted)
    if not final.keys:
        return groups
    keys = [sql.Identifier(key) for key in final.keys]
    by = sql.SQL(", ").join(sql.SQL("p.{}").format(key) for key in keys)
    # IN never finds NULL, and a comparison that does uses neither index nor hash: two ways to the groups.
    some_null = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(key) for key in keys)
    whole = sql.SQL("jsonb_build_array({})").format(sql.SQL(", ").join(sql.SQL("{}::text").format(key) for key in keys))
    return sql.SQL(
        "{groups} WHERE ({by}) IN (SELECT {keys} FROM {stage}) GROUP BY {by} UNION ALL "
        "{groups} WHERE ({some_null}) AND {whole} IN (SELECT {whole} FROM {stage} WHERE {some_null}) GROUP BY {by}"
    ).format(groups=groups, by=by, keys=identifiers(final.keys), stage=STAGE, some_null=some_null, whole=whole)


def check_final(final: FinalLevel, types: dict[str, Field]) -> None:
    """Raises SinkError where PostgreSQL cannot merge a column."""
    for column in final.merged:
        type_ = types[column.name].type
        if column.merge is Merge.SUM and not type_.is_numeric:
            raise SinkError(f"There is no SUM of the column '{column.name}' of type {type_}.")
        if column.merge is not Merge.SUM and type_.name in {TypeName.BINARY, TypeName.OTHER}:
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
        # The sum of float4 would be one.
        return sql.SQL("sum({}::float8)" if type_.is_fractional else "sum({})").format(column)
    if type_ == BOOLEAN:
        return sql.SQL("bool_and({})" if merge is Merge.MIN else "bool_or({})").format(column)
    if type_.name is TypeName.STRING:
        # By bytes, as Spark compares.
        column = sql.SQL('{} COLLATE "C"').format(column)
    return sql.SQL("min({})" if merge is Merge.MIN else "max({})").format(column)
