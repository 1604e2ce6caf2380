"""Replaces the common table expressions of one query by derived tables."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from service.sql.expressions.reader import position
from service.sql.statements import trees


def inlined(query: exp.Expr) -> exp.Expr:
    """Returns a copy of `query` in which each use of a common table expression that it defines is a derived table.

    Recursive ones stay, with all others of their WITH.
    """
    return _inlined(query.copy(), {})


def _inlined(node: exp.Expr, known: Mapping[str, tuple[exp.Expr, exp.TableAlias]]) -> exp.Expr:
    clause = node.args.get("with_")
    if clause is not None and not clause.args.get("recursive"):
        known = dict(known)
        for cte in clause.expressions:
            known[cte.alias.casefold()] = _inlined(cte.this.copy(), known), cte.args["alias"]
        node.set("with_", None)
    elif clause is not None:
        mine = {cte.alias.casefold() for cte in clause.expressions}
        known = {name: found for name, found in known.items() if name not in mine}
    if isinstance(node, exp.Table) and not node.args.get("db") and node.name.casefold() in known:
        return _derived(node, *known[node.name.casefold()])
    for key, value in list(node.args.items()):
        if isinstance(value, exp.Expr):
            node.set(key, _inlined(value, known))
        elif isinstance(value, list):
            node.set(key, [_inlined(part, known) if isinstance(part, exp.Expr) else part for part in value])
    return node


def _derived(table: exp.Table, query: exp.Expr, named: exp.TableAlias) -> exp.Expr:
    alias = table.args.get("alias")
    called = alias.this if alias is not None else exp.to_identifier(table.name, quoted=True)
    columns = (alias.args.get("columns") if alias is not None else None) or named.args.get("columns") or []
    new = exp.TableAlias(this=called.copy(), columns=[column.copy() for column in columns])
    derived = exp.Subquery(this=query.copy(), alias=new)
    for key, value in table.args.items():
        if value and key not in {"this", "alias"}:
            derived.set(key, value)
    return trees.placed(derived, position(table))
