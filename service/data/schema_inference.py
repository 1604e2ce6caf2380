"""Infers the columns of CSV, JSON and XML files without a declared schema, from the rows that exist at submission.

The job is stored with the inferred schema as if it had been declared, and later rows must fit it. It is also stored
with the options that are found: whether CSV files have a header, and whether a JSON file is one document.

A type is inferred only if every value of the sample has it and is printed again as it was written; all other columns
are STRING. A number with leading zeros, or one that would lose digits, stays text. Objects and arrays of JSON become
structures and arrays; they are read as their text if they are empty, too deep, or have too many or equal names.
"""

from __future__ import annotations

import csv
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

from service.contract.problems import SpecError
from service.contract.read_options import ParseMode, ReadOptions, TableFormat
from service.contract.tables import MAX_SCHEMA_LENGTH, TableSource
from service.data.compression import CorruptTextError
from service.data.file_io import (
    DataFile,
    after_first_row,
    bytes_of,
    first_values,
    for_each,
    text_of,
    whole_rows,
)
from service.data.files import TableFiles, pointer_of, unreadable
from service.data.schemas import format_names
from service.data.spread import spread
from service.data.text_heads import Head, read_head
from service.data.xml_rows import XmlRowsError, xml_rows
from service.sql.ddl import MAX_COLUMNS, parse_schema, schema_text
from service.sql.types.data_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    MAX_TYPE_DEPTH,
    STRING,
    TIMESTAMP,
    DataType,
    Field,
    Schema,
    array,
    struct,
)

MAX_FIELDS = 200
"""Objects with more different keys are read as text: their keys are probably values."""

FILES_READ = 16
"""At most this many files are sampled, evenly spread, including the first and the last."""

HEAD_BYTES = 1 << 18
"""Bytes read from the beginning of each file: about a second of CPU time for JSON, while a client waits."""

READ_SECONDS = 5.0
"""No further file is read after this time."""

_INT64 = range(-(2**63), 2**63)
_EXACT_IN_DOUBLE = range(-(2**53), 2**53 + 1)
"""Integers that a DOUBLE represents exactly."""

_INTEGER = r"^-?(0|[1-9][0-9]{0,18})$"
# Fifteen digits: a DOUBLE does not distinguish all numbers with more.
_NUMBER = r"^-?((0|[1-9][0-9]{0,14})(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
_BOOLEAN = r"^([tT][rR][uU][eE]|[fF][aA][lL][sS][eE])$"
_DAY = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])?"
_DATE = f"^{_DAY}$"
_TIMESTAMP = f"^{_DAY}([T ]{_CLOCK})?$"
_PATTERN_PARTS = re.compile(r"'(?P<literal>[^']*)'|(?P<letter>[A-Za-z])(?P=letter)*|.", re.DOTALL)
_SPELLED = 3
"""From this many letters on, a month is spelled."""
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Inferred:
    """The columns of a table's files, and the options with which they were read."""

    schema: Schema
    options: ReadOptions


def infer_schema(table: str, source: TableSource, files: TableFiles) -> Inferred:
    """Returns the columns of the CSV, JSON or XML files that `table` has so far.

    Reads HEAD_BYTES of decompressed text of at most FILES_READ files, and no further file after READ_SECONDS. Columns
    are in the order of a CSV file, or of first appearance in JSON and XML; those of a CSV file without a header are
    named `_c0`, `_c1`, …

    Raises SpecError `schema_cannot_be_inferred`, `schema_mismatch` (files that differ), `corrupt_file`,
    `duplicate_column`, `unreadable_file`, and StoreUnavailableError.
    """
    reading = _Reading(source, pointer_of(table))
    found = list(_heads(spread(files.files, FILES_READ), reading))
    if source.format is TableFormat.JSON and _are_documents(found, source.options):
        options = source.options.model_copy(update={"multi_line": True})
        reading = _Reading(source.model_copy(update={"options": options}), reading.pointer)
    is_one_document = source.format is TableFormat.XML or (
        source.format is TableFormat.JSON and reading.source.options.multi_line
    )
    if not is_one_document:
        found = list(map(reading.cut, found))
    heads = [head for head in found if head.data.strip() or (is_one_document and not head.is_whole)]
    cut_head = next((head for head in found if not head.is_whole), None)
    if not heads and cut_head is not None:
        raise reading.too_long(cut_head, "begins with a line")
    if not heads:
        raise reading.cannot_infer("contains no file yet from which to infer the columns")
    if source.format is TableFormat.CSV and source.options.header is None:
        options = source.options.model_copy(update={"header": _has_header(_first_line(heads[0], reading))})
        reading = _Reading(source.model_copy(update={"options": options}), reading.pointer)
    types = _of_csv(heads, reading) if source.format is TableFormat.CSV else _of_documents(heads, reading)
    if not source.options.infer_schema:
        types = dict.fromkeys(types, STRING)
    schema = Schema(tuple(Field(name, type_) for name, type_ in types.items()))
    _check(schema, reading)
    return Inferred(schema, reading.source.options)


