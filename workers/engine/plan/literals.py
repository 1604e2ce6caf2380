"""Values of a sample as expressions, so that a plan can name them: rendered by the service, never pasted as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Context, Decimal

from service.spec.scalar import Scalar
from service.spec.tree import Binary, Boolean, Cast, Expression, Negation, Null, Number, String
from service.spec.types import NULL, DataType, TypeName

_INTEGERS = {
    TypeName.TINYINT: (7, "Y"),
    TypeName.SMALLINT: (15, "S"),
    TypeName.INT: (31, ""),
    TypeName.BIGINT: (63, "L"),
}
"""Bits without the sign, and Spark's suffix."""

_DIGITS = re.compile(r"-?[0-9]{1,38}")
_DECIMAL = re.compile(r"-?[0-9]{1,38}(\.[0-9]{1,38})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
MAX_LENGTH = 1_024
"""Characters or bytes of the longest value that a plan names: Spark parses the text of each of them."""

_EXACT = Context(prec=80)
"""Digits enough for every decimal that Spark has, in files and in columns."""

_BOOLEANS = {"true": True, "false": False}

NULL_LITERAL = Scalar(Null(), NULL)
"""NULL of no type."""


def literal(value: object, type_: DataType) -> Scalar | None:
    """`value`, of a column of `type_`, as a literal of that type; None where it has no exact one.

    Text stands for integers, decimals, booleans and dates too, as text files have them. Floats have none (a
    decimal fraction is another number), nor do instants without a zone, nested values, what is longer than MAX_LENGTH,
    and what is out of range.
    Equal values have equal literals.

    >>> from service.spec.types import BIGINT, STRING
    >>> [str(literal(value, type_)) for value, type_ in ((-7, BIGINT), ("7", BIGINT), ("it's", STRING), (0.1, STRING))]
    ['-7L', '7L', "'it\\\\'s'", 'None']
    """
    if value is None:
        return NULL_LITERAL
    reader = _READERS.get(type_.name)
    try:
        tree = reader(value, type_) if reader is not None else None
    except (ValueError, ArithmeticError):
        return None
    return None if tree is None else Scalar(tree, type_)


def identity_of(literals: tuple[Scalar, ...]) -> str:
    """A text that is the same for equal values of a key, in integral columns of any width, and for no others.

    >>> from service.spec.types import BIGINT, INT
    >>> [identity_of((one,)) for one in (literal("007", INT), literal(7, BIGINT)) if one is not None]
    ['7', '7']
    """
    integral = (one.type is not None and one.type.is_integral for one in literals)
    texts = (one.sql.rstrip("YSL") if plain else one.sql for one, plain in zip(literals, integral, strict=True))
    return "\0".join(texts)


def typed_null(type_: DataType) -> Scalar | None:
    """NULL of `type_`; None for a type that has no name to cast to."""
    if type_.name in {TypeName.OTHER, TypeName.NULL}:
        return None
    return Scalar(Cast(Null(), type_, tries=False), type_)


def _signed(text: str, suffix: str = "") -> Expression:
    negative = text.startswith("-")
    number = Number(text.removeprefix("-"), suffix)
    return Negation(number) if negative else number


def _integer(value: object, type_: DataType) -> Expression | None:
    bits, suffix = _INTEGERS[type_.name]
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << bits) < value < (1 << bits):
        return None
    return _signed(str(value), suffix)


def _decimal(value: object, type_: DataType) -> Expression | None:
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = Decimal(value)
    if not isinstance(value, Decimal) or not value.is_finite():
        return None
    # With all digits of the column's scale: a value has one literal, whatever a file's text of it looks like.
    scaled = value.quantize(Decimal(1).scaleb(-(type_.scale or 0)), context=_EXACT)
    if scaled != value or len(scaled.as_tuple().digits) > (type_.precision or 0):
        return None
    return Cast(_signed(format(scaled if scaled else abs(scaled), "f")), type_, tries=False)


def _boolean(value: object, _: DataType) -> Expression | None:
    found = _BOOLEANS.get(value) if isinstance(value, str) else value
    return Boolean(found) if isinstance(found, bool) else None


def _string(value: object, _: DataType) -> Expression | None:
    return String(value) if isinstance(value, str) and len(value) <= MAX_LENGTH else None


def _binary(value: object, _: DataType) -> Expression | None:
    return Binary(value.hex()) if isinstance(value, bytes) and len(value) <= MAX_LENGTH else None


def _date(value: object, type_: DataType) -> Expression | None:
    if isinstance(value, str) and _DATE.fullmatch(value):
        value = date.fromisoformat(value)
    if not isinstance(value, date) or isinstance(value, datetime):
        return None
    return Cast(String(value.isoformat()), type_, tries=False)


def _timestamp(value: object, type_: DataType) -> Expression | None:
    # Without a zone it is not known which instant a file's time is to Spark; below microseconds Spark knows nothing.
    if not isinstance(value, datetime) or getattr(value, "nanosecond", None):
        return None
    if (value.tzinfo is None) is (type_.name is TypeName.TIMESTAMP):
        return None
    # In one zone, so that an instant has one literal.
    shown = value if value.tzinfo is None else value.astimezone(UTC)
    return Cast(String(shown.isoformat(sep=" ", timespec="microseconds")), type_, tries=False)


_READERS: Mapping[TypeName, Callable[[object, DataType], Expression | None]] = {
    **dict.fromkeys(_INTEGERS, _integer),
    TypeName.DECIMAL: _decimal,
    TypeName.BOOLEAN: _boolean,
    TypeName.STRING: _string,
    TypeName.BINARY: _binary,
    TypeName.DATE: _date,
    TypeName.TIMESTAMP: _timestamp,
    TypeName.TIMESTAMP_NTZ: _timestamp,
}
