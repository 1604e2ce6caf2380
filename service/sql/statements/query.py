"""Compiles nested queries: derived tables, common table expressions, UNION, and DISTINCT over aggregates.

Each becomes a source of the structured query. A common table expression is compiled again for every use; an unused one
is compiled once, to report its errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from service.contract.query import BRANCHES, NODES, QUERIES, QUERY_DEPTH, Query, QueryRef, UnionRef
from service.sql.expressions.compile_expression import TableScope
from service.sql.expressions.reader import position
from service.sql.parser import Text, place_of
from service.sql.refusals import CLAUSE_HINTS, CLAUSES, PARENTHESES
from service.sql.statements.clauses import over_columns
from service.sql.statements.from_clause import Sources, Visible, name_of, read_from
from service.sql.statements.select import Origins, SelectCompiler, WrittenNodes
from service.sql.types.data_types import NULL, Field, Schema

_KEYWORDS = {"locks": TokenType.FOR, "kind": TokenType.SELECT, "windows": TokenType.WINDOW}
"""The keywords that locate clauses whose nodes have no offset."""
_SELECT = frozenset(
    {"expressions", "from_", "joins", "where", "group", "having", "order", "limit", "distinct", "with_", "hint"}
)
_UNION = frozenset({"this", "expression", "distinct", "order", "limit", "with_"})
_SUBQUERY = frozenset({"this", "alias", "order", "limit", "with_"})
_MODIFIERS = ("order", "limit", "with_")
_INSTEAD = {
    exp.Except: "Write SELECT DISTINCT with a LEFT ANTI JOIN. NULL matches no key: replace it by COALESCE.",
    exp.Intersect: "Write SELECT DISTINCT with a LEFT SEMI JOIN. NULL matches no key: replace it by COALESCE.",
}
_MAX_UNDERSCORES = 64
"""If a text has more underscores after the word `derived`, generated names get a number instead, to stay short."""


@dataclass(frozen=True)
class Cte:
    """A common table expression, and those defined before it, which it may use."""

    name: str
    tree: exp.Expr
    columns: tuple[str, ...]
    before: Mapping[str, Cte]


class QueryCompiler:
    """Compiles the queries of one text, and records the places of their parts in `origins`."""

    def __init__(self, source: Text, schemas: Mapping[str, Schema]) -> None:
        self.origins = Origins()
        self._source = source
        self._schemas = schemas
        self._queries = 0
        self._columns_written = 0
        self._written = WrittenNodes(source)
        self._ctes: list[Cte] = []
        self._used: set[int] = set()
        self._unnamed = _absent_from(source.text.casefold())

    def query(
        self, tree: exp.Expr, ctes: Mapping[str, Cte], at: str = "", depth: int = 1, *, later: bool = False
    ) -> Query:
        """Compiles `tree`, which may use `ctes`, into a structured query; `at` is its JSON pointer. Raises SpecError.

        `later`: the query is not the first of a UNION, so its column names are not used.
        """
        tree = _bare(tree)
        if not isinstance(tree, exp.Query):
            what, hint = PARENTHESES["join" if tree.args.get("joins") else "table"]
            raise self._source.unsupported(what, at=position(tree), hint=hint)
        self._enter(tree, at, depth)
        ctes = self._with(tree, ctes)
        if isinstance(tree, exp.Select):
            return self._select(tree, ctes, at, depth, later)
        ref = (
            self._united(tree, self._unnamed, (), ctes, f"{at}/source", depth)
            if isinstance(tree, exp.SetOperation)
            else self._nested(tree.this, self._unnamed, (), ctes, f"{at}/source", depth)
        )
        around = exp.Select(expressions=[exp.Star()], order=tree.args.get("order"), limit=tree.args.get("limit"))
        if tree.args.get("distinct"):
            around.set("distinct", exp.Distinct())
        return SelectCompiler(self._source, around, _only(ref), at, self.origins, self._written).query()

    def unused(self) -> tuple[Query, ...]:
        """Compiles the common table expressions that no query has used; their pointers are `/unused/<index>`."""
        found: list[Query] = []
        while left := [cte for cte in self._ctes if id(cte.tree) not in self._used]:
            # The last one first: each may use those before it.
            cte = left[-1]
            self._used.add(id(cte.tree))
            query = self.query(cte.tree, cte.before, f"/unused/{len(found)}", 2)
            self._check_columns(query, cte.name, cte.columns, cte.tree)
            found.append(query)
        return tuple(found)

    def _enter(self, tree: exp.Expr, at: str, depth: int) -> None:
        self._queries += 1
        place = position(tree)
        if at and place is not None:
            self.origins.places[at] = place
        if depth > QUERY_DEPTH.most:
            raise self._source.beyond(QUERY_DEPTH, at=place)
        if self._queries > QUERIES.most:
            raise self._source.beyond(QUERIES, at=place)

    def _with(self, tree: exp.Expr, ctes: Mapping[str, Cte]) -> Mapping[str, Cte]:
        clause = tree.args.get("with_")
        if clause is None:
            return ctes
        if clause.args.get("recursive"):
            raise self._source.unsupported(
                "WITH RECURSIVE", at=position(clause), hint="Write one common table expression per level."
            )
        if len(clause.expressions) > QUERIES.most:
            raise self._source.beyond(QUERIES, len(clause.expressions), at=position(clause))
        known, here = dict(ctes), set[str]()
        for cte in clause.expressions:
            at = position(cte.args["alias"])
            name = name_of(cte.args["alias"].this, self._source, at)
            if name.casefold() in here:
                detail = f"Two common table expressions are called {name}. Rename one of them."
                raise self._source.error("duplicate_table", detail, at=at)
            here.add(name.casefold())
            columns = self._columns(cte.args["alias"], at)
            known[name.casefold()] = Cte(name, cte.this, columns, dict(known))
            self._ctes.append(known[name.casefold()])
        return known

    def _columns(self, alias: exp.Expr | None, at: int | None) -> tuple[str, ...]:
        columns = alias.args.get("columns") if alias is not None else None
        return tuple(name_of(column, self._source, at) for column in columns or ())

    # SELECT

    def _select(self, select: exp.Select, ctes: Mapping[str, Cte], at: str, depth: int, later: bool) -> Query:
        self._check(select, _SELECT)
        compiler = self._compiler(select, ctes, at, depth, later)
        # Stars are counted as their columns here; in the text each is one node.
        self._columns_written += len(compiler.items)
        if self._columns_written > NODES.most:
            raise self._source.beyond(NODES, at=position(select))
        if not compiler.repeats_aggregates():
            return compiler.query()
        # DISTINCT, ORDER BY and LIMIT move into a query around this one.
        inner_at = f"{at}/source/query"
        self.origins.move(at, inner_at)
        parts = {key: value for key, value in select.args.items() if key not in {"distinct", *_MODIFIERS}}
        inner = SelectCompiler(
            self._source,
            exp.Select(**parts),
            compiler.sources,
            inner_at,
            self.origins,
            self._written,
            repeats_names=compiler.repeats_names,
        )
        ref = QueryRef(kind="query", query=inner.query(), alias=self._unnamed)
        kept = {key: select.args.get(key) for key in ("distinct", "order", "limit")}
        around = exp.Select(expressions=[exp.Star()], **kept)
        order = over_columns(compiler.order(), compiler.items, self._unnamed, self._source)
        return SelectCompiler(self._source, around, _only(ref), at, self.origins, self._written, order).query()

    def _compiler(
        self, select: exp.Select, ctes: Mapping[str, Cte], at: str, depth: int, later: bool
    ) -> SelectCompiler:
        def derived(node: exp.Expr, pointer: str) -> tuple[QueryRef | UnionRef, Schema] | None:
            ref = self._derived(node, ctes, pointer, depth)
            return (ref, columns_of(ref)) if ref is not None else None

        sources = read_from(select, self._source, self._schemas, derived, at)
        # ORDER BY and HAVING may use the name of a column.
        repeats = later and not (select.args.get("order") or select.args.get("having"))
        return SelectCompiler(self._source, select, sources, at, self.origins, self._written, repeats_names=repeats)

    def _check(self, tree: exp.Expr, known: frozenset[str]) -> None:
        for key, value in tree.args.items():
            if not value or key in known:
                continue
            first = value[0] if isinstance(value, list) else value
            place = position(first) if isinstance(first, exp.Expr) else None
            if place is None and key in _KEYWORDS:
                place = place_of(self._source, _KEYWORDS[key], position(tree))
            construct = CLAUSES.get(key, f"The clause {key.upper()}")
            raise self._source.unsupported(construct, at=place, hint=CLAUSE_HINTS.get(key, ""))

    # Queries in FROM

    def _derived(self, node: exp.Expr, ctes: Mapping[str, Cte], at: str, depth: int) -> QueryRef | UnionRef | None:
        """Compiles `node` of FROM if it is a derived table or a common table expression; else returns None."""
        place = position(node)
        alias = node.args.get("alias")
        columns = self._columns(alias, place)
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query):
            self._check(node, _SUBQUERY)
            called = (
                name_of(alias.this, self._source, place) if alias is not None else f"{self._unnamed}_{self._queries}"
            )
            tree: exp.Expr = node if any(node.args.get(key) for key in _MODIFIERS) else node.this
        else:
            cte = ctes.get(node.name.casefold()) if isinstance(node, exp.Table) and not node.args.get("db") else None
            if cte is None:
                return None
            self._check(node, frozenset({"this", "alias"}))
            called = name_of(alias.this, self._source, place) if alias is not None else cte.name
            self._used.add(id(cte.tree))
            tree, columns, ctes = cte.tree, columns or cte.columns, cte.before
        tree = _bare(tree)
        if isinstance(tree, exp.Union) and not any(tree.args.get(key) for key in ("distinct", *_MODIFIERS)):
            return self._united(tree, called, columns, ctes, at, depth)
        return self._nested(tree, called, columns, ctes, at, depth)

    def _nested(
        self, tree: exp.Expr, alias: str, columns: tuple[str, ...], ctes: Mapping[str, Cte], at: str, depth: int
    ) -> QueryRef:
        query = self.query(tree, ctes, f"{at}/query", depth + 1)
        self._check_columns(query, alias, columns, tree)
        return QueryRef(kind="query", query=query, alias=alias, columns=columns)

    def _united(
        self, tree: exp.SetOperation, alias: str, columns: tuple[str, ...], ctes: Mapping[str, Cte], at: str, depth: int
    ) -> UnionRef:
        """Compiles the branches of a UNION; the caller applies DISTINCT, ORDER BY and LIMIT."""
        branches = self._branches(tree)
        queries = tuple(
            self.query(branch, ctes, f"{at}/queries/{index}", depth + 1, later=index > 0)
            for index, branch in enumerate(branches)
        )
        self._check_columns(queries[0], alias, columns, tree)
        return UnionRef(kind="union_all", queries=queries, alias=alias, columns=columns)

    def _check_columns(self, query: Query, alias: str, columns: tuple[str, ...], tree: exp.Expr) -> None:
        if columns and len(columns) != len(query.select):
            detail = (
                f"{alias} has {len(query.select)} columns, but the list after its name has {len(columns)}. Name every "
                "column once."
            )
            raise self._source.error("unsupported_construct", detail, at=position(tree))

    def _branches(self, tree: exp.SetOperation) -> list[exp.Expr]:
        """Returns the queries of a UNION, left to right; if `tree` is DISTINCT, UNION ALL below it is included too."""
        found: list[exp.Expr] = []
        current: exp.Expr = tree
        while isinstance(current, exp.SetOperation):
            if not isinstance(current, exp.Union):
                construct = current.key.upper()
                hint = _INSTEAD.get(type(current), "")
                raise self._source.unsupported(construct, at=position(current.expression), hint=hint)
            self._check(current, _UNION)
            if current is not tree and current.args.get("distinct") and not tree.args.get("distinct"):
                break
            found.append(current.expression)
            current = current.this
        branches = [current, *reversed(found)]
        if len(branches) > BRANCHES.most:
            raise self._source.beyond(BRANCHES, len(branches), at=position(branches[BRANCHES.most]))
        for branch in branches:
            self._check_branch(branch)
        return branches

    def _check_branch(self, branch: exp.Expr) -> None:
        """Raises SpecError if a branch of a UNION has ORDER BY or LIMIT without parentheses around the branch."""
        clause = branch.args.get("order") or branch.args.get("limit")
        if isinstance(branch, exp.Select) and clause is not None:
            keyword = "ORDER BY" if isinstance(clause, exp.Order) else "LIMIT"
            raise self._source.unsupported(
                f"{keyword} before UNION",
                at=position(clause),
                hint=f"Enclose the query in parentheses, or write {keyword} at the end, for the rows of all queries.",
            )


def _absent_from(text: str) -> str:
    """Returns a prefix for generated names of queries that does not occur in the case-folded `text` as one.

    >>> _absent_from("select 1 from (select 2 from t)"), _absent_from("select k from derived_1")
    ('derived', 'derived__')
    """
    # A look-ahead, because occurrences may overlap: "derivederived" has two.
    runs = [len(run) for run in re.findall("(?=derived(_*))", text)]
    longest = max(runs, default=-1)
    if longest < _MAX_UNDERSCORES:
        return "derived" + "_" * (longest + 1)
    numbers = frozenset(re.findall("derived_([0-9]+)_", text))
    return next(f"derived_{number}_" for number in count(1) if str(number) not in numbers)


def _bare(tree: exp.Expr) -> exp.Expr:
    """Returns `tree` without parentheses that only contain a query."""
    while isinstance(tree, exp.Subquery) and not any(tree.args.get(key) for key in _MODIFIERS):
        tree = tree.this
    return tree


def columns_of(ref: QueryRef | UnionRef) -> Schema:
    """Returns the columns of a compiled source; their types are not known before the query is bound."""
    first = ref.query if isinstance(ref, QueryRef) else ref.queries[0]
    names = ref.columns or tuple(item.name for item in first.select)
    return Schema(tuple(Field(name, NULL) for name in names))


def _only(ref: QueryRef | UnionRef) -> Sources:
    schema = columns_of(ref)
    scope = TableScope({ref.alias: schema}, unnamed=frozenset({ref.alias}))
    return Sources(ref, (), scope, partial(Visible.of_table, ref.alias, schema))
