"""Replaces aliases of SELECT in the columns after them: `SELECT a + 1 AS b, b * 2 AS c` is `SELECT a + 1, (a + 1) * 2`.

As in Spark, a column of FROM comes before an alias, and an alias before a column of the query around. An alias cannot
be used inside an aggregate or OVER.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sqlglot import exp

from service.contract.problems import SpecError
from service.contract.query import OPERATOR_DEPTH, WRITTEN_NODES
from service.sql.expressions.compile_expression import matching
from service.sql.expressions.nodes import Aggregate, Call, Expression, GetField, Name, Over, map_children
from service.sql.expressions.reader import position
from service.sql.parser import Text
from service.sql.statements import trees
from service.sql.statements.tables.from_clause import Sources

ALIASES = "aliases of SELECT in SELECT"
"""What `Origins.constructs` contains for a query that uses an alias."""

_UNKNOWN = frozenset({"unknown_column", "unknown_table"})


@dataclass
class ItemAliases:
    """The aliases of the columns of a SELECT that have been read."""

    sources: Sources
    source: Text
    is_used: bool = False
    """Whether the last expression that was resolved uses an alias."""
    _known: dict[str, list[tuple[Expression, int]]] = field(default_factory=dict)
    """By case-folded alias, the expressions and their depths."""
    _deepest: int = 0

    def resolved(self, tree: Expression) -> Expression:
        """Returns `tree` with every name as `alias.column`, or as the expression that an alias stands for. Raises
        SpecError as `Sources.qualify` does, `ambiguous_column` for an alias of two columns, and `query_too_deep`.
        """
        self.is_used, self._deepest = False, 0
        return self._resolved(tree, 1) if self._known else self.sources.qualify(tree, self.source)

    def add(self, alias: str, tree: Expression) -> None:
        """Adds the alias of the expression that was resolved last."""
        self._known.setdefault(alias.casefold(), []).append((tree, self._deepest))

    def _resolved(self, tree: Expression, depth: int) -> Expression:
        if isinstance(tree, Name):
            try:
                return self.sources.qualify(tree, self.source)
            except SpecError as error:
                found = self._expression(tree, depth) if error.code in _UNKNOWN else None
                if found is None:
                    raise
                return found
        if isinstance(tree, Aggregate | Over):
            return self.sources.qualify(tree, self.source)
        self._deepest = max(self._deepest, depth)
        return map_children(tree, lambda child: self._resolved(child, depth + 1))

    def _expression(self, name: Name, depth: int) -> Expression | None:
        """Returns the expression of an alias, or the field of a structure that has an alias; None if it is none."""
        alias = name.name if name.qualifier is None else name.qualifier
        found = self._known.get(alias.casefold())
        if found is None or (name.qualifier is not None and matching(alias, self.sources.scope.tables) is not None):
            return None
        if len(found) > 1:
            raise _ambiguous(alias, self.source, name.at)
        (tree, levels), self.is_used = found[0], True
        self._deepest = max(self._deepest, depth + levels)
        if self._deepest > OPERATOR_DEPTH.most:
            raise self.source.beyond(OPERATOR_DEPTH, self._deepest, at=name.at)
        if isinstance(tree, Name | Call | Aggregate | Over):
            # Errors are about the place of the alias.
            tree = replace(tree, at=name.at)
        return tree if name.qualifier is None else GetField(tree, name.name, name.at)


def _ambiguous(alias: str, source: Text, at: int | None) -> SpecError:
    detail = f"{alias} is the alias of several columns of SELECT. Give each its own name."
    return source.error("ambiguous_column", detail, at=at)


@dataclass(frozen=True)
class Resolution:
    """What columns of a subquery, or of a query after LATERAL, are: of its own tables, or of those of the query around.
    `name` returns the name of a column of SELECT, with its number from 1.
    """

    is_own: Callable[[exp.Column], bool]
    is_outer: Callable[[exp.Column], bool]
    name: Callable[[exp.Expr, int], str]


def with_aliases(select: exp.Select, resolution: Resolution, source: Text) -> exp.Select:
    """Returns `select` with the aliases in its columns replaced; `select` itself if there are none. An unnamed column
    that changes gets the name that it had. Raises SpecError as `ItemAliases.resolved` does.
    """
    return _Trees(select, resolution, source).select()


class _Trees:
    """Does for sqlglot's trees what `ItemAliases` does for expressions."""

    def __init__(self, select: exp.Select, resolution: Resolution, source: Text) -> None:
        self._select = select
        self._resolution = resolution
        self._source = source
        self._known: dict[str, list[exp.Expr]] = {}
        self._nodes = 0

    def select(self) -> exp.Select:
        """Returns the query with its aliases replaced."""
        items: list[exp.Expr] = []
        for number, item in enumerate(self._select.expressions, start=1):
            found = self._item(item, number) if self._known else item
            if isinstance(found, exp.Alias):
                self._known.setdefault(found.alias.casefold(), []).append(found.this)
            items.append(found)
        if all(new is old for new, old in zip(items, self._select.expressions, strict=True)):
            return self._select
        select = self._select.copy()
        select.set("expressions", items)
        return select

    def _item(self, item: exp.Expr, number: int) -> exp.Expr:
        if not any(map(self._is_alias, trees.columns_in(item))):
            return item
        changed = trees.mapped(item.copy(), self._replaced)
        if changed == item or isinstance(item, exp.Alias):
            return changed
        name = trees.identifier(self._resolution.name(item, number))
        return trees.placed(exp.Alias(this=changed, alias=name), position(item))

    def _is_alias(self, column: exp.Column) -> bool:
        is_named = column.parts[0].name.casefold() in self._known and not trees.is_unit(column)
        return is_named and not self._resolution.is_own(column)

    def _replaced(self, part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Window) or trees.function_of(part) in trees.AGGREGATES:
            inside = next((column for column in part.find_all(exp.Column) if self._is_alias(column)), None)
            if inside is not None:
                raise self._refused(inside, "inside an aggregate or OVER")
            return part
        if not isinstance(part, exp.Column) or not self._is_alias(part):
            return part
        alias, *fields = part.parts
        found = self._known[alias.name.casefold()]
        if len(found) > 1:
            raise _ambiguous(alias.name, self._source, position(part))
        if fields and self._resolution.is_outer(part):
            detail = (
                f"{alias.name} is a table of the query around, and an alias of SELECT. Give the column another alias."
            )
            raise self._source.error("ambiguous_column", detail, at=position(part))
        if trees.has_subquery(found[0]):
            raise self._refused(part, "that stands for a subquery, in such a query")
        tree = found[0].copy()
        for each in fields:
            tree = exp.Dot(this=tree, expression=exp.to_identifier(each.name, quoted=True))
        self._nodes += sum(1 for _ in tree.walk())
        if self._nodes > WRITTEN_NODES.most:
            raise self._source.beyond(WRITTEN_NODES, self._nodes, at=position(part))
        return trees.placed(exp.Paren(this=tree), position(part))

    def _refused(self, column: exp.Column, where: str) -> SpecError:
        hint = "Repeat its expression, or define the alias in a derived table."
        return self._source.unsupported(f"The alias {column.parts[0].name} {where}", at=position(column), hint=hint)
