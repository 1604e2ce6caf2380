"""Parses a posted body (CSV, NDJSON or an Arrow stream) into a table of the stream's columns.

CSV is UTF-8 with commas and a header that names the columns; an empty value without quotes is NULL. NDJSON is one JSON
object on each line. It is parsed by Python's parser: Arrow's accepts NaN and several rows on a line, and crashes the
process at a line `null`.
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
    bad_value,
    check_cells,
    describe,
    from_texts,
    invalid_rows,
    no_rows,
    shown,
    unknown_column,
)
from service.results.columns import arrow_type
from service.sql.types.data_types import DataType, Field, Schema, TypeName

NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
CSV = "text/csv"
ROWS = (NDJSON, ARROW, CSV)
# Matches the quote first, then uses a look-behind: a search for one character is fast, and a slow one holds the GIL.
_QUOTED = re.compile(r'"(?<![^,\r\n]")(?:[^"]++|"")*+"(?=[,\r\n]|\Z)')
_LINE_END = re.compile(r"\r\n|\n|\r")
_QUOTED_LINE_END = "\x01"
"""Replaces a line end inside quotes while lines are counted."""
_NONE = type(None)
_SPACE = " \t\r"


def read_csv(body: str, schema: Schema) -> pa.Table:
    """Returns the rows of a body; columns that the header does not name are NULL. Raises InvalidRowsError."""
    body = body.removeprefix("\ufeff")
    _check_quotes(body)
    header, table = _read_table(body, schema)
    for index, name in enumerate(header):
        if name not in schema.names:
            # The header may be missing, or have another delimiter.
            hint = "The first line must name the columns, separated by commas."
            raise unknown_column(name, schema.names, line=1, hint=hint)
        if name in header[:index]:
            raise invalid_rows(
                "duplicate_key", f"The header names the column '{shown(name)}' twice.", line=1, column=name
            )
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
    """Refuses quotes that are not closed, or do not enclose a whole value, which Arrow would accept."""
    if '"' not in body:
        return
    flat = _flat(body)
    at = flat.find('"')
    if at >= 0:
        before = flat[:at]
        line = 1 + len(_LINE_END.findall(before)) + before.count(_QUOTED_LINE_END)
        detail = (
            "A quote is not closed, or is inside a value. Enclose the value in quotes, and double quotes inside it."
        )
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
            # One block and one thread, so that rows can be counted; the body is in memory anyway.
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
        detail = f"The header names {row.expected_columns} columns, but this row has {row.actual_columns} values."
        return invalid_rows("malformed_row", detail, line=_line_of(body, row.number - 1))
    if not _LINE_END.search(body.strip("\r\n")):
        return no_rows()
    return invalid_rows("malformed_row", f"The CSV cannot be read: {shown(str(error))}")


def _flat(body: str) -> str:
    return _QUOTED.sub(
        lambda found: _QUOTED_LINE_END * len(_LINE_END.findall(found.group())), body.replace(_QUOTED_LINE_END, " ")
    )


def _line_of(body: str, record: int) -> int:
    """Returns the line on which a record begins. Records are counted as in Arrow: the header is record 0, and empty
    lines are not counted.
    """
    line, seen = 1, -1
    # Replace quoted values by a character, so that a line with only a quoted value does not count as empty.
    marked = _QUOTED.sub(lambda found: "q" + _QUOTED_LINE_END * len(_LINE_END.findall(found.group())), body)
    for text in _LINE_END.split(marked):
        seen += bool(text)
        if seen == record:
            return line
        line += 1 + text.count(_QUOTED_LINE_END)
    return line


class _Fraction(str):
    """A number with a decimal point or an exponent, as it was written."""

    __slots__ = ()


class _DuplicateKeyError(ValueError):
    """A key occurs twice in one object."""


class _ConstantError(ValueError):
    """NaN or an infinity, which JSON does not have."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _DuplicateKeyError(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return found


def _constant(name: str) -> NoReturn:
    raise _ConstantError(name)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_Fraction, parse_constant=_constant)
# `decode` would strip white space from every line again, which takes a third of the time.
_scan = _DECODER.scan_once  # type: ignore[attr-defined]  # missing in typeshed

_JSON_TYPES: dict[TypeName, frozenset[type]] = {
    TypeName.BOOLEAN: frozenset({bool}),
    TypeName.TINYINT: frozenset({int}),
    TypeName.SMALLINT: frozenset({int}),
    TypeName.INT: frozenset({int}),
    TypeName.BIGINT: frozenset({int}),
    TypeName.FLOAT: frozenset({int, _Fraction}),
    TypeName.DOUBLE: frozenset({int, _Fraction}),
    # Text is allowed too: many JSON writers convert every number to a double.
    TypeName.DECIMAL: frozenset({int, _Fraction, str}),
    TypeName.STRING: frozenset({str}),
    TypeName.BINARY: frozenset({str}),
    TypeName.DATE: frozenset({str}),
    TypeName.TIMESTAMP: frozenset({str}),
    TypeName.TIMESTAMP_NTZ: frozenset({str}),
}


def read_ndjson(body: str, schema: Schema) -> pa.Table:
    """Returns the rows of a body; keys missing from an object are NULL, and blank lines are skipped.

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
    except _DuplicateKeyError as error:
        name = str(error)
        raise invalid_rows(
            "duplicate_key", f"The key '{shown(name)}' occurs twice.", line=number, column=name[:100]
        ) from None
    except _ConstantError as error:
        raise invalid_rows("malformed_row", f"{error} is not valid JSON.", line=number) from None
    except json.JSONDecodeError as error:
        raise invalid_rows(
            "malformed_row", f"This is not a JSON object: {error.msg}, at character {error.colno}.", line=number
        ) from None
    except StopIteration:
        raise _not_an_object(number) from None
    except RecursionError:
        raise invalid_rows("malformed_row", "Arrays and objects are nested too deeply.", line=number) from None
    except ValueError:
        raise invalid_rows("malformed_row", "A number has too many digits.", line=number) from None
    if end < len(text):
        raise invalid_rows("malformed_row", f"There is text after the object, at character {end + 1}.", line=number)
    if not isinstance(row, dict):
        raise _not_an_object(number)
    return row


def _not_an_object(number: int) -> InvalidRowsError:
    return invalid_rows("malformed_row", "Every line must be a JSON object: one row.", line=number)


def _column(values: list[Any], field: Field) -> pa.Array:
    type_ = field.type
    taken = _JSON_TYPES[type_.name]
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
        raise BadValueError(row, "contains half of a surrogate pair") from None


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
    """Returns the rows in `body`, with every column of `schema` in its order and type; missing values are NULL.

    `media_type` is one of `ROWS`. Raises InvalidRowsError for the first fault; either all rows are accepted or none.
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
