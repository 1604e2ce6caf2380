"""Columns of posted rows, for every format: Arrow types, exact conversion of texts, size limits, and errors.

A small body can contain a large table, so the number of cells is limited.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from service.contract.errors import InvalidRowsError
from service.contract.problems import Issue, did_you_mean, nearest_names
from service.results.columns import arrow_type
from service.sql.types.data_types import DataType, TypeName

_MAX_SHOWN = 100
MAX_ROWS = 1_000_000
MAX_CELLS = 16_000_000
"""Rows times columns of the stream: columns missing from the body are NULL but take memory too."""
_YEAR = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DATE = rf"{_YEAR}-[0-9]{{2}}-[0-9]{{2}}"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
_NUMBER = r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_INTEGER = r"-?[0-9]{1,19}"
_FLOAT = rf"{_NUMBER}|NaN|-?Infinity"
_TEXT_FORMATS: dict[TypeName, tuple[str, str]] = {
    TypeName.BOOLEAN: (r"(?i:true|false)", "true or false"),
    TypeName.TINYINT: (_INTEGER, "an integer from -128 to 127"),
    TypeName.SMALLINT: (_INTEGER, "an integer from -32768 to 32767"),
    TypeName.INT: (_INTEGER, "an integer of 32 bits"),
    TypeName.BIGINT: (_INTEGER, "an integer of 64 bits"),
    TypeName.FLOAT: (_FLOAT, "a number that a FLOAT can hold"),
    TypeName.DOUBLE: (_FLOAT, "a number that a DOUBLE can hold"),
    TypeName.DATE: (_DATE, "a date such as 2026-01-31"),
    TypeName.TIMESTAMP: (
        rf"{_DATE}T{_CLOCK}(?:Z|[+-][0-9]{{2}}:[0-9]{{2}})",
        "a time with its zone (RFC 3339), to the microsecond, such as 2026-01-31T12:00:00.5Z",
    ),
    TypeName.TIMESTAMP_NTZ: (
        rf"{_DATE}T{_CLOCK}",
        "a time without a zone, to the microsecond, such as 2026-01-31T12:00:00.5",
    ),
}
# Years 1 to 9999, as in SQL, in days since 1970. A time zone may shift a value out of this range.
_FIRST_DAY = date(1, 1, 1).toordinal() - date(1970, 1, 1).toordinal()
_LAST_DAY = date(9999, 12, 31).toordinal() - date(1970, 1, 1).toordinal()
_DAY = 86_400_000_000


class BadValueError(Exception):
    """A value that does not fit its column: the `row` (counted from 0), and the reason, which continues "it ..."."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


def invalid_rows(
    code: str,
    detail: str,
    *,
    line: int | None = None,
    column: str | None = None,
    suggestions: Sequence[str] = (),
    unit: str = "Line",
) -> InvalidRowsError:
    """Returns the error for a whole body because of one fault. `line` is counted from 1, in units of `unit`."""
    place = f"{unit} {line}: " if line is not None else ""
    pointer = None if column is None else "/" + column.replace("~", "~0").replace("/", "~1")
    issue = Issue(code=code, detail=detail, pointer=pointer, line=line, suggestions=tuple(suggestions))
    return InvalidRowsError(f"{place}{detail} No row of this batch was stored.", issues=[issue])


def bad_value(error: BadValueError, column: str, line: int, *, unit: str = "Line") -> InvalidRowsError:
    """Returns the error for a value of `column`."""
    detail = f"The value of column '{shown(column)}' is invalid: it {error.reason}."
    return invalid_rows("invalid_value", detail, line=line, column=column, unit=unit)


def unknown_column(name: str, names: Sequence[str], *, line: int | None = None, hint: str = "") -> InvalidRowsError:
    """Returns the error for a column that the stream does not have, with an optional `hint` at its end."""
    nearest = nearest_names(name, names)
    detail = f"The stream has no column '{shown(name)}'.{did_you_mean(nearest)}{f' {hint}' if hint else ''}"
    return invalid_rows("unknown_column", detail, line=line, column=name[:_MAX_SHOWN], suggestions=nearest)


