"""Determines the format of a table's files by their names and first bytes, and checks that files have the format that
a job gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from service.contract.problems import SpecError
from service.contract.read_options import TableFormat
from service.contract.tables import NAMES_OF_FORMATS, TableSource
from service.data.compression import BLOCKS, GZIP, READ_BY_SPARK, ZSTD, check_blocks
from service.data.file_io import COMPRESSED, DataFile, for_each, opened, size_of
from service.data.files import TableFiles, pointer_of, unreadable

FILES_CHECKED = 16
"""At most this many files are opened, evenly spread."""

TSV = ".tsv"
"""The suffix of CSV files whose delimiter is a tab by default."""

EXTENSIONS = {
    ".parquet": TableFormat.PARQUET,
    ".pq": TableFormat.PARQUET,
    ".csv": TableFormat.CSV,
    TSV: TableFormat.CSV,
    ".json": TableFormat.JSON,
    ".jsonl": TableFormat.JSON,
    ".ndjson": TableFormat.JSON,
    ".orc": TableFormat.ORC,
    ".avro": TableFormat.AVRO,
    ".xml": TableFormat.XML,
}
_MAGIC = {b"PAR1": TableFormat.PARQUET, b"ORC": TableFormat.ORC, b"Obj\x01": TableFormat.AVRO}
_BINARY = frozenset(range(0x1C)) - {0x01, *b"\t\n\v\f\r"}
"""Control characters that no text has. Files of Hive have U+0001 as their delimiter."""
_COMPRESSIONS = {
    b"\x1f\x8b": ("gzip", GZIP),
    b"\x28\xb5\x2f\xfd": ("Zstandard", ZSTD),
    # Frames that are skipped.
    **{bytes((first, 0x2A, 0x4D, 0x18)): ("Zstandard", ZSTD) for first in range(0x50, 0x60)},
    b"BZh": ("bzip2", frozenset({".bz2"})),
    b"\x04\x22\x4d\x18": ("LZ4 frames", frozenset()),
    b"\xff\x06\x00\x00sNaPpY": ("Snappy frames", frozenset()),
    b"\xfd7zXZ\x00": ("xz", frozenset()),
}
"""First bytes: the name of a compression, and the suffixes by which Spark reads it."""
_WITH_MAGIC = GZIP | ZSTD | {".bz2"}
_ZIP = b"PK\x03\x04"
_HEAD_BYTES = 512
_DEFLATE_HEADS = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


def format_of_name(name: str) -> TableFormat | None:
    """Returns the format by the suffix of a file's name, before the one of a compression; None if it has no known one.

    >>> format_of_name("Orders.CSV.gz"), format_of_name("part-0.snappy.parquet"), format_of_name("README")
    (<TableFormat.CSV: 'csv'>, <TableFormat.PARQUET: 'parquet'>, None)
    """
    return EXTENSIONS.get(suffix_of_format(name))


def suffix_of_format(name: str) -> str:
    """Returns the suffix of a file's name, before the one of a compression, in lower case.

    >>> suffix_of_format("Orders.TSV.gz"), suffix_of_format("orders.tsvx.csv")
    ('.tsv', '.csv')
    """
    path = PurePosixPath(name.lower())
    return PurePosixPath(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def infer_format(table: str, source: TableSource, files: TableFiles) -> TableFormat:
    """Returns the format of the files: by their names if all of them have a known suffix, or by their first bytes if
    none has. Raises SpecError `format_unknown`, `corrupt_file`, `unreadable_file`, and StoreUnavailableError.
    """
    pointer = f"{pointer_of(table)}/format"
    by_name: dict[TableFormat | None, str] = {}
    for file in files.files:
        by_name.setdefault(format_of_name(file.name), file.name)
    if len(by_name) > 1:
        examples = " and ".join(f"'{name}'" for name in list(by_name.values())[:2])
        raise SpecError.of(
            "format_unknown",
            f"The files of '{source.path}', such as {examples}, do not have one format. Name those of the table with "
            "a wildcard, such as 'orders/*.csv', or set 'format'.",
            pointer=pointer,
        )
    found = next(iter(by_name))
    if found is not None:
        return found
    chosen = next((file for file in files.files if size_of(file)), files.files[0])
    found = format_of_content(_head(chosen, table))
    if found is None:
        raise SpecError.of(
            "format_unknown",
            f"The name and the content of '{chosen.name}' do not show its format: set 'format' to one of "
            f"{', '.join(TableFormat)}.",
            pointer=pointer,
        )
    return found


def format_of_content(head: bytes) -> TableFormat | None:
    """Returns the format that the first bytes of a file, which is not compressed, have; None for unknown bytes."""
    found = _format_of_magic(head)
    if found is not None and _is_binary(head):
        return found
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text or b"\0" in head or head.startswith((_ZIP, *_COMPRESSIONS)):
        return None
    if text[:1] in {b"{", b"["}:
        return TableFormat.JSON
    return TableFormat.XML if text[:1] == b"<" else TableFormat.CSV


def _format_of_magic(head: bytes) -> TableFormat | None:
    return next((format_ for magic, format_ in _MAGIC.items() if head.startswith(magic)), None)


def _is_binary(head: bytes) -> bool:
    """Whether bytes that begin as a binary format are no text, such as the header `ORCID,name` of a CSV file."""
    return not _BINARY.isdisjoint(head)


def check_content(table: str, source: TableSource, files: TableFiles, chosen: Sequence[DataFile]) -> None:
    """Checks that the first bytes of the files `chosen` are those of the format `source.kind`, and that Spark reads the
    compressions of all files. The blocks of Hadoop's compressions are checked in the files `chosen` only.

    Raises SpecError `corrupt_file`, `unsupported_construct` (compressions that Spark does not read),
    `unreadable_file`, and StoreUnavailableError.
    """
    if source.kind.is_text:
        for file in files.files:
            _check_suffix(table, file)
        for file in chosen:
            _check_blocks(table, file)
    heads = for_each(chosen, lambda file: _head(file, table))
    for file, head in zip(chosen, heads, strict=True):
        if head:
            _check_head(table, source.kind, file, head)


def check_all_blocks(table: str, source: TableSource, files: TableFiles) -> None:
    """Checks the blocks of all files with a compression of Hadoop, before Spark reads them: a damaged block can end its
    JVM. Raises SpecError `unsupported_construct` and `unreadable_file`.
    """
    if source.kind.is_text:
        for file in files.files:
            _check_blocks(table, file)


def _check_suffix(table: str, file: DataFile) -> None:
    suffix = file.suffix.lower()
    if suffix in COMPRESSED and suffix not in READ_BY_SPARK:
        raise _not_read(table, file, f"is compressed as {suffix}, which Spark does not read")


def _check_blocks(table: str, file: DataFile) -> None:
    suffix = file.suffix.lower()
    if suffix in BLOCKS and not _has_usual_blocks(table, file):
        what = f"does not consist of {suffix} blocks as Spark writes them. Spark does not read those of other programs"
        raise _not_read(table, file, what)


def _not_read(table: str, file: DataFile, reason: str) -> SpecError:
    detail = f"'{file.name}' {reason}. Compress it with gzip or zstd."
    return SpecError.of("unsupported_construct", detail, pointer=f"{pointer_of(table)}/path")


def _has_usual_blocks(table: str, file: DataFile) -> bool:
    try:
        return check_blocks(file)
    except OSError as error:
        raise unreadable(file.name, error, f"{pointer_of(table)}/path") from None


def _check_head(table: str, format_: TableFormat, file: DataFile, head: bytes) -> None:
    pointer, suffix = f"{pointer_of(table)}/path", file.suffix.lower()
    compressed = next((known for magic, known in _COMPRESSIONS.items() if head.startswith(magic)), None)
    if format_.is_text and compressed is not None and suffix not in compressed[1]:
        name, suffixes = compressed
        advice = (
            f"Spark recognises it by its name: rename the file so that it ends in {min(suffixes, key=len)}."
            if suffixes
            else "Spark does not read it: compress the file with gzip or zstd."
        )
        raise _corrupt(f"'{file.name}' is compressed with {name}. {advice}", pointer)
    is_deflate = suffix == ".deflate" and not head.startswith(_DEFLATE_HEADS)
    if format_.is_text and compressed is None and (suffix in _WITH_MAGIC or is_deflate):
        raise _corrupt(f"'{file.name}' is not compressed, though its name ends in {suffix}. Rename it.", pointer)
    if format_.is_text and suffix in COMPRESSED:
        return
    expected = TableFormat.PARQUET if format_.is_parquet else format_
    found = None if format_.is_text and not _is_binary(head) else _format_of_magic(head)
    if found is expected or (found is None and format_.is_text and not head.startswith(_ZIP)):
        return
    raise not_of_format(file.name, format_, head, pointer)


def not_of_format(name: str, format_: TableFormat, head: bytes, pointer: str) -> SpecError:
    """Returns the error for a file that does not begin as one of its format, with what it may be."""
    detail = f"'{name}' is not one of the {NAMES_OF_FORMATS[format_]} of the table, or it is damaged"
    if format_ is not TableFormat.DELTA:
        detail = f"'{name}' is not {_one(format_)}, or it is damaged"
    found = format_of_content(head)
    if head.startswith(_ZIP):
        return _corrupt(
            f"{detail}. It is a ZIP archive, such as a file of Excel: extract it, or export it as CSV.", pointer
        )
    if found is None or found is format_:
        return _corrupt(f"{detail}.", pointer)
    return _corrupt(f"{detail}. It looks like {_one(found)}: set 'format' to {found}.", pointer)


def _one(format_: TableFormat) -> str:
    return f"{'an' if format_.value[0] in 'aox' else 'a'} {NAMES_OF_FORMATS[format_].removesuffix('s')}"


def _corrupt(detail: str, pointer: str) -> SpecError:
    return SpecError.of("corrupt_file", detail, pointer=pointer)


def _head(file: DataFile, table: str) -> bytes:
    try:
        with opened(file) as stream:
            head: bytes = stream.read(_HEAD_BYTES)
    except OSError as error:
        raise unreadable(file.name, error, f"{pointer_of(table)}/path") from None
    return head
