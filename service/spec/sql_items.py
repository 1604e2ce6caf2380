"""The list of SELECT: which columns come out, and under which names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from service.spec.dialect import Text, place_of
from service.spec.errors import SpecError
from service.spec.limits import COLUMNS
from service.spec.parsing import ExpressionReader, position
from service.spec.rendering import render
from service.spec.scope import matching
from service.spec.sql_from import Sources, checked_name, name_of
from service.spec.tree import Call, Expression, Name, map_children, walk
from service.spec.windows import PARTS, column_of, part_of

LONGEST_TOLD = 100


@dataclass(frozen=True)
class Item:
    """An output column: its expression over the tables, aggregates included, its name and its offset in the text."""

    tree: Expression
    name: str
    at: int | None


def read_items(select: exp.Select, sources: Sources, source: Text, *, repeats_names: bool = False) -> list[Item]:
    """The output columns of `select`, stars written out; those whose name is taken get one of their own where
    `repeats_names`.

    Raises SpecError `duplicate_column`, `name_too_long`, `query_too_deep` and what expressions and names raise.
    """
    if not select.expressions:
        raise source.error("sql_syntax", "SELECT names no column.", at=place_of(source, TokenType.SELECT))
    items: list[Item] = []
    for number, node in enumerate(select.expressions, start=1):
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            items += _star(node, sources, source)
        else:
            items.append(_item(node, sources, source, items))
        if len(items) > COLUMNS.most:
            # Every further node is a column at least.
            found = len(items) + len(select.expressions) - number
            raise source.beyond(COLUMNS, found, at=items[COLUMNS.most].at)
    taken: set[str] = set()
    free = _FreeNames(item.name.casefold() for item in items)
    for index, item in enumerate(items):
        if item.name.casefold() in taken and repeats_names:
            items[index] = item = replace(item, name=free.like(item.name))
        elif item.name.casefold() in taken:
            detail = f"Two columns would be called {item.name} (case does not count): name the columns with AS."
            raise source.error("duplicate_column", detail, at=item.at)
        taken.add(item.name.casefold())
    return items


class _FreeNames:
    """Names that no column has, made of one that repeats: each is tried once, however often the name does."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}

    def like(self, name: str) -> str:
        """`name` in lower case, shortened, with the first number behind it that makes it a name of its own."""
        stem = name.casefold()[:LONGEST_TOLD]
        number = self._numbers.get(stem, 2)
        while (found := f"{stem}_{number}") in self._taken:
            number += 1
        self._numbers[stem] = number + 1
        self._taken.add(found)
        return found


def told(tree: Expression, otherwise: str) -> str:
    """The text of `tree` as a name, or `otherwise` where that is too long."""
    text = render(tree).replace("`", "")
    return text if len(text) <= LONGEST_TOLD else otherwise


def _star(node: exp.Star | exp.Column, sources: Sources, source: Text) -> list[Item]:
    at = position(node)
    star = node if isinstance(node, exp.Star) else node.this
    if any(star.args.values()):
        raise source.unsupported("* with EXCEPT or the like", at=at, hint="Name the columns.")
    columns = sources.visible.output
    if isinstance(node, exp.Column):
        alias = matching(node.table, sources.scope.tables)
        if alias is None:
            # Raises with the nearest names.
            sources.scope.locate(Name(node.table, "*", at), source)
        columns = sources.visible.of(alias or "")
    return [Item(_placed(column.tree, at), checked_name(column.name, source, at), at) for column in columns]


def qualified(tree: Expression, sources: Sources, source: Text, items: Iterable[Item], clause: str) -> Expression:
    """`tree`, of a clause that sees no aliases of SELECT, with every name written as `alias.column`.

    Raises SpecError as `Sources.qualify` does; where the name is that of one of `items`, it says so.
    """
    try:
        return sources.qualify(tree, source)
    except SpecError as error:
        if error.code != "unknown_column":
            raise
        folded = {item.name.casefold() for item in items}
        wrong = (part for part in walk(tree) if isinstance(part, Name) and part.qualifier is None)
        name = next((name for name in wrong if name.name.casefold() in folded and not _is_column(name, sources)), None)
        if name is None:
            raise
        detail = (
            f"{name.name} is an alias of SELECT, which {clause} does not see: repeat its expression, or put the query "
            "into FROM and write this around it."
        )
        raise source.error("unknown_column", detail, at=name.at) from None


def _is_column(name: Name, sources: Sources) -> bool:
    return any(schema.find(name.name) is not None for schema in sources.scope.tables.values())


def _item(node: exp.Expr, sources: Sources, source: Text, before: Sequence[Item]) -> Item:
    at = position(node)
    alias = name_of(node.args["alias"], source, at) if isinstance(node, exp.Alias) else None
    reader = ExpressionReader(source, aggregates=True, windows=PARTS)
    read = reader.read(node.this if isinstance(node, exp.Alias) else node)
    tree = qualified(read, sources, source, before, "SELECT itself")
    # `current_date` reads as a name, and is a call where no column has the name.
    shown = tree if isinstance(tree, Call) and not tree.arguments else read
    part = part_of(shown)
    otherwise = told(shown, f"column_{len(before) + 1}") if part is None else column_of(part)
    name = shown.name if isinstance(shown, Name) else otherwise
    return Item(tree, alias or checked_name(name, source, at), at)


def _placed(tree: Expression, at: int | None) -> Expression:
    """`tree` with all its names at the offset `at`."""
    if isinstance(tree, Name):
        return Name(tree.qualifier, tree.name, at)
    return map_children(tree, lambda child: _placed(child, at))
