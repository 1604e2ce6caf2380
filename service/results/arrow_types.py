"""Columns as Arrow reads them from the Parquet files that Spark writes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

import pyarrow as pa

from service.spec.types import DataType, Field, TypeName

_PLAIN: dict[str, pa.DataType] = {
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
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|\w+|[<>(),:])")
_ATOMIC = frozenset(TypeName) - {TypeName.OTHER, TypeName.NULL, TypeName.DECIMAL}


def arrow_schema(fields: Iterable[Field]) -> pa.Schema:
    """The columns in Arrow. Raises ValueError, which names the column, for a type that files cannot hold."""
    found = []
    for field in fields:
        try:
            found.append(pa.field(field.name, arrow_type(field.type)))
        except ValueError as error:
            raise ValueError(f"The column {field.name}: {error}") from None
    return pa.schema(found)


def arrow_type(type_: DataType) -> pa.DataType:
    """The type in Arrow. Raises ValueError for one that files cannot hold, such as VOID or an interval."""
    if type_.name is TypeName.DECIMAL:
        return pa.decimal128(type_.precision, type_.scale)
    if type_.name in _ATOMIC:
        return _PLAIN[type_.name.value]
    return _Reader(str(type_)).whole()


def one_row(values: Iterable[bool | int | float | str | None], schema: pa.Schema) -> pa.Table:
    """A table of one row from JSON values. Raises pa.ArrowInvalid for a value that is none of its column's type."""
    arrays = [_one(value, field.type) for value, field in zip(values, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _one(value: bool | int | float | str | None, kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind) and value is not None:
        # An integer is cast only to a type that takes every one.
        return pa.array([Decimal(str(value))], kind)
    return pa.array([value]).cast(kind)


class _Reader:
    """Reads a type as Spark spells it: `ARRAY<STRUCT<a: INT, `b c`: DECIMAL(10,2)>>`."""

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

    def whole(self) -> pa.DataType:
        """The type, and nothing behind it."""
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
        if name not in _PLAIN:
            raise self._error()
        return _PLAIN[name]

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
        return ValueError(f"the type {self._text} cannot be kept in Parquet files.")
