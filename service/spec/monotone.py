"""Whether a condition on a group, once it holds, holds whatever more rows the group gets.

A stream emits the groups that a mini-batch changed, and takes nothing back: a group that HAVING let through and then
does not would stay in the result. Rows are only added, so COUNT and MAX of a group only grow, MIN only falls, and its
keys never change. What follows from these is known; of everything else it is taken that it may turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from service.spec.query import AggregateFunction
from service.spec.scalar import Scalar
from service.spec.scalar_trees import conjuncts_of, tree_of, type_in
from service.spec.tree import (
    Arithmetic,
    Between,
    Call,
    Case,
    Cast,
    Column,
    Comparison,
    Connective,
    Expression,
    Negation,
    Not,
    Null,
    Number,
    Test,
    children,
)
from service.spec.types import Field, TypeName, known

_GROWING = frozenset({AggregateFunction.COUNT, AggregateFunction.MAX})
_TELLING_SETS = frozenset({AggregateFunction.GROUPING, AggregateFunction.GROUPING_ID})
_CHOICES = frozenset({"coalesce", "nvl", "ifnull", "if"})
_LENGTHS = frozenset({"abs", "length", "char_length", "character_length"})
_CLOCKS = frozenset({"current_date", "current_timestamp", "now"})


class Trend(Enum):
    """How a value goes as rows come, from the first on that it is not NULL. A condition that is `UP` stays true."""

    DOWN = -1
    FIXED = 0
    UP = 1


class GroupCall(Protocol):
    """An aggregate call, as queries and plans have them."""

    @property
    def function(self) -> object:
        """Which one; those of plans alone have no known trend."""

    @property
    def arguments(self) -> tuple[Scalar, ...]:
        """What it is over."""

    @property
    def output(self) -> Field:
        """What HAVING knows it by."""


def turning_part(having: Scalar, keys: Sequence[Field], calls: Sequence[GroupCall]) -> Scalar | None:
    """The first part of `having`, a condition over group keys and calls, that may turn false; None where none may."""
    fields = (*keys, *(call.output for call in calls))
    columns = {field.name: Column(field.name, known(field.type)) for field in fields}
    trends: dict[str, Trend | None] = {key.name: Trend.FIXED for key in keys}
    trends |= {call.output.name: _trend_of_call(call) for call in calls}
    group = _Group(trends)
    for part in conjuncts_of(having, columns):
        tree = tree_of(part, columns)
        if tree is None or group.trend(tree) not in {Trend.FIXED, Trend.UP}:
            return part
    return None


def cannot_be_negative(tree: Expression) -> bool:
    """Whether a tree is plainly 0, more, or NULL, for every row."""
    match tree:
        case Number() | Null():
            return True
        case Case(_, branches, default):
            values = [then for _, then in branches] + ([] if default is None else [default])
            return all(map(cannot_be_negative, values))
        case Call("if", arguments):
            return all(map(cannot_be_negative, arguments[1:]))
        case Call(name, arguments) if name in _CHOICES:
            return all(map(cannot_be_negative, arguments))
        case Call(name, _):
            return name in _LENGTHS
        case Cast(operand):
            return cannot_be_negative(operand)
        case Arithmetic(operator, left, right):
            return operator in {"+", "*"} and cannot_be_negative(left) and cannot_be_negative(right)
        case _:
            return False


def _trend_of_call(call: GroupCall) -> Trend | None:
    if call.function in _GROWING:
        return Trend.UP
    if call.function is AggregateFunction.MIN:
        return Trend.DOWN
    if call.function in _TELLING_SETS:
        return Trend.FIXED
    if call.function is AggregateFunction.SUM:
        of = call.arguments[0]
        tree = tree_of(of, {name: Column(name, None) for name in of.columns})
        return Trend.UP if tree is not None and cannot_be_negative(tree) else None
    return None


@dataclass(frozen=True)
class _Group:
    """The trends of a group's columns; None of one that may go either way."""

    trends: Mapping[str, Trend | None]

    def trend(self, tree: Expression) -> Trend | None:
        match tree:
            case Column(name):
                return self.trends.get(name)
            case Call(name, _) if name in _CLOCKS:
                return None
        below = [self.trend(child) for child in children(tree)]
        if all(trend is Trend.FIXED for trend in below):
            return Trend.FIXED
        match tree:
            case Connective():
                return _together(below)
            case Not():
                return _flipped(below[0])
            case Comparison():
                return self._compared(tree)
            case Between(operand, low, high):
                ends = (Comparison(">=", operand, low), Comparison("<=", operand, high))
                return _together([self.trend(end) for end in ends])
            case Test(Column(), "NULL"):
                # Once there is a value there always is one.
                return None if below[0] is None else Trend.DOWN
            case Negation(operand):
                return _flipped(below[0]) if _adds_exactly(operand) else None
            case Cast(operand, type_, False):
                of = type_in(operand)
                return below[0] if of is not None and of.is_numeric and type_.is_numeric else None
            case Arithmetic(operator, left, right) if _adds_exactly(left) and _adds_exactly(right):
                return _computed(operator, (left, right), below)
            case _:
                return None

    def _compared(self, tree: Comparison) -> Trend | None:
        left, right = self.trend(tree.left), self.trend(tree.right)
        if not _compares_in_order(tree.left, left, tree.right, right):
            return None
        if tree.operator in {">", ">="}:
            return _together([left, _flipped(right)])
        return _together([_flipped(left), right]) if tree.operator in {"<", "<="} else None


def _computed(operator: str, operands: tuple[Expression, Expression], trends: Sequence[Trend | None]) -> Trend | None:
    if operator == "+":
        return _together(trends)
    if operator == "-":
        return _together([trends[0], _flipped(trends[1])])
    if operator == "*" and any(isinstance(operand, Number) for operand in operands):
        return _together(trends)
    return None


def _adds_exactly(operand: Expression) -> bool:
    """Whether sums of it are never NaN: infinity less infinity would be one, and the greatest number of all."""
    of = type_in(operand)
    return of is not None and of.is_numeric and not of.is_fractional


def _compares_in_order(left: Expression, one: Trend | None, right: Expression, other: Trend | None) -> bool:
    """Whether what is compared has the order of what goes up or down: a text turned into a number has another one."""
    of, to = type_in(left), type_in(right)
    if of is None or to is None:
        return False
    if of.name is to.name:
        return True
    return all(type_.name is not TypeName.STRING or trend is Trend.FIXED for type_, trend in ((of, one), (to, other)))


def _together(trends: Sequence[Trend | None]) -> Trend | None:
    """The trend of what grows with each of its parts."""
    moving = {trend for trend in trends if trend is not Trend.FIXED}
    return next(iter(moving), Trend.FIXED) if len(moving) <= 1 else None


def _flipped(trend: Trend | None) -> Trend | None:
    return None if trend is None else Trend(-trend.value)
