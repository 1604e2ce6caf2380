"""Making expressions out of expressions, for rules: text in Spark SQL with the columns and the type kept right."""

from __future__ import annotations

from service.spec.scalar import Scalar
from service.spec.types import BOOLEAN, DataType


def compose(template: str, operands: tuple[Scalar, ...], type_: DataType | None) -> Scalar:
    """`template` with `{0}`, `{1}`, … replaced by the operands' text; `type_` is the type of the whole.

    >>> from service.spec.scalar import column
    >>> str(compose("COALESCE({0}, 0L)", (column("n", None),), None))
    'COALESCE(n, 0L)'
    """
    columns = dict.fromkeys(name for operand in operands for name in operand.columns)
    return Scalar(template.format(*(operand.sql for operand in operands)), tuple(columns), type_)


def conjunction(left: Scalar | None, right: Scalar) -> Scalar:
    """`left AND right`; `right` alone where there is no `left`."""
    return right if left is None else compose("({0}) AND ({1})", (left, right), BOOLEAN)


def fresh_name(wanted: str, taken: frozenset[str]) -> str:
    """`wanted`, with underscores appended until no name of `taken` is the same; Spark does not tell case apart.

    >>> fresh_name("$bucket", frozenset({"$BUCKET"}))
    '$bucket_'
    """
    folded = {name.casefold() for name in taken}
    while wanted.casefold() in folded:
        wanted += "_"
    return wanted
