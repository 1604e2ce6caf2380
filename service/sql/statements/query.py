"""Compiles nested queries: derived tables, common table expressions, subqueries, set operations, QUALIFY, and DISTINCT
over aggregates and calls with OVER.

Each becomes a source of the structured query. A common table expression is compiled again for every use; an unused one
is compiled once, to report its errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from service.contract.query import (
    BRANCHES,
    GROUP_KEYS,
    NODES,
    QUERIES,
    QUERY_DEPTH,
    AggregateCall,
    AggregateFunction,
    JoinKind,
    NamedExpression,
    Query,
    QueryRef,
    RecursiveRef,
    RowsRef,
    SetKind,
    UnionRef,
)
from service.sql.expressions.compile_expression import TableScope
from service.sql.expressions.nodes import Name
from service.sql.expressions.reader import position
from service.sql.expressions.scalar import render
from service.sql.expressions.window_functions import with_named_windows
from service.sql.parser import Text, place_of
from service.sql.refusals import CLAUSE_HINTS, CLAUSES, parentheses_around
from service.sql.statements import trees
from service.sql.statements.clauses.lists import over_columns
from service.sql.statements.clauses.select import SelectCompiler
from service.sql.statements.expansion import WrittenNodes
from service.sql.statements.nested import Nested, Unnested
from service.sql.statements.origins import Origins
from service.sql.statements.recursion import levels_of, refers_to, united_parts
from service.sql.statements.references import absent_from, columns_of, renamed
from service.sql.statements.session_windows import SESSION, has_session, with_sessions
from service.sql.statements.subqueries.computed_first import computed_first
from service.sql.statements.subqueries.groups import joined_to_groups
from service.sql.statements.subqueries.join_subqueries import MARKED, without_subqueries_in_on
from service.sql.statements.subqueries.joined import unnest
from service.sql.statements.subqueries.lateral import read_lateral
from service.sql.statements.subqueries.subquery_trees import may_have_subqueries
from service.sql.statements.tables.from_clause import (
    Before,
    Derivation,
    LateralTable,
    Readers,
    Sources,
    name_of,
    read_from,
    with_views,
)
from service.sql.statements.tables.generators import is_table_function, with_laterals
from service.sql.statements.tables.pivot import rewritten
from service.sql.statements.tables.ranges import with_ranges
from service.sql.statements.tables.time_windows import CUMULATE, WINDOW, has_time_window, with_time_windows
from service.sql.statements.tables.values import one_row, read_values
from service.sql.statements.tables.visible import Visible
from service.sql.statements.tables.wrapping import WRAPPED, wrapped
from service.sql.types.data_types import Schema

_KEYWORDS = {"locks": TokenType.FOR, "kind": TokenType.SELECT}
"""The keywords that locate clauses whose nodes have no offset."""
_SELECT = frozenset(
    {
        "expressions",
        "from_",
        "joins",
        "where",
        "group",
        "having",
        "qualify",
        "windows",
        "laterals",
        "order",
        "limit",
        "offset",
        "distinct",
        "with_",
        "hint",
        # They decide where Spark computes rows, and their order within a task, not which rows the query returns.
        "sort",
        "cluster",
        "distribute",
    }
)
_UNION = frozenset({"this", "expression", "distinct", "order", "limit", "offset", "with_"})
_SUBQUERY = frozenset({"this", "alias", "order", "limit", "offset", "with_"})
_ARRANGED = ("order", "limit", "offset")
"""The clauses after the rows of a query are complete."""
_MODIFIERS = (*_ARRANGED, "with_")
_ROWS_OF = {exp.Except: "`{0}` = 1", exp.Intersect: "`{1}` = 1 AND `{0}` = 2"}
"""The conditions for a row of EXCEPT and INTERSECT: {0} is the last, {1} the first of the sides that have it."""
_KINDS: Mapping[type[exp.Expr], SetKind] = {
    exp.Union: "union_all",
    exp.Intersect: "intersect_all",
    exp.Except: "except_all",
}
_SCRATCH = "/scratch"
"""The pointer of parts of a query that are read to resolve names only."""


@dataclass(frozen=True)
class Cte:
    """A common table expression, and those defined before it, which it may use. In the step of a recursive one, `rows`
    are the rows of the step before.
    """

    name: str
    tree: exp.Expr
    columns: tuple[str, ...]
    before: Mapping[str, Cte]
    is_recursive: bool = False
    levels: int | None = None
    rows: str | None = None


class QueryCompiler:
    """Compiles the queries of one text, and records the places of their parts in `origins`."""

    def __init__(self, source: Text, schemas: Mapping[str, Schema]) -> None:
        self.origins = Origins()
        self._source = source
        self._schemas = schemas
        self._queries = 0
        self._subqueries = 0
        self._unnamed_tables = 0
        self._generators = 0
        self._columns_written = 0
        self._written = WrittenNodes(source)
        self._ctes: list[Cte] = []
        self._used: set[int] = set()
        folded = source.text.casefold()
        self._unnamed = absent_from(folded)
        self._may_have_subqueries = may_have_subqueries(folded)
        self._may_have_time_windows = WINDOW in folded or CUMULATE in folded
        self._may_have_sessions = SESSION in folded

    def query(
        self, tree: exp.Expr, ctes: Mapping[str, Cte], at: str = "", depth: int = 1, *, later: bool = False
    ) -> Query:
        """Compiles `tree`, which may use `ctes`, into a structured query; `at` is its JSON pointer. Raises SpecError.

        `later`: the query is not the first of a UNION, so its column names are not used.
        """
        tree = _bare(tree)
        if not isinstance(tree, exp.Query):
            what, hint = parentheses_around(tree)
            raise self._source.unsupported(what, at=position(tree), hint=hint)
        self._enter(tree, at, depth)
        ctes = self._with(tree, ctes)
        if isinstance(tree, exp.Select):
            return self._select(tree, ctes, at, depth, later)
        ref: QueryRef | UnionRef
        if isinstance(tree, exp.SetOperation) and (isinstance(tree, exp.Union) or not tree.args.get("distinct")):
            ref = self._united(tree, self._unnamed, (), ctes, f"{at}/source", depth)
        elif isinstance(tree, exp.SetOperation):
            query = self._compared(tree, ctes, f"{at}/source/query", depth + 1)
            ref = QueryRef(kind="query", query=query, alias=self._unnamed)
        else:
            ref = self._nested(tree.this, self._unnamed, (), ctes, f"{at}/source", depth)
        around = exp.Select(expressions=[exp.Star()], **{key: tree.args.get(key) for key in _ARRANGED})
        if isinstance(tree, exp.Union) and tree.args.get("distinct"):
            around.set("distinct", exp.Distinct())
            place = position(tree.expression)
            if place is not None:
                self.origins.places[f"{at}/group_by"] = place
        return SelectCompiler(self._source, around, _only(ref), at, self.origins, self._written).query()

    @property
    def prefix(self) -> str:
        """What generated aliases begin with; no name in the text does."""
        return self._unnamed

    def unused(self) -> tuple[Query, ...]:
        """Compiles the common table expressions that no query has used; their pointers are `/unused/<index>`."""
        found: list[Query] = []
        while left := [cte for cte in self._ctes if id(cte.tree) not in self._used]:
            # The last one first: each may use those before it.
            cte = left[-1]
            self._used.add(id(cte.tree))
            at = f"/unused/{len(found)}"
            if cte.is_recursive:
                ref = self._recursive(cte, cte.name, cte.columns, f"{at}/source", 2)
                select = exp.Select(expressions=[exp.Star()])
                query = SelectCompiler(self._source, select, _only(ref), at, self.origins, self._written).query()
            else:
                query = self.query(cte.tree, cte.before, at, 2)
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
            levels = levels_of(cte, self._source)
            is_recursive = bool(clause.args.get("recursive")) and refers_to(cte.this, name)
            if levels is not None and not is_recursive:
                hint = "Remove it: the query does not read itself."
                raise self._source.unsupported("MAX RECURSION LEVEL here", at=at, hint=hint)
            known[name.casefold()] = Cte(name, cte.this, columns, dict(known), is_recursive, levels)
            self._ctes.append(known[name.casefold()])
        return known

    def _columns(self, alias: exp.Expr | None, at: int | None) -> tuple[str, ...]:
        columns = alias.args.get("columns") if alias is not None else None
        return tuple(name_of(column, self._source, at) for column in columns or ())

    # SELECT

    def _select(self, select: exp.Select, ctes: Mapping[str, Cte], at: str, depth: int, later: bool) -> Query:
        self._check(select, _SELECT)
        unnested = self._unnested(with_named_windows(select, self._source), ctes, at, depth)
        select = unnested.select
        # ORDER BY and HAVING may use the name of a column.
        repeats = later and not (select.args.get("order") or select.args.get("having"))
        compiler = SelectCompiler(
            self._source, select, unnested.sources, at, self.origins, self._written, repeats_names=repeats
        )
        # Stars are counted as their columns here; in the text each is one node.
        self._columns_written += len(compiler.items)
        if self._columns_written > NODES.most:
            raise self._source.beyond(NODES, at=position(select))
        if not compiler.needs_outer_distinct():
            return self._finished(compiler.query(), unnested, at)
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
        ).query()
        inner = self._finished(inner, unnested, inner_at)
        ref = QueryRef(kind="query", query=inner, alias=self._unnamed)
        kept = {key: select.args.get(key) for key in ("distinct", *_ARRANGED)}
        around = exp.Select(expressions=[exp.Star()], **kept)
        order = over_columns(compiler.order(), compiler.items, self._unnamed, self._source)
        return SelectCompiler(self._source, around, _only(ref), at, self.origins, self._written, order).query()

    def _finished(self, query: Query, unnested: Unnested, at: str) -> Query:
        """Returns `query`, or a query around it that joins rows of subqueries to its groups, or that has QUALIFY."""
        if unnested.later:
            query = joined_to_groups(query, unnested.later, at, self.origins, self._unnamed, self._source)
        return self._qualified(query, at) if unnested.select.args.get("qualify") is not None else query

    def _qualified(self, query: Query, at: str) -> Query:
        """Returns a query around `query`, whose last column is the condition of QUALIFY: WHERE, ORDER BY and LIMIT."""
        inner_at = f"{at}/source/query"
        self.origins.move(at, inner_at)
        *items, condition = query.select
        place = self.origins.place_of(f"{inner_at}/select/{len(items)}")
        where = Name(self._unnamed, condition.name, place)
        self.origins.add(f"{at}/where", where, place)
        keys = []
        for index, key in enumerate(query.order_by):
            pointer = f"{inner_at}/select/{len(query.select) + index}"
            self.origins.move(f"{inner_at}/order_by/{index}", pointer)
            keys.append(NamedExpression(expression=key.expression, name=f"{self._unnamed}_key_{index + 1}"))
        inner = query.model_copy(update={"select": (*query.select, *keys), "order_by": (), "limit": None, "offset": 0})
        return Query(
            source=QueryRef(kind="query", query=inner, alias=self._unnamed),
            where=render(where),
            select=tuple(
                NamedExpression(expression=render(Name(self._unnamed, item.name)), name=item.name) for item in items
            ),
            order_by=tuple(
                key.model_copy(update={"expression": render(Name(self._unnamed, column.name))})
                for key, column in zip(query.order_by, keys, strict=True)
            ),
            limit=query.limit,
            offset=query.offset,
        )

    def _sources(self, tree: exp.Select, known: Mapping[str, Cte], pointer: str, depth: int) -> Sources:
        """Reads FROM of `tree`, whose pointer is `pointer`."""
        tree = with_ranges(tree, self._source)

        def derived(node: exp.Expr, pointer: str) -> tuple[Derivation, Schema] | None:
            ref = self._derived(node, known, pointer, depth)
            return (ref, columns_of(ref)) if ref is not None else None

        row = Sources(one_row(f"{self._unnamed}_row"), (), TableScope({}), lambda: Visible(()))
        if tree.args.get("from_") is None:
            return with_views(row, tree, self._source)
        nested = self._nested_queries(known, "", depth)

        def lateral(
            node: exp.Lateral, kind: JoinKind, before: Before, pointer: str, *, has_condition: bool
        ) -> LateralTable:
            return read_lateral(node, kind, before, self._source, nested, pointer, has_condition=has_condition)

        def wrap(before: Sources, tables: exp.Select) -> Sources:
            self.origins.constructs.add(WRAPPED)
            return wrapped(before, tables, nested.alias(), derived, pointer)

        found = read_from(tree, self._source, self._schemas, Readers(derived, lateral, wrap, row), pointer)
        if is_table_function(tree.args["from_"].this):
            self.origins.constructs.add(WRAPPED)
        has_subquery = any(trees.has_subquery(part) for part in trees.expressions_of(tree))
        if found.generators and self._may_have_subqueries and has_subquery:
            tables = exp.Select(**{key: tree.args.get(key) for key in ("from_", "joins", "laterals")})
            return wrap(found, tables.copy())
        return found

    def _unnested(self, select: exp.Select, ctes: Mapping[str, Cte], at: str, depth: int) -> Unnested:
        """Returns `select` with its tables, and with joins in place of the subqueries of its expressions."""
        if self._may_have_sessions and has_session(select):
            select = with_sessions(select, self._nested_queries(ctes, at, depth), self._source)
        if self._may_have_time_windows and has_time_window(select):
            select = with_time_windows(select, self._nested_queries(ctes, at, depth), self._source)
        if self._may_have_subqueries:
            nested = self._nested_queries(ctes, at, depth)
            select = computed_first(select, nested, self._source)
            select, is_marked = without_subqueries_in_on(select, self._source, nested.sources, nested.alias)
            self.origins.constructs.update({MARKED} if is_marked else ())
        self._generators += 1
        select = with_laterals(select, f"{self._unnamed}_g{self._generators}", self._source)
        sources = self._sources(select, ctes, at, depth)
        if not self._may_have_subqueries:
            return Unnested(select, sources)
        return unnest(select, sources, self._source, self._nested_queries(ctes, at, depth))

    def _nested_queries(self, ctes: Mapping[str, Cte], at: str, depth: int) -> Nested:
        """Returns how the subqueries of the query with the pointer `at` are compiled."""

        def compiled(tree: exp.Expr, pointer: str) -> QueryRef:
            query = self.query(tree, ctes, f"{at}{pointer}/query", depth + 1)
            return QueryRef(kind="query", query=query, alias=self._unnamed)

        def sources_of_subquery(tree: exp.Select) -> Sources:
            # The subquery is compiled again later; its common table expressions count then.
            number = len(self._ctes)
            known = self._with(tree, ctes)
            del self._ctes[number:]
            nested = Nested(compiled, lambda each: self._sources(each, known, _SCRATCH, depth + 1), alias, set())
            read = without_subqueries_in_on(tree.copy(), self._source, nested.sources, nested.alias)[0]
            return self._sources(read, known, _SCRATCH, depth + 1)

        def alias() -> str:
            self._subqueries += 1
            return f"{self._unnamed}_s{self._subqueries}"

        return Nested(compiled, sources_of_subquery, alias, self.origins.constructs)

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

    def _derived(self, node: exp.Expr, ctes: Mapping[str, Cte], at: str, depth: int) -> Derivation | None:
        """Compiles `node` of FROM if it is a derived table, a common table expression or VALUES; else returns None."""
        place = position(node)
        alias = node.args.get("alias")
        columns = self._columns(alias, place)
        if node.args.get("pivots"):
            return self._pivoted(node, ctes, at, depth)
        if isinstance(node, exp.Values):
            self._check(node, frozenset({"expressions", "alias"}))
            self._unnamed_tables += 1
            called = f"{self._unnamed}_v{self._unnamed_tables}"
            if alias is not None and alias.this is not None:
                called = name_of(alias.this, self._source, place)
            return read_values(node, called, columns, self._source, at, self.origins)
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
            columns = columns or cte.columns
            if cte.rows is not None:
                return RowsRef(kind="rows", rows=cte.rows, alias=called, columns=columns)
            if cte.is_recursive:
                return self._recursive(cte, called, columns, at, depth)
            tree, ctes = cte.tree, cte.before
        tree = _bare(tree)
        if isinstance(tree, exp.SetOperation) and not any(tree.args.get(key) for key in ("distinct", *_MODIFIERS)):
            return self._united(tree, called, columns, ctes, at, depth)
        return self._nested(tree, called, columns, ctes, at, depth)

    def _recursive(self, cte: Cte, alias: str, columns: tuple[str, ...], at: str, depth: int) -> RecursiveRef:
        """Compiles a use of a recursive common table expression."""
        union = united_parts(_bare(cte.tree), cte.name, self._source)
        self._queries += 1
        ctes = self._with(union, cte.before)
        anchor = self.query(union.this, ctes, f"{at}/anchor", depth + 1)
        names = cte.columns or tuple(item.name for item in anchor.select)
        self._check_columns(anchor, alias, names, union.this)
        self._check_columns(anchor, alias, columns, union.this)
        rows = f"{self._unnamed}_r{self._queries}"
        own = replace(cte, columns=names, is_recursive=False, rows=rows)
        step = self.query(union.expression, {**ctes, cte.name.casefold(): own}, f"{at}/step", depth + 1, later=True)
        self._check_columns(step, cte.name, names, union.expression)
        return RecursiveRef(
            kind="recursive",
            anchor=renamed(anchor, names),
            step=renamed(step, names),
            rows=rows,
            alias=alias,
            columns=columns or names,
            levels=cte.levels,
        )

    def _pivoted(self, node: exp.Expr, ctes: Mapping[str, Cte], at: str, depth: int) -> QueryRef:
        """Compiles a table with PIVOT or UNPIVOT."""
        place = position(node)
        table = node.copy()
        *earlier, pivot = table.args["pivots"]
        table.set("pivots", earlier)
        self._unnamed_tables += 1
        number = f"{self._unnamed}_p{self._unnamed_tables}"
        alias = pivot.args.get("alias")
        if alias is None or alias.this is None:
            called = node.alias or node.name or number
        else:
            called = name_of(alias.this, self._source, place)
        known = len(self._ctes)
        sources = self._sources(exp.Select(from_=exp.From(this=table.copy())), ctes, _SCRATCH, depth + 1)
        del self._ctes[known:]
        columns = [column.name for column in sources.visible.output]
        tree = rewritten(pivot, table, sources.first.name, columns, number, self._source)
        if isinstance(table, exp.Subquery) and table.args.get("alias") is None:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(sources.first.name, quoted=True)))
        return self._nested(trees.placed(tree, place), called, self._columns(alias, place), ctes, at, depth)

    def _nested(
        self, tree: exp.Expr, alias: str, columns: tuple[str, ...], ctes: Mapping[str, Cte], at: str, depth: int
    ) -> QueryRef:
        query = self.query(tree, ctes, f"{at}/query", depth + 1)
        self._check_columns(query, alias, columns, tree)
        return QueryRef(kind="query", query=query, alias=alias, columns=columns)

    def _united(
        self, tree: exp.SetOperation, alias: str, columns: tuple[str, ...], ctes: Mapping[str, Cte], at: str, depth: int
    ) -> UnionRef:
        """Compiles the branches of UNION, INTERSECT ALL or EXCEPT ALL; the caller applies what follows them."""
        branches = self._branches(tree)
        queries = tuple(
            self.query(branch, ctes, f"{at}/queries/{index}", depth + 1, later=index > 0)
            for index, branch in enumerate(branches)
        )
        self._check_columns(queries[0], alias, columns, tree)
        return UnionRef(kind=_KINDS[type(tree)], queries=queries, alias=alias, columns=columns)

    def _compared(self, tree: exp.SetOperation, ctes: Mapping[str, Cte], at: str, depth: int) -> Query:
        """Compiles INTERSECT or EXCEPT: the rows of both sides are united, and grouped by all columns."""
        self._check(tree, _UNION)
        name = tree.key.upper()
        sides = []
        side, first, last = (f"{self._unnamed}_{word}" for word in ("side", "first", "last"))
        for index, branch in enumerate((tree.this, tree.expression)):
            self._check_branch(branch)
            query = self.query(branch, ctes, f"{at}/source/queries/{index}", depth + 1, later=index > 0)
            mark = NamedExpression(expression=str(index + 1), name=side)
            sides.append(query.model_copy(update={"select": (*query.select, mark)}))
        place = position(tree.expression)
        for part in (f"{at}/source", f"{at}/group_by", f"{at}/select"):
            if place is not None:
                self.origins.places[part] = place
        union = UnionRef(kind="union_all", queries=tuple(sides), alias=self._unnamed)
        names = [item.name for item in sides[0].select[:-1]]
        if len(names) != len(sides[1].select) - 1:
            detail = f"The queries of {name} have {len(names)} and {len(sides[1].select) - 1} columns."
            raise self._source.error("unsupported_construct", detail, at=place)
        if len(names) > GROUP_KEYS.most:
            raise self._source.beyond(GROUP_KEYS, len(names), at=place)
        return Query(
            source=union,
            group_by=tuple(NamedExpression(expression=render(Name(self._unnamed, key)), name=key) for key in names),
            aggregates=tuple(
                AggregateCall(function=function, arguments=(render(Name(self._unnamed, side)),), name=output)
                for function, output in ((AggregateFunction.MAX, last), (AggregateFunction.MIN, first))
            ),
            having=_ROWS_OF[type(tree)].format(last, first),
            select=tuple(NamedExpression(expression=render(Name(None, key)), name=key) for key in names),
        )

    def _check_columns(self, query: Query, alias: str, columns: tuple[str, ...], tree: exp.Expr) -> None:
        if columns and len(columns) != len(query.select):
            detail = (
                f"{alias} has {len(query.select)} columns, but the list after its name has {len(columns)}. Name every "
                "column once."
            )
            raise self._source.error("unsupported_construct", detail, at=position(tree))

    def _branches(self, tree: exp.SetOperation) -> list[exp.Expr]:
        """Returns the queries of a UNION, left to right; if `tree` is DISTINCT, UNION ALL below it is included too.
        INTERSECT and EXCEPT have two.
        """
        found: list[exp.Expr] = []
        current: exp.Expr = tree
        if not isinstance(tree, exp.Union):
            self._check(tree, _UNION)
            found.append(tree.expression)
            current = tree.this
        while isinstance(tree, exp.Union) and isinstance(current, exp.Union):
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
        clause = next((branch.args[key] for key in _ARRANGED if branch.args.get(key) is not None), None)
        if isinstance(branch, exp.Select) and clause is not None:
            keyword = "ORDER BY" if isinstance(clause, exp.Order) else clause.key.upper()
            raise self._source.unsupported(
                f"{keyword} before UNION, INTERSECT or EXCEPT",
                at=position(clause),
                hint=f"Enclose the query in parentheses, or write {keyword} at the end, for the rows of all queries.",
            )


def _bare(tree: exp.Expr) -> exp.Expr:
    """Returns `tree` without parentheses that only contain a query."""
    while isinstance(tree, exp.Subquery) and not any(tree.args.get(key) for key in _MODIFIERS):
        tree = tree.this
    return tree


def _only(ref: QueryRef | UnionRef | RecursiveRef) -> Sources:
    schema = columns_of(ref)
    scope = TableScope({ref.alias: schema}, unnamed=frozenset({ref.alias}))
    return Sources(ref, (), scope, partial(Visible.of_table, ref.alias, schema))
