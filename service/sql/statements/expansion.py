"""Limits the size of a query once aliases and common table expressions are replaced, without expanding them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from service.contract.query import NODES, QUERIES, WRITTEN_NODES
from service.sql.expressions.nodes import Expression, NodeCounter, position_of
from service.sql.expressions.reader import position
from service.sql.parser import Text


@dataclass(frozen=True)
class _Size:
    """Numbers of SELECTs and of nodes of the syntax tree."""

    queries: int = 0
    nodes: int = 0

    def __add__(self, other: _Size) -> _Size:
        return _Size(self.queries + other.queries, self.nodes + other.nodes)


def check_expansion(tree: exp.Expr, source: Text) -> None:
    """Raises SpecError `query_too_deep` if the query `tree` is too large once common table expressions are expanded.

    Each one that uses the preceding one twice doubles the number of queries and nodes.
    """
    size = _size(tree, {})
    if size.queries > QUERIES.most:
        raise source.beyond(QUERIES, size.queries, at=position(tree))
    if size.nodes > NODES.most:
        raise source.beyond(NODES, size.nodes, at=position(tree))


def _size(query: exp.Expr, known: Mapping[str, _Size]) -> _Size:
    """Returns the size of `query`; `known` are the common table expressions that it may use, by case-folded name."""
    clause = query.args.get("with_")
    if clause is not None:
        known = dict(known)
        for cte in clause.expressions:
            known[cte.alias.casefold()] = _size(cte.this, known)
    found, queries, nodes = _Size(), 0, 0
    pending = [query]
    while pending:
        node = pending.pop()
        if node is not query and node.args.get("with_") is not None:
            found += _size(node, known)
            continue
        nodes += 1
        queries += isinstance(node, exp.Select)
        if isinstance(node, exp.Table) and not node.args.get("db"):
            found += known.get(node.name.casefold(), _Size())
        pending += [child for child in node.iter_expressions() if not isinstance(child, exp.With)]
    return found + _Size(queries, nodes)


class WrittenNodes:
    """Counts the nodes of the expressions of one text, with aliases of SELECT replaced by their expressions.

    An accepted text has no limit, because earlier versions did not have this limit.
    """

    def __init__(self, source: Text) -> None:
        self._source = source
        self._total = 0
        self._counter = NodeCounter()

    def count(self, *trees: Expression) -> None:
        """Adds the nodes of `trees`. Raises SpecError `query_too_deep` if the total is too large."""
        if self._source.is_accepted:
            return
        for tree in trees:
            self._total += self._counter.count(tree)
            if self._total > WRITTEN_NODES.most:
                raise self._source.beyond(WRITTEN_NODES, self._total, at=position_of(tree))
