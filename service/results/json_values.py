"""Converts the values of results to JSON.

Integers are numbers (including BIGINT: read them as 64-bit integers), DECIMAL is a string, NaN and the infinities are
the strings `NaN`, `Infinity`, `-Infinity`; TIMESTAMP is RFC 3339 in UTC, TIMESTAMP_NTZ the same without a zone, DATE
`YYYY-MM-DD`, BINARY base64; arrays are arrays, structs objects, maps arrays of `[key, value]`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def json_rows(table: pa.Table) -> list[list[Any]]:
    """Returns the rows of a table, each as a list in the order of its columns."""
    columns = [json_values(table.column(index)) for index in range(table.num_columns)]
    return [list(row) for row in zip(*columns, strict=True)] if columns else []


def json_values(column: pa.ChunkedArray) -> list[Any]:
    """Returns the values of a column; NULL is None."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        # Converted to text inside Arrow: Python's datetime ends in the year 9999.
        texts: list[Any] = pc.replace_substring(column.cast(pa.string()), " ", "T").to_pylist()
        return texts
    if pa.types.is_date(kind):
        return list(column.cast(pa.string()).to_pylist())
    convert = _converter(kind)
    values = column.to_pylist()
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_string(kind):
        return None
    if pa.types.is_floating(kind):
        return _float
    if pa.types.is_decimal(kind):
        return _decimal
    return json_value


def json_value(value: Any) -> Any:
    """Converts one value of any type, including nested ones."""
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime, date, time)):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, dict):
        return {key: json_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(inner) for inner in value]
    return value


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimal(value: Decimal) -> str:
    return format(value, "f")
