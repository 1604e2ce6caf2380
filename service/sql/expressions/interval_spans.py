"""Checks the texts of intervals of several units, such as `INTERVAL '1-2' YEAR TO MONTH`."""

from __future__ import annotations

import re

from sqlglot import exp

_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND")
_YEARS = re.compile(r"[+-]?\d{1,4}-(\d{1,2})", re.ASCII)
_MOST = {"HOUR": 23, "MINUTE": 59, "SECOND": 59}
"""The largest value of a unit that is not the first one."""


def units_of(node: exp.Expr) -> tuple[str, str] | None:
    """Returns the first and the last unit of an interval of several units, in upper case; None for another one."""
    span = node.args.get("unit")
    if not isinstance(span, exp.IntervalSpan):
        return None
    return span.name.upper(), span.expression.name.upper()


def is_interval(text: str, first: str, last: str) -> bool:
    """Whether `text` is an interval from the unit `first` to `last`.

    >>> is_interval("1-2", "YEAR", "MONTH"), is_interval("-1 02:03", "DAY", "MINUTE"), is_interval("1", "DAY", "HOUR")
    (True, True, False)
    """
    if (first, last) == ("YEAR", "MONTH"):
        found = _YEARS.fullmatch(text)
        return found is not None and int(found[1]) <= 11
    if first not in _UNITS or last not in _UNITS[_UNITS.index(first) + 1 :]:
        return False
    units = _UNITS[_UNITS.index(first) : _UNITS.index(last) + 1]
    found = re.fullmatch(_form(units), text, re.ASCII)
    return found is not None and all(
        int(value) <= _MOST[unit] for unit, value in zip(units[1:], found.groups(), strict=True)
    )


def _form(units: tuple[str, ...]) -> str:
    """Returns the pattern of a text of these units, such as `1 02:03:04.5`; its groups are the units but the first."""
    separators = [" " if unit == "DAY" else ":" for unit in units[:-1]]
    rest = "".join(rf"{separator}(\d{{1,2}})" for separator in separators)
    fraction = r"(?:\.\d{1,6})?" if units[-1] == "SECOND" else ""
    return rf"[+-]?\d{{1,6}}{rest}{fraction}"
