"""Computes aggregates and windows in a derived table, if a subquery of the same SELECT is compared with them.

    SELECT k, COUNT(*) AS n FROM t GROUP BY k HAVING COUNT(*) IN (SELECT x FROM u)

becomes

    SELECT a.k, a.n FROM (SELECT k, COUNT(*) AS n FROM t GROUP BY k) AS a WHERE a.n IN (SELECT x FROM u)

The subquery is then one of a query without aggregates or windows, which becomes a join (`joined.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from sqlglot import exp

from service.sql.expressions.nodes import Expression, GetField, Name
from service.sql.expressions.reader import ExpressionReader, position
from service.sql.expressions.scalar import render
from service.sql.parser import Text
from service.sql.statements import trees
from service.sql.statements.clauses.lists import star_of, text_as_name
from service.sql.statements.nested import Nested
from service.sql.statements.subqueries.correlation import Correlation
from service.sql.statements.subqueries.inlining import inlined
from service.sql.statements.tables.from_clause import Sources
from service.sql.statements.tables.generators import is_generator, is_table_function

COMPUTED_FIRST = "aggregates and windows that are compared with subqueries"
"""What `Origins.constructs` contains for a query that workers before version 17 refuse."""

_TABLES = ("from_", "joins", "laterals", "where", "hint")
_AFTER = ("distinct", "limit", "offset")
_CLAUSES = ("expressions", "having", "qualify", "order")
_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets, exp.Tuple, exp.Paren)


def computed_first(select: exp.Select, nested: Nested, source: Text) -> exp.Select:
    """Returns `select`, or a query of a derived table that computes its aggregates, then one that computes its windows,
    as far as a subquery is compared with them. Raises SpecError.
    """
    if trees.is_aggregated(select) and _is_compared(select, _has_aggregate):
        select = _Groups(select, nested, source).query()
    if not trees.is_aggregated(select) and _is_compared(select, trees.has_over):
        select = _Windows(_without_stars(select, nested, source), nested, source).query()
    return select


def _without_stars(select: exp.Select, nested: Nested, source: Text) -> exp.Select:
    """Returns `select` with the columns of its stars in their place. Raises SpecError if two have the same name."""
    if not any(item.is_star for item in select.expressions):
        return select
    sources = nested.sources(select)
    items: list[exp.Expr] = []
    for item in select.expressions:
        if not item.is_star:
            items.append(item)
            continue
        for column in star_of(item, sources, source):
            found = _tree_of(column.tree, sources) or exp.Column(this=trees.identifier(column.name))
            named = exp.Alias(this=found, alias=trees.identifier(column.name))
            items.append(trees.placed(named, position(item)))
    names = [item.alias_or_name.casefold() for item in items]
    if len(set(names)) < len(names):
        star = next(item for item in select.expressions if item.is_star)
        what = "* with two columns of one name, next to a subquery that is compared with a call with OVER,"
        raise source.unsupported(what, at=position(star), hint="Name the columns.")
    changed = select.copy()
    changed.set("expressions", items)
    return changed


def _tree_of(tree: Expression, sources: Sources) -> exp.Expr | None:
    """Returns a column of a table, or a field of one; None for other columns of `*`, which have no table."""
    if isinstance(tree, GetField):
        inner = _tree_of(tree.operand, sources)
        return exp.Dot(this=inner, expression=trees.identifier(tree.name)) if inner is not None else None
    if not isinstance(tree, Name) or tree.qualifier is None:
        return None
    if tree.qualifier in sources.scope.unnamed:
        return exp.Column(this=trees.identifier(tree.name))
    return trees.column(tree.qualifier, tree.name)


def _has_aggregate(node: exp.Expr) -> bool:
    return any(True for _ in trees.calls_in(node))


def _is_compared(select: exp.Select, computes: Callable[[exp.Expr], bool]) -> bool:
    """Whether IN, or a subquery, compares an expression that `computes` an aggregate or a window."""
    if any(is_generator(item.unalias()) for item in select.expressions):
        return False
    named = set[str]()
    for item in select.expressions:
        if item.alias and (computes(item.unalias()) or _unqualified(item.unalias()) & named):
            named.add(item.alias.casefold())
    for key in _CLAUSES:
        for operand, query in _subqueries(select.args.get(key)):
            compared = [operand] if operand is not None else []
            named_in = compared[:] if key == "expressions" else [*compared, query]
            compared += [inner.args["where"] for inner in query.find_all(exp.Select) if inner.args.get("where")]
            if any(map(computes, compared)) or any(_unqualified(part) & named for part in named_in):
                # A generator reads columns in a place of its own.
                return not any(map(is_table_function, query.find_all(exp.Table, exp.Lateral, exp.Unnest)))
    return False


def _unqualified(node: exp.Expr) -> set[str]:
    """Returns the case-folded names of the columns in `node` that have no table."""
    return {column.name.casefold() for column in node.find_all(exp.Column) if not column.table}


def _subqueries(clause: exp.Expr | list[exp.Expr] | None) -> Iterator[tuple[exp.Expr | None, exp.Expr]]:
    """Yields the subqueries of a clause outside of aggregates, each with the value before IN."""
    pending = list(clause) if isinstance(clause, list) else [clause] if clause is not None else []
    while pending:
        part = trees.as_in(pending.pop())[0]
        if isinstance(part, exp.In) and part.args.get("query"):
            yield part.this, trees.query_in(part.args["query"])
            pending.append(part.this)
        elif isinstance(part, exp.Query):
            yield None, part
        elif trees.function_of(part) not in trees.AGGREGATES:
            pending += list(part.iter_expressions())


class _Stage(ABC):
    """A SELECT as a query of a derived table with the columns `computed`: expressions by their canonical form."""

    def __init__(self, select: exp.Select, nested: Nested, source: Text) -> None:
        self._select = select
        self._source = source
        self._sources = nested.sources(select)
        self._names = Correlation(self._sources, source, nested.sources)
        self._alias = nested.alias()
        self._constructs = nested.constructs
        self._items = {item.alias.casefold(): item.unalias() for item in reversed(select.expressions) if item.alias}
        self._computed: dict[exp.Expr, tuple[exp.Expr, str]] = {}

    def query(self) -> exp.Select:
        """Returns the query of the derived table. Raises SpecError."""
        self._constructs.add(COMPUTED_FIRST)
        select, at = self._select, position(self._select)
        around = exp.Select(expressions=[self._item(item, place) for place, item in enumerate(select.expressions, 1)])
        self._set_conditions(around)
        if select.args.get("order"):
            around.set("order", self._moved(select.args["order"], "order"))
        for key in _AFTER:
            around.set(key, select.args.get(key))
        inner = exp.Select(**{key: select.args.get(key) for key in _TABLES})
        inner.set(
            "expressions", [self._named(tree, name) for tree, name in self._computed.values()] or [trees.number(1)]
        )
        inner.set("group", self._grouping())
        names = [name for _, name in self._computed.values()] or [f"{self._alias}_0"]
        around.set("from_", trees.from_query(trees.placed(inner, at), self._alias, names))
        trees.placed(around, at)
        return around

    def _grouping(self) -> exp.Expr | None:
        return None

    @abstractmethod
    def _set_conditions(self, around: exp.Select) -> None:
        """Sets the conditions of the query around the derived table."""

    @abstractmethod
    def _column(self, part: exp.Expr) -> exp.Expr | None:
        """Returns the column of the derived table for an expression of the tables, if it has one."""

    @abstractmethod
    def _missing(self, column: exp.Column) -> exp.Expr:
        """Returns the column of the derived table for a column of the tables. Raises SpecError if there is none."""

    def _named(self, tree: exp.Expr, name: str) -> exp.Expr:
        return trees.placed(exp.Alias(this=tree.copy(), alias=trees.identifier(name)), position(tree))

    def _add(self, part: exp.Expr) -> exp.Column:
        _, name = self._computed.setdefault(
            self._canonical(part), (part.copy(), f"{self._alias}_{len(self._computed) + 1}")
        )
        return trees.column(self._alias, name, position(part))

    def _known(self, part: exp.Expr) -> exp.Column | None:
        found = self._computed.get(self._canonical(part))
        return trees.column(self._alias, found[1], position(part)) if found is not None else None

    def _canonical(self, node: exp.Expr) -> exp.Expr:
        """Returns `node` with qualified columns and without aliases and parentheses, to compare it."""

        def plain(part: exp.Expr) -> exp.Expr:
            if isinstance(part, exp.Paren):
                return self._canonical(part.this)
            if isinstance(part, exp.Anonymous):
                part = exp.Anonymous(this=str(part.this).upper(), expressions=part.expressions)
                part.set("expressions", [self._canonical(each) for each in part.expressions])
                return part
            if not isinstance(part, exp.Column) or trees.is_unit(part):
                return part
            if not self._names.is_outer(part):
                item = self._items.get(part.name.casefold()) if not part.table else None
                return part if item is None else self._canonical(item)
            first, *rest = (each.name for each in part.parts)
            name = Name(first if rest else None, rest[0] if rest else first, position(part))
            fields = "".join(f".{each.casefold()}" for each in rest[1:])
            return exp.Var(this=render(self._sources.qualify(name, self._source)).casefold() + fields)

        return trees.mapped(node.copy(), plain)

    # Expressions

    def _item(self, item: exp.Expr, place: int) -> exp.Expr:
        moved = self._moved(item.unalias(), "expressions")
        name = item.alias or self._name(item, place)
        return trees.placed(exp.Alias(this=moved, alias=trees.identifier(name)), position(item))

    def _name(self, item: exp.Expr, place: int) -> str:
        if isinstance(item, exp.Column | exp.Dot):
            return item.name
        if trees.has_subquery(item):
            return f"column_{place}"
        tree = ExpressionReader(self._source, aggregates=True).read(item.copy())
        return text_as_name(tree, f"column_{place}")

    def _moved(self, node: exp.Expr, clause: str) -> exp.Expr:
        """Returns an expression of `clause` over the derived table."""

        def moved(part: exp.Expr) -> exp.Expr:
            if isinstance(part, exp.Query):
                return self._subquery(part, clause)
            if isinstance(part, exp.Column) and not trees.is_unit(part):
                return self._moved_name(part, clause)
            found = self._column(part)
            if found is not None or not isinstance(part, exp.Window):
                return part if found is None else found
            return trees.mapped_window(part, lambda each: self._moved(each, clause))

        return trees.mapped(node.copy(), moved)

    def _moved_name(self, column: exp.Column, clause: str) -> exp.Expr:
        item = self._items.get(column.name.casefold()) if not column.table else None
        if clause == "order" and item is not None:
            # It is a column of the query around too.
            return column
        found = self._column(column)
        if found is not None:
            return found
        is_of_tables = self._names.is_outer(column)
        if item is not None and not (is_of_tables and clause in {"expressions", "qualify"}):
            return exp.Paren(this=self._moved(item, "expressions"))
        return self._missing(column) if is_of_tables else column

    # Subqueries

    def _subquery(self, node: exp.Expr, clause: str) -> exp.Expr:
        """Returns a subquery with the columns of the derived table in place of those of the tables."""
        query = inlined(node)
        selects = list(query.find_all(exp.Select))
        inside = {id(each): self._own(each, query) for each in selects}
        for select in selects:
            is_own = inside[id(select)]
            for key in ("expressions", "where", "group", "having", "qualify"):
                value = select.args.get(key)
                if isinstance(value, list):
                    select.set(key, [self._moved_inside(part, is_own, clause) for part in value])
                elif value is not None:
                    select.set(key, self._moved_inside(value, is_own, clause))
            for join in select.args.get("joins") or []:
                if join.args.get("on") is not None:
                    join.set("on", self._moved_inside(join.args["on"], is_own, clause))
        return query

    def _own(self, select: exp.Select, query: exp.Expr) -> Callable[[exp.Column], bool]:
        """Returns whether a column is one of the tables of `select`, or of the subqueries around it."""
        around: list[exp.Select] = []
        each: exp.Expr | None = select
        while each is not None:
            around += [each] if isinstance(each, exp.Select) else []
            each = each.parent if each is not query else None
        read = [self._names.sources_of(one) for one in around]
        return lambda column: any(self._names.is_of(column, sources) for sources in read)

    def _moved_inside(self, node: exp.Expr, is_own: Callable[[exp.Column], bool], clause: str) -> exp.Expr:
        def moved(part: exp.Expr) -> exp.Expr:
            columns = list(trees.columns_in(part))
            if not columns or isinstance(part, exp.Query):
                return part
            is_outside = not any(is_own(column) for column in columns)
            if isinstance(part, exp.Column) and is_outside:
                item = self._items.get(part.name.casefold()) if not part.table and clause != "expressions" else None
                if self._names.is_outer(part) and item is None:
                    return self._column(part) or self._missing(part)
                return part if item is None else exp.Paren(this=self._moved(item, "expressions"))
            if not is_outside or part.find(exp.Query) or not all(map(self._names.is_outer, columns)):
                return part
            return self._column(part) or part

        return trees.mapped(node, moved)


class _Groups(_Stage):
    """The derived table has the group keys and the aggregates; HAVING becomes WHERE."""

    def __init__(self, select: exp.Select, nested: Nested, source: Text) -> None:
        super().__init__(select, nested, source)
        group = select.args.get("group")
        self._group = group.copy() if group is not None else None
        for key in self._keys():
            self._add(key)

    def _keys(self) -> Iterator[exp.Expr]:
        """Yields the keys of GROUP BY, with the expressions of numbers and aliases in their place."""
        if self._group is None:
            return
        if self._group.args.get("all"):
            keys = [item.unalias() for item in self._select.expressions]
            self._group = exp.Group(expressions=[key.copy() for key in keys if not _has_aggregate(key)])
        for key, value in list(self._group.args.items()):
            if isinstance(value, list):
                self._group.set(key, [self._key(part) for part in value])
        pending = [part for value in self._group.args.values() if isinstance(value, list) for part in value]
        while pending:
            part = pending.pop(0)
            if isinstance(part, _SETS):
                pending = [*part.iter_expressions(), *pending]
            else:
                yield part

    def _key(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node, _SETS):
            for key, value in list(node.args.items()):
                if isinstance(value, list):
                    node.set(key, [self._key(part) for part in value])
                elif isinstance(value, exp.Expr):
                    node.set(key, self._key(value))
            return node
        items = self._select.expressions
        if isinstance(node, exp.Literal) and node.name.isdecimal() and 1 <= int(node.name) <= len(items):
            return self._expanded(items[int(node.name) - 1].unalias())
        return self._expanded(node)

    def _expanded(self, node: exp.Expr) -> exp.Expr:
        def expanded(part: exp.Expr) -> exp.Expr:
            if not isinstance(part, exp.Column) or part.table or self._names.is_outer(part):
                return part
            item = self._items.get(part.name.casefold())
            return part if item is None else exp.Paren(this=self._expanded(item))

        return trees.mapped(node.copy(), expanded)

    def _grouping(self) -> exp.Expr | None:
        return self._group

    def _set_conditions(self, around: exp.Select) -> None:
        having, qualify = self._select.args.get("having"), self._select.args.get("qualify")
        if having is not None:
            around.set("where", exp.Where(this=self._moved(having.this, "having")))
        if qualify is not None:
            around.set("qualify", exp.Qualify(this=self._moved(qualify.this, "qualify")))

    def _column(self, part: exp.Expr) -> exp.Expr | None:
        if trees.function_of(part) in trees.AGGREGATES and not isinstance(part, exp.Window):
            return self._add(part)
        return self._known(part)

    def _missing(self, column: exp.Column) -> exp.Expr:
        name = column.sql()[:60]
        detail = f"{name} is neither a group key nor an aggregate. Add it to GROUP BY, or use it in an aggregate."
        raise self._source.error("not_grouped", detail, at=position(column))


class _Windows(_Stage):
    """The derived table has the columns that the query reads, and its windows; QUALIFY becomes WHERE."""

    def _set_conditions(self, around: exp.Select) -> None:
        qualify = self._select.args.get("qualify")
        if qualify is not None:
            around.set("where", exp.Where(this=self._moved(qualify.this, "qualify")))

    def _column(self, part: exp.Expr) -> exp.Expr | None:
        return self._add(part) if isinstance(part, exp.Window) else None

    def _missing(self, column: exp.Column) -> exp.Expr:
        return self._add(column)
