"""Builds sqlglot's trees for subqueries: EXISTS for IN, the number of rows, the only row, the tables around."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from service.sql.expressions.reader import position
from service.sql.statements import trees

_TOO_MANY_ROWS = "A subquery that is used as a value returned more than one row."
_OTHER_QUERIES = ("exists", "values", "table", "with")
"""Words that a query without SELECT and FROM may begin with, or that stand before a query."""


def in_value(is_found: exp.Expr, rows: exp.Expr, is_unknown: exp.Expr) -> exp.Expr:
    """Returns the value of IN: TRUE, FALSE or NULL. `rows` is the number of rows of the subquery."""
    return exp.Case(
        ifs=[
            exp.If(this=is_found, true=exp.Boolean(this=True)),
            exp.If(this=exp.EQ(this=rows.copy(), expression=trees.number(0)), true=exp.Boolean(this=False)),
            exp.If(this=is_unknown, true=exp.Null()),
        ],
        default=exp.Boolean(this=False),
    )


def may_have_subqueries(text: str) -> bool:
    """Whether the case-folded `text` may have a query inside an expression, as an upper bound.

    >>> may_have_subqueries("select k from t"), may_have_subqueries("select k from t where k in (select k from u)")
    (False, True)
    """
    return text.count("select") > 1 or text.count("from") > 1 or any(word in text for word in _OTHER_QUERIES)


def name_items(select: exp.Select) -> None:
    """Names the columns of `select` that have no alias and contain a subquery, which the expression that replaces the
    subquery would name otherwise.
    """
    for index, item in enumerate(select.expressions):
        if trees.has_subquery(item) and not isinstance(item, exp.Alias):
            named = exp.Alias(this=item.copy(), alias=exp.to_identifier(f"column_{index + 1}"))
            select.expressions[index] = trees.placed(named, position(item))


def as_exists(node: exp.In, operands: Sequence[exp.Expr], alias: str, *, is_negated: bool) -> exp.Exists:
    """Returns EXISTS for IN with the values `operands`; for NOT IN, the EXISTS that NOT negates: NULL is not known to
    differ from any value. `alias` is an unused alias.
    """
    names = [f"{alias}_{number}" for number in range(1, len(operands) + 1)]
    terms: list[exp.Expr] = []
    for name, operand in zip(names, operands, strict=True):
        value = trees.column(alias, name, position(node))
        equal = exp.EQ(this=value, expression=operand.copy())
        terms.append(trees.may_equal(value, operand) if is_negated else equal)
    rows = exp.Select(
        expressions=[exp.Boolean(this=True)],
        from_=trees.from_query(trees.query_in(node.args["query"]), alias, names),
        where=exp.Where(this=trees.chained(terms, exp.And)),
    )
    found = exp.Exists(this=trees.placed(rows, position(node)))
    trees.placed(found, position(node))
    return found


def counted_rows(query: exp.Expr, inner: str, outer: str) -> exp.Select:
    """Returns a query of the number of rows of `query`, at most 1. `inner` and `outer` are unused aliases."""
    limited = exp.Select(
        expressions=[exp.Star()],
        from_=trees.from_query(query, inner, []),
        limit=exp.Limit(expression=trees.number(1)),
    )
    return exp.Select(expressions=[trees.call("COUNT", exp.Star())], from_=trees.from_query(limited, outer, []))


def tables_of(select: exp.Select) -> exp.Select:
    """Returns a SELECT without columns that reads the tables of `select`, with its conditions that have no subquery."""
    tables = exp.Select()
    for key in ("from_", "joins", "laterals"):
        value = select.args.get(key)
        tables.set(key, [part.copy() for part in value] if isinstance(value, list) else value and value.copy())
    where = select.args.get("where")
    kept = [term.copy() for term in trees.terms(where and where.this, exp.And) if not trees.has_subquery(term)]
    tables.set("where", exp.Where(this=trees.chained(kept, exp.And)) if kept else None)
    return tables


def only_row(rows: exp.Expr, value: exp.Expr) -> exp.Expr:
    """Returns `value`; the query fails if there is more than one of `rows`."""
    fails = trees.call("RAISE_ERROR", exp.Literal.string(_TOO_MANY_ROWS))
    is_wrong = exp.GT(this=rows, expression=trees.number(1))
    return exp.Case(ifs=[exp.If(this=is_wrong, true=fails)], default=value)
