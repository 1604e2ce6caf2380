"""Finds the rows of a result by the values of columns, without reading the whole result into memory.

In the result of a streaming job, a newer row replaces an older one with the same keys. So a look-up names all keys:
only the rows with these values are read, and the newest one of them counts.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from service.contract.errors import InvalidLookupError
from service.results.columns import Column
from service.results.files import ResultFiles
from service.results.stream_result import ManagedFiles, columns_named, combined, managed_files, of_nothing

_NAN = "NaN"
"""How results write it."""

Key = Mapping[str, Any]
"""JSON values by the name of their column."""


def rows_of_result(files: ResultFiles, key: Key, limit: int) -> pa.Table:
    """Returns at most `limit` of the rows with these values. Raises InvalidLookupError."""
    return _read(files, key, limit).cast(files.schema)


def rows_of_stream(path: Path, key: Key, limit: int) -> tuple[tuple[Column, ...], pa.Table]:
    """Returns the columns of the newest version of the managed table at `path`, and at most `limit` of its rows with
    these values.

    Raises InvalidLookupError, ResultNotReadyError and ResultMissingError.
    """
    files = managed_files(path)
    shown = files.every_row().schema
    _check_names(shown, key)
    identity = files.table.keys
    if identity is None:
        rows = rows_of_result(files.every_row(), key, limit)
    else:
        missing = [name for name in identity if name not in key]
        if missing:
            raise InvalidLookupError(_missing_keys(missing, shown))
        rows = _newest(files, {name: key[name] for name in identity}, shown)
    if not rows.num_rows:
        rows = of_nothing(files, shown)
    condition = _condition(shown, key)
    rows = rows if condition is None else rows.filter(condition)
    return columns_named(files.table.output), rows.slice(0, limit)


def _newest(files: ManagedFiles, keys: Key, shown: pa.Schema) -> pa.Table:
    base, log = (_read(files.rows_of(part), keys, None) for part in (files.base, files.log))
    found = list(combined(files.table, base.to_batches(), log, shown))
    return pa.concat_tables(found) if found else shown.empty_table()


def _missing_keys(missing: list[str], shown: pa.Schema) -> str:
    hidden = [name for name in missing if name not in shown.names]
    if hidden:
        return "The result does not show the keys of its rows. Select every key of GROUP BY to look rows up."
    return f"Rows of this result replace each other by their keys: name {', '.join(missing)} too."


def _read(files: ResultFiles, key: Key, limit: int | None) -> pa.Table:
    """Returns the rows of the files in their order; files and row groups whose statistics exclude them are not read."""
    condition = _condition(files.schema, key)
    if not files.paths:
        return files.schema.empty_table()
    if any(value == _NAN and pa.types.is_floating(files.schema.field(name).type) for name, value in key.items()):
        # The statistics of files do not include NaN, so that Arrow would not read the files.
        parts = [pa.Table.from_batches([batch]).filter(condition) for batch in files.batches()]
        rows_with_nan = pa.concat_tables(parts) if parts else files.schema.empty_table()
        return rows_with_nan if limit is None else rows_with_nan.slice(0, limit)
    # Imported here: it imports pandas where that is installed.
    import pyarrow.dataset as ds

    format_ = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))
    rows = ds.dataset([str(path) for path in files.paths], schema=files.schema, format=format_)
    scanner = rows.scanner(columns=files.schema.names, filter=condition)
    return scanner.to_table() if limit is None else scanner.head(limit)


def _check_names(schema: pa.Schema, key: Key) -> None:
    unknown = next((name for name in key if name not in schema.names), None)
    if unknown is not None:
        raise InvalidLookupError(
            f"The result has no column {_printable(unknown)}. Its columns are {', '.join(schema.names)}."
        )


def _condition(schema: pa.Schema, key: Key) -> pc.Expression | None:
    """Returns the condition for the rows with the values of `key`, compared as in GROUP BY; None for all rows."""
    _check_names(schema, key)
    terms = [_term(schema.field(name), value) for name, value in key.items()]
    return reduce(lambda left, right: left & right, terms) if terms else None


def _term(field: pa.Field, value: Any) -> pc.Expression:
    column = pc.field(field.name)
    if value is None:
        return column.is_null()
    scalar = _scalar(field, value)
    if pa.types.is_floating(field.type) and value == _NAN:
        return pc.is_nan(column)
    return column == scalar


def _scalar(field: pa.Field, value: Any) -> pa.Scalar:
    """Returns a JSON value, as results have them, as one of the column's type."""
    kind = field.type
    try:
        if pa.types.is_boolean(kind) is not isinstance(value, bool) or isinstance(value, list | dict):
            raise ValueError
        if pa.types.is_binary(kind):
            return pa.scalar(base64.b64decode(value, validate=True), kind)
        if pa.types.is_floating(kind):
            return pa.scalar(float(value), kind)
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_string(kind):
            return pa.scalar(value, kind)
        if pa.types.is_decimal(kind) or pa.types.is_temporal(kind):
            return pa.scalar(str(value)).cast(kind)
        raise ValueError
    except (ValueError, TypeError, OverflowError, binascii.Error, pa.ArrowException):
        raise InvalidLookupError(
            f"'{_printable(str(value))}' is no value of the column {field.name}, which is {kind}. Write values as the "
            "result does."
        ) from None


def _printable(text: str) -> str:
    # JSON may have halves of characters, which no answer can have.
    return text[:60].encode(errors="backslashreplace").decode()
