"""Compares the rows of a query with those of DuckDB: as multisets, and in the order of the query's ORDER BY.

Rows with equal sort keys may have any order, so the sequences of the sort keys are compared, and not those of the rows.
Decimals and integers are compared exactly, doubles within 1e-9. DuckDB has doubles for averages and quotients of
decimals, which Spark rounds to the scale of their type: they may differ by one unit of the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import sqlglot
from sqlglot import exp

RELATIVE = 1e-9
_SHOWN = 3

Rows = Sequence[Sequence[Any]]


def sort_keys(sql: str, names: Sequence[str]) -> list[int]:
    """Returns the positions of the result's columns that ORDER BY names, until the first key that is no such column.
    `names` are the columns of the result.
    """
    tree = sqlglot.parse_one(sql, dialect="duckdb")
    order = tree.args.get("order")
    selected = tree.selects if isinstance(tree, exp.Query) else []
    written = [each.this if isinstance(each, exp.Alias) else each for each in selected]
    found: list[int] = []
    for key in order.expressions if order is not None else ():
        at = _position(key.this, written, [name.casefold() for name in names])
        if at is None:
            break
        found.append(at)
    return found


def _position(key: exp.Expr, written: Sequence[exp.Expr], names: Sequence[str]) -> int | None:
    if isinstance(key, exp.Literal) and not key.is_string:
        return int(key.this) - 1
    if isinstance(key, exp.Column) and key.name.casefold() in names:
        return names.index(key.name.casefold())
    return next((index for index, each in enumerate(written) if each == key and len(written) == len(names)), None)


def difference_by_keys(expected: Rows, got: Rows, keys: Sequence[int]) -> str | None:
    """Describes how `got` differs from DuckDB's `expected`; None if the rows are equal, and are in the same order of
    the columns `keys`.
    """
    if len(expected) != len(got):
        return f"{len(got)} rows instead of {len(expected)}"
    wrong = _unequal([[row[key] for key in keys] for row in expected], [[row[key] for key in keys] for row in got])
    if wrong:
        return f"other sort keys: {wrong}"
    inexact = {
        column
        for rows in (expected, got)
        for row in rows
        for column, value in enumerate(row)
        if isinstance(value, float)
    }

    def place(row: Sequence[Any]) -> tuple[list[tuple[bool, str]], list[tuple[bool, float]]]:
        exact = [(value is not None, _text(value)) for column, value in enumerate(row) if column not in inexact]
        return exact, [(row[column] is not None, float(row[column] or 0)) for column in sorted(inexact)]

    wrong = _unequal(sorted(expected, key=place), sorted(got, key=place))
    return f"other rows: {wrong}" if wrong else None


def _text(value: Any) -> str:
    return f"{Decimal(value).normalize():f}" if isinstance(value, int | Decimal) else str(value)


def _unequal(expected: Rows, got: Rows) -> str:
    wrong = [
        f"{tuple(other)} instead of {tuple(one)}"
        for one, other in zip(expected, got, strict=True)
        if len(one) != len(other) or not all(is_same(left, right) for left, right in zip(one, other, strict=True))
    ]
    return f"{len(wrong)} of {len(expected)}: " + "; ".join(wrong[:_SHOWN]) if wrong else ""


def is_same(duckdbs: Any, sparks: Any) -> bool:
    """Whether the values are equal within the tolerance of their types; NaN equals NaN."""
    if isinstance(duckdbs, float) and isinstance(sparks, Decimal):
        # A little more than a unit: the difference of two doubles is not exact.
        unit = 1.000001 * 10.0 ** int(sparks.as_tuple().exponent)
        return math.isclose(duckdbs, float(sparks), rel_tol=RELATIVE, abs_tol=unit)
    if isinstance(duckdbs, float | int | Decimal) and isinstance(sparks, float):
        both_nan = math.isnan(sparks) and isinstance(duckdbs, float) and math.isnan(duckdbs)
        return both_nan or math.isclose(duckdbs, sparks, rel_tol=RELATIVE, abs_tol=RELATIVE)
    return bool(duckdbs == sparks)
