"""Rules for the result types of scalar functions, over the types of their arguments."""

from __future__ import annotations

import re

from service.sql.types.data_types import (
    BIGINT,
    BINARY,
    DOUBLE,
    FLOAT,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    Incompatible,
    arithmetic,
    decimal,
    widest,
)
from service.sql.types.signatures import Types

_NUMBER_FORMAT = re.compile(
    r"(?:MI|S)?\$?(?P<whole>(?:[09]|(?<=[09])[,G](?=[09]))*)(?:[.D](?P<fraction>[09]+))?\$?(?:MI|S|PR)?", re.IGNORECASE
)


def _all_known(types: Types) -> bool:
    return None not in types


def bytes_or_text(types: Types) -> DataType | None:
    """Returns BINARY if all are BINARY, else STRING; None if one is not known."""
    if not _all_known(types):
        return None
    return BINARY if all(type_ == BINARY for type_ in types) else STRING


def overlaid(types: Types) -> DataType | None:
    """Returns BINARY for two of them, STRING for other values. Raises Incompatible for one BINARY."""
    texts = types[:2]
    if not _all_known(texts) or NULL in texts:
        return None
    if len({type_ == BINARY for type_ in texts}) > 1:
        raise Incompatible
    return bytes_or_text(texts)


def not_a_number_or(types: Types) -> DataType | None:
    """Returns the type of `nanvl`: FLOAT for two of them, else DOUBLE."""
    if not _all_known(types):
        return None
    return FLOAT if all(type_ == FLOAT for type_ in types) else DOUBLE


def or_zero(types: Types) -> DataType | None:
    """Returns the common type of a value and an INT."""
    return widest((*types, INT), strings_convert=True)


def or_null(types: Types) -> DataType | None:
    """Returns the type of a value that can be compared with a number."""
    (only,) = types
    return None if only is None or only == NULL else only


def shifted(types: Types) -> DataType | None:
    """Returns BIGINT for a BIGINT, INT for shorter integers."""
    first = types[0]
    if first is None or not first.is_integral:
        return None
    return BIGINT if first == BIGINT else INT


def tried(operator: str, types: Types) -> DataType | None:
    """Returns the type of `operator` over numbers; None for other operands."""
    left, right = types
    if left is None or right is None or not (left.is_numeric and right.is_numeric):
        return None
    return arithmetic(operator, left, right)


def same_time(types: Types) -> DataType | None:
    """Returns TIMESTAMP_NTZ if the last argument is one, else TIMESTAMP."""
    last = types[-1]
    if last is None:
        return None
    return TIMESTAMP_NTZ if last == TIMESTAMP_NTZ else TIMESTAMP


def of_number_format(text: str) -> DataType | None:
    """Returns the DECIMAL that a format of `to_number` describes; None if it is not one.

    >>> print(of_number_format("$99,999.00"))
    DECIMAL(7,2)
    """
    found = _NUMBER_FORMAT.fullmatch(text)
    if found is None:
        return None
    whole = sum(character in "09" for character in found["whole"])
    scale = len(found["fraction"] or "")
    return decimal(whole + scale, scale) if 0 < whole + scale <= 38 else None
