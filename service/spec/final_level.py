"""The last level of an aggregate whose streaming state is finer than its groups.

A streaming query cannot aggregate what it has aggregated: there are no retractions. So where the state of a group is
kept in parts, each of which may change by itself, mini-batches emit changed parts, and whoever keeps the result, or
reads it, puts a group together from the newest rows of its parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from service.spec.types import Field


class Merge(StrEnum):
    """How the values of a group's parts become the group's value; NULLs do not count, and nothing but NULLs is NULL."""

    SUM = "SUM"
    MIN = "MIN"
    MAX = "MAX"


@dataclass(frozen=True)
class MergedColumn:
    """Column `name` of the parts, merged over a group."""

    name: str
    merge: Merge


@dataclass(frozen=True)
class FinalColumn:
    """A column of the result: a group key or a merged column of that name (`source`), or, with `divisor`, the quotient
    of two merged columns as DOUBLE, NULL where the divisor is 0. `zero`: 0 in the place of NULL, for counts.
    """

    field: Field
    source: str
    divisor: str | None = None
    zero: bool = False


@dataclass(frozen=True)
class FinalLevel:
    """Rows of one group have equal `keys`; the rows of one part of it are told apart by the columns `parts` besides."""

    keys: tuple[str, ...]
    parts: tuple[str, ...]
    merged: tuple[MergedColumn, ...]
    output: tuple[FinalColumn, ...]
