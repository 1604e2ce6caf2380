"""Rows as JSON objects, one a line (NDJSON).

Read by Python's parser: Arrow's takes NaN, several rows on a line, and ends the process at a line `null`.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

import pyarrow as pa

from service.errors import InvalidRowsError
from service.ingest.columns import arrow_type, describe, from_texts
from service.ingest.faults import BadValueError, bad_value, invalid_rows, shown, unknown_column
from service.ingest.limits import check_cells
from service.spec.types import DataType, Field, Schema, TypeName

_NONE = type(None)


class _Fraction(str):
    """A number with a point or an exponent, as it was written."""

    __slots__ = ()


class _TwiceError(ValueError):
    """A key is given twice in one object."""


class _ConstantError(ValueError):
    """NaN or an infinity, which JSON has not."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _TwiceError(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return found


def _constant(name: str) -> NoReturn:
    raise _ConstantError(name)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_Fraction, parse_constant=_constant)
# `decode` would look for spaces around every line once more, which takes a third of the time.
_scan = _DECODER.scan_once  # type: ignore[attr-defined]  # typeshed does not know it
_SPACE = " \t\r"

_TAKEN: dict[TypeName, frozenset[type]] = {
    TypeName.BOOLEAN: frozenset({bool}),
    TypeName.TINYINT: frozenset({int}),
    TypeName.SMALLINT: frozenset({int}),
    TypeName.INT: frozenset({int}),
    TypeName.BIGINT: frozenset({int}),
    TypeName.FLOAT: frozenset({int, _Fraction}),
    TypeName.DOUBLE: frozenset({int, _Fraction}),
    # As a text too: many writers of JSON make every number a double.
    TypeName.DECIMAL: frozenset({int, _Fraction, str}),
    TypeName.STRING: frozenset({str}),
    TypeName.BINARY: frozenset({str}),
    TypeName.DATE: frozenset({str}),
    TypeName.TIMESTAMP: frozenset({str}),
    TypeName.TIMESTAMP_NTZ: frozenset({str}),
}


def read_ndjson(body: str, schema: Schema) -> pa.Table:
    """The rows of a body; a column that an object has not is NULL, blank lines are passed over.

    Raises InvalidRowsError.
    """
    body = body.removeprefix("\ufeff")
    known = set(schema.names)
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    for number, line in enumerate(body.split("\n"), start=1):
        text = line.strip(_SPACE)
        if not text:
            continue
        row = _read(text, number)
        if not row.keys() <= known:
            raise unknown_column(next(name for name in row if name not in known), schema.names, line=number)
        rows.append(row)
        lines.append(number)
        check_cells(len(rows), len(schema.fields))
    columns = []
    for field in schema.fields:
        try:
            columns.append(_column([row.get(field.name) for row in rows], field))
        except BadValueError as error:
            raise bad_value(error, field.name, lines[error.row]) from None
    return pa.table(columns, names=list(schema.names))


def _read(text: str, number: int) -> dict[str, Any]:
    try:
        row, end = _scan(text, 0)
    except _TwiceError as error:
        name = str(error)
        raise invalid_rows(
            "duplicate_key", f"The key '{shown(name)}' is given twice.", line=number, column=name[:100]
        ) from None
    except _ConstantError as error:
        raise invalid_rows("malformed_row", f"{error} is no JSON.", line=number) from None
    except json.JSONDecodeError as error:
        raise invalid_rows(
            "malformed_row", f"This is no JSON object: {error.msg}, at character {error.colno}.", line=number
        ) from None
    except StopIteration:
        raise _not_an_object(number) from None
    except RecursionError:
        raise invalid_rows("malformed_row", "Arrays and objects are nested too deeply.", line=number) from None
    except ValueError:
        raise invalid_rows("malformed_row", "A number has more digits than can be read.", line=number) from None
    if end < len(text):
        raise invalid_rows("malformed_row", f"Something follows the object, at character {end + 1}.", line=number)
    if not isinstance(row, dict):
        raise _not_an_object(number)
    return row


def _not_an_object(number: int) -> InvalidRowsError:
    return invalid_rows("malformed_row", "Every line is a JSON object: a row.", line=number)


def _column(values: list[Any], field: Field) -> pa.Array:
    type_ = field.type
    taken = _TAKEN[type_.name]
    if not set(map(type, values)) <= taken | {_NONE}:
        row = next(row for row, value in enumerate(values) if value is not None and type(value) not in taken)
        raise BadValueError(row, f"is {_kind(values[row])} and not {describe(type_)}")
    if type_.is_integral:
        return _integers(values, type_)
    if type_.name is TypeName.BOOLEAN:
        return pa.array(values, pa.bool_())
    if type_.is_numeric:
        values = [None if value is None else str(value) for value in values]
    return from_texts(_strings(values), type_)


def _integers(values: list[Any], type_: DataType) -> pa.Array:
    target = arrow_type(type_)
    try:
        return pa.array(values, target)
    except (pa.ArrowInvalid, OverflowError):
        most = 1 << (target.bit_width - 1)
        row = next(row for row, value in enumerate(values) if value is not None and not -most <= value < most)
        raise BadValueError(row, f"is {shown(str(values[row]))} and not {describe(type_)}") from None


def _strings(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        row = next(row for row, value in enumerate(values) if value is not None and not _is_text(value))
        raise BadValueError(row, "holds half of a surrogate pair") from None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, _Fraction)):
        return f"the number {shown(str(value))}"
    if isinstance(value, str):
        return f"the text '{shown(value)}'"
    return "an array" if isinstance(value, list) else "an object"