def _heads(chosen: Sequence[DataFile], reading: _Reading) -> Iterator[Head]:
    start = time.monotonic()
    for head in for_each(chosen, reading.head):
        yield head
        if time.monotonic() - start > READ_SECONDS:
            return


def _are_documents(heads: Sequence[Head], options: ReadOptions) -> bool:
    """Whether JSON files are arrays or documents over several lines, if the job does not say so."""
    if "multi_line" in options.model_fields_set:
        return options.multi_line
    return any(_is_document(head) for head in heads)


def _is_document(head: Head) -> bool:
    line, _, rest = head.data.lstrip().partition(b"\n")
    if not rest.strip():
        # One line, which Spark reads either way; one that is cut can only be read as an array.
        return not head.is_whole and line.startswith(b"[")
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line[:1] in {b"[", b"{"}
    return False


def _has_header(values: Sequence[str]) -> bool:
    """Whether the first line of a CSV file may be names: it has a value that is not a number, date or boolean."""
    typed = "|".join((_INTEGER, _NUMBER, _BOOLEAN, _TIMESTAMP))
    return any(value and not re.search(typed, value) for value in values)


@dataclass(frozen=True)
class _Reading:
    """Reads the heads of a table's files, and creates the errors about them."""

    source: TableSource
    pointer: str

    def head(self, file: DataFile) -> Head:
        try:
            return read_head(file, self.source.options, HEAD_BYTES)
        except CorruptTextError:
            detail = f"'{file.name}' is damaged, or not compressed as its name says."
            raise SpecError.of("corrupt_file", detail, pointer=f"{self.pointer}/path") from None
        except OSError as error:
            raise unreadable(file.name, error, f"{self.pointer}/path") from None

    def cut(self, head: Head) -> Head:
        """Returns the head without an incomplete row at its end."""
        return head if head.is_whole else replace(head, data=self._whole_rows(head.data))

    def _whole_rows(self, data: bytes) -> bytes:
        if self.source.format is TableFormat.CSV and self.source.options.multi_line:
            return bytes_of(whole_rows(text_of(data), self.source.options))
        return data[: data.rfind(b"\n") + 1]

    def cannot_infer(self, what: str) -> SpecError:
        detail = f"'{self.source.path}' {what}. Add data, or declare its 'schema'."
        return SpecError.of("schema_cannot_be_inferred", detail, pointer=f"{self.pointer}/path")

    def too_wide(self) -> SpecError:
        detail = (
            f"The files of '{self.source.path}' have more than {MAX_COLUMNS} columns, the limit for a table. Check "
            "its 'options', or declare the columns that you need as its 'schema'."
        )
        return SpecError.of("schema_cannot_be_inferred", detail, pointer=f"{self.pointer}/path")

    def too_long(self, head: Head, what: str) -> SpecError:
        detail = f"'{head.name}' {what} of more than {HEAD_BYTES >> 10} KB. Declare the table's 'schema'."
        return SpecError.of("schema_cannot_be_inferred", detail, pointer=f"{self.pointer}/path")

    def corrupt(self, head: Head, what: str) -> SpecError:
        return SpecError.of("corrupt_file", f"'{head.name}' {what}.", pointer=f"{self.pointer}/path")


