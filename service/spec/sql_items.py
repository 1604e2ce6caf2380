"""The list of SELECT: which columns come out, and under which names."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from service.spec.dialect import Text, place_of
from service.spec.parsing import ExpressionReader, position
from service.spec.rendering import render
from service.spec.scope import matching
from service.spec.sql_from import Sources, checked_name, name_of
from service.spec.tree import Call, Expression, Name, map_children

LONGEST_TOLD = 100


@dataclass(frozen=True)
class Item:
    """An output column: its expression over the tables, aggregates included, its name and its offset in the text."""

    tree: Expression
    name: str
    at: int | None


def read_items(select: exp.Select, sources: Sources, source: Text) -> list[Item]:
    """The output columns of `select`, stars written out.

    Raises SpecError `duplicate_column`, `name_too_long`, and what expressions and names raise.
    """
    if not select.expressions:
        raise source.error("sql_syntax", "SELECT names no column.", at=place_of(source, TokenType.SELECT))
    items: list[Item] = []
    for node in select.expressions:
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            items += _star(node, sources, source)
        else:
            items.append(_item(node, sources, source, len(items) + 1))
    taken: set[str] = set()
    for item in items:
        if item.name.casefold() in taken:
            detail = f"Two columns would be called {item.name} (case does not count): name the columns with AS."
            raise source.error("duplicate_column", detail, at=item.at)
        taken.add(item.name.casefold())
    return items


def told(tree: Expression, otherwise: str) -> str:
    """The text of `tree` as a name, or `otherwise` where that is too long."""
    text = render(tree).text.replace("`", "")
    return text if len(text) <= LONGEST_TOLD else otherwise


def _star(node: exp.Star | exp.Column, sources: Sources, source: Text) -> list[Item]:
    at = position(node)
    star = node if isinstance(node, exp.Star) else node.this
    if any(star.args.values()):
        raise source.unsupported("* with EXCEPT or the like", at=at)
    columns = sources.visible.output
    if isinstance(node, exp.Column):
        alias = matching(node.table, sources.scope.tables)
        if alias is None:
            # Raises with the nearest names.
            sources.scope.locate(Name(node.table, "*", at), source)
        columns = sources.visible.of(alias or "")
    return [Item(_placed(column.tree, at), checked_name(column.name, source, at), at) for column in columns]


def _item(node: exp.Expr, sources: Sources, source: Text, number: int) -> Item:
    at = position(node)
    alias = name_of(node.args["alias"], source, at) if isinstance(node, exp.Alias) else None
    read = ExpressionReader(source, aggregates=True).read(node.this if isinstance(node, exp.Alias) else node)
    tree = sources.qualify(read, source)
    # `current_date` reads as a name, and is a call where no column has the name.
    shown = tree if isinstance(tree, Call) and not tree.arguments else read
    name = shown.name if isinstance(shown, Name) else told(shown, f"column_{number}")
    return Item(tree, alias or checked_name(name, source, at), at)


def _placed(tree: Expression, at: int | None) -> Expression:
    """`tree` with all its names at the offset `at`."""
    if isinstance(tree, Name):
        return Name(tree.qualifier, tree.name, at)
    return map_children(tree, lambda child: _placed(child, at))
