"""Adds the conditions on single tables that follow from an OR over several tables.

A report often asks for `(d.region = 'EU' AND f.amount > 10) OR (d.region = 'US' AND f.amount > 20)`. It can only be
evaluated on joined rows, but `d.region = 'EU' OR d.region = 'US'` follows from it. Spark evaluates the latter below the
joins, and its share of the table's rows can be measured.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from service.sql.expressions.analysis import cannot_fail, scalar_from
from service.sql.expressions.nodes import Boolean, Connective, Expression, columns_of, conjuncts
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import BOOLEAN


def with_implied_conditions(condition: Scalar, inputs: Sequence[Collection[str]]) -> Scalar:
    """Returns `condition` AND the conditions on the columns of each one of `inputs` that follow from its ORs.

    A condition that can fail is left out, since it would be evaluated on rows that have no partner. Returns the same
    object if nothing is added.
    """
    terms = tuple(conjuncts(condition.tree))
    added = [
        implied
        for term in terms
        if isinstance(term, Connective) and len(columns := columns_of(term)) > 1
        for names in inputs
        if not all(name in names for name in columns)
        and (implied := _implied(term, names)) is not None
        and implied not in terms
    ]
    if not added:
        return condition
    tree = Connective("AND", (*terms, *dict.fromkeys(added)))
    return Scalar(tree, BOOLEAN) if scalar_from(tree) is not None else condition


def _implied(condition: Expression, names: Collection[str]) -> Expression | None:
    """Returns a condition on the columns `names` alone that is true whenever `condition` is; None if there is none.

    An AND implies what any of its terms implies. An OR implies something only if all of its terms do.
    """
    if isinstance(condition, Connective):
        found = [_implied(term, names) for term in condition.terms]
        if condition.operator == "OR" and None in found:
            return None
        kept = tuple(dict.fromkeys(term for term in found if term is not None))
        return Connective(condition.operator, kept) if len(kept) > 1 else kept[0] if kept else None
    columns = columns_of(condition)
    is_inside = all(name in names for name in columns) and (columns or isinstance(condition, Boolean))
    return condition if is_inside and cannot_fail(condition) else None
