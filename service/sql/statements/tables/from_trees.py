"""Changes sqlglot's trees of FROM: parentheses, joins that sqlglot stores in a table, names of a table's columns."""

from __future__ import annotations

from sqlglot import exp

from service.sql.expressions.reader import position


def without_parentheses(node: exp.Expr) -> exp.Expr:
    """Returns a table or a join without the parentheses around it, if they have no alias."""
    while isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table | exp.Subquery) and not node.alias:
        inner = node.this
        if any(value for key, value in node.args.items() if key not in {"this", "joins"}):
            break
        outer = node.args.get("joins") or []
        if outer:
            inner = inner.copy()
            inner.set("joins", [*(inner.args.get("joins") or []), *outer])
        node = inner
    return node


def move_joins(select: exp.Select, first: exp.Expr) -> None:
    """Gives `select` its joins: for `FROM t JOIN u ON … SELECT …`, sqlglot stores them in the first table's node."""
    joins = first.args.pop("joins", None)
    if joins:
        select.set("joins", [*joins, *(select.args.get("joins") or [])])


def renamed_columns(node: exp.Expr) -> exp.Expr | None:
    """Returns a table with names for its columns after its alias as a derived table; None for another node."""
    alias = node.args.get("alias")
    if not isinstance(node, exp.Table) or alias is None or not alias.args.get("columns"):
        return None
    table = node.copy()
    alias = table.args["alias"]
    table.set("alias", None)
    rows = exp.Select(expressions=[exp.Star()], from_=exp.From(this=table))
    for part in (rows, derived := exp.Subquery(this=rows, alias=alias)):
        part.meta["start"] = position(node)
    return derived
