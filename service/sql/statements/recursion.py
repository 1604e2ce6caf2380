"""Reads WITH RECURSIVE: which common table expressions read themselves, and the two queries that each unites."""

from __future__ import annotations

from sqlglot import exp

from service.contract.query import MAX_LEVELS
from service.sql.expressions.reader import position
from service.sql.parser import LEVELS, Text

_FORM = "Write WITH RECURSIVE r AS (SELECT … UNION ALL SELECT … FROM r WHERE …)."
_ARRANGED = ("order", "limit", "offset")


def refers_to(tree: exp.Expr, name: str) -> bool:
    """Whether a query, or one inside it, reads a table called `name`."""
    return any(
        not table.args.get("db") and table.name.casefold() == name.casefold() for table in tree.find_all(exp.Table)
    )


def levels_of(cte: exp.Expr, source: Text) -> int | None:
    """Returns the number of MAX RECURSION LEVEL; None without it. Raises SpecError `limit_out_of_range`."""
    alias = cte.args["alias"]
    levels = alias.meta.get(LEVELS)
    if levels is None:
        return None
    if not levels.isdecimal() or not 1 <= int(levels[:9]) <= MAX_LEVELS:
        detail = f"MAX RECURSION LEVEL must be a whole number from 1 to {MAX_LEVELS}."
        raise source.error("limit_out_of_range", detail, at=position(alias))
    return int(levels)


def united_parts(tree: exp.Expr, name: str, source: Text) -> exp.Union:
    """Returns the UNION ALL of a recursive query, whose second query reads the table `name`.

    Raises SpecError `unsupported_construct` for another form.
    """
    at = position(tree)
    if not isinstance(tree, exp.Union):
        raise source.unsupported(f"{name}, which reads itself and is not a UNION ALL,", at=at, hint=_FORM)
    if tree.args.get("distinct"):
        hint = f"{_FORM} For distinct rows, write DISTINCT in the query around it."
        raise source.unsupported("UNION in a recursive query", at=at, hint=hint)
    clause = next((tree.args[key] for key in _ARRANGED if tree.args.get(key)), None)
    if clause is not None:
        hint = "Write them in the query around the recursive one."
        raise source.unsupported("ORDER BY, LIMIT or OFFSET of a recursive query", at=position(clause) or at, hint=hint)
    if refers_to(tree.this, name):
        hint = (
            "The first query begins the recursion, so only the second one may read it. Enclose the queries after the "
            "first UNION ALL in parentheses."
        )
        raise source.unsupported(f"{name} in its own first query", at=position(tree.this), hint=hint)
    inner = tree.args.get("with_")
    if inner is not None and refers_to(inner, name):
        hint = "Read it in FROM of the second query, after UNION ALL."
        raise source.unsupported(f"WITH inside {name} that reads {name}", at=position(inner) or at, hint=hint)
    return tree
