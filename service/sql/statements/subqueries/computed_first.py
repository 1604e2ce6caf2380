"""Computes aggregates and windows in a derived table, if a subquery of the same SELECT is compared with them.

    SELECT k, COUNT(*) AS n FROM t GROUP BY k HAVING COUNT(*) IN (SELECT x FROM u)

becomes

    SELECT a.k, a.n FROM (SELECT k, COUNT(*) AS n FROM t GROUP BY k) AS a WHERE a.n IN (SELECT x FROM u)

The subquery is then one of a query without aggregates or windows, which becomes a join (`joined.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from service.sql.expressions.nodes import Expression, GetField, Name
from service.sql.expressions.reader import position
from service.sql.parser import Text
from service.sql.statements import trees
from service.sql.statements.clauses.lists import star_of
from service.sql.statements.nested import Nested
from service.sql.statements.subqueries.derived_stage import Groups, Stage, has_aggregate
from service.sql.statements.tables.from_clause import Sources
from service.sql.statements.tables.generators import is_generator, is_table_function

COMPUTED_FIRST = "aggregates and windows that are compared with subqueries"
"""What `Origins.constructs` contains for a query that workers before version 17 refuse."""

_CLAUSES = ("expressions", "having", "qualify", "order")


def computed_first(select: exp.Select, nested: Nested, source: Text) -> exp.Select:
    """Returns `select`, or a query of a derived table that computes its aggregates, then one that computes its windows,
    as far as a subquery is compared with them. Raises SpecError.
    """
    if trees.is_aggregated(select) and _is_compared(select, has_aggregate):
        select = Groups(select, nested, source, COMPUTED_FIRST).query()
    if not trees.is_aggregated(select) and _is_compared(select, trees.has_over):
        select = _Windows(_without_stars(select, nested, source), nested, source, COMPUTED_FIRST).query()
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


class _Windows(Stage):
    """The derived table has the columns that the query reads, and its windows; QUALIFY becomes WHERE."""

    def _set_conditions(self, around: exp.Select) -> None:
        qualify = self._select.args.get("qualify")
        if qualify is not None:
            around.set("where", exp.Where(this=self._moved(qualify.this, "qualify")))

    def _column(self, part: exp.Expr) -> exp.Expr | None:
        return self._add(part) if isinstance(part, exp.Window) else None

    def _missing(self, column: exp.Column) -> exp.Expr:
        return self._add(column)
