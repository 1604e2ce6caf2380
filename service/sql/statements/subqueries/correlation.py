"""Finds what a subquery, or a query after LATERAL, reads of the tables of the query around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from service.contract.problems import SpecError
from service.sql.expressions.compile_expression import matching
from service.sql.expressions.nodes import Name
from service.sql.expressions.reader import position
from service.sql.parser import Text
from service.sql.statements import trees
from service.sql.statements.tables.from_clause import Sources


@dataclass
class Correlated:
    """The conditions in WHERE of a subquery: over its own tables; equalities of an expression over its own tables with
    one over the outer tables; others over both.
    """

    own: list[exp.Expr]
    keys: list[tuple[exp.Expr, exp.Expr]]
    others: list[exp.Expr]

    @property
    def is_empty(self) -> bool:
        """Whether no condition reads the outer query."""
        return not self.keys and not self.others


class Correlation:
    """Resolves the names of the subqueries of a query that reads `outer`; `sources` reads FROM of a subquery."""

    def __init__(self, outer: Sources, source: Text, sources: Callable[[exp.Select], Sources]) -> None:
        self._outer = outer
        self._source = source
        self._sources = sources
        self._read: dict[int, tuple[exp.Select, Sources]] = {}

    def conditions(self, query: exp.Expr) -> Correlated:
        """Returns the conditions of a subquery, by the tables that they read."""
        found = Correlated([], [], [])
        if not isinstance(query, exp.Select):
            return found
        where = query.args.get("where")
        if where is None or next(trees.columns_in(where), None) is None:
            return found
        inner = self.sources_of(query)
        for term in trees.factored(where.this):
            if not self.reads_outside(term, inner):
                found.own.append(term)
                continue
            pair = self._equality(term, inner)
            if pair is not None:
                found.keys.append(pair)
            else:
                found.others.append(term)
        if found.is_empty:
            found.own.clear()
        return found

    def sources_of(self, query: exp.Select) -> Sources:
        """Returns the tables of a subquery."""
        if id(query) not in self._read:
            # The reference to the query prevents the reuse of its id.
            self._read[id(query)] = query, self._sources(query)
        return self._read[id(query)][1]

    def reads_outside(self, node: exp.Expr, inner: Sources) -> bool:
        """Whether an expression of a subquery with the tables `inner` has a column of the outer query."""
        return any(not self.is_own(column, inner) for column in trees.columns_in(node))

    def is_own(self, node: exp.Column, inner: Sources) -> bool:
        """Whether a column of a subquery is one of its own tables. An unknown one is; compiling it raises the error."""
        name = _name_of(node)
        if _can_read(inner, name, self._source):
            return True
        is_of_inner = name.qualifier is None or matching(name.qualifier, inner.scope.tables) is not None
        if not is_of_inner and matching(name.qualifier or "", self._outer.scope.tables) is not None:
            # Raises an error with the nearest names of the outer query if it has no such column.
            self._outer.qualify(name, self._source)
        return not _can_read(self._outer, name, self._source)

    def is_of(self, node: exp.Column, inner: Sources) -> bool:
        """Whether the tables `inner` have the column that `node` names."""
        return _can_read(inner, _name_of(node), self._source)

    def is_outer(self, node: exp.Column) -> bool:
        """Whether the outer query has the column that `node` names."""
        return _can_read(self._outer, _name_of(node), self._source)

    def _equality(self, term: exp.Expr, inner: Sources) -> tuple[exp.Expr, exp.Expr] | None:
        bare = term.unnest()
        if not isinstance(bare, exp.EQ) or trees.has_subquery(bare):
            return None
        left, right = self._sides(bare.this, inner), self._sides(bare.expression, inner)
        if left == {False} and right == {True}:
            return bare.this, bare.expression
        if left == {True} and right == {False}:
            return bare.expression, bare.this
        return None

    def _sides(self, node: exp.Expr, inner: Sources) -> set[bool]:
        """Returns whether the columns of `node` are those of the outer query."""
        return {not self.is_own(column, inner) for column in trees.columns_in(node)}


def _name_of(node: exp.Column) -> Name:
    first, *rest = (part.name for part in node.parts)
    return Name(first if rest else None, rest[0] if rest else first, position(node))


def _can_read(sources: Sources, name: Name, source: Text) -> bool:
    try:
        sources.qualify(name, source)
    except SpecError as error:
        return error.code == "ambiguous_column"
    return True
