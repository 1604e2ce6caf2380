"""What a join does with its sides: where it makes rows of NULLs, and where a condition on one side may be checked."""

from __future__ import annotations

from enum import StrEnum

from service.spec.query import JoinKind


class Side(StrEnum):
    """A side of a join."""

    LEFT = "LEFT"
    RIGHT = "RIGHT"


NULL_EXTENDED = {
    JoinKind.LEFT: frozenset({Side.RIGHT}),
    JoinKind.RIGHT: frozenset({Side.LEFT}),
    JoinKind.FULL: frozenset(Side),
}
"""Sides of which a row may be all NULLs, for want of a partner."""

CONDITION_MOVES = {
    JoinKind.INNER: frozenset(Side),
    JoinKind.CROSS: frozenset(Side),
    JoinKind.LEFT: frozenset({Side.LEFT}),
    JoinKind.RIGHT: frozenset({Side.RIGHT}),
    JoinKind.LEFT_SEMI: frozenset({Side.LEFT}),
    JoinKind.LEFT_ANTI: frozenset({Side.LEFT}),
}
"""Sides below which a condition on them alone, above the join, may as well be checked; Spark moves them there too, with
or without this, those that may fail included, and before the conditions in the join."""

RESIDUAL_MOVES = {
    JoinKind.INNER: frozenset(Side),
    JoinKind.LEFT: frozenset({Side.RIGHT}),
    JoinKind.RIGHT: frozenset({Side.LEFT}),
    JoinKind.LEFT_SEMI: frozenset(Side),
    JoinKind.LEFT_ANTI: frozenset({Side.RIGHT}),
}
"""The same of a condition in the join."""
