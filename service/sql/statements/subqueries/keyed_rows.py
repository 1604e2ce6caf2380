"""Rewrites a query that depends on the query around it: it returns its rows for each key that it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlglot import exp

from service.contract.problems import SpecError
from service.sql.expressions.reader import position
from service.sql.parser import Text
from service.sql.statements import trees
from service.sql.statements.clauses.row_limits import is_whole, read_limit, read_offset
from service.sql.statements.subqueries.correlation import Correlated, Correlation

COLUMNS = "Compute it in a derived table with the columns of both tables, in the query around it."
"""What to do instead with an expression of both queries."""


class Refused(Protocol):
    """Returns the error for a construct, with a hint, at a node or at the whole query."""

    def __call__(self, construct: str, hint: str, node: exp.Expr | None = None) -> SpecError: ...


@dataclass(frozen=True)
class KeyedRows:
    """Rewrites a query whose names `names` resolves."""

    names: Correlation
    source: Text
    refused: Refused

    def rows(self, query: exp.Select, expressions: Sequence[exp.Expr], correlated: Correlated) -> exp.Select:
        """Returns `query` with the columns `expressions`, and without what it compares with the query around it:
        groups, windows, and the rows that LIMIT keeps are those of each key. Raises SpecError.
        """
        rows = query.copy()
        rows.set("expressions", [item.copy() for item in expressions])
        if not correlated.is_empty:
            own = [term.copy() for term in correlated.own]
            rows.set("where", exp.Where(this=trees.chained(own, exp.And)) if own else None)
        keys = [key for key, _ in correlated.keys]
        group = rows.args.get("group")
        if group is not None and not group.args.get("all"):
            group.set("expressions", [*group.expressions, *(key.copy() for key in keys)])
        elif group is None and trees.is_aggregated(query) and keys:
            rows.set("group", exp.Group(expressions=[key.copy() for key in keys]))
        for window in _windows_of(rows):
            window.set("partition_by", [*(window.args.get("partition_by") or []), *(key.copy() for key in keys)])
        if any(query.args.get(clause) for clause in ("limit", "offset")):
            rows.set("qualify", self._first_rows(query, keys))
        for clause in ("order", "limit", "offset"):
            rows.set(clause, None)
        return rows

    def _first_rows(self, query: exp.Select, keys: list[exp.Expr]) -> exp.Qualify:
        """Returns the condition for the rows of each key that ORDER BY, LIMIT and OFFSET of `query` keep."""
        if not keys:
            raise self.refused("LIMIT next to a column of an earlier table in SELECT", COLUMNS)
        kept, skipped = read_limit(query, self.source), read_offset(query, self.source)
        order = query.args.get("order")
        sorts = [self._sort(key, query) for key in order.expressions] if order is not None else []
        sorts = sorts or [exp.Ordered(this=keys[0].copy(), nulls_first=True)]
        number = exp.Window(
            this=exp.Anonymous(this="ROW_NUMBER", expressions=[]),
            partition_by=[key.copy() for key in keys],
            order=exp.Order(expressions=sorts),
            over="OVER",
        )
        conditions: list[exp.Expr] = []
        if skipped:
            conditions.append(exp.GT(this=number, expression=trees.number(skipped)))
        if kept is not None:
            conditions.append(exp.LTE(this=number.copy(), expression=trees.number(skipped + kept)))
        conditions = conditions or [exp.GT(this=number, expression=trees.number(0))]
        return exp.Qualify(this=trees.placed(trees.chained(conditions, exp.And), position(query)))

    def _sort(self, key: exp.Expr, query: exp.Select) -> exp.Expr:
        """Returns a key of ORDER BY, with the expressions of SELECT in place of their names and numbers."""
        if isinstance(key.this, exp.Var):
            raise self.refused("ALL in ORDER BY", "Name the columns.", key)
        if is_whole(key.this):
            return self._numbered(key, query)
        named = {item.alias.casefold(): item for item in query.expressions if isinstance(item, exp.Alias)}
        inner = self.names.sources_of(query)

        def selected(part: exp.Expr) -> exp.Expr:
            item = named.get(part.name.casefold()) if isinstance(part, exp.Column) and not part.table else None
            if item is None:
                return part
            if self.names.reads_outside(item, inner):
                hint = "Order by columns of the query's own tables."
                raise self.refused("ORDER BY and LIMIT by a column of an earlier table", hint, key)
            return trees.placed(item.this.copy(), position(part))

        found = key.copy()
        found.set("this", trees.mapped(key.this.copy(), selected))
        return found

    def _numbered(self, key: exp.Expr, query: exp.Select) -> exp.Expr:
        number = int(key.this.name[:6])
        if not 1 <= number <= len(query.expressions) or any(item.is_star for item in query.expressions[:number]):
            raise self.refused("This number in ORDER BY", "Name the column.", key)
        found = key.copy()
        found.set("this", trees.placed(query.expressions[number - 1].unalias().copy(), position(key.this)))
        return found


def _windows_of(query: exp.Select) -> list[exp.Window]:
    """Returns the calls with OVER of a query, without those of queries in it."""
    nodes = query.walk(prune=lambda node: isinstance(node, exp.Query) and node is not query)
    return [node for node in nodes if isinstance(node, exp.Window)]
