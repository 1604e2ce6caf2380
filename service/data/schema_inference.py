"""Infers the columns of CSV and JSON files without a declared schema, once, from the rows that exist at submission.

The job is stored with the inferred schema as if it had been declared, and later rows must fit it. A type is inferred
only if every value of the sample has it and is printed again as it was written; all other columns are STRING. A number
with leading zeros, or one that would lose digits, stays text.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

from service.contract.job import MAX_SCHEMA_LENGTH, ReadOptions, TableFormat, TableSource
from service.contract.problems import SpecError
from service.data.file_io import (
    COMPRESSED,
    DataFile,
    after_first_row,
    bytes_of,
    first_values,
    for_each,
    opened,
    text_of,
    whole_rows,
)
from service.data.files import TableFiles, pointer_of, unreadable
from service.data.schemas import format_names, spread
from service.sql.ddl import MAX_COLUMNS, parse_schema, schema_text
from service.sql.types.data_types import BIGINT, BOOLEAN, DATE, DOUBLE, STRING, TIMESTAMP, DataType, Field, Schema

FILES_READ = 16
"""At most this many files are sampled, evenly spread, including the first and the last."""

HEAD_BYTES = 1 << 18
"""Bytes read from the beginning of each file: about a second of CPU time for JSON, while a client waits."""

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
_SURROGATE = re.compile("[\ud800-\udfff]")


def infer_schema(table: str, source: TableSource, files: TableFiles) -> Schema:
    """Returns the columns of the CSV or JSON files that `table` has so far.

    Reads HEAD_BYTES of at most FILES_READ files. Columns are in the order of a CSV file, or of first appearance in
    JSON; those of a CSV file without a header are named `_c0`, `_c1`, …

    Raises SpecError `schema_cannot_be_inferred`, `schema_mismatch` (files that differ), `corrupt_file`,
    `duplicate_column`, `unreadable_file`, and StoreUnavailableError.
    """
    reading = _Reading(source, pointer_of(table))
    chosen = spread([file for file in files.files if file.suffix.lower() not in COMPRESSED], FILES_READ)
    found = list(for_each(chosen, reading.head))
    is_one_document = source.format is TableFormat.JSON and source.options.multi_line
    heads = [head for head in found if head.data.strip() or (is_one_document and not head.is_whole)]
    cut_head = next((head for head in found if not head.is_whole), None)
    if not heads and cut_head is not None:
        raise reading.too_long(cut_head, "begins with a line")
    if not heads:
        raise reading.cannot_infer("contains no file yet from which to infer the columns")
    types = _of_csv(heads, reading) if source.format is TableFormat.CSV else _of_json(heads, reading)
    schema = Schema(tuple(Field(name, type_) for name, type_ in types.items()))
    _check(schema, reading)
    return schema


@dataclass(frozen=True)
class _Head:
    """The beginning of a file, cut after its last complete line; `is_whole` if it is the whole file."""

    name: str
    data: bytes
    is_whole: bool


@dataclass(frozen=True)
class _Reading:
    """Reads the heads of a table's files, and creates the errors about them."""

    source: TableSource
    pointer: str

    def head(self, file: DataFile) -> _Head:
        try:
            with opened(file) as stream:
                data: bytes = stream.read(HEAD_BYTES + 1)
        except OSError as error:
            raise unreadable(file.name, error, f"{self.pointer}/path") from None
        # Before the byte order mark is removed, which makes the data shorter.
        is_whole = len(data) <= HEAD_BYTES
        data = data.removeprefix(b"\xef\xbb\xbf")
        return _Head(file.name, data if is_whole else self._whole_rows(data), is_whole)

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

    def too_long(self, head: _Head, what: str) -> SpecError:
        detail = f"'{head.name}' {what} of more than {HEAD_BYTES >> 10} KB. Declare the table's 'schema'."
        return SpecError.of("schema_cannot_be_inferred", detail, pointer=f"{self.pointer}/path")

    def corrupt(self, head: _Head, what: str) -> SpecError:
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


def _of_csv(heads: Sequence[_Head], reading: _Reading) -> dict[str, DataType]:
    options = reading.source.options
    for option in ("delimiter", "quote"):
        if not getattr(options, option).isascii():
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
    return {name: _type_of_texts(table.column(index)) for index, name in enumerate(names)}


