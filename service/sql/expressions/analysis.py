"""Analyses expressions for rewrites: substitutes columns, and decides whether an expression can fail or turn false.

With ANSI mode on, Spark raises an error for an overflow, a division by zero or an invalid number. A rewrite that
evaluates an expression on additional rows must be sure that it does not fail there (`cannot_fail`).

A stream does not retract emitted groups, so a condition of HAVING must stay true once it is true (`turning_part`). Rows
are only added: COUNT and MAX of a group only grow, MIN only falls, keys are fixed. All analyses list what is known to
be safe, and treat everything else as unsafe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from service.contract.problems import SpecError
from service.contract.query import AggregateFunction
from service.sql.expressions.compile_expression import scalar_of
from service.sql.expressions.nodes import (
    Arithmetic,
    Between,
    BitwiseNot,
    Boolean,
    Call,
    Case,
    Cast,
    Column,
    Comparison,
    Connective,
    Expression,
    Extract,
    InList,
    Like,
    Negation,
    Not,
    Null,
    Number,
    String,
    Test,
    children,
    map_children,
    walk,
)
from service.sql.expressions.scalar import Scalar
from service.sql.parser import Text
from service.sql.types.data_types import MAX_PRECISION, TEMPORAL, DataType, Field, TypeName, as_decimal, known
from service.sql.types.functions import FUNCTIONS
from service.sql.types.inference import Typing

Columns = Mapping[str, Expression]
"""The expression that replaces each column."""
_OF_TEXT = frozenset({"upper", "lower", "ucase", "lcase", "trim", "ltrim", "rtrim", "length", "concat", "reverse"})
_OF_TIME = frozenset({"year", "quarter", "month", "day", "dayofmonth", "dayofweek", "dayofyear", "weekofyear", "date"})
_CONDITIONAL_CALLS = frozenset({"coalesce", "nvl", "ifnull", "nullif", "if"})
_DAY = re.compile(
    "[1-9][0-9]{3}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13578]|1[02])-(29|30|31)|(0[469]|11)-(29|30))"
)
"""A day that exists in every year."""
_INTEGRAL_WIDTH = {TypeName.TINYINT: 1, TypeName.SMALLINT: 2, TypeName.INT: 4, TypeName.BIGINT: 8}
_DAYS_WIDTH = 4
_INT_RANGE = 1 << 31
"""The magnitude that an INT does not reach."""
_GROWING = frozenset({AggregateFunction.COUNT, AggregateFunction.MAX})
_GROUPING_FUNCTIONS = frozenset({AggregateFunction.GROUPING, AggregateFunction.GROUPING_ID})
_CHOICE_FUNCTIONS = frozenset({"coalesce", "nvl", "ifnull", "if"})
_LENGTHS = frozenset({"abs", "length", "char_length", "character_length"})
_CLOCKS = frozenset({"current_date", "current_timestamp", "now"})


def columns_by_name(fields: tuple[Field, ...]) -> dict[str, Expression]:
    """Returns each field as a column, by its name."""
    return {field.name: Column(field.name, known(field.type)) for field in fields}


def tree_of(scalar: Scalar, columns: Columns) -> Expression | None:
    """Returns the tree of `scalar` with its columns replaced by `columns`; None if a column is missing, or if the tree
    has functions that only rules may use.
    """
    if any(name not in columns for name in scalar.columns) or not is_standard(scalar.tree):
        return None
    return _replaced(scalar.tree, columns)


def is_standard(tree: Expression) -> bool:
    """Whether a query could contain `tree`. Rules also write other functions."""
    for node in walk(tree):
        match node:
            case Call(name) if name not in FUNCTIONS:
                return False
    return True


def scalar_from(tree: Expression) -> Scalar | None:
    """Returns the scalar of a resolved tree; None if it is refused."""
    try:
        return scalar_of(tree, Text("", "", is_accepted=True))
    except SpecError:
        return None


def type_in(tree: Expression) -> DataType | None:
    """Returns the type of a resolved tree; None if it is not known before the query runs."""
    try:
        return Typing(Text("", "")).type_of(tree)
    except SpecError:
        return None


def conjuncts_of(condition: Scalar, columns: Columns) -> tuple[Scalar, ...]:
    """Returns the terms of an AND, with their columns replaced by `columns`; else only the whole condition.

    >>> from service.sql.types.data_types import INT
    >>> from service.sql.expressions.nodes import Comparison, Number, Test
    >>> a, b = Column("a", INT), Column("b", INT)
    >>> both = Scalar(Connective("AND", (Comparison(">", a, Number("1")), Test(b, "NULL"))), None)
    >>> [str(term) for term in conjuncts_of(both, {"a": a, "b": b})]
    ['a > 1', 'b IS NULL']
    """
    tree = tree_of(condition, columns)
    if not isinstance(tree, Connective) or tree.operator != "AND":
        return (condition,)
    terms = tuple(scalar_from(term) for term in tree.terms)
    return tuple(term for term in terms if term is not None) if None not in terms else (condition,)


def _replaced(node: Expression, columns: Columns) -> Expression:
    if isinstance(node, Column):
        return columns[node.name]
    return map_children(node, lambda child: _replaced(child, columns))


def cannot_fail(node: Expression) -> bool:
    """Whether a resolved tree returns a value or NULL for every possible row, without an error."""
    if isinstance(node, Cast) and isinstance(node.operand, String):
        return node.tries or _reads_as(node.operand.value, node.type)
    return all(cannot_fail(child) for child in children(node)) and _step_cannot_fail(node)


def null_of_nulls(node: Expression) -> bool:
    """Whether a resolved tree is NULL if all its columns are NULL; False for one without columns."""
    match node:
        case Column():
            return True
        case Arithmetic() | Negation() | BitwiseNot() | Not() | Cast() | Extract() | Like():
            return any(null_of_nulls(child) for child in children(node))
        case Between(operand, low, high):
            # BETWEEN is two comparisons joined by AND, which is false if one of them is.
            return null_of_nulls(operand) or (null_of_nulls(low) and null_of_nulls(high))
        case Comparison(operator):
            return operator != "<=>" and any(null_of_nulls(child) for child in children(node))
        case InList(operand, _):
            return null_of_nulls(operand)
        case Call(name, arguments):
            return name in _OF_TEXT | _OF_TIME and any(null_of_nulls(argument) for argument in arguments)
        case _:
            return False


def never_true_of_nulls(node: Expression) -> bool:
    """Whether a condition is false or NULL if all its columns are NULL."""
    if isinstance(node, Connective):
        found = [never_true_of_nulls(term) for term in node.terms]
        return any(found) if node.operator == "AND" else all(found)
    return null_of_nulls(node)


def _step_cannot_fail(node: Expression) -> bool:
    """Whether the outermost operation of `node` cannot fail if its operands do not."""
    match node:
        case Column() | Null() | Boolean() | Number() | String() | Test():
            return True
        case Negation(operand):
            of = type_in(operand)
            return isinstance(operand, Number) or (of is not None and of.is_numeric and not of.is_integral)
        case BitwiseNot():
            return True
        case Arithmetic(operator, left, right):
            return _arithmetic_cannot_fail(operator, left, right)
        case Comparison(_, left, right):
            return _compare_as_they_are(left, right)
        case InList(operand, items):
            return all(_compare_as_they_are(operand, item) for item in items)
        case Between(operand, low, high):
            return _compare_as_they_are(operand, low) and _compare_as_they_are(operand, high)
        case Connective() | Not():
            return all(_is(child, TypeName.BOOLEAN) for child in children(node))
        case Like("RLIKE"):
            return False
        case Like(_, operand, pattern, escape):
            plain = isinstance(pattern, String) and "\\" not in pattern.value and escape is None
            return plain and _is(operand, TypeName.STRING)
        case Case(operand, branches, default):
            values = [then for _, then in branches] + ([] if default is None else [default])
            whens = all(operand is None or _compare_as_they_are(operand, when) for when, _ in branches)
            return whens and _alike(*values)
        case Cast(operand, type_, tries):
            return tries or _widens(type_in(operand), type_)
        case Extract(_, operand):
            return _is(operand, *TEMPORAL)
        case Call(name, arguments):
            return _call_cannot_fail(name, arguments)
        case _:
            return False


def _arithmetic_cannot_fail(operator: str, left: Expression, right: Expression) -> bool:
    one, other = type_in(left), type_in(right)
    if one is None or other is None:
        return False
    if operator == "||":
        return one.name is other.name is TypeName.STRING
    if operator in "&^|":
        return one.is_integral and other.is_integral
    if operator in "+-" and one.name is TypeName.DATE and _INTEGRAL_WIDTH.get(other.name, 8) <= _DAYS_WIDTH:
        # Spark counts days in an INT, which wraps around.
        return True
    if not (one.is_numeric and other.is_numeric) or operator not in "+-*":
        return False
    if one.is_fractional or other.is_fractional:
        return True
    if TypeName.DECIMAL not in {one.name, other.name}:
        value = _integer_of(Arithmetic(operator, left, right))
        is_wide = not {one.name, other.name}.isdisjoint({TypeName.INT, TypeName.BIGINT})
        return is_wide and value is not None and abs(value) < _INT_RANGE
    (p1, s1), (p2, s2) = as_decimal(one), as_decimal(other)
    digits = p1 + p2 + 1 if operator == "*" else max(p1 - s1, p2 - s2) + max(s1, s2) + 1
    return digits <= MAX_PRECISION


def _integer_of(node: Expression) -> int | None:
    """Returns the value of integer literals joined by `+`, `-` and `*`; None for other trees."""
    match node:
        case Number(text) if node.is_integer:
            return int(text)
        case Negation(operand):
            value = _integer_of(operand)
            return None if value is None else -value
        case Arithmetic("+" | "-" | "*" as operator, left, right):
            one, other = _integer_of(left), _integer_of(right)
            if one is None or other is None:
                return None
            return one + other if operator == "+" else one - other if operator == "-" else one * other
        case _:
            return None


def _compare_as_they_are(left: Expression, right: Expression) -> bool:
    """Whether a comparison of the two needs no conversion that can fail."""
    one, other = type_in(left), type_in(right)
    if one is None or other is None:
        return False
    if TypeName.NULL in {one.name, other.name} or one == other:
        return True
    if one.is_numeric and other.is_numeric:
        if one.is_fractional or other.is_fractional:
            return True
        (p1, s1), (p2, s2) = as_decimal(one), as_decimal(other)
        return max(p1 - s1, p2 - s2) + max(s1, s2) <= MAX_PRECISION
    literal, of = (left, other) if isinstance(left, String) else (right, one)
    return isinstance(literal, String) and _reads_as(literal.value, of)


def _reads_as(text: str, type_: DataType) -> bool:
    """Whether a text is certainly a valid value of `type_`, such as the date `2026-01-31`."""
    return type_.name in TEMPORAL and _DAY.fullmatch(text) is not None


def _widens(source: DataType | None, target: DataType) -> bool:
    if source is None:
        return False
    if source == target:
        return True
    if target.name is TypeName.STRING:
        return source.is_numeric or source.name in TEMPORAL | {TypeName.BOOLEAN}
    if source.is_numeric and target.is_fractional:
        return True
    if source.is_integral and target.is_integral:
        return _INTEGRAL_WIDTH[source.name] <= _INTEGRAL_WIDTH[target.name]
    if target.name is TypeName.DECIMAL and source.is_numeric and not source.is_fractional:
        (p1, s1), (p2, s2) = as_decimal(source), as_decimal(target)
        return p1 - s1 <= p2 - s2 and s1 <= s2
    return False


def _call_cannot_fail(name: str, arguments: tuple[Expression, ...]) -> bool:
    if name in {"isnull", "isnotnull"}:
        return True
    if name == "abs":
        of = type_in(arguments[0])
        return of is not None and of.is_numeric and not of.is_integral
    if name in _OF_TEXT:
        return all(_is(argument, TypeName.STRING) for argument in arguments)
    if name in _OF_TIME:
        return all(_is(argument, TypeName.DATE, TypeName.TIMESTAMP, TypeName.TIMESTAMP_NTZ) for argument in arguments)
    if name in _CONDITIONAL_CALLS:
        return _alike(*(arguments[1:] if name == "if" else arguments))
    return False


def _alike(*values: Expression) -> bool:
    """Whether all have the same type or are NULL, so that none is converted."""
    types = {type_in(value) for value in values}
    return None not in types and len({type_ for type_ in types if type_ and type_.name is not TypeName.NULL}) <= 1


def _is(node: Expression, *names: TypeName) -> bool:
    of = type_in(node)
    return of is not None and of.name in names


class Trend(Enum):
    """How a value changes as rows are added, once it is not NULL. A condition that is `UP` stays true."""

    DOWN = -1
    FIXED = 0
    UP = 1


class GroupCall(Protocol):
    """An aggregate call of a query or a plan."""

    @property
    def function(self) -> object:
        """The function; those that only plans have have no known trend."""

    @property
    def arguments(self) -> tuple[Scalar, ...]:
        """The arguments."""

    @property
    def output(self) -> Field:
        """The column by which HAVING refers to it."""


def turning_part(having: Scalar, keys: Sequence[Field], calls: Sequence[GroupCall]) -> Scalar | None:
    """Returns the first part of `having`, over group keys and calls, that may turn false; None if no part may."""
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
    """Whether a tree is certainly at least 0, or NULL, for every row."""
    match tree:
        case Number() | Null():
            return True
        case Case(_, branches, default):
            values = [then for _, then in branches] + ([] if default is None else [default])
            return all(map(cannot_be_negative, values))
        case Call("if", arguments):
            return all(map(cannot_be_negative, arguments[1:]))
        case Call(name, arguments) if name in _CHOICE_FUNCTIONS:
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
    if call.function in _GROUPING_FUNCTIONS:
        return Trend.FIXED
    if call.function is AggregateFunction.SUM:
        of = call.arguments[0]
        tree = tree_of(of, {name: Column(name, None) for name in of.columns})
        return Trend.UP if tree is not None and cannot_be_negative(tree) else None
    return None


@dataclass(frozen=True)
class _Group:
    """The trends of a group's columns; None for one that may grow and fall."""

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
                # Once the value is not NULL it stays so.
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
    """Whether sums of it are never NaN, which is infinity minus infinity and compares as the greatest number."""
    of = type_in(operand)
    return of is not None and of.is_numeric and not of.is_fractional


def _compares_in_order(left: Expression, one: Trend | None, right: Expression, other: Trend | None) -> bool:
    """Whether the comparison uses the order of the operands' trends: a text converted to a number has another one."""
    of, to = type_in(left), type_in(right)
    if of is None or to is None:
        return False
    if of.name is to.name:
        return True
    return all(type_.name is not TypeName.STRING or trend is Trend.FIXED for type_, trend in ((of, one), (to, other)))


def _together(trends: Sequence[Trend | None]) -> Trend | None:
    """Returns the trend of a value that grows with each of its parts."""
    moving = {trend for trend in trends if trend is not Trend.FIXED}
    return next(iter(moving), Trend.FIXED) if len(moving) <= 1 else None


def _flipped(trend: Trend | None) -> Trend | None:
    return None if trend is None else Trend(-trend.value)
