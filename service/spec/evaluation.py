"""What evaluating an expression on other rows could do: fail where it did not, or make something out of NULLs.

With ANSI mode on, Spark raises an error for an integer that overflows, a division by zero, a text that is no number. A
rewrite that evaluates an expression on rows that the query leaves out must know that it raises none there. Both lists
are of what is known to be safe; everything else is taken to be unsafe.
"""

from __future__ import annotations

import re

from service.spec.coercion import as_decimal
from service.spec.scalar_trees import type_in
from service.spec.tree import (
    Arithmetic,
    Between,
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
)
from service.spec.types import MAX_PRECISION, TEMPORAL, DataType, TypeName

_OF_TEXT = frozenset({"upper", "lower", "ucase", "lcase", "trim", "ltrim", "rtrim", "length", "concat", "reverse"})
_OF_TIME = frozenset({"year", "quarter", "month", "day", "dayofmonth", "dayofweek", "dayofyear", "weekofyear", "date"})
_CHOICES = frozenset({"coalesce", "nvl", "ifnull", "nullif", "if"})
_DAY = re.compile(
    "[1-9][0-9]{3}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13578]|1[02])-(29|30|31)|(0[469]|11)-(29|30))"
)
"""A day that there is in every year."""
_INTEGRAL_WIDTH = {TypeName.TINYINT: 1, TypeName.SMALLINT: 2, TypeName.INT: 4, TypeName.BIGINT: 8}


def cannot_fail(node: Expression) -> bool:
    """Whether a resolved tree has a value, or NULL, for every row there can be."""
    if isinstance(node, Cast) and isinstance(node.operand, String):
        return node.tries or _reads_as(node.operand.value, node.type)
    return all(cannot_fail(child) for child in children(node)) and _step_cannot_fail(node)


def null_of_nulls(node: Expression) -> bool:
    """Whether a resolved tree is NULL where all its columns are; False for one without columns."""
    match node:
        case Column():
            return True
        case Arithmetic() | Negation() | Not() | Cast() | Extract() | Like():
            return any(null_of_nulls(child) for child in children(node))
        case Between(operand, low, high):
            # Of two comparisons with an AND between them, one that is false decides.
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
    """Whether a condition is false or NULL where all its columns are NULL."""
    if isinstance(node, Connective):
        told = [never_true_of_nulls(term) for term in node.terms]
        return any(told) if node.operator == "AND" else all(told)
    return null_of_nulls(node)


def _step_cannot_fail(node: Expression) -> bool:
    """Whether the outermost operation of `node` cannot fail over operands that do not."""
    match node:
        case Column() | Null() | Boolean() | Number() | String() | Test():
            return True
        case Negation(operand):
            of = type_in(operand)
            return isinstance(operand, Number) or (of is not None and of.is_numeric and not of.is_integral)
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
    if not (one.is_numeric and other.is_numeric) or operator not in "+-*":
        return False
    if one.is_fractional or other.is_fractional:
        return True
    if TypeName.DECIMAL not in {one.name, other.name}:
        return False
    (p1, s1), (p2, s2) = as_decimal(one), as_decimal(other)
    digits = p1 + p2 + 1 if operator == "*" else max(p1 - s1, p2 - s2) + max(s1, s2) + 1
    return digits <= MAX_PRECISION


def _compare_as_they_are(left: Expression, right: Expression) -> bool:
    """Whether comparing the two converts nothing that may not be convertible."""
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
    """Whether a text is plainly a value of `type_`: a day written `2026-01-31`."""
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
    if name in _CHOICES:
        return _alike(*(arguments[1:] if name == "if" else arguments))
    return False


def _alike(*values: Expression) -> bool:
    """Whether all have one type, NULL aside, so that none is converted."""
    types = {type_in(value) for value in values}
    return None not in types and len({type_ for type_ in types if type_ and type_.name is not TypeName.NULL}) <= 1


def _is(node: Expression, *names: TypeName) -> bool:
    of = type_in(node)
    return of is not None and of.name in names
