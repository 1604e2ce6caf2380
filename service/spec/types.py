"""Column types: the atomic types of Spark SQL, as values, with their DDL spelling, and what is known of nested ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class TypeName(StrEnum):
    """The types that a column may have. `OTHER` stands for nested and engine-only ones: readable, not computable, and
    grouped by at most.
    """

    BOOLEAN = "BOOLEAN"
    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    INT = "INT"
    BIGINT = "BIGINT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    DECIMAL = "DECIMAL"
    STRING = "STRING"
    BINARY = "BINARY"
    DATE = "DATE"
    TIMESTAMP = "TIMESTAMP"
    TIMESTAMP_NTZ = "TIMESTAMP_NTZ"
    NULL = "VOID"
    OTHER = "OTHER"


INTEGRAL = frozenset({TypeName.TINYINT, TypeName.SMALLINT, TypeName.INT, TypeName.BIGINT})
FRACTIONAL = frozenset({TypeName.FLOAT, TypeName.DOUBLE})
NUMERIC = INTEGRAL | FRACTIONAL | {TypeName.DECIMAL}
TEMPORAL = frozenset({TypeName.DATE, TypeName.TIMESTAMP, TypeName.TIMESTAMP_NTZ})

MAX_PRECISION = 38


@dataclass(frozen=True)
class DataType:
    """A column type. `precision` and `scale` are set for DECIMAL alone; `text` names an OTHER type, in Spark's words
    where it is a nested one; `parts` are the types inside an array or a structure.
    """

    name: TypeName
    precision: int | None = None
    scale: int | None = None
    text: str | None = None
    parts: tuple[DataType, ...] = ()

    def __str__(self) -> str:
        if self.name is TypeName.DECIMAL:
            return f"DECIMAL({self.precision},{self.scale})"
        return self.text if self.name is TypeName.OTHER and self.text else self.name.value

    @property
    def is_numeric(self) -> bool:
        """Integral, fractional or decimal."""
        return self.name in NUMERIC

    @property
    def is_integral(self) -> bool:
        """TINYINT to BIGINT."""
        return self.name in INTEGRAL

    @property
    def is_fractional(self) -> bool:
        """FLOAT or DOUBLE: sums depend on the order of the rows, -0.0 = 0.0 and NaN = NaN when grouped."""
        return self.name in FRACTIONAL

    @property
    def nests_fractions(self) -> bool:
        """An array or a structure with FLOAT or DOUBLE somewhere inside."""
        return any(part.is_fractional or part.nests_fractions for part in self.parts)

    @property
    def is_groupable(self) -> bool:
        """Whether values are told apart by GROUP BY and DISTINCT: atomic ones are, arrays and structures of such, and
        neither maps nor what Spark alone knows.
        """
        if self.name is not TypeName.OTHER:
            return True
        return bool(self.parts) and all(part.is_groupable for part in self.parts)


BOOLEAN = DataType(TypeName.BOOLEAN)
TINYINT = DataType(TypeName.TINYINT)
INT = DataType(TypeName.INT)
BIGINT = DataType(TypeName.BIGINT)
FLOAT = DataType(TypeName.FLOAT)
DOUBLE = DataType(TypeName.DOUBLE)
STRING = DataType(TypeName.STRING)
DATE = DataType(TypeName.DATE)
TIMESTAMP = DataType(TypeName.TIMESTAMP)
TIMESTAMP_NTZ = DataType(TypeName.TIMESTAMP_NTZ)
BINARY = DataType(TypeName.BINARY)
NULL = DataType(TypeName.NULL)


def decimal(precision: int, scale: int) -> DataType:
    """A DECIMAL bounded to Spark's 38 digits."""
    return DataType(TypeName.DECIMAL, min(precision, MAX_PRECISION), min(scale, MAX_PRECISION))


@dataclass(frozen=True)
class Field:
    """A named, typed column of a table or of a plan node's output."""

    name: str
    type: DataType


def array(element: DataType) -> DataType:
    """ARRAY<`element`>."""
    return DataType(TypeName.OTHER, text=f"ARRAY<{element}>", parts=(element,))


def struct(fields: Sequence[Field]) -> DataType:
    """A structure of `fields`; what is no plain name is quoted, since the text may become part of a CAST."""
    inner = ", ".join(f"{_spelled(field.name)}: {field.type}" for field in fields)
    return DataType(TypeName.OTHER, text=f"STRUCT<{inner}>", parts=tuple(field.type for field in fields))


def mapping(key: DataType, value: DataType) -> DataType:
    """A map, which is read and passed on alone."""
    return DataType(TypeName.OTHER, text=f"MAP<{key}, {value}>")


def _spelled(name: str) -> str:
    return name if name.isascii() and name.isidentifier() else "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order."""

    fields: tuple[Field, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(field.name for field in self.fields)

    def find(self, name: str) -> Field | None:
        """The column called `name`: the exact spelling first, else the only one that differs in case alone."""
        alike = self.alike(name)
        exact = next((field for field in alike if field.name == name), None)
        return exact or (alike[0] if len(alike) == 1 else None)

    def alike(self, name: str) -> Sequence[Field]:
        """The columns whose names equal `name` without regard to case, in order."""
        return self._by_folded_name.get(name.casefold(), ())

    @cached_property
    def _by_folded_name(self) -> Mapping[str, Sequence[Field]]:
        found: dict[str, list[Field]] = {}
        for field in self.fields:
            found.setdefault(field.name.casefold(), []).append(field)
        return found


UNKNOWN = DataType(TypeName.OTHER, text="UNKNOWN")
"""The type of a column of which only Spark knows what it will be."""


def known(type_: DataType) -> DataType | None:
    """`type_`, or None for UNKNOWN: an expression's type from a field's."""
    return None if type_ == UNKNOWN else type_
