"""Determines what a job leaves out about the files of a table: format, options and columns. Called at submission.

The job is stored with the result, so workers infer nothing.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass

from service.contract.problems import SpecError, did_you_mean, nearest_names
from service.contract.read_options import ParseMode, ReadOptions, TableFormat
from service.contract.tables import NAMES_OF_FORMATS, TableSource, schema_not_applicable
from service.data.compression import CorruptTextError
from service.data.file_format import FILES_CHECKED, TSV, check_content, infer_format, suffix_of_format
from service.data.file_io import COMPRESSED, DataFile, first_values, text_of
from service.data.files import TableFiles, find_stream_files, find_table_files, pointer_of
from service.data.partitions import check_columns, infer_types
from service.data.roots import Root
from service.data.schema_inference import HEAD_BYTES, infer_schema
from service.data.schemas import read_schema
from service.data.spread import spread
from service.data.text_heads import read_head
from service.sql.ddl import parse_schema, schema_text
from service.sql.expressions.scalar import quoted
from service.sql.types.data_types import Field, Schema

STREAMED = frozenset({TableFormat.PARQUET, TableFormat.CSV, TableFormat.JSON})
"""The formats of streams of files."""

MERGED = frozenset({TableFormat.PARQUET, TableFormat.ORC, TableFormat.AVRO})
"""The formats whose files may have different columns, with `merge_schema`."""


@dataclass(frozen=True)
class Resolved:
    """A table as it is stored with a job, its columns, and the bytes of its files.

    `needs_version_10`: workers of job format 9 cannot read the files, whatever their declaration is.
    """

    source: TableSource
    schema: Schema
    bytes: int = 0
    needs_version_10: bool = False


def resolve_table(
    table: str,
    source: TableSource,
    roots: Sequence[Root],
    *,
    is_stream: bool = False,
    may_have_partitions: bool = True,
    pins_version: bool = True,
    is_accepted: bool = False,
) -> Resolved:
    """Returns the table with everything that its job leaves out; also the version of a Delta table if `pins_version`.

    `is_accepted`: the job is stored. It may read the files of a Delta table as Parquet, as earlier versions accepted.
    A stream may have no files yet if its format and, for CSV and JSON, its schema are given.

    Raises SpecError: what `find_table_files`, `infer_format`, `check_content`, `infer_schema` and `read_schema` raise,
    and `schema_not_applicable`, `option_not_applicable`, `option_required`, `unknown_column`. Raises
    StoreUnavailableError.
    """
    at = pointer_of(table)
    if is_stream:
        files = find_stream_files(table, source, roots, refuses_delta=not is_accepted)
    else:
        files = find_table_files(
            table, source, roots, may_have_partitions=may_have_partitions, refuses_delta=not is_accepted
        )
    if not files.files:
        return Resolved(source, _schema_without_files(source, at))
    format_ = source.format or (infer_format(table, source, files) if files.snapshot is None else TableFormat.DELTA)
    source = source.model_copy(update={"format": format_})
    if format_ is TableFormat.CSV:
        source = source.model_copy(update={"options": _with_delimiter(source.options, files.files, at)})
    _check_fields(source, at, is_stream=is_stream)
    check_content(table, source, files, spread(files.files, FILES_CHECKED))
    if files.snapshot is None:
        source = _with_partitions(source, files, at)
    elif pins_version:
        source = source.model_copy(update={"version": files.snapshot.version})
    if format_.is_text:
        source = _with_columns(table, source, files)
    if not source.options.infer_schema:
        # It has had its effect. Workers of older versions do not support it.
        source = source.model_copy(update={"options": source.options.model_copy(update={"infer_schema": True})})
    # Workers of job format 9 read the first bytes of a compressed file as its header.
    has_compressed_header = source.options.has_header and any(file.suffix.lower() in COMPRESSED for file in files.files)
    return Resolved(source, read_schema(table, source, files), files.bytes, has_compressed_header)


def _schema_without_files(source: TableSource, at: str) -> Schema:
    if source.declared_schema is not None and source.format is not None:
        return parse_schema(source.declared_schema, f"{at}/schema")
    needs_schema = source.format is None or source.format.is_text
    raise SpecError.of(
        "schema_cannot_be_inferred",
        f"'{source.path}' contains no file yet from which to infer the columns. Add a file"
        f"{', or declare the format and the schema' if needs_schema else ''}.",
        pointer=f"{at}/path",
    )


def _with_delimiter(options: ReadOptions, files: Sequence[DataFile], at: str) -> ReadOptions:
    """Returns the options with the delimiter of `.tsv` files, if the job does not set one. Raises SpecError
    `option_required` if only some files have that suffix.
    """
    if "delimiter" in options.model_fields_set:
        return options
    examples = {suffix_of_format(file.name) == TSV: file.name for file in files}
    if len(examples) > 1:
        detail = (
            f"'{examples[True]}' is a .tsv file and '{examples[False]}' is not: set 'delimiter' if all files have the "
            "same one, or name files of one suffix with a wildcard."
        )
        raise SpecError.of("option_required", detail, pointer=f"{at}/options/delimiter")
    return options.model_copy(update={"delimiter": "\t"}) if True in examples else options


def _check_fields(source: TableSource, at: str, *, is_stream: bool) -> None:
    """Checks the fields that depend on the format, which a job may leave out."""
    format_, options = source.kind, source.options
    name = NAMES_OF_FORMATS[format_]
    for field, given in (("schema", source.declared_schema), ("columns", source.columns)):
        if given is not None and not format_.is_text:
            raise SpecError.of("schema_not_applicable", schema_not_applicable(format_, field), pointer=f"{at}/{field}")
    if is_stream and format_ not in STREAMED:
        readable = ", ".join(sorted(STREAMED))
        detail = f"{name} cannot be read as a stream, only {readable}. Set the table's role to 'static'."
        raise SpecError.of("unsupported_construct", detail, pointer=f"{at}/format")
    if format_ is TableFormat.XML and options.row_tag is None:
        detail = "An XML table requires 'row_tag', the name of the element that is a row."
        raise SpecError.of("option_required", detail, pointer=f"{at}/options/row_tag")
    for field, is_given, allowed in (
        ("partitions", source.partitions is not None, format_ is not TableFormat.DELTA and not is_stream),
        ("version", source.version is not None, format_ is TableFormat.DELTA),
        ("refresh", source.refresh, format_ is not TableFormat.DELTA),
    ):
        if is_given and not allowed:
            detail = f"'{field}' has no effect on {'streams' if is_stream else name}: remove it."
            raise SpecError.of("option_not_applicable", detail, pointer=f"{at}/{field}")
    for field, is_set, allowed in (
        ("row_tag", options.row_tag is not None, format_ is TableFormat.XML),
        ("merge_schema", options.merge_schema, format_ in MERGED),
        ("mode", options.mode is not ParseMode.FAILFAST, format_.is_text and not is_stream),
    ):
        if is_set and not allowed:
            what = "streams" if is_stream and format_.is_text else name
            detail = f"'{field}' has no effect on {what}: remove it."
            raise SpecError.of("option_not_applicable", detail, pointer=f"{at}/options/{field}")


def _with_partitions(source: TableSource, files: TableFiles, at: str) -> TableSource:
    """Returns the table with its partition columns. Their types are those that `partitions` or `schema` declares."""
    found = files.partitions
    if source.partitions is not None:
        check_columns(parse_schema(source.partitions, f"{at}/partitions"), found, source.path, f"{at}/partitions")
        return source
    if not found.names:
        return source
    declared = None if source.declared_schema is None else parse_schema(source.declared_schema, f"{at}/schema")
    known = {} if declared is None else {field.name.casefold(): field for field in declared.fields}
    fields = [known.get(field.name.casefold(), field) for field in infer_types(found).fields]
    changes: dict[str, str] = {"partitions": schema_text(Schema(tuple(fields)))}
    names = {field.name.casefold() for field in fields}
    if declared is not None and names & known.keys():
        # Spark users declare the partition columns with the others.
        others = tuple(field for field in declared.fields if field.name.casefold() not in names)
        changes["declared_schema"] = schema_text(Schema(others))
    return source.model_copy(update=changes)


def _with_columns(table: str, source: TableSource, files: TableFiles) -> TableSource:
    """Returns a text table with its schema and header."""
    if source.declared_schema is not None:
        if source.format is not TableFormat.CSV or source.options.header is not None:
            return source
        header = _names_columns(source, files)
        return source.model_copy(update={"options": source.options.model_copy(update={"header": header})})
    inferred = infer_schema(table, source, files)
    schema = _overridden(inferred.schema, source.columns or {}, pointer_of(table))
    changes = {"declared_schema": schema_text(schema), "columns": None, "options": inferred.options}
    return source.model_copy(update=changes)


def _names_columns(source: TableSource, files: TableFiles) -> bool:
    """Whether the first line of the first file has exactly the names of the declared columns."""
    try:
        declared = parse_schema(source.declared_schema or "", "").names
        head = read_head(files.files[0], source.options, HEAD_BYTES)
        names = first_values(text_of(head.data), source.options)
    except (SpecError, CorruptTextError, OSError, ValueError, csv.Error):
        # Reading the schema, or the file, reports it.
        return False
    return [name.casefold() for name in names] == [name.casefold() for name in declared]


def _overridden(schema: Schema, columns: dict[str, str], at: str) -> Schema:
    types = {}
    for name, text in columns.items():
        found = schema.find(name)
        pointer = f"{at}/columns/{name.replace('~', '~0').replace('/', '~1')}"
        if found is None:
            nearest = nearest_names(name, list(schema.names))
            detail = f"The files have no column '{name}'.{did_you_mean(nearest)}"
            raise SpecError.of("unknown_column", detail, pointer=pointer, suggestions=nearest)
        declared = parse_schema(f"{quoted(name)} {text}", pointer)
        if len(declared.fields) != 1:
            raise SpecError.of("invalid_schema", f"'{text}' is not a type.", pointer=pointer)
        types[found.name] = declared.fields[0].type
    return Schema(tuple(Field(field.name, types.get(field.name, field.type)) for field in schema.fields))
