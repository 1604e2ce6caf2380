"""Replaces subqueries in ON of joins: those of inner joins move to WHERE, others become columns of a joined table.

`t LEFT JOIN u ON t.k = u.k AND u.v IN (SELECT …)` is `t LEFT JOIN (SELECT *, v IN (SELECT …) AS m FROM u) AS u ON
t.k = u.k AND u.m`.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from service.sql.expressions.nodes import Name
from service.sql.expressions.reader import position
from service.sql.parser import Text
from service.sql.statements import trees
from service.sql.statements.subqueries.correlation import Correlation
from service.sql.statements.subqueries.domain import Domain
from service.sql.statements.tables.from_clause import Sources

MARKED = "subqueries in ON of outer joins"
"""What `Origins.constructs` contains for a query that workers before version 16 refuse."""


def without_subqueries_in_on(
    select: exp.Select, source: Text, sources: Callable[[exp.Select], Sources], alias: Callable[[], str]
) -> tuple[exp.Select, bool]:
    """Returns `select` with no subquery in ON of its joins, and whether a joined table has a column for one.

    `sources` reads FROM of a SELECT, and `alias` returns an unused alias. Raises SpecError `unsupported_construct` for
    a subquery that reads several of the joined tables.
    """
    if not any(trees.has_subquery(join.args.get("on")) for join in select.args.get("joins") or []):
        return select, False
    marking = _Marking(select.copy(), source, sources, alias)
    return _moved_to_where(marking.result(), source), marking.is_changed


class _Marking:
    def __init__(
        self, select: exp.Select, source: Text, sources: Callable[[exp.Select], Sources], alias: Callable[[], str]
    ) -> None:
        self.is_changed = False
        self._select = select
        self._source = source
        self._alias = alias
        self._read = sources
        self._hidden: list[tuple[str, exp.Column]] = []

    def result(self) -> exp.Select:
        """Returns the SELECT with columns for the subqueries that cannot move to WHERE, where that is possible."""
        joins = self._select.args.get("joins") or []
        for index, join in enumerate(joins):
            nodes = list(trees.subqueries_in(join.args.get("on")))
            if not nodes or _can_move(joins, index):
                continue
            for node in nodes:
                self._mark(index, _with_not(node))
        for item in trees.stars_of(self._select):
            star = item.this if isinstance(item, exp.Column) else item
            tables = {item.table.casefold()} if isinstance(item, exp.Column) else None
            hidden = [column.copy() for table, column in self._hidden if tables is None or table.casefold() in tables]
            if hidden:
                star.set("except_", [*(star.args.get("except_") or []), *hidden])
        return self._select

    def _mark(self, index: int, node: exp.Expr) -> None:
        table = self._table_of(index, node)
        if table is None:
            return
        part = self._part(table)
        name = self._alias()
        item = exp.Alias(this=node.copy(), alias=trees.identifier(name))
        column = trees.column(table, name, position(node))
        node.replace(column.copy())
        old = part.this
        if isinstance(old, exp.Table) and old.args.get("alias") is None:
            old.set("alias", exp.TableAlias(this=trees.identifier(table)))
        rows = exp.Select(expressions=[exp.Star(), item], from_=exp.From(this=old.copy()))
        trees.placed(rows, position(old))
        new = exp.Subquery(this=rows, alias=exp.TableAlias(this=trees.identifier(table)))
        part.set("this", trees.placed(new, position(old)))
        self._hidden.append((table, column))
        self.is_changed = True

    def _table_of(self, index: int, node: exp.Expr) -> str | None:
        """Returns the only table that the subquery and the values next to it read, the joined one if they read none."""
        clause, joins = self._select.args["from_"], self._select.args.get("joins") or []
        tables = [clause, *joins[: index + 1]]
        stripped = exp.Select(expressions=[exp.Star()], from_=clause.copy())
        stripped.set("joins", [exp.Join(this=join.this.copy(), kind="CROSS") for join in joins[: index + 1]])
        known = self._read(stripped)
        domain = Domain(stripped, Correlation(known, self._source, self._read), self._source, self._alias, set())
        read = {self._table(column, known) for column in trees.columns_in(node)}
        for query in node.find_all(exp.Query):
            if not any(isinstance(around, exp.Query) for around in _between(query, node)):
                read |= {self._table(column, known) for column in domain.columns_read(trees.query_in(query))}
        names = [part.this.alias_or_name for part in tables]
        if len(read) > 1 or not read <= set(names):
            return None
        found = read.pop() if read else names[-1]
        place = names.index(found)
        # In rows of NULLs that an earlier join adds, the column would be NULL.
        is_nullable = place > 0 and place <= index and joins[place - 1].side.upper() in {"LEFT", "FULL"}
        is_nullable |= any(join.side.upper() in {"RIGHT", "FULL"} for join in joins[place:index])
        return None if is_nullable else found

    def _table(self, column: exp.Column, known: Sources) -> str:
        first, *rest = (part.name for part in column.parts)
        name = Name(first if rest else None, rest[0] if rest else first, position(column))
        around = known.scope.column_around(name)
        return known.scope.locate(around or name, self._source)[0]

    def _part(self, table: str) -> exp.Expr:
        parts: list[exp.Expr] = [self._select.args["from_"], *(self._select.args.get("joins") or [])]
        return next(part for part in parts if part.this.alias_or_name == table)


def _between(node: exp.Expr, top: exp.Expr) -> list[exp.Expr]:
    found, around = [], node.parent
    while around is not None and node is not top and around is not top:
        found.append(around)
        around = around.parent
    return found


def _with_not(node: exp.Expr) -> exp.Expr:
    """Returns `node` with NOT and the parentheses around it: NOT IN is not the opposite of IN where a value is NULL."""
    around = node
    while isinstance(around.parent, exp.Not | exp.Paren):
        around = around.parent
    return around


def _can_move(joins: list[exp.Join], index: int) -> bool:
    """Whether the condition of a join means the same in WHERE."""
    return _is_inner(joins[index]) and all(each.side.upper() not in {"RIGHT", "FULL"} for each in joins[index + 1 :])


def _moved_to_where(select: exp.Select, source: Text) -> exp.Select:
    """Returns `select` with the conditions of inner joins that have subqueries in WHERE, where they mean the same.

    Raises SpecError `unsupported_construct` for a subquery in ON of another join.
    """
    joins = select.args.get("joins") or []
    if any(trees.has_subquery(join.args.get("on")) for join in joins):
        select = select.copy()
        joins = select.args["joins"]
    for index, join in enumerate(joins):
        node = next(trees.subqueries_in(join.args.get("on")), None)
        if node is None:
            continue
        if not _can_move(joins, index):
            what = "A subquery over several tables in ON of an outer, semi or anti join, or before RIGHT or FULL JOIN,"
            raise source.unsupported(what, at=position(node), hint="Write it as a derived table in FROM, and join it.")
        terms = trees.terms(join.args["on"], exp.And)
        kept = [term for term in terms if not trees.has_subquery(term)]
        where = select.args.get("where")
        moved = [*([where.this] if where is not None else []), *(term for term in terms if trees.has_subquery(term))]
        join.set("on", trees.chained(kept, exp.And) if kept else exp.Boolean(this=True))
        select.set("where", exp.Where(this=trees.chained(moved, exp.And)))
    return select


def _is_inner(join: exp.Join) -> bool:
    return not join.side and join.kind.upper() in {"", "INNER", "CROSS"} and not isinstance(join.this, exp.Lateral)
