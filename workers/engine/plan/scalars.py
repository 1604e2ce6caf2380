"""Expressions that rules make out of expressions, with the columns and the type kept right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from service.spec.parsing import read_template
from service.spec.scalar import Scalar
from service.spec.tree import Connective, Expression, Name, conjuncts, map_children
from service.spec.types import BOOLEAN, DataType

_PLACE = re.compile(r"\{(\d+)\}")


def compose(template: str, operands: tuple[Scalar, ...], type_: DataType | None) -> Scalar:
    """`template`, an expression, with the operands in the places of `{0}`, `{1}`, …; `type_` is the type of the whole.

    >>> from service.spec.scalar import column
    >>> str(compose("COALESCE({0}, 0L)", (column("n", None),), None))
    'coalesce(n, 0L)'
    """
    trees = {f"{{{place}}}": operand.tree for place, operand in enumerate(operands)}
    return Scalar(_filled(_template(template), trees), type_)


def conjunction(left: Scalar | None, right: Scalar) -> Scalar:
    """`left AND right`; `right` alone where there is no `left`."""
    if left is None:
        return right
    return Scalar(Connective("AND", (*conjuncts(left.tree), *conjuncts(right.tree))), BOOLEAN)


def fresh_name(wanted: str, taken: frozenset[str]) -> str:
    """`wanted`, with underscores appended until no name of `taken` is the same; Spark does not tell case apart.

    >>> fresh_name("$bucket", frozenset({"$BUCKET"}))
    '$bucket_'
    """
    folded = {name.casefold() for name in taken}
    while wanted.casefold() in folded:
        wanted += "_"
    return wanted


@lru_cache(maxsize=4096)
def _template(text: str) -> Expression:
    # Templates are constants of the rules, some with a type or a number put in: each is read once in a process.
    return read_template(_PLACE.sub(r"`\g<0>`", text))


def _filled(node: Expression, trees: Mapping[str, Expression]) -> Expression:
    if isinstance(node, Name):
        return trees[node.name]
    return map_children(node, lambda child: _filled(child, trees))