def _check(schema: Schema, reading: _Reading) -> None:
    seen: dict[str, str] = {}
    for name in schema.names:
        folded = name.casefold()
        if folded in seen:
            raise SpecError.of(
                "duplicate_column",
                f"The columns {seen[folded]} and {name} differ only in case, which Spark cannot read.",
                pointer=f"{reading.pointer}/path",
            )
        seen[folded] = name
    text = schema_text(schema)
    try:
        parsed = parse_schema(text, reading.pointer)
    except SpecError:
        parsed = None
    if parsed != schema or len(text) > MAX_SCHEMA_LENGTH or len(schema.names) > MAX_COLUMNS:
        raise SpecError.of(
            "schema_cannot_be_inferred",
            f"The files of '{reading.source.path}' have columns whose names cannot be written in a schema. Declare its "
            "'schema'.",
            pointer=f"{reading.pointer}/path",
        )


def _of_csv(heads: Sequence[Head], reading: _Reading) -> dict[str, DataType]:
    options = reading.source.options
    for option in ("delimiter", "quote", "escape"):
        if not (getattr(options, option) or "").isascii():
            raise SpecError.of(
                "schema_cannot_be_inferred",
                f"Columns can only be inferred if '{option}' is an ASCII character. Declare the table's 'schema'.",
                pointer=f"{reading.pointer}/options/{option}",
            )
    names = _first_line(heads[0], reading)
    if len(names) > MAX_COLUMNS:
        # Before the rows are read, since each column takes memory and time.
        raise reading.too_wide()
    if not options.header:
        names = [f"_c{index}" for index in range(len(names))]
    elif len({name.casefold() for name in names}) < len(names) or not all(names):
        raise SpecError.of(
            "duplicate_column",
            f"The header of '{heads[0].name}' contains a duplicate or empty column name.",
            pointer=f"{reading.pointer}/path",
        )
    parts = [_cells(head, reading, names) for head in heads]
    if not sum(part.num_rows for part in parts):
        raise reading.cannot_infer("contains no row yet from which to infer the columns")
    table = pa.concat_tables(parts)
    return {name: _type_of_texts(_trimmed(table.column(index), options), options) for index, name in enumerate(names)}


def _blanks_before_quotes(options: ReadOptions) -> re.Pattern[bytes]:
    """Matches the blanks between a delimiter or line break, which is its group, and a quote."""
    delimiter, quote = re.escape(options.delimiter.encode()), re.escape(options.quote.encode())
    blanks = b"[ ]" if options.delimiter == "\t" else rb"[ \t]"
    return re.compile(rb"(^|\n|" + delimiter + rb")" + blanks + rb"++(?=" + quote + rb")")


def _trimmed(values: pa.ChunkedArray, options: ReadOptions) -> pa.ChunkedArray:
    if options.ignore_leading_white_space:
        values = pc.utf8_ltrim_whitespace(values)
    return pc.utf8_rtrim_whitespace(values) if options.ignore_trailing_white_space else values


def _first_line(head: Head, reading: _Reading) -> list[str]:
    try:
        return first_values(text_of(head.data), reading.source.options)
    except UnicodeDecodeError:
        raise reading.corrupt(head, "is not UTF-8 text") from None
    except csv.Error:
        raise reading.corrupt(head, "begins with a line that is not valid CSV") from None


def _cells(head: Head, reading: _Reading, names: Sequence[str]) -> pa.Table:
    """Returns every value as text, NULL as configured in the options, without the header."""
    options = reading.source.options
    if options.header:
        own = _first_line(head, reading)
        if [name.casefold() for name in own] != [name.casefold() for name in names]:
            raise SpecError.of(
                "schema_mismatch",
                f"The header of '{head.name}' is {format_names(own)}; that of another file is {format_names(names)}.",
                pointer=f"{reading.pointer}/path",
            )
    positions = [str(index) for index in range(len(names))]
    try:
        return _table(head.data, options, positions)
    except pa.ArrowException as error:
        raise reading.corrupt(head, f"has rows that do not match the first line: {error}") from None


def _table(data: bytes, options: ReadOptions, positions: Sequence[str]) -> pa.Table:
    if not (after_first_row(text_of(data), options) if options.has_header else text_of(data)).strip():
        return pa.table({position: pa.array([], pa.string()) for position in positions})
    if options.ignore_leading_white_space:
        # Arrow recognises a quote only at the beginning of a value.
        data = _blanks_before_quotes(options).sub(rb"\1", data)
    return pa_csv.read_csv(
        pa.BufferReader(data),
        read_options=pa_csv.ReadOptions(
            column_names=list(positions),
            skip_rows_after_names=int(options.has_header),
            block_size=HEAD_BYTES + 1,
            use_threads=False,
        ),
        parse_options=pa_csv.ParseOptions(
            delimiter=options.delimiter,
            quote_char=options.quote,
            double_quote=options.escape_character == options.quote,
            escape_char=False if options.escape_character == options.quote else options.escape_character,
            newlines_in_values=options.multi_line,
            invalid_row_handler=None if options.mode is ParseMode.FAILFAST else lambda _row: "skip",
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(positions, pa.string()),
            strings_can_be_null=True,
            null_values=[options.null_value],
        ),
    )


