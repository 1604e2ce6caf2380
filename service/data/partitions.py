"""The columns in the names of directories: `day=2026-01-31/region=eu/part-0.parquet`, as Hive and Spark write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from service.contract.problems import SpecError
from service.sql.types.data_types import BIGINT, DATE, STRING, DataType, Field, Schema

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The value of a directory whose rows have NULL."""

MAX_PARTITION_COLUMNS = 16

_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_NUMBER = re.compile(r"[+-]?[0-9]{1,38}")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_SHORT_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?")
"""What Spark casts to a date: month and day may be missing, and a time of day may follow."""
_RANGES = {"TINYINT": 7, "SMALLINT": 15, "INT": 31, "BIGINT": 63}
"""The types of integers, with the bits of their values without the sign."""


@dataclass(frozen=True)
class Partitions:
    """The partition columns of a table, in the order of the directories, and the values of each of its files.

    A value is the text in the directory's name, decoded; None is NULL.
    """

    names: tuple[str, ...] = ()
    values: tuple[tuple[str | None, ...], ...] = ()
    are_in_paths: bool = True
    """Whether Spark reads the same values from the names of the directories."""


NO_PARTITIONS = Partitions()


def is_partition(directory: str) -> bool:
    """Whether a directory has the name of a partition."""
    return "=" in directory


def partitions_of(given: str, paths: Sequence[str], pointer: str) -> Partitions:
    """Returns the partition columns of files, whose `paths` are relative to that of the table, `given`.

    Raises SpecError `unsupported_construct` if files differ in their columns, or if Spark would not find them.
    """
    names: tuple[str, ...] | None = None
    values = []
    known: dict[str, tuple[tuple[str, ...], tuple[str | None, ...]]] = {}
    for path in paths:
        directory = path.rpartition("/")[0]
        if directory not in known:
            known[directory] = _columns_of(given, directory, pointer)
        found, own = known[directory]
        if names is None:
            names = found
        elif names != found:
            raise _refused(
                f"The files of '{given}' have different partition columns: {_listed(names)} and {_listed(found)}.",
                pointer,
            )
        values.append(own)
    return Partitions(names, tuple(values)) if names else NO_PARTITIONS


def of_values(names: tuple[str, ...], files: Sequence[tuple[str, tuple[str | None, ...]]]) -> Partitions:
    """Returns the partition columns whose values a log has, for the paths of files relative to the table."""
    if not names:
        return NO_PARTITIONS
    try:
        in_paths = partitions_of("", [path for path, _ in files], "")
    except SpecError:
        in_paths = NO_PARTITIONS
    values = tuple(of_file for _, of_file in files)
    return Partitions(names, values, (in_paths.names, in_paths.values) == (names, values))


def _columns_of(given: str, directory: str, pointer: str) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
    names: list[str] = []
    values: list[str | None] = []
    is_below_plain = False
    for part in directory.split("/"):
        if not is_partition(part):
            is_below_plain = bool(part) or is_below_plain
            continue
        if is_below_plain:
            raise _refused(
                f"'{given}' has the partition '{part}' inside of a directory that is no partition. Name the directory "
                "that contains the partitions.",
                pointer,
            )
        name, _, value = part.partition("=")
        if not name or not value:
            raise _refused(f"The directory '{part}' of '{given}' has no name or no value of a partition.", pointer)
        if not _is_text(part):
            shown = ascii(part)[1:-1]
            raise _refused(
                f"The name of the directory '{shown}' of '{given}' contains the character U+0000, or is not UTF-8. "
                "Rename it.",
                pointer,
            )
        names.append(unescaped(name))
        values.append(None if value == NULL_PARTITION else unescaped(value))
    if len({name.casefold() for name in names}) < len(names) or len(names) > MAX_PARTITION_COLUMNS:
        raise _refused(
            f"'{given}' has a partition column twice, or more than {MAX_PARTITION_COLUMNS}: {_listed(names)}.", pointer
        )
    return tuple(names), tuple(values)


def _is_text(part: str) -> bool:
    """Whether the column of a directory can be written in a schema, and its value in JSON: Python reads bytes that are
    not UTF-8 as surrogates.
    """
    name = unescaped(part.partition("=")[0])
    return "\0" not in name and not any("\ud800" <= character <= "\udfff" for character in part)


def unescaped(text: str) -> str:
    """Decodes a part of a directory's name as Spark does: each `%3A` is one character.

    >>> unescaped("10%3A30")
    '10:30'
    """
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def infer_types(partitions: Partitions) -> Schema:
    """Returns the columns with their types: BIGINT, DATE or STRING, whichever all values have.

    As in Spark, `month=01` is the number 1.
    """
    return Schema(
        tuple(
            Field(name, _type_of({values[place] for values in partitions.values} - {None}))
            for place, name in enumerate(partitions.names)
        )
    )


def _type_of(values: set[str | None]) -> DataType:
    texts = [value for value in values if value is not None]
    if texts and all(map(_INTEGER.fullmatch, texts)):
        return BIGINT
    return DATE if texts and all(map(_is_date, texts)) else STRING


def _is_date(text: str) -> bool:
    # Python also reads other forms of ISO 8601, such as 20260131.
    if not _DATE.fullmatch(text):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def check_columns(schema: Schema, partitions: Partitions, given: str, pointer: str) -> None:
    """Checks that declared partition columns are those of the directories, in the same order, and that their values
    have the declared types. Raises SpecError `schema_mismatch`.
    """
    if [name.casefold() for name in schema.names] != [name.casefold() for name in partitions.names]:
        raise SpecError.of(
            "schema_mismatch",
            f"The partition columns of '{given}' are {_listed(partitions.names)}; 'partitions' declares "
            f"{_listed(schema.names)}.",
            pointer=pointer,
        )
    for place, field in enumerate(schema.fields):
        for value in sorted({values[place] for values in partitions.values} - {None}, key=str):
            if value is not None and not _fits(value, field.type):
                raise SpecError.of(
                    "schema_mismatch",
                    f"The partition column {field.name} is declared as {field.type}, and a directory of '{given}' has "
                    f"the value '{value[:100]}'.",
                    pointer=pointer,
                )


def _fits(value: str, type_: DataType) -> bool:
    """Whether Spark reads the value of a directory as this type: only integers and dates are checked."""
    if type_.name.value in _RANGES:
        limit = 1 << _RANGES[type_.name.value]
        return _NUMBER.fullmatch(value) is not None and -limit <= int(value) < limit
    return type_ != DATE or _is_date_of_spark(value)


def _is_date_of_spark(text: str) -> bool:
    found = _SHORT_DATE.fullmatch(text)
    if found is None:
        return False
    try:
        date(*(int(part or 1) for part in found.groups()))
    except ValueError:
        return False
    return True


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)[:1000] or "none"


def _refused(detail: str, pointer: str) -> SpecError:
    return SpecError.of("unsupported_construct", detail, pointer=pointer)
