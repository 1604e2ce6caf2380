"""Compares results: rows as multisets or in order, floats within a tolerance, everything else exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

FLOAT_TOLERANCE = 1e-9
"""Relative, and absolute near zero. Sums of floats depend on the order of the rows."""

QUOTIENT_TOLERANCE = 1e-6
"""Absolute. DuckDB divides decimals as doubles; Spark rounds them to at least six places."""

_SHOWN = 3


def difference(expected: Sequence[Sequence[Any]], got: Sequence[Sequence[Any]], *, ordered: bool = False) -> str | None:
    """Describes how `got` differs from `expected`, both from Spark; None if they are equal. NaN equals NaN, and -0.0
    equals 0.0, also in arrays and structures.
    """
    return _difference(expected, got, _same, ordered=ordered)


def difference_from_duckdb(expected: Sequence[Sequence[Any]], got: Sequence[Sequence[Any]]) -> str | None:
    """Describes how Spark's rows differ from DuckDB's, in order; None if they are equal. An integer may equal a
    decimal, and a quotient of decimals a double.
    """
    return _difference(expected, got, _same_number, ordered=True)


def _difference(expected: Sequence[Any], got: Sequence[Any], same: Any, *, ordered: bool) -> str | None:
    if len(expected) != len(got):
        return f"{len(got)} rows instead of {len(expected)}"
    if not ordered:
        expected, got = sorted(expected, key=_order), sorted(got, key=_order)
    wrong = [
        f"{tuple(other)} instead of {tuple(one)}"
        for one, other in zip(expected, got, strict=True)
        if len(one) != len(other) or not all(same(left, right) for left, right in zip(one, other, strict=True))
    ]
    return f"{len(wrong)} of {len(got)} rows: " + "; ".join(wrong[:_SHOWN]) if wrong else None


def _order(row: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    return tuple((type(value).__name__, _text(value)) for value in row)


def _text(value: Any) -> str:
    # Few digits of floats, so that the last digits do not decide the order; -0.0 + 0.0 is 0.0.
    if isinstance(value, float):
        return f"{value + 0.0:.5g}"
    return str([_text(part) for part in value]) if isinstance(value, list | tuple) else repr(value)


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return _close(left, right, FLOAT_TOLERANCE)
    if isinstance(left, list | tuple) and type(left) is type(right):
        return len(left) == len(right) and all(_same(one, other) for one, other in zip(left, right, strict=True))
    return type(left) is type(right) and bool(left == right)


def _same_number(left: Any, right: Any) -> bool:
    if isinstance(left, float | Decimal | int) and isinstance(right, float | Decimal | int):
        if isinstance(left, float) or isinstance(right, float):
            return _close(float(left), float(right), QUOTIENT_TOLERANCE)
        return bool(left == right)
    return bool(left == right)


def _close(left: float, right: float, absolute: float) -> bool:
    both_nan = math.isnan(left) and math.isnan(right)
    return both_nan or math.isclose(left, right, rel_tol=FLOAT_TOLERANCE, abs_tol=absolute)