def _type_of_texts(values: pa.Array, options: ReadOptions) -> DataType:
    """Returns the most specific type of all these texts, ignoring NULLs."""
    known = pc.unique(values).drop_null()
    if not len(known):
        return STRING
    by_pattern = _type_by_pattern(known, options)
    if by_pattern is not None:
        return by_pattern
    if _all(known, _INTEGER):
        return BIGINT if all(int(value) in _INT64 for value in known.to_pylist()) else STRING
    if _all(known, _NUMBER):
        return DOUBLE
    if _all(known, _BOOLEAN):
        return BOOLEAN
    return _type_of_times(known, options)


def regex_of(pattern: str) -> str:
    """Returns a regular expression for the values of a date or time pattern of Spark.

    >>> regex_of("dd/MM/yyyy'T'H:mm")
    '^[0-9]{2}/[0-9]{2}/[0-9]{4}T[0-9]{1,2}:[0-9]{2}$'
    """
    parts = []
    for found in _PATTERN_PARTS.finditer(pattern):
        literal, letter, length = found["literal"], found["letter"], len(found[0])
        if literal is not None:
            parts.append(re.escape(literal) if literal else "'")
        elif letter is None:
            parts.append(re.escape(found[0]))
        elif letter in "XxzVO":
            parts.append("(Z|[+-][0-9]{2}(:?[0-9]{2})?|[A-Za-z/_]{1,40})")
        elif letter in "aE" or (letter == "M" and length >= _SPELLED):
            parts.append(r"[^0-9\s]{1,20}")
        else:
            digits = f"{length}" if length > 1 else "1,4" if letter in "yu" else "1,2"
            parts.append(f"[0-9]{{{digits}}}")
    return f"^{''.join(parts)}$"


def _type_by_pattern(known: pa.Array, options: ReadOptions) -> DataType | None:
    for pattern, type_ in ((options.date_format, DATE), (options.timestamp_format, TIMESTAMP)):
        if pattern is not None and _all(known, regex_of(pattern)):
            return type_
    return None


def _type_of_times(known: pa.Array, options: ReadOptions) -> DataType:
    by_pattern = _type_by_pattern(known, options)
    if by_pattern is not None:
        return by_pattern
    if not _all(known, _TIMESTAMP):
        return STRING
    try:
        # Rejects dates such as February 30.
        pc.utf8_slice_codeunits(known, 0, 10).cast(pa.date32())
    except pa.ArrowException:
        return STRING
    # With a pattern, Spark reads no values of another form.
    if _all(known, _DATE):
        return STRING if options.date_format else DATE
    return STRING if options.timestamp_format else TIMESTAMP


def _all(known: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(known, pattern)).as_py())


