"""The bitwise operators of SQL between two operands, with their precedence in Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sqlglot import exp

Build = Callable[[exp.Expr, exp.Expr], exp.Expr]

SHIFT = "shift"
"""In the `meta` of a call that is written as an operator."""


@dataclass(frozen=True)
class BitOperator:
    """`sign` between two operands, and how its node is made of them. The operator with the larger `binding` is computed
    first; those with equal ones are computed from left to right.
    """

    sign: str
    binding: int
    build: Build


def _node(kind: type[exp.Expr], left: exp.Expr, right: exp.Expr) -> exp.Expr:
    return kind(this=left, expression=right)


def _call(function: str, left: exp.Expr, right: exp.Expr) -> exp.Expr:
    call = exp.Anonymous(this=function, expressions=[left, right])
    call.meta[SHIFT] = True
    return call


def _or_else(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    return exp.Coalesce(this=left, expressions=[right])


BIT_OPERATORS = {
    operator.sign: operator
    for operator in (
        BitOperator("|", 0, partial(_node, exp.BitwiseOr)),
        BitOperator("^", 1, partial(_node, exp.BitwiseXor)),
        BitOperator("&", 2, partial(_node, exp.BitwiseAnd)),
        BitOperator("<<", 3, partial(_call, "shiftleft")),
        BitOperator(">>", 3, partial(_call, "shiftright")),
        BitOperator(">>>", 3, partial(_call, "shiftrightunsigned")),
        BitOperator("??", 3, _or_else),
    )
}
"""By sign. A shift is the call of a function: Spark reads `a << 2` as `shiftleft(a, 2)`. `??` is no operator of Spark;
it is parsed so that the error names it.
"""
