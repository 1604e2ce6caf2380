"""The columns of a result: Spark's own types where the files tell them, else what Arrow reads."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pydantic import Field

from service.spec.model import Frozen

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK_NAMES = {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}


class Column(Frozen):
    """A column of a result."""

    name: str
    type: str = Field(description="Its type in Spark SQL.", examples=["BIGINT", "DECIMAL(18,2)"])


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """The columns of a Parquet file read with this Arrow schema, in order."""
    told = _spark_types(schema)
    return tuple(Column(name=field.name, type=told.get(field.name, _arrow_type(field.type))) for field in schema)


def served_schema(schema: pa.Schema) -> pa.Schema:
    """The schema in which rows are handed out: Spark's instants as microseconds in UTC, without Spark's metadata.

    Spark may store an instant as INT96, which Arrow reads as a time without zone.
    """
    types = {column.name: column.type for column in columns_of(schema)}
    return pa.schema([field.with_type(_served_type(field.type, types[field.name])) for field in schema])


def _served_type(arrow: pa.DataType, spark: str) -> pa.DataType:
    if not pa.types.is_timestamp(arrow):
        return arrow
    return pa.timestamp("us", tz="UTC" if spark == "TIMESTAMP" else None)


def _spark_types(schema: pa.Schema) -> dict[str, str]:
    raw = (schema.metadata or {}).get(_SPARK_SCHEMA)
    if raw is None:
        return {}
    return {field["name"]: _spark_type(field["type"]) for field in json.loads(raw)["fields"]}


def _spark_type(declared: Any) -> str:
    if isinstance(declared, str):
        return _SPARK_NAMES.get(declared, declared.upper())
    match declared.get("type"):
        case "array":
            return f"ARRAY<{_spark_type(declared['elementType'])}>"
        case "map":
            return f"MAP<{_spark_type(declared['keyType'])}, {_spark_type(declared['valueType'])}>"
        case "struct":
            inner = ", ".join(f"{field['name']}: {_spark_type(field['type'])}" for field in declared["fields"])
            return f"STRUCT<{inner}>"
        case _:
            return "OTHER"


def _arrow_type(arrow: pa.DataType) -> str:
    if pa.types.is_timestamp(arrow):
        return "TIMESTAMP_NTZ" if arrow.tz is None else "TIMESTAMP"
    if pa.types.is_decimal(arrow):
        return f"DECIMAL({arrow.precision},{arrow.scale})"
    names = {
        pa.bool_(): "BOOLEAN",
        pa.int8(): "TINYINT",
        pa.int16(): "SMALLINT",
        pa.int32(): "INT",
        pa.int64(): "BIGINT",
        pa.float32(): "FLOAT",
        pa.float64(): "DOUBLE",
        pa.string(): "STRING",
        pa.large_string(): "STRING",
        pa.binary(): "BINARY",
        pa.large_binary(): "BINARY",
        pa.date32(): "DATE",
        pa.null(): "VOID",
    }
    return names.get(arrow, "OTHER")
