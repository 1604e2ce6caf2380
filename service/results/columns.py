"""Types of the columns of results: as Arrow types, and as types of Spark SQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pydantic import Field

from service.contract.model import Frozen
from service.sql.types.data_types import ATOMIC, DataType, TypeName
from service.sql.types.data_types import Field as SchemaField

_SIMPLE_TYPES: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_NAMES = {
    **{arrow: name for name, arrow in reversed(_SIMPLE_TYPES.items())},
    pa.large_string(): "STRING",
    pa.large_binary(): "BINARY",
    pa.null(): "VOID",
}
"""The first name in `_SIMPLE_TYPES` of each Arrow type."""
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|\w+|[<>(),:])")
_ATOMIC = ATOMIC - {TypeName.DECIMAL}
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK_NAMES = {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}


def arrow_schema(fields: Iterable[SchemaField]) -> pa.Schema:
    """Returns the columns as Arrow fields. Raises ValueError, naming the column, for a type that files cannot hold."""
    found = []
    for field in fields:
        try:
            found.append(pa.field(field.name, arrow_type(field.type)))
        except ValueError as error:
            raise ValueError(f"The column {field.name}: {error}") from None
    return pa.schema(found)


def arrow_type(type_: DataType) -> pa.DataType:
    """Returns the Arrow type. Raises ValueError for a type that files cannot contain, such as VOID or an interval."""
    if type_.name is TypeName.DECIMAL:
        return pa.decimal128(type_.precision, type_.scale)
    if type_.name in _ATOMIC:
        return _SIMPLE_TYPES[type_.name.value]
    return _TypeParser(str(type_)).parse()


def one_row(values: Iterable[bool | int | float | str | None], schema: pa.Schema) -> pa.Table:
    """Returns a table of one row from JSON values. Raises pa.ArrowInvalid for a value that does not fit its column's
    type.
    """
    arrays = [_one(value, field.type) for value, field in zip(values, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _one(value: bool | int | float | str | None, kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind) and value is not None:
        # Arrow casts integers only to decimal types that can hold every integer.
        return pa.array([Decimal(str(value))], kind)
    return pa.array([value]).cast(kind)


class _TypeParser:
    """Parses a type in Spark's notation: `ARRAY<STRUCT<a: INT, `b c`: DECIMAL(10,2)>>`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        position = 0
        stripped = text.rstrip()
        while position < len(stripped):
            match = _TOKEN.match(stripped, position)
            if match is None:
                raise self._error()
            self._tokens.append(match.group(1))
            position = match.end()
        self._next = 0

    def parse(self) -> pa.DataType:
        """Parses the text as one complete type."""
        found = self._type()
        if self._next != len(self._tokens):
            raise self._error()
        return found

    def _type(self) -> pa.DataType:
        name = self._take().upper()
        if name == "ARRAY":
            self._expect("<")
            element = self._type()
            self._expect(">")
            return pa.list_(pa.field("element", element))
        if name == "MAP":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return pa.map_(key, value)
        if name == "STRUCT":
            return self._struct()
        if name in {"DECIMAL", "DEC", "NUMERIC"}:
            numbers = self._numbers() or [10, 0]
            return pa.decimal128(numbers[0], numbers[1] if len(numbers) > 1 else 0)
        if name in {"VARCHAR", "CHAR"}:
            self._numbers()
            return pa.string()
        if name not in _SIMPLE_TYPES:
            raise self._error()
        return _SIMPLE_TYPES[name]

    def _struct(self) -> pa.DataType:
        self._expect("<")
        fields: list[pa.Field] = []
        while self._peek() != ">":
            if fields:
                self._expect(",")
            name = self._take()
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            self._expect(":")
            fields.append(pa.field(name, self._type()))
        self._expect(">")
        return pa.struct(fields)

    def _numbers(self) -> list[int]:
        numbers: list[int] = []
        if self._peek() != "(":
            return numbers
        self._next += 1
        while True:
            token = self._take()
            if not token.isdecimal():
                raise self._error()
            numbers.append(int(token))
            if (end := self._take()) == ")":
                return numbers
            if end != ",":
                raise self._error()

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise self._error()

    def _error(self) -> ValueError:
        return ValueError(f"the type {self._text} cannot be stored in Parquet files.")


class Column(Frozen):
    """A column of a result."""

    name: str
    type: str = Field(description="Its type in Spark SQL.", examples=["BIGINT", "DECIMAL(18,2)"])


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """Returns the columns of a Parquet file that was read with this Arrow schema, in order.

    The types are Spark's if the file has Spark's metadata, otherwise those that correspond to Arrow's.
    """
    spark_types = _spark_types(schema)
    return tuple(Column(name=field.name, type=spark_types.get(field.name, _arrow_type(field.type))) for field in schema)


def served_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the schema of the served rows: timestamps in microseconds, instants in UTC, without Spark's metadata.

    Spark may store an instant as INT96, which Arrow reads as a timestamp without a zone.
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
    return _NAMES.get(arrow, "OTHER")
