"""ORDER BY around DISTINCT, and LIMIT."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from service.spec.dialect import Text, place_of
from service.spec.parsing import ExpressionReader, position
from service.spec.query import MAX_LIMIT, SortKey
from service.spec.sql_items import Item
from service.spec.tree import Aggregate, Expression, Name, map_children

Order = list[tuple[Expression, SortKey]]
"""What to sort by, and how."""


def over_columns(order: Order, items: Sequence[Item], alias: str, source: Text) -> Order:
    """ORDER BY over the output columns `items` of the derived table `alias`, for DISTINCT around it.

    Raises SpecError `unsupported_construct` for what is none of its columns.
    """
    columns = {item.tree: Name(alias, item.name, item.at) for item in reversed(items)}

    def replaced(tree: Expression) -> Expression:
        if tree in columns:
            return columns[tree]
        if isinstance(tree, Name | Aggregate):
            raise source.unsupported(
                "ORDER BY of SELECT DISTINCT by what is not selected", at=tree.at, hint="Add it to SELECT."
            )
        return map_children(tree, replaced)

    return [(replaced(tree), key) for tree, key in order]


def read_limit(select: exp.Expr, source: Text) -> int | None:
    """The number of LIMIT. Raises SpecError `unsupported_construct`, `limit_out_of_range`."""
    clause = select.args.get("limit")
    if clause is None:
        return None
    if isinstance(clause, exp.Fetch):
        raise source.unsupported("FETCH", at=position(clause), hint="Write LIMIT.")
    ExpressionReader(source, aggregates=False).check_clauses(clause)
    value = clause.expression
    if isinstance(value, exp.Var) and value.name.upper() == "ALL":
        return None
    if is_whole(value) and len(value.name) <= 20 and int(value.name) <= MAX_LIMIT:
        return int(value.name)
    # It takes all tokens of the text, which a query that is right need not pay for.
    at = place_of(source, TokenType.LIMIT, position(select))
    if not is_whole(value):
        raise source.unsupported("LIMIT with anything but a whole number", at=at)
    raise source.error("limit_out_of_range", f"LIMIT is at most {MAX_LIMIT}.", at=at)


def is_whole(node: exp.Expr) -> bool:
    """Whether `node` is a number without sign and point."""
    return isinstance(node, exp.Literal) and not node.is_string and node.name.isascii() and node.name.isdigit()