def _first_line(head: _Head, reading: _Reading) -> list[str]:
    try:
        return first_values(text_of(head.data), reading.source.options)
    except UnicodeDecodeError:
        raise reading.corrupt(head, "is not UTF-8 text") from None
    except csv.Error:
        raise reading.corrupt(head, "begins with a line that is not valid CSV") from None


def _cells(head: _Head, reading: _Reading, names: Sequence[str]) -> pa.Table:
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
    if not (after_first_row(text_of(data), options) if options.header else text_of(data)).strip():
        return pa.table({position: pa.array([], pa.string()) for position in positions})
    return pa_csv.read_csv(
        pa.BufferReader(data),
        read_options=pa_csv.ReadOptions(
            column_names=list(positions),
            skip_rows_after_names=int(options.header),
            block_size=HEAD_BYTES + 1,
            use_threads=False,
        ),
        parse_options=pa_csv.ParseOptions(
            delimiter=options.delimiter, quote_char=options.quote, newlines_in_values=options.multi_line
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(positions, pa.string()),
            strings_can_be_null=True,
            null_values=[options.null_value],
        ),
    )


def _type_of_texts(values: pa.ChunkedArray) -> DataType:
    """Returns the most specific type of all these texts, ignoring NULLs."""
    known = pc.unique(values).drop_null()
    if not len(known):
        return STRING
    if _all(known, _INTEGER):
        return BIGINT if all(int(value) in _INT64 for value in known.to_pylist()) else STRING
    if _all(known, _NUMBER):
        return DOUBLE
    if _all(known, _BOOLEAN):
        return BOOLEAN
    return _type_of_times(known)


def _type_of_times(known: pa.Array) -> DataType:
    if not _all(known, _TIMESTAMP):
        return STRING
    try:
        # Rejects dates such as February 30.
        pc.utf8_slice_codeunits(known, 0, 10).cast(pa.date32())
    except pa.ArrowException:
        return STRING
    return DATE if _all(known, _DATE) else TIMESTAMP


def _all(known: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(known, pattern)).as_py())


@dataclass
class _Values:
    """The values found under one key of the JSON documents."""

    kinds: set[type] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    fits: bool = True
    is_exact: bool = True

    def add(self, value: Any) -> None:
        self.kinds.add(type(value))
        if isinstance(value, str):
            self.texts.add(value)
        elif isinstance(value, int):
            self.fits = self.fits and value in _INT64
            self.is_exact = self.is_exact and value in _EXACT_IN_DOUBLE

    @property
    def type(self) -> DataType:
        if self.kinds == {bool}:
            return BOOLEAN
        if self.kinds == {int} and self.fits:
            return BIGINT
        if self.kinds in ({float}, {int, float}) and self.is_exact:
            return DOUBLE
        # JSON may contain escaped halves of surrogate pairs, which Arrow does not accept and no date contains.
        if self.kinds == {str} and not any(map(_SURROGATE.search, self.texts)):
            return _type_of_times(pa.array(sorted(self.texts)))
        # Objects, arrays, and values of mixed types are read as text.
        return STRING


def _of_json(heads: Sequence[_Head], reading: _Reading) -> dict[str, DataType]:
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
    return {name: values.type for name, values in columns.items()}


def _documents(heads: Sequence[_Head], reading: _Reading) -> Iterator[dict[str, Any]]:
    for head in heads:
        for text in _texts(head, reading):
            try:
                found = json.loads(text)
            except ValueError:
                raise reading.corrupt(head, "contains invalid JSON") from None
            except RecursionError:
                raise reading.corrupt(head, "contains JSON that is nested too deeply") from None
            for one in found if isinstance(found, list) else [found]:
                if not isinstance(one, dict):
                    raise reading.corrupt(head, "contains a JSON value that is not an object")
                yield one


def _texts(head: _Head, reading: _Reading) -> Iterable[bytes]:
    if not reading.source.options.multi_line:
        return [line for line in head.data.splitlines() if line.strip()]
    if not head.is_whole:
        raise reading.too_long(head, "is one JSON document or array")
    return [head.data]
