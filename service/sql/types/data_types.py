"""Column types of Spark SQL, schemas, and the result types of operations in Spark 4.3 with ANSI mode on.

`tests/service/sql/types/test_inference.py` compares the result of every pair of types with Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

MAX_PRECISION = 38
# The minimum scale that Spark keeps if a result has more than 38 digits.
_MINIMUM_SCALE = 6


class TypeName(StrEnum):
    """The types of columns. `OTHER` is a type that only Spark has: it can be selected, but not used in expressions."""

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
    ARRAY = "ARRAY"
    MAP = "MAP"
    STRUCT = "STRUCT"
    NULL = "VOID"
    OTHER = "OTHER"


INTEGRAL = frozenset({TypeName.TINYINT, TypeName.SMALLINT, TypeName.INT, TypeName.BIGINT})
FRACTIONAL = frozenset({TypeName.FLOAT, TypeName.DOUBLE})
NUMERIC = INTEGRAL | FRACTIONAL | {TypeName.DECIMAL}
TEMPORAL = frozenset({TypeName.DATE, TypeName.TIMESTAMP, TypeName.TIMESTAMP_NTZ})
NESTED = frozenset({TypeName.ARRAY, TypeName.MAP, TypeName.STRUCT})
ATOMIC = frozenset(TypeName) - NESTED - {TypeName.NULL, TypeName.OTHER}
"""The types that a declared column may have without brackets."""
MAX_TYPE_DEPTH = 16
"""The most levels of arrays, maps and structures inside each other, in types that a job declares."""
_INTEGRAL_ORDER = (TypeName.TINYINT, TypeName.SMALLINT, TypeName.INT, TypeName.BIGINT)
_AS_DECIMAL = {TypeName.TINYINT: 3, TypeName.SMALLINT: 5, TypeName.INT: 10, TypeName.BIGINT: 20}


@dataclass(frozen=True)
class DataType:
    """A column type. `precision` and `scale` are only set for DECIMAL; `text` is the name of an OTHER type. `parts` are
    the types inside a nested type: the element of an array, the key and the value of a map, or the fields of a
    structure, whose names are `labels`.
    """

    name: TypeName
    precision: int | None = None
    scale: int | None = None
    text: str | None = None
    parts: tuple[DataType, ...] = ()
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        match self.name:
            case TypeName.DECIMAL:
                return f"DECIMAL({self.precision},{self.scale})"
            case TypeName.ARRAY | TypeName.MAP:
                return f"{self.name.value}<{', '.join(map(str, self.parts))}>"
            case TypeName.STRUCT:
                return f"STRUCT<{', '.join(f'{_quoted_if_needed(one.name)}: {one.type}' for one in self.fields)}>"
            case TypeName.OTHER if self.text:
                return self.text
            case _:
                return self.name.value

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of a structure, in order; empty for other types."""
        return tuple(Field(label, part) for label, part in zip(self.labels, self.parts, strict=False))

    @property
    def depth(self) -> int:
        """The levels of nested types: 0 for an atomic type, 2 for an array of arrays of numbers."""
        return 1 + max((part.depth for part in self.parts), default=0) if self.name in NESTED else 0

    @property
    def is_atomic(self) -> bool:
        """Whether it is neither a nested type nor one that only Spark has."""
        return self.name not in NESTED and self.name is not TypeName.OTHER

    @property
    def is_nested(self) -> bool:
        """Whether it is an array, a map or a structure."""
        return self.name in NESTED

    @property
    def is_known(self) -> bool:
        """Whether neither the type nor a type inside it is one that only Spark has."""
        return self.name is not TypeName.OTHER and all(part.is_known for part in self.parts)

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
        """Whether it is a nested type that contains FLOAT or DOUBLE at any depth."""
        return any(part.is_fractional or part.nests_fractions for part in self.parts)

    @property
    def is_groupable(self) -> bool:
        """Whether GROUP BY, DISTINCT and comparisons support the type: atomic types and arrays and structures of them,
        but not maps and Spark-only types.
        """
        if self.name in {TypeName.MAP, TypeName.OTHER}:
            return False
        return all(part.is_groupable for part in self.parts)


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
UNKNOWN = DataType(TypeName.OTHER, text="UNKNOWN")
"""The type of a column whose type is not known before the query runs."""


def decimal(precision: int, scale: int) -> DataType:
    """Returns a DECIMAL, limited to Spark's 38 digits."""
    return DataType(TypeName.DECIMAL, min(precision, MAX_PRECISION), min(scale, MAX_PRECISION))


@dataclass(frozen=True)
class Field:
    """A named, typed column of a table or of a plan node's output."""

    name: str
    type: DataType


def array(element: DataType) -> DataType:
    """Returns ARRAY<`element`>."""
    return DataType(TypeName.ARRAY, parts=(element,))


def struct(fields: Sequence[Field]) -> DataType:
    """Returns a structure of `fields`."""
    parts, labels = tuple(field.type for field in fields), tuple(field.name for field in fields)
    return DataType(TypeName.STRUCT, parts=parts, labels=labels)


