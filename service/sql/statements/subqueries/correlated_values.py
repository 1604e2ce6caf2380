"""Subqueries that are values and depend on the row of the query around: their value, or their rows for each key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from service.contract.problems import SpecError
from service.sql.expressions.reader import position
from service.sql.parser import Text
from service.sql.statements import trees
from service.sql.statements.clauses.row_limits import read_limit, read_offset
from service.sql.statements.subqueries.correlation import Correlated, Correlation
from service.sql.statements.subqueries.keyed_rows import KeyedRows

CORRELATED = "more correlated subqueries"
"""What `Origins.constructs` contains for a query with a correlated subquery that workers before version 15 refuse."""

CLAUSES_OF_ROWS = "DISTINCT next to LIMIT, windows and aliases of correlated rows"
"""What `Origins.constructs` contains for a query with a correlated subquery that workers before version 17 refuse."""

_JOIN = "Otherwise, write it as a derived table in FROM, and join it."


@dataclass(frozen=True)
class CorrelatedValue:
    """A SELECT of one column, which `correlated` compares with the query around; `names` resolves its names."""

    query: exp.Select
    correlated: Correlated
    names: Correlation
    source: Text

    @property
    def _is_one_row(self) -> bool:
        return trees.is_aggregated(self.query) and not self.query.args.get("group")

    @property
    def is_new(self) -> bool:
        """Whether workers before version 15 refuse the query."""
        return any(self.query.args.get(key) for key in ("group", "having", "limit", "offset", "distinct"))

    @property
    def has_rows_by_key(self) -> bool:
        """Whether the value is not one of aggregates over all rows of a key, and has clauses that choose its rows."""
        return self.is_new and not self._is_one_row

    @property
    def has_alias_of_column(self) -> bool:
        """Whether HAVING has the alias of the column, which is a column of the tables too, outside of aggregates."""
        having, alias = self.query.args.get("having"), self.query.expressions[0].alias.casefold()
        if having is None or not alias or not self._is_one_row:
            return False
        outside = trees.mapped_calls(having.this.copy(), lambda _call: exp.Null())
        inner = self.names.sources_of(self.query)
        named = (each for each in trees.columns_in(outside) if not each.table and each.name.casefold() == alias)
        return any(self.names.is_of(column, inner) for column in named)

    def item(self) -> exp.Expr:
        """Returns the expression of the value over the rows of a key; with HAVING, it is NULL if that is not true.

        Raises SpecError `unsupported_construct`, and `not_grouped` for a column next to aggregates.
        """
        selected = self.query.expressions[0]
        item: exp.Expr = selected.unalias().copy()
        having = self.query.args.get("having")
        if self._is_one_row and not keeps_first_row(self.query, self.source):
            raise self._refused("LIMIT 0 or OFFSET of a single row", f"Leave it out. {_JOIN}")
        if having is not None:
            condition = trees.mapped(having.this.copy(), lambda part: self._value_of_alias(part, selected))
            item = exp.Case(ifs=[exp.If(this=condition, true=item)])
        if self._is_one_row:
            self._check_grouped(item)
        return item

    def rows_by_key(self, alias: Callable[[], str]) -> tuple[exp.Select, bool]:
        """Returns a query of the keys and, if each key has at most one row, its value, else the number of its rows and
        one of their values; and whether it is the former. `alias` returns an unused alias. Raises SpecError.
        """
        self._check_clauses()
        inner, name = alias(), alias()
        keys = [
            exp.Alias(this=key.copy(), alias=trees.identifier(f"{name}_{number}"))
            for number, (key, _) in enumerate(self.correlated.keys, start=1)
        ]
        rows = KeyedRows(self.names, self.source, self._refused).rows(
            self.query, [self.query.expressions[0], *keys], self.correlated
        )
        names = [f"{inner}_{number}" for number in range(len(keys) + 1)]
        value, *own = (trees.column(inner, each, position(self.query)) for each in names)
        around = exp.Select(from_=trees.from_query(rows, inner, names))
        is_single = read_limit(self.query, self.source) == 1
        if is_single:
            around.set("expressions", [*own, value])
        else:
            values = [trees.call("COUNT", exp.Star()), trees.call("MIN", value)]
            around.set("expressions", [*own, *values])
            around.set("group", exp.Group(expressions=[key.copy() for key in own]))
        return around, is_single

    def _value_of_alias(self, part: exp.Expr, selected: exp.Expr) -> exp.Expr:
        """Returns the expression of the column if `part` is its alias, which cannot stand in an aggregate."""
        if trees.function_of(part) in trees.AGGREGATES:
            # A changed part is not visited.
            return part.copy()
        is_alias = isinstance(part, exp.Column) and not part.table and part.name.casefold() == selected.alias.casefold()
        if not isinstance(part, exp.Column) or not is_alias:
            return part
        return exp.Paren(this=selected.unalias().copy())

    def _check_grouped(self, item: exp.Expr) -> None:
        without_calls = trees.mapped_calls(item.copy(), lambda _call: exp.Null())
        for column in trees.columns_in(without_calls):
            if self.names.is_own(column, self.names.sources_of(self.query)):
                detail = f"{column.sql()[:60]} stands outside of aggregates. Write it in an aggregate, such as MAX(…)."
                raise self.source.error("not_grouped", detail, at=position(column))

    def _check_clauses(self) -> None:
        query = self.query
        if query.args.get("having") and not query.args.get("group"):
            raise self._refused("HAVING without GROUP BY or an aggregate", "Use WHERE.")
        if trees.has_grouping_sets(query):
            raise self._refused("Grouping sets in such a subquery", "Group by columns.")
        if query.args.get("distinct") and any(query.args.get(key) for key in ("limit", "offset")):
            hint = f"Leave out DISTINCT, or write it in a derived table, in the FROM of the subquery. {_JOIN}"
            raise self._refused("DISTINCT next to LIMIT in such a subquery", hint)
        inner = self.names.sources_of(query)
        parts = [*query.expressions, *(query.args.get(key) for key in ("group", "having", "order"))]
        parts += [join.args.get("on") for join in query.args.get("joins") or []]
        for part in parts:
            if part is not None and self.names.reads_outside(part, inner):
                what = "A column of the outer query outside of WHERE, next to GROUP BY, DISTINCT or LIMIT,"
                hint = "Use columns of the subquery's own tables, and compute with both in the query around it."
                raise self._refused(what, hint, part)

    def _refused(self, construct: str, hint: str, node: exp.Expr | None = None) -> SpecError:
        at = position(node) if node is not None else None
        return self.source.unsupported(construct, at=position(self.query) if at is None else at, hint=hint)


def keeps_first_row(query: exp.Select, source: Text) -> bool:
    """Whether LIMIT and OFFSET of `query` keep the first row, if there is one."""
    limit = read_limit(query, source)
    return (limit is None or limit > 0) and not read_offset(query, source)
