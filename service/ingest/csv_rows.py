"""Rows as CSV: UTF-8, commas, a header that names columns, an empty value without quotes as NULL."""

from __future__ import annotations

import io
import re

import pyarrow as pa
import pyarrow.csv as arrow_csv

from service.errors import InvalidRowsError
from service.ingest.columns import arrow_type, from_texts
from service.ingest.faults import BadValueError, bad_value, invalid_rows, no_rows, shown, unknown_column
from service.ingest.limits import check_cells
from service.spec.types import Schema

# The quote first, then what stands before it: a search for one character is quick, and holds up every other thread.
_QUOTED = re.compile(r'"(?<![^,\r\n]")(?:[^"]++|"")*+"(?=[,\r\n]|\Z)')
_LINE_END = re.compile(r"\r\n|\n|\r")
_INSIDE = "\x01"
"""Stands for a line end inside quotes while lines are counted."""


def read_csv(body: str, schema: Schema) -> pa.Table:
    """The rows of a body; a column that the header does not name is NULL. Raises InvalidRowsError."""
    body = body.removeprefix("\ufeff")
    _check_quotes(body)
    header, table = _read(body, schema)
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


def _read(body: str, schema: Schema) -> tuple[list[str], pa.Table]:
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
