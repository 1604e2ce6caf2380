"""Moves conditions over columns of an earlier table out of derived tables in a query after LATERAL.

`(SELECT v FROM u WHERE u.k = t.k) AS d` is `(SELECT v, u.k AS h FROM u) AS d` with `d.h = t.k` in WHERE of the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from service.sql.expressions.reader import position
from service.sql.statements import trees
from service.sql.statements.subqueries.correlation import Correlated, Correlation

_BEYOND = ("limit", "offset", "qualify", "with_", "laterals", "windows")
"""Clauses whose result depends on which rows are there."""


def with_moved_conditions(query: exp.Select, names: Correlation, alias: Callable[[], str]) -> exp.Select:
    """Returns `query` with such conditions in its WHERE; `query` itself where that is not possible, or not needed.

    `names` resolves the names of queries, and `alias` returns an unused alias. Raises SpecError for unknown names.
    """
    if any(item.is_star for item in query.expressions):
        return query
    moved = query.copy()
    conditions: list[exp.Expr] = []
    outer: list[exp.Column] = []
    for part in _filtered_alike(moved):
        derived = part.this
        correlated = names.conditions(derived.this) if _is_plain(derived) else Correlated([], [], [])
        if correlated.is_empty:
            continue
        if not _can_move(derived.this, correlated, names):
            return query
        moving = _Moving(derived, correlated, names, alias)
        conditions += moving.conditions()
        outer += moving.outer
        part.set("this", moving.table())
    if not conditions:
        return query
    where = moved.args.get("where")
    terms = [*([where.this] if where is not None else []), *conditions]
    moved.set("where", exp.Where(this=trees.chained(terms, exp.And)))
    inner = names.sources_of(moved)
    # Inside the derived table, a name cannot be one of its neighbours.
    return query if any(names.is_of(column, inner) for column in outer) else moved


def _filtered_alike(query: exp.Select) -> Iterator[exp.Expr]:
    """Yields FROM and the joins whose tables can as well be filtered in WHERE."""
    clause, joins = query.args.get("from_"), query.args.get("joins") or []
    for index, part in enumerate([clause, *joins]):
        if part is None or any(join.side.upper() in {"RIGHT", "FULL"} for join in joins[index:]):
            continue
        if part is clause or (not part.side and part.kind.upper() in {"", "INNER", "CROSS"}):
            yield part


def _is_plain(node: exp.Expr) -> bool:
    extra = any(value for key, value in node.args.items() if key not in {"this", "alias"})
    return isinstance(node, exp.Subquery) and isinstance(node.this, exp.Select) and not extra


def _can_move(query: exp.Select, correlated: Correlated, names: Correlation) -> bool:
    """Whether a derived table may as well be filtered after its groups and distinct rows."""
    has_groups, is_aggregated = bool(query.args.get("group")), trees.is_aggregated(query)
    if any(query.args.get(key) for key in _BEYOND) or any(item.find(exp.Window) for item in query.expressions):
        return False
    if trees.has_grouping_sets(query) or (is_aggregated and not has_groups):
        return False
    if correlated.others and (has_groups or query.args.get("distinct")):
        return False
    inner = names.sources_of(query)
    parts = [*query.expressions, *(query.args.get(key) for key in ("group", "having", "order"))]
    parts += [join.args.get("on") for join in query.args.get("joins") or []]
    return not any(part is not None and names.reads_outside(part, inner) for part in parts)


class _Moving:
    """Moves the conditions of one derived table."""

    def __init__(self, node: exp.Expr, correlated: Correlated, names: Correlation, alias: Callable[[], str]) -> None:
        self._node = node
        self._query = node.this
        self._correlated = correlated
        self._names = names
        self._prefix = alias()
        self._called = node.alias or self._prefix
        self._hidden: dict[exp.Expr, str] = {}
        self.outer: list[exp.Column] = []
        """The columns of earlier tables in the conditions."""

    def conditions(self) -> list[exp.Expr]:
        """Returns the conditions over the columns of the table that `table` returns."""
        inner = self._names.sources_of(self._query)

        def own(part: exp.Expr) -> exp.Expr:
            if not isinstance(part, exp.Column):
                return part
            if self._names.is_own(part, inner):
                return self._column(part)
            self.outer.append(part)
            return part

        for _, outer in self._correlated.keys:
            self.outer += trees.columns_in(outer)
        found: list[exp.Expr] = [
            exp.EQ(this=self._column(key), expression=outer.copy()) for key, outer in self._correlated.keys
        ]
        return [*found, *(trees.mapped(condition.copy(), own) for condition in self._correlated.others)]

    def table(self) -> exp.Expr:
        """Returns the derived table, which has the columns of the conditions, and no longer the conditions."""
        rows = self._query.copy()
        hidden = [
            trees.placed(exp.Alias(this=tree.copy(), alias=trees.identifier(name)), position(tree))
            for tree, name in self._hidden.items()
        ]
        rows.set("expressions", [*rows.expressions, *hidden])
        own = [term.copy() for term in self._correlated.own]
        rows.set("where", exp.Where(this=trees.chained(own, exp.And)) if own else None)
        group = rows.args.get("group")
        if group is not None and not group.args.get("all"):
            group.set("expressions", [*group.expressions, *(key.copy() for key, _ in self._correlated.keys)])
        table = self._node.copy()
        table.set("this", rows)
        alias = table.args.get("alias")
        if alias is None:
            table.set("alias", exp.TableAlias(this=trees.identifier(self._called)))
        elif alias.args.get("columns"):
            names = [trees.identifier(name) for name in self._hidden.values()]
            alias.set("columns", [*alias.args["columns"], *names])
        return table

    def _column(self, tree: exp.Expr) -> exp.Column:
        name = self._hidden.setdefault(tree, f"{self._prefix}_{len(self._hidden) + 1}")
        return trees.column(self._called, name, position(tree))
