"""A SELECT as a query of a derived table that computes some of its expressions first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from sqlglot import exp

from service.sql.expressions.nodes import Name
from service.sql.expressions.reader import ExpressionReader, position
from service.sql.expressions.scalar import render
from service.sql.parser import Text
from service.sql.statements import trees
from service.sql.statements.clauses.lists import text_as_name
from service.sql.statements.nested import Nested
from service.sql.statements.subqueries.correlation import Correlation
from service.sql.statements.subqueries.inlining import inlined

_TABLES = ("from_", "joins", "laterals", "where", "hint")
_AFTER = ("distinct", "limit", "offset")
_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets, exp.Tuple, exp.Paren)


def has_aggregate(node: exp.Expr) -> bool:
    """Whether `node` calls an aggregate."""
    return any(True for _ in trees.calls_in(node))


class Stage(ABC):
    """A SELECT as a query of a derived table with the columns `computed`: expressions by their canonical form.
    `construct` is what `Origins.constructs` gets.
    """

    def __init__(self, select: exp.Select, nested: Nested, source: Text, construct: str) -> None:
        self._select = select
        self._source = source
        self._sources = nested.sources(select)
        self._names = Correlation(self._sources, source, nested.sources)
        self._alias = nested.alias()
        self._construct, self._constructs = construct, nested.constructs
        self._items = {item.alias.casefold(): item.unalias() for item in reversed(select.expressions) if item.alias}
        self._computed: dict[exp.Expr, tuple[exp.Expr, str]] = {}

    def query(self) -> exp.Select:
        """Returns the query of the derived table. Raises SpecError."""
        self._constructs.add(self._construct)
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
        trees.placed(inner, at)
        around.set("from_", self._from(inner, names))
        trees.placed(around, at)
        return around

    def _grouping(self) -> exp.Expr | None:
        return None

    def _from(self, inner: exp.Select, names: list[str]) -> exp.From:
        """Returns FROM of the query around; `names` are the columns of the derived table."""
        return trees.from_query(inner, self._alias, names)

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
            if (named := _with_field_names(part)) is not None:
                return self._moved(named, clause)
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


def _with_field_names(node: exp.Expr) -> exp.Expr | None:
    """Returns `struct(a, b)` with the names of its columns, which become others; None if `node` has no such fields."""
    if trees.function_of(node) != "STRUCT" or not any(
        isinstance(each, exp.Column | exp.Dot) for each in node.expressions
    ):
        return None
    named = node.copy()
    named.set(
        "expressions",
        [
            exp.Alias(this=each, alias=trees.identifier(each.name)) if isinstance(each, exp.Column | exp.Dot) else each
            for each in named.expressions
        ],
    )
    return named


class Groups(Stage):
    """The derived table has the group keys and the aggregates; HAVING becomes WHERE."""

    def __init__(self, select: exp.Select, nested: Nested, source: Text, construct: str) -> None:
        super().__init__(select, nested, source, construct)
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
            self._group = exp.Group(expressions=[key.copy() for key in keys if not has_aggregate(key)])
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
