"""Values of Python as parameters of SQL, with their types."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from .errors import ArgumentError
from .text import safe_line

_MAX_BIGINT = (1 << 63) - 1
_MAX_PRECISION = 38


def parameter(value: Any) -> Any:
    """Returns a value as the API reads it: JSON, or an object with `type` and `value`.

    A `datetime` with a zone is a TIMESTAMP, without a zone a TIMESTAMP_NTZ; `bytes` are BINARY; a `Decimal` keeps its
    digits. Scalars of NumPy and pandas are accepted. Raises ArgumentError for other values.

    >>> parameter(Decimal("10.50"))
    {'type': 'DECIMAL(4,2)', 'value': '10.50'}
    >>> parameter(date(2024, 1, 31))
    {'type': 'DATE', 'value': '2024-01-31'}
    """
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    if _is_missing(value):
        return None
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        big = abs(value) > _MAX_BIGINT
        return {"type": "DECIMAL(38,0)", "value": str(value)} if big else int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ArgumentError(f"the parameter {value} is not finite", "Write CAST('NaN' AS DOUBLE) in the SQL.")
        return float(value)
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return {"type": "TIMESTAMP_NTZ", "value": f"{value:%Y-%m-%d %H:%M:%S.%f}"}
        return {"type": "TIMESTAMP", "value": f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}Z"}
    if isinstance(value, date):
        return {"type": "DATE", "value": value.isoformat()}
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return {"type": "BINARY", "value": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, Sequence | set | frozenset):
        raise ArgumentError(
            "a list is not a parameter", "Write a placeholder for each of its values: x IN (:first, :second)."
        )
    raise ArgumentError(
        f"a value of the type {safe_line(type(value).__name__)} is not a parameter",
        'Give a text, a number, a date or time, or {"type": ..., "value": ...}.',
    )


def _is_missing(value: Any) -> bool:
    """Whether it is `NaT` or `NA` of pandas; `NaT` is a `datetime`."""
    return type(value).__name__ in {"NaTType", "NAType"}


def _decimal(value: Decimal) -> Mapping[str, str]:
    if not value.is_finite():
        raise ArgumentError(f"the parameter {value} is not finite", "Give a number or None.")
    text = format(value, "f")
    whole, _, fraction = text.lstrip("-").partition(".")
    precision, scale = max(len(whole.lstrip("0")) + len(fraction), 1), len(fraction)
    if precision > _MAX_PRECISION:
        raise ArgumentError(f"the parameter {text[:60]} has more than {_MAX_PRECISION} digits")
    return {"type": f"DECIMAL({precision},{scale})", "value": text}