def no_rows() -> InvalidRowsError:
    """Returns the error for a batch without rows."""
    return invalid_rows("no_rows", "The body contains no rows.")


def shown(text: str) -> str:
    """Shortens a client's text, and escapes it to one line."""
    kept = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
    return kept.encode("unicode_escape").decode() if not kept.isprintable() else kept


def check_cells(rows: int, columns: int) -> None:
    """Raises InvalidRowsError for a batch with too many rows."""
    if rows > MAX_ROWS or rows * columns > MAX_CELLS:
        raise invalid_rows(
            "too_many_rows",
            f"A batch may have at most {min(MAX_ROWS, MAX_CELLS // columns)} rows of {columns} columns. Post several "
            "batches.",
        )


def describe(type_: DataType) -> str:
    """Describes valid values of the type, for error messages."""
    if type_.name is TypeName.DECIMAL:
        return f"a number that {type_} holds exactly"
    if type_.name is TypeName.STRING:
        return "a text"
    if type_.name is TypeName.BINARY:
        return "bytes in base64"
    return _TEXT_FORMATS[type_.name][1]


def from_texts(texts: pa.Array, type_: DataType) -> pa.Array:
    """Converts `texts` (strings; NULL stays NULL) to values. Raises BadValueError for the first invalid one."""
    if type_.name is TypeName.STRING:
        return texts
    if type_.name is TypeName.BINARY:
        return pa.array([_bytes(row, text) for row, text in enumerate(texts.to_pylist())], pa.binary())
    pattern = _NUMBER if type_.name is TypeName.DECIMAL else _TEXT_FORMATS[type_.name][0]
    _require(texts, type_, pc.match_substring_regex(texts, rf"\A(?:{pattern})\z"))
    values = _cast(texts, type_)
    if type_.is_fractional:
        too_large = pc.and_(pc.is_inf(values), pc.invert(pc.match_substring(texts, "Infinity")))
        _require(texts, type_, pc.invert(too_large))
    elif type_.name is TypeName.TIMESTAMP:
        _require(texts, type_, within_years(values))
    return values


def within_years(moments: pa.Array) -> pa.Array:
    """Returns which of these days, or times in microseconds, are within the years 1 to 9999."""
    first, last = _FIRST_DAY, _LAST_DAY
    if pa.types.is_timestamp(moments.type):
        first, last = first * _DAY, (last + 1) * _DAY - 1
        ticks = moments.cast(pa.int64())
    else:
        ticks = moments.cast(pa.int32())
    return pc.and_(pc.greater_equal(ticks, first), pc.less_equal(ticks, last))


def first_false(flags: pa.Array) -> int | None:
    """Returns the first row that is false; NULL does not count. None if there is none."""
    index = pc.index(flags, pa.scalar(False)).as_py()
    return None if index < 0 else int(index)


def first_failing(values: pa.Array, convert: Callable[[pa.Array], object]) -> int:
    """Returns the first row of `values` for which `convert` raises ArrowInvalid; there must be one."""
    start, length = 0, len(values)
    while length > 1:
        half = length // 2
        try:
            convert(values.slice(start, half))
        except pa.ArrowInvalid:
            length = half
        else:
            start, length = start + half, length - half
    return start


def _cast(texts: pa.Array, type_: DataType) -> pa.Array:
    target = arrow_type(type_)
    try:
        return texts.cast(target)
    except pa.ArrowInvalid:
        raise _bad_text(texts, first_failing(texts, lambda part: part.cast(target)), type_) from None


def _require(texts: pa.Array, type_: DataType, flags: pa.Array) -> None:
    row = first_false(flags)
    if row is not None:
        raise _bad_text(texts, row, type_)


def _bad_text(texts: pa.Array, row: int, type_: DataType) -> BadValueError:
    return BadValueError(row, f"is '{shown(texts[row].as_py())}' and not {describe(type_)}")


def _bytes(row: int, text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise BadValueError(row, f"is '{shown(text)}' and not bytes in base64") from None
