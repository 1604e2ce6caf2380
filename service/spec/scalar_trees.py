"""The trees of scalars over the columns of other rows, for rewrites that must know what is in an expression.

What a rule composed itself may have functions that no query may call; such a tree is not given here.
"""

from __future__ import annotations

from collections.abc import Mapping

from service.spec.dialect import Text
from service.spec.errors import SpecError
from service.spec.expressions import scalar_of
from service.spec.functions import FUNCTIONS
from service.spec.inference import Typing
from service.spec.scalar import Scalar
from service.spec.tree import Arithmetic, Call, Column, Connective, Expression, GetField, map_children, walk
from service.spec.types import DataType, Field, known

Columns = Mapping[str, Expression]
"""What each column is replaced by."""


def columns_by_name(fields: tuple[Field, ...]) -> dict[str, Expression]:
    """Each field under its own name."""
    return {field.name: Column(field.name, known(field.type)) for field in fields}


def tree_of(scalar: Scalar, columns: Columns) -> Expression | None:
    """The tree of `scalar` with every column replaced by what `columns` has for it; None where a column is missing, or
    the tree has what no query may have.
    """
    if any(name not in columns for name in scalar.columns) or not is_standard(scalar.tree):
        return None
    return _replaced(scalar.tree, columns)


def is_standard(tree: Expression) -> bool:
    """Whether a query may have everything that is in `tree`. Rules also write other functions and operators."""
    for node in walk(tree):
        match node:
            case Call(name) if name not in FUNCTIONS:
                return False
            case GetField() | Arithmetic("&" | "|"):
                return False
    return True


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
    >>> from service.spec.tree import Comparison, Number, Test
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