def mapping(key: DataType, value: DataType) -> DataType:
    """Returns MAP<`key`, `value`>."""
    return DataType(TypeName.MAP, parts=(key, value))


def _quoted_if_needed(name: str) -> str:
    # The text of a type may become part of a CAST.
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
        """Returns the column called `name`: the exact spelling first, else the only one that differs in case."""
        alike = self.alike(name)
        exact = next((field for field in alike if field.name == name), None)
        return exact or (alike[0] if len(alike) == 1 else None)

    def alike(self, name: str) -> Sequence[Field]:
        """Returns the columns whose names equal `name`, ignoring case, in order."""
        return self._by_folded_name.get(name.casefold(), ())

    def without(self, name: str) -> Schema:
        """Returns the other columns."""
        found = self.find(name)
        return Schema(tuple(field for field in self.fields if field is not found))

    @cached_property
    def _by_folded_name(self) -> Mapping[str, Sequence[Field]]:
        found: dict[str, list[Field]] = {}
        for field in self.fields:
            found.setdefault(field.name.casefold(), []).append(field)
        return found


def known(type_: DataType) -> DataType | None:
    """Returns `type_`, or None for UNKNOWN: the type of an expression from that of a field."""
    return None if type_ == UNKNOWN else type_


def of_parts(type_: DataType, parts: Sequence[DataType]) -> DataType:
    """Returns a nested type with other types inside it."""
    return replace(type_, parts=tuple(parts))


class Incompatible(Exception):  # noqa: N818 - describes types; callers turn it into a SpecError with a place
    """An operation that Spark refuses for operands of these types."""


def is_null(type_: DataType) -> bool:
    """Whether it is the type of a literal NULL, which is compatible with any other type."""
    return type_.name is TypeName.NULL


def as_decimal(type_: DataType) -> tuple[int, int]:
    """Returns precision and scale of a decimal, or of the decimal that contains every value of an integer type."""
    if type_.name is TypeName.DECIMAL:
        return type_.precision or 10, type_.scale or 0
    return _AS_DECIMAL[type_.name], 0


def arithmetic(operator: str, left: DataType, right: DataType) -> DataType | None:
    """Returns the type of `left operator right`; None if it is not known. Raises Incompatible if Spark refuses it."""
    if operator == "||":
        if left.is_nested or right.is_nested:
            return _joined_arrays(left, right)
        both_bytes = left.name is TypeName.BINARY and right.name is TypeName.BINARY
        return left if both_bytes else DataType(TypeName.STRING)
    if operator in "&^|":
        return _of_bits(left, right)
    if is_null(left) and is_null(right):
        return None
    if (is_null(left) or is_null(right)) and {left.name, right.name} & TEMPORAL:
        return None
    left, right = (right if is_null(left) else left), (left if is_null(right) else right)
    names = {left.name, right.name}
    if names <= NUMERIC:
        return _numeric(operator, left, right)
    if TypeName.STRING in names and names & NUMERIC:
        return _with_string(operator, left, right)
    if operator in "+-" and names & TEMPORAL and not names & {TypeName.BOOLEAN, TypeName.BINARY}:
        return _with_time(operator, left, right)
    raise Incompatible


def _of_bits(left: DataType, right: DataType) -> DataType | None:
    names = {left.name, right.name} - {TypeName.NULL}
    if not names:
        return None
    if not names <= INTEGRAL | {TypeName.STRING} or names == {TypeName.STRING}:
        raise Incompatible
    if TypeName.STRING in names:
        return DataType(TypeName.BIGINT)
    return right if is_null(left) else left if is_null(right) else wider_number(left, right)


def _joined_arrays(left: DataType, right: DataType) -> DataType | None:
    if not all(side.name in {TypeName.ARRAY, TypeName.NULL} for side in (left, right)):
        raise Incompatible
    return common_type(left, right, strings_convert=False)


def _numeric(operator: str, left: DataType, right: DataType) -> DataType | None:
    fractional = left.is_fractional or right.is_fractional
    if operator == "DIV":
        if fractional:
            raise Incompatible
        return BIGINT
    if TypeName.DECIMAL in {left.name, right.name} and not fractional:
        return decimal_arithmetic(operator, as_decimal(left), as_decimal(right))
    return DOUBLE if operator == "/" else wider_number(left, right)


def decimal_arithmetic(operator: str, left: tuple[int, int], right: tuple[int, int]) -> DataType:
    """Returns the type of `+ - * / %` over decimals of these precisions and scales (Spark's `DecimalPrecision`)."""
    (p1, s1), (p2, s2) = left, right
    if operator in "+-":
        scale = max(s1, s2)
        return _adjusted(max(p1 - s1, p2 - s2) + scale + 1, scale)
    if operator == "*":
        return _adjusted(p1 + p2 + 1, s1 + s2)
    if operator == "/":
        scale = max(_MINIMUM_SCALE, s1 + p2 + 1)
        return _adjusted(p1 - s1 + s2 + scale, scale)
    scale = max(s1, s2)
    return _adjusted(min(p1 - s1, p2 - s2) + scale, scale)


