"""Scalars read back into trees, for rewrites that must know what is in an expression.

A `Scalar`'s text is canonical Spark SQL that `service.spec` rendered, so `service.spec` reads it again. What a rule
composed itself may hold functions that no query may call; such a text has no tree here, and its rule does without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from service.spec.dialect import Text
from service.spec.errors import SpecError
from service.spec.expressions import scalar_of
from service.spec.inference import Typing
from service.spec.parsing import read_expression
from service.spec.scalar import Scalar
from service.spec.tree import Column, Connective, Expression, Name, map_children
from service.spec.types import DataType, Field, known

_TREE = "_tree"

Columns = Mapping[str, Expression]
"""What the names in a text stand for."""


def columns_by_name(fields: tuple[Field, ...]) -> dict[str, Expression]:
    """Each field under its own name."""
    return {field.name: Column(field.name, known(field.type)) for field in fields}


def tree_of(scalar: Scalar, columns: Columns) -> Expression | None:
    """The tree of `scalar` with every name replaced by what `columns` has for it; None where it cannot be read."""
    if any(name not in columns for name in scalar.columns):
        return None
    if scalar.column is not None:
        return columns[scalar.column]
    tree = read_scalar(scalar)
    try:
        return None if tree is None else _resolved(tree, columns)
    except KeyError:
        return None


def read_scalar(scalar: Scalar) -> Expression | None:
    """The tree of `scalar` with the names of its text; None where it cannot be read.

    A text is parsed once: a scalar is immutable and keeps its tree, outside of its fields.
    """
    kept = vars(scalar)
    if _TREE not in kept:
        try:
            kept[_TREE] = read_expression(Text(scalar.sql, ""))
        except SpecError:
            kept[_TREE] = None
    return cast("Expression | None", kept[_TREE])


def scalar_from(tree: Expression) -> Scalar | None:
    """The scalar of a resolved tree; None where `service.spec` has objections."""
    try:
        return scalar_of(tree, Text("", "", is_accepted=True))
    except SpecError:
        return None


def type_in(tree: Expression) -> DataType | None:
    """The type of a resolved tree; None where only Spark knows it."""
    try:
        return Typing(Text("", "")).type_of(tree)
    except SpecError:
        return None


def conjuncts_of(condition: Scalar, columns: Columns) -> tuple[Scalar, ...]:
    """The terms of an AND, with `columns` put in; the whole condition alone where it is none or cannot be read.

    >>> from service.spec.types import INT
    >>> both = Scalar("`a` > 1 AND `b` IS NULL", ("a", "b"), None)
    >>> fields = (Field("a", INT), Field("b", INT))
    >>> [str(term) for term in conjuncts_of(both, columns_by_name(fields))]
    ['a > 1', 'b IS NULL']
    """
    tree = tree_of(condition, columns)
    if not isinstance(tree, Connective) or tree.operator != "AND":
        return (condition,)
    terms = tuple(scalar_from(term) for term in tree.terms)
    return tuple(term for term in terms if term is not None) if None not in terms else (condition,)


def _resolved(node: Expression, columns: Columns) -> Expression:
    if isinstance(node, Name):
        return columns[node.name]
    return map_children(node, lambda child: _resolved(child, columns))
