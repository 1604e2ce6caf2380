"""What posted rows may be written in.

Rows as CSV: UTF-8, commas, a header that names columns, an empty value without quotes as NULL.

Rows as JSON objects, one a line (NDJSON).

Read by Python's parser: Arrow's takes NaN, several rows on a line, and ends the process at a line `null`.

A posted body as a table of the stream's columns, whatever it is written in.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.csv as arrow_csv

from service.contract.errors import InvalidRowsError
from service.ingest.arrow_stream import read_arrow
from service.ingest.columns import (
    BadValueError,
    arrow_type,
    bad_value,
    check_cells,
    describe,
    from_texts,
    invalid_rows,
    no_rows,
    shown,
    unknown_column,
)
from service.sql.types.data_types import DataType, Field, Schema, TypeName

NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
CSV = "text/csv"

ROWS = (NDJSON, ARROW, CSV)


# The quote first, then what stands before it: a search for one character is quick, and holds up every other thread.
_QUOTED = re.compile(r'"(?<![^,\r\n]")(?:[^"]++|"")*+"(?=[,\r\n]|\Z)')
_LINE_END = re.compile(r"\r\n|\n|\r")
_INSIDE = "\x01"
"""Stands for a line end inside quotes while lines are counted."""


def read_csv(body: str, schema: Schema) -> pa.Table:
    """The rows of a body; a column that the header does not name is NULL. Raises InvalidRowsError."""
    body = body.removeprefix("\ufeff")
    _check_quotes(body)
    header, table = _read_table(body, schema)
    for index, name in enumerate(header):
        if name not in schema.names:
            # It may be a row, or be parted by something else.
            raise unknown_column(name, schema.names, line=1, hint="The first line names the columns, parted by commas.")
        if name in header[:index]:
            raise invalid_rows("duplicate_key", f"The header names '{shown(name)}' twice.", line=1, column=name)
    check_cells(table.num_rows, len(schema.fields))
    columns = []
    for field in schema.fields:
        if field.name not in header:
            columns.append(pa.nulls(table.num_rows, arrow_type(field.type)))
            continue
        try:
            columns.append(from_texts(table.column(field.name).combine_chunks(), field.type))
        except BadValueError as error:
            raise bad_value(error, field.name, _line_of(body, error.row + 1)) from None
    return pa.table(columns, names=list(schema.names))


def _check_quotes(body: str) -> None:
    """Refuses what Arrow would guess at: quotes that are not closed, or do not enclose a whole value."""
    if '"' not in body:
        return
    flat = _flat(body)
    at = flat.find('"')
    if at >= 0:
        before = flat[:at]
        line = 1 + len(_LINE_END.findall(before)) + before.count(_INSIDE)
        detail = "A quote is not closed, or stands inside a value: enclose the value in quotes and double those in it."
        raise invalid_rows("malformed_row", detail, line=line)


def _read_table(body: str, schema: Schema) -> tuple[list[str], pa.Table]:
    wrong: list[arrow_csv.InvalidRow] = []

    def refuse(row: arrow_csv.InvalidRow) -> str:
        wrong.append(row)
        return "error"

    raw = body.encode()
    try:
        table = arrow_csv.read_csv(
            io.BytesIO(raw),
            # In one block and one thread: rows are counted, and the body is in memory anyway.
            read_options=arrow_csv.ReadOptions(use_threads=False, block_size=max(1024, len(raw) + 1)),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=refuse),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(schema.names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        raise _malformed(body, wrong, error) from None
    return list(table.schema.names), table


def _malformed(body: str, wrong: list[arrow_csv.InvalidRow], error: Exception) -> InvalidRowsError:
    if wrong:
        row = wrong[0]
        detail = f"The header names {row.expected_columns} columns, and here are {row.actual_columns} values."
        return invalid_rows("malformed_row", detail, line=_line_of(body, row.number - 1))
    if not _LINE_END.search(body.strip("\r\n")):
        return no_rows()
    return invalid_rows("malformed_row", f"The CSV cannot be read: {shown(str(error))}")


def _flat(body: str) -> str:
    return _QUOTED.sub(lambda found: _INSIDE * len(_LINE_END.findall(found.group())), body.replace(_INSIDE, " "))


def _line_of(body: str, record: int) -> int:
    """The line on which a record begins, both counted as Arrow does: the header is record 0, empty lines are none."""
    line, seen = 1, -1
    # A quoted value of a line of its own leaves nothing behind: it is no empty line.
    marked = _QUOTED.sub(lambda found: "q" + _INSIDE * len(_LINE_END.findall(found.group())), body)
    for text in _LINE_END.split(marked):
        seen += bool(text)
        if seen == record:
            return line
        line += 1 + text.count(_INSIDE)
    return line


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
        row = _read_object(text, number)
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


def _read_object(text: str, number: int) -> dict[str, Any]:
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


_TEXTS: Mapping[str, Callable[[str, Schema], pa.Table]] = {NDJSON: read_ndjson, CSV: read_csv}


def rows_of(body: bytes, media_type: str, schema: Schema) -> pa.Table:
    """The rows in `body`: every column of `schema` in its order and type, NULL where it was left out.

    `media_type` is one of those that rows may come in. Raises InvalidRowsError for the first thing that is wrong: rows
    are taken all or none.
    """
    table = read_arrow(body, schema) if media_type == ARROW else _TEXTS[media_type](_decoded(body), schema)
    if table.num_rows == 0:
        raise no_rows()
    return table


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        line = 1 + body.count(b"\n", 0, error.start)
        raise invalid_rows("malformed_row", "This is not UTF-8.", line=line) from None
