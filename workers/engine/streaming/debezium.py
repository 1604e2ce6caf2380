"""Reads Debezium's records of changes, in JSON, as rows with an operation.

A record has the row before the change, the row after it, the operation, and numbers by which changes can be ordered:

    {"before": {…}, "after": {…}, "op": "u", "ts_ms": 1767225600000, "source": {"lsn": 24023128, …}}

If the converter writes schemas, this is the field `payload` of a record. Documentation: Debezium, "Data change events".
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.contract.tables import Upsert
from service.sql.expressions.scalar import quoted
from service.sql.types.data_types import Field

OPERATION = "$op"
"""The column with the operation of a row: `-D` or `+I`."""
ORDER = "$order"
"""The column by which the changes of a row are ordered: a BIGINT."""

_DEFAULT_ORDER = "ts_ms"
_ADDED, _REMOVED = "+I", "-D"


def ddl(fields: Sequence[Field], upsert: Upsert | None) -> str:
    """Returns the columns of the records of rows with the columns `fields`, in Spark's DDL."""
    row = _struct(fields)
    numbers = _numbers(upsert)
    columns = [("before", row), ("after", row), ("op", "STRING"), *numbers]
    payload = f"STRUCT<{', '.join(f'{name}: {kind}' for name, kind in columns)}>"
    return ", ".join(f"{name} {kind}" for name, kind in (*columns, ("payload", payload)))


def _struct(fields: Sequence[Field]) -> str:
    return f"STRUCT<{', '.join(f'{quoted(field.name)}: {field.type}' for field in fields)}>"


def _numbers(upsert: Upsert | None) -> list[tuple[str, str]]:
    """Returns the columns that order changes."""
    if upsert is None:
        return []
    first, _, second = (upsert.order or _DEFAULT_ORDER).partition(".")
    return [(first, f"STRUCT<{quoted(second)}: BIGINT>" if second else "BIGINT")]


def rows_of(records: DataFrame, fields: Sequence[Field], upsert: Upsert | None, table: str) -> DataFrame:
    """Returns the rows of records, with `OPERATION`. With `upsert`, they also have `ORDER`, and the row before an
    update is left out, which a database only has if it is configured so.
    """

    def part(name: str) -> Column:
        return F.coalesce(F.col(name), F.col(f"payload.{name}"))

    before, after, operation = part("before"), part("after"), part("op")
    names = [field.name for field in fields]

    def change(of: str, row: Column) -> Column:
        return F.struct(F.lit(of).alias(OPERATION), *(row.getField(name).alias(name) for name in names))

    def fault(text: str) -> Column:
        return F.raise_error(F.concat(F.lit(f"A record of table '{table}' "), F.lit(text))).cast(
            f"STRUCT<{quoted(OPERATION)}: STRING, {_struct(fields)[len('STRUCT<') :]}"
        )

    without_before = fault(
        "has no row in 'before'. Let the database write it (PostgreSQL: REPLICA IDENTITY FULL), or name 'upsert' with "
        "the keys of a row."
        if upsert is None
        else "has no keys in 'before', so it is not known which row it removes."
    )
    removes = operation.eqNullSafe("d") if upsert is not None else operation.isin("d", "u")
    removed = F.when(removes, F.when(before.isNull(), without_before).otherwise(change(_REMOVED, before)))
    adds = operation.isin("c", "r", "u")
    without_after = fault("has no row in 'after'.")
    added = F.when(adds, F.when(after.isNull(), without_after).otherwise(change(_ADDED, after)))
    unknown = F.when(
        ~F.coalesce(operation.isin("c", "r", "u", "d"), F.lit(False)),
        fault("has an operation other than 'c', 'r', 'u' and 'd'."),
    )
    changes = F.explode(F.array_compact(F.array(removed, added, unknown))).alias("change")
    number = _DEFAULT_ORDER if upsert is None else upsert.order or _DEFAULT_ORDER
    missing = F.raise_error(F.lit(f"A record of table '{table}' has no number in '{number}'.")).cast("BIGINT")
    order = [] if upsert is None else [F.coalesce(part(number), missing).alias(ORDER)]
    return records.select(changes, *order).select("change.*", *(F.col(quoted(ORDER)) for _ in order))