def _adjusted(precision: int, scale: int) -> DataType:
    # Digits before the decimal point take precedence over those after it.
    if precision <= MAX_PRECISION:
        return decimal(precision, scale)
    whole = precision - scale
    return decimal(MAX_PRECISION, max(MAX_PRECISION - whole, min(scale, _MINIMUM_SCALE)))


def _with_string(operator: str, left: DataType, right: DataType) -> DataType:
    number = right if left.name is TypeName.STRING else left
    if operator == "DIV" and number.name not in INTEGRAL:
        raise Incompatible
    return BIGINT if number.name in INTEGRAL and operator != "/" else DOUBLE


def _with_time(operator: str, left: DataType, right: DataType) -> DataType | None:
    small = {TypeName.TINYINT, TypeName.SMALLINT, TypeName.INT}
    date = DataType(TypeName.DATE)
    if left == date and right.name in small:
        return date
    if operator == "+":
        if right == date and left.name in small:
            return date
        raise Incompatible
    # The difference of two times is an interval, which no table column can have.
    if {left.name, right.name} <= TEMPORAL | {TypeName.STRING}:
        return None
    raise Incompatible


def wider_number(left: DataType, right: DataType) -> DataType:
    """Returns the type to which two numbers are converted before a comparison or a UNION."""
    if left.is_fractional or right.is_fractional:
        return left if left == right else DOUBLE
    if TypeName.DECIMAL in {left.name, right.name}:
        (p1, s1), (p2, s2) = as_decimal(left), as_decimal(right)
        scale = max(s1, s2)
        whole = max(p1 - s1, p2 - s2)
        if whole + scale > MAX_PRECISION:
            scale = max(MAX_PRECISION - whole, min(scale, _MINIMUM_SCALE))
        return decimal(whole + scale, scale)
    return max(left, right, key=lambda type_: _INTEGRAL_ORDER.index(type_.name))


def comparable(left: DataType, right: DataType) -> bool:
    """Whether Spark can compare the two; a string is converted to the other side's type."""
    if left.is_nested or right.is_nested:
        return _nested_comparable(left, right)
    if is_null(left) or is_null(right) or TypeName.STRING in {left.name, right.name}:
        return True
    return left.name == right.name or {left.name, right.name} <= NUMERIC or {left.name, right.name} <= TEMPORAL


def _nested_comparable(left: DataType, right: DataType) -> bool:
    try:
        common = common_type(left, right, strings_convert=False)
    except Incompatible:
        return False
    return common is None or common.is_groupable


def common_type(left: DataType, right: DataType, *, strings_convert: bool) -> DataType | None:
    """Returns the common type of both; None if it is not known. Raises Incompatible if there is none."""
    if left == right or is_null(right):
        return left
    if is_null(left):
        return right
    names = {left.name, right.name}
    if names & NESTED:
        return _common_nested(left, right, strings_convert=strings_convert)
    if TypeName.STRING in names:
        if not strings_convert or TypeName.OTHER in names:
            raise Incompatible
        other = right if left.name is TypeName.STRING else left
        if other.name in INTEGRAL:
            return BIGINT
        return DOUBLE if other.is_numeric else other
    if names <= NUMERIC:
        return wider_number(left, right)
    if names <= TEMPORAL:
        winner = TypeName.TIMESTAMP if TypeName.TIMESTAMP in names else TypeName.TIMESTAMP_NTZ
        return DataType(winner)
    raise Incompatible


def _common_nested(left: DataType, right: DataType, *, strings_convert: bool) -> DataType | None:
    """Returns the common type of two types, at least one of which is nested: Spark does not convert a nested value to a
    string, and two structures need the same names in the same order.
    """
    folded = [[label.casefold() for label in side.labels] for side in (left, right)]
    if left.name is not right.name or folded[0] != folded[1]:
        raise Incompatible
    pairs = zip(left.parts, right.parts, strict=True)
    parts = [common_type(one, other, strings_convert=strings_convert) for one, other in pairs]
    found = [part for part in parts if part is not None]
    return of_parts(left, found) if len(found) == len(parts) else None


def widest(types: Sequence[DataType | None], *, strings_convert: bool) -> DataType | None:
    """Returns the common type of all; None if one is unknown or the result could depend on Spark's order of conversion.

    Raises Incompatible if two of them have no common type.
    """
    known = [type_ for type_ in types if type_ is not None]
    if len({type_.name for type_ in known} - {TypeName.NULL}) > 2 and any(
        type_.name in {TypeName.STRING, TypeName.DECIMAL} for type_ in known
    ):
        return None
    result: DataType | None = known[0] if known else None
    for type_ in known[1:]:
        if result is None:
            return None
        result = common_type(result, type_, strings_convert=strings_convert)
    return result if len(known) == len(types) else None
