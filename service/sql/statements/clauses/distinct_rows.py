"""Writes DISTINCT next to LIMIT as two queries: `SELECT DISTINCT x … LIMIT 2` is `SELECT * FROM (SELECT DISTINCT x …)
LIMIT 2`.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from service.contract.problems import SpecError
from service.sql.expressions.reader import position
from service.sql.parser import Text
from service.sql.statements import trees
from service.sql.statements.clauses.row_limits import is_whole

_AFTER = ("order", "limit", "offset")
_HINT = "List the column in SELECT with an alias of its own, and order by the alias."


def with_distinct_first(
    query: exp.Expr, source: Text, alias: Callable[[], str], name: Callable[[exp.Expr, int], str]
) -> bool:
    """Changes each SELECT in `query` that has DISTINCT and LIMIT or OFFSET, but no single row of aggregates. Returns
    whether there is one.

    `alias` returns an unused alias, `name` the name of a column of SELECT, with its number from 1. Raises SpecError
    `unsupported_construct` if ORDER BY has a column that is not clearly one of SELECT.
    """
    changes = False
    for select in list(query.find_all(exp.Select)):
        distinct = select.args.get("distinct")
        is_one_row = trees.is_aggregated(select) and not select.args.get("group")
        if distinct is None or distinct.args.get("on") or is_one_row:
            continue
        if any(select.args.get(key) for key in ("limit", "offset")):
            _nest(select, source, alias(), name)
            changes = True
    return changes


def _nest(select: exp.Select, source: Text, alias: str, name: Callable[[exp.Expr, int], str]) -> None:
    at, items = position(select), list(select.expressions)
    has_star = any(item.is_star for item in items)
    shown = [] if has_star else [item.alias or name(item, number) for number, item in enumerate(items, start=1)]
    names = [f"{alias}_{number}" for number in range(1, len(shown) + 1)]
    inner = exp.Select(**{key: value for key, value in select.args.items() if key not in _AFTER}).copy()
    after = {key: select.args.get(key) for key in _AFTER}
    columns = [
        trees.placed(
            exp.Alias(this=trees.column(alias, column, position(item)), alias=trees.identifier(called)), position(item)
        )
        for column, called, item in zip(names, shown, items, strict=not has_star)
    ]
    order = (
        _OfStar(inner, source) if has_star else _OfItems(items, shown, [trees.column(alias, n) for n in names], source)
    )
    if after["order"] is not None:
        for key in after["order"].expressions:
            if not is_whole(key.this):
                key.set("this", trees.mapped(key.this, order.selected))
    for key in list(select.args):
        select.set(key, None)
    select.set("expressions", columns or [exp.Star()])
    select.set("from_", trees.from_query(trees.placed(inner, at), alias, names))
    for key, value in after.items():
        select.set(key, value)


class _OfItems:
    """Replaces parts of ORDER BY by the columns that a list of SELECT has, as Spark resolves them: aliases first."""

    def __init__(self, items: list[exp.Expr], shown: list[str], columns: list[exp.Column], source: Text) -> None:
        self._source = source
        self._by_name: dict[str, list[exp.Column]] = {}
        self._by_tree = [(item.unalias(), column) for item, column in zip(items, columns, strict=True)]
        for called, column in zip(shown, columns, strict=True):
            self._by_name.setdefault(called.casefold(), []).append(column)
        self._aliases = {
            item.alias.casefold()
            for item in items
            if isinstance(item, exp.Alias) and not _is_called(item.this, item.alias)
        }

    def selected(self, part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column) and not part.table:
            named = self._by_name.get(part.name.casefold(), [])
            if len(named) == 1:
                return trees.placed(named[0].copy(), position(part))
        has_alias = any(
            not column.table and column.name.casefold() in self._aliases for column in part.find_all(exp.Column)
        )
        if not has_alias:
            for tree, column in self._by_tree:
                if part == tree:
                    return trees.placed(column.copy(), position(part))
        if isinstance(part, exp.Column):
            raise _refusal(self._source, part)
        return part


class _OfStar:
    """Replaces columns in ORDER BY of `SELECT DISTINCT *` by those of the derived table, which have the same names."""

    def __init__(self, select: exp.Select, source: Text) -> None:
        self._source = source
        from_ = select.args.get("from_")
        has_more = select.args.get("joins") or select.args.get("laterals")
        self._table = None if from_ is None or has_more else from_.this.alias_or_name.casefold()

    def selected(self, part: exp.Expr) -> exp.Expr:
        if not isinstance(part, exp.Column):
            return part
        if self._table is None or part.table.casefold() not in {"", self._table} or part.args.get("db"):
            raise _refusal(self._source, part)
        return exp.Column(this=part.this.copy())


def _is_called(tree: exp.Expr, alias: str) -> bool:
    return isinstance(tree, exp.Column) and tree.name.casefold() == alias.casefold()


def _refusal(source: Text, part: exp.Column) -> SpecError:
    return source.unsupported(
        f"ORDER BY {part.sql()} next to DISTINCT and LIMIT of a correlated query", at=position(part), hint=_HINT
    )