@dataclass
class _Values:
    """The values found under one key of the JSON documents; those inside objects by their keys, and those of arrays."""

    kinds: set[type] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    fits: bool = True
    is_exact: bool = True
    depth: int = 1
    fields: dict[str, _Values] = field(default_factory=dict)
    elements: _Values | None = None

    def add(self, value: Any) -> None:
        self.kinds.add(type(value))
        if isinstance(value, dict | list) and self.depth <= MAX_TYPE_DEPTH:
            self._add_parts(value)
        if isinstance(value, str):
            self.texts.add(value)
        elif isinstance(value, int):
            self.fits = self.fits and value in _INT64
            self.is_exact = self.is_exact and value in _EXACT_IN_DOUBLE

    def type(self, options: ReadOptions, *, is_text: bool) -> DataType:
        """Returns the type of all values. `is_text`: numbers and booleans are also written as text, as in XML."""
        if self.kinds == {bool}:
            return BOOLEAN
        if self.kinds == {int} and self.fits:
            return BIGINT
        if self.kinds in ({float}, {int, float}) and self.is_exact:
            return DOUBLE
        # JSON may contain escaped halves of surrogate pairs, which Arrow does not accept and no date contains.
        if self.kinds == {str} and not any(map(_SURROGATE.search, self.texts)):
            known = pa.array(sorted(self.texts))
            return _type_of_texts(known, options) if is_text else _type_of_times(known, options)
        # Values of mixed types are read as text.
        return (None if is_text else self._nested(options)) or STRING

    def _add_parts(self, value: dict[str, Any] | list[Any]) -> None:
        if isinstance(value, list):
            self.elements = self.elements or _Values(depth=self.depth + 1)
            parts = [(self.elements, one) for one in value]
        else:
            parts = [(self.fields.setdefault(name, _Values(depth=self.depth + 1)), one) for name, one in value.items()]
        for values, one in parts:
            if one is not None:
                values.add(one)

    def _nested(self, options: ReadOptions) -> DataType | None:
        """Returns the type of objects or arrays; None if they are read as text."""
        if self.depth > MAX_TYPE_DEPTH:
            return None
        if self.kinds == {list} and self.elements is not None and self.elements.kinds:
            return array(self.elements.type(options, is_text=False))
        names = {name.casefold() for name in self.fields}
        is_fit = len(names) == len(self.fields) <= MAX_FIELDS and all(name and "${" not in name for name in names)
        if self.kinds != {dict} or not names or not is_fit:
            return None
        parts = self.fields.items()
        return struct([Field(name, values.type(options, is_text=False)) for name, values in parts])


def _of_documents(heads: Sequence[Head], reading: _Reading) -> dict[str, DataType]:
    columns: dict[str, _Values] = {}
    rows = 0
    for document in _documents(heads, reading):
        rows += 1
        for name, value in document.items():
            values = columns.setdefault(name, _Values())
            if value is not None:
                values.add(value)
        if len(columns) > MAX_COLUMNS:
            raise reading.too_wide()
    if not rows or not columns:
        raise reading.cannot_infer("contains no row yet from which to infer the columns")
    is_text = reading.source.format is TableFormat.XML
    return {name: values.type(reading.source.options, is_text=is_text) for name, values in columns.items()}


def _documents(heads: Sequence[Head], reading: _Reading) -> Iterator[dict[str, Any]]:
    for head in heads:
        if reading.source.format is TableFormat.XML:
            yield from _rows_of_xml(head, reading)
            continue
        for found in _values(head, reading):
            for one in found if isinstance(found, list) else [found]:
                if not isinstance(one, dict):
                    raise reading.corrupt(head, "contains a JSON value that is not an object")
                yield one


def _values(head: Head, reading: _Reading) -> Iterator[Any]:
    is_document = reading.source.options.multi_line
    if is_document and not head.is_whole:
        if not head.data.lstrip().startswith(b"["):
            raise reading.too_long(head, "is one JSON document")
        yield _first_elements(head, reading)
        return
    for text in [head.data] if is_document else head.data.splitlines():
        if not text.strip():
            continue
        try:
            yield json.loads(text)
        except RecursionError:
            raise reading.corrupt(head, "contains JSON that is nested too deeply") from None
        except ValueError:
            if reading.source.options.mode is ParseMode.FAILFAST:
                raise reading.corrupt(head, "contains invalid JSON") from None


def _first_elements(head: Head, reading: _Reading) -> list[Any]:
    """Returns the complete elements at the beginning of an array."""
    text, found = head.data.decode(errors="replace").lstrip()[1:], []
    decoder = json.JSONDecoder()
    place = 0
    while True:
        place += len(text[place : place + 1000]) - len(text[place : place + 1000].lstrip(" \t\r\n,"))
        try:
            value, place = decoder.raw_decode(text, place)
        except RecursionError:
            raise reading.corrupt(head, "contains JSON that is nested too deeply") from None
        except ValueError:
            break
        found.append(value)
    if not found:
        raise reading.too_long(head, "begins with a JSON document")
    return found


def _rows_of_xml(head: Head, reading: _Reading) -> Iterator[dict[str, Any]]:
    try:
        yield from xml_rows(head.data, reading.source.options, is_whole=head.is_whole)
    except XmlRowsError as error:
        raise reading.corrupt(head, str(error)) from None
