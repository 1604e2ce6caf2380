"""Reads clauses of one SELECT: the list of columns, GROUP BY with grouping sets and group windows, ORDER BY.

ROLLUP, CUBE and GROUPING SETS are expanded into their grouping sets; several of them are multiplied. A group window is
TUMBLE or HOP in GROUP BY, whose start and end become columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations, product

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from service.contract.problems import SpecError
from service.contract.query import (
    COLUMNS,
    CUBE_KEYS,
    EXPANDED_NODES,
    GROUPING_SETS,
    HoppingWindow,
    SortKey,
    TumblingWindow,
)
from service.sql.expressions.calls import PARTS, WINDOWS, GroupWindow, Part, column_of, is_window, part_of, window_of
from service.sql.expressions.compile_expression import matching
from service.sql.expressions.nodes import (
    Aggregate,
    Call,
    Expression,
    GetField,
    Name,
    Over,
    map_children,
    position_of,
    walk,
)
from service.sql.expressions.reader import ExpressionReader, position
from service.sql.expressions.scalar import render
from service.sql.parser import CONTINUES, FIRST, TREE, Text, place_of
from service.sql.statements import trees
from service.sql.statements.clauses.aliases import ItemAliases
from service.sql.statements.clauses.star_except import without
from service.sql.statements.tables.from_clause import Sources, checked_name, name_of
from service.sql.statements.tables.visible import VisibleColumn
from service.sql.types.data_types import NULL, UNKNOWN, DataType, Schema, TypeName

MAX_GENERATED_NAME = 100
Set = tuple[Expression, ...]
_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)
Order = list[tuple[Expression, SortKey]]
"""The expressions of ORDER BY, each with its direction."""


@dataclass(frozen=True)
class Item:
    """An output column: its expression over the tables, with aggregates, its name and its offset in the text.

    `is_of_star`: it is one of the columns of a star. `renamed_from` is its own name if another column has that name.
    `has_alias`: its expression uses the alias of an earlier column.
    """

    tree: Expression
    name: str
    at: int | None
    is_of_star: bool = False
    renamed_from: str | None = None
    has_alias: bool = False


def read_items(select: exp.Select, sources: Sources, source: Text, *, repeats_names: bool = False) -> list[Item]:
    """Returns the output columns of `select`, with stars expanded. Duplicate names get a number if `repeats_names`, and
    those of stars always.

    Raises SpecError `duplicate_column`, `name_too_long`, `query_too_deep` and what expressions and names raise.
    """
    if not select.expressions:
        raise source.error("sql_syntax", "SELECT needs at least one column.", at=place_of(source, TokenType.SELECT))
    items: list[Item] = []
    aliases, stars = ItemAliases(sources, source), _StarArguments(sources, source)
    for number, node in enumerate(select.expressions, start=1):
        if trees.is_star(node):
            items += star_of(node, sources, source)
        else:
            items.append(_item(node, aliases, stars, items))
        if len(items) > COLUMNS.most:
            # Each remaining node is at least one column.
            found = len(items) + len(select.expressions) - number
            raise source.beyond(COLUMNS, found, at=items[COLUMNS.most].at)
    if not items:
        raise source.unsupported("* without FROM", at=position(select), hint="Name one of the job's tables in FROM.")
    taken: set[str] = set()
    free = _FreeNames(item.name.casefold() for item in items)
    for index, item in enumerate(items):
        if item.name.casefold() in taken and repeats_names:
            items[index] = item = replace(item, name=free.like(item.name))
        elif item.name.casefold() in taken and item.is_of_star:
            items[index] = item = replace(item, name=free.like(item.name), renamed_from=item.name)
        elif item.name.casefold() in taken:
            detail = f"Two columns are called {item.name} (case is ignored). Rename one of them with AS."
            raise source.error("duplicate_column", detail, at=item.at)
        taken.add(item.name.casefold())
    return items


class _FreeNames:
    """Generates unused names from duplicate ones, by appending a number; it tries each number once per name."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}

    def like(self, name: str) -> str:
        """Returns `name`, shortened, with the first number after it that makes it unique."""
        stem = name[:MAX_GENERATED_NAME]
        number = self._numbers.get(stem.casefold(), 2)
        while (found := f"{stem}_{number}").casefold() in self._taken:
            number += 1
        self._numbers[stem.casefold()] = number + 1
        self._taken.add(found.casefold())
        return found


def text_as_name(tree: Expression, otherwise: str) -> str:
    """Returns the text of `tree` as a name, or `otherwise` if the text is too long."""
    text = render(tree).replace("`", "")
    return text if len(text) <= MAX_GENERATED_NAME else otherwise


def star_of(node: exp.Star | exp.Column, sources: Sources, source: Text) -> list[Item]:
    """Returns the columns of `*`, `t.*` or `s.*`, without those of its EXCEPT. Raises SpecError."""
    at = position(node)
    star = node if isinstance(node, exp.Star) else node.this
    if any(value for key, value in star.args.items() if key != "except_"):
        raise source.unsupported("* with REPLACE or RENAME", at=at, hint="Name the columns.")
    columns = sources.visible.output
    if isinstance(node, exp.Column):
        alias = matching(node.table, sources.scope.tables) if len(node.parts) == 2 else None
        if alias is None:
            return _fields(node, sources, source)
        columns = sources.visible.of(alias)

    def type_of(column: VisibleColumn) -> DataType | None:
        schema = sources.scope.tables.get(column.alias or "")
        found = schema.find(column.name) if schema is not None else None
        return found.type if found is not None else None

    columns = without(columns, star.args.get("except_") or (), type_of, source)
    if star.args.get("except_") and not columns:
        raise source.unsupported("* whose EXCEPT names all columns", at=at, hint="Keep one of them.")
    return [
        Item(_placed(column.tree, at), checked_name(column.name, source, at), at, is_of_star=True) for column in columns
    ]


class _StarArguments:
    """Replaces the stars among the arguments of calls, as in `hash(*)`, by their columns."""

    def __init__(self, sources: Sources, source: Text) -> None:
        self._sources = sources
        self._source = source
        self._columns = 0

    def replaced(self, node: exp.Expr) -> tuple[exp.Expr, exp.Expr]:
        """Returns a column of SELECT with the columns of its stars: as it is read, and as its name shows it.

        Raises SpecError as `star_of` does, for a star of a table in COUNT, and if the stars have too many columns.
        """
        if next(trees.stars_in_arguments(node), None) is None:
            return node, node
        read, shown = node.copy(), node.copy()
        for changed in (read, shown):
            stars = list(trees.stars_in_arguments(changed))
            columns = {id(star): self._nodes(star, is_shown=changed is shown) for star in stars}
            for around in {id(star.parent): star.parent for star in stars}.values():
                if around is not None:
                    arguments = [part for each in around.expressions for part in columns.get(id(each), (each,))]
                    around.set("expressions", arguments)
        return read, shown

    def _nodes(self, star: exp.Star | exp.Column, *, is_shown: bool) -> list[exp.Expr]:
        items = star_of(star, self._sources, self._source)
        at = position(star)
        if not items:
            raise self._source.unsupported("* without FROM", at=at, hint="Name one of the job's tables in FROM.")
        self._columns += len(items)
        if self._columns > EXPANDED_NODES.most:
            raise self._source.beyond(EXPANDED_NODES, self._columns, at=at)
        nodes: list[exp.Expr] = []
        for item in items:
            node = exp.Column(this=exp.to_identifier(item.name, quoted=True))
            if not is_shown:
                self._check(star, item)
                node.meta[TREE] = item.tree
                if item.at is not None:
                    node.meta[FIRST] = item.at
            if nodes:
                node.meta[CONTINUES] = True
            nodes.append(node)
        return nodes

    def _check(self, star: exp.Star | exp.Column, item: Item) -> None:
        around = star.parent.parent if isinstance(star.parent, exp.Distinct) else star.parent
        is_count = isinstance(around, exp.Anonymous) and str(around.this).upper() == "COUNT"
        tables = self._sources.scope.tables
        if is_count and isinstance(star, exp.Column) and len(star.parts) == 2 and matching(star.table, tables):
            hint = "Name the columns. To count rows, write COUNT(*)."
            raise self._source.unsupported(f"COUNT of {star.table}.*", at=item.at, hint=hint)
        try:
            is_visible = self._sources.qualify(item.tree, self._source) == item.tree
        except SpecError:
            is_visible = False
        if not is_visible:
            hint = "Name the columns."
            raise self._source.unsupported("* as an argument, over these tables,", at=item.at, hint=hint)


def _fields(node: exp.Column, sources: Sources, source: Text) -> list[Item]:
    """Returns the fields of a structure for `s.*`, or `t.s.*`, without those of its EXCEPT. Raises SpecError."""
    at = position(node)
    names = [part.name for part in node.parts[:-1]]
    of_table = len(names) > 1 and matching(names[0], sources.scope.tables) is not None
    if not of_table and not sources.scope.has_column(names[0]):
        # Raises an error with the nearest names.
        sources.scope.locate(Name(names[0], "*", at), source)
    name = Name(names[0], names[1], at) if of_table else Name(None, names[0], at)
    tree, (_, found) = sources.qualify(name, source), sources.scope.locate(name, source)
    type_ = found.type
    for part in names[2 if of_table else 1 :]:
        inner = Schema(type_.fields).find(part) if type_.name is TypeName.STRUCT else None
        tree, type_ = GetField(tree, part, at), inner.type if inner is not None else UNKNOWN
    written = ".".join(names)
    if type_ in {NULL, UNKNOWN}:
        hint = f"Name the fields, such as {written}.a: the types of columns of queries in FROM are not known yet."
        raise source.unsupported(f"{written}.*", at=at, hint=hint)
    if type_.name is not TypeName.STRUCT:
        detail = f"{written} is {type_}, which has no fields, so that {written}.* has no columns."
        raise source.error("type_mismatch", detail, at=at)
    fields = tuple(VisibleColumn(None, label, GetField(tree, label, at)) for label in type_.labels)
    types = dict(zip(type_.labels, type_.parts, strict=True))
    kept = without(fields, node.this.args.get("except_") or (), lambda column: types[column.name], source)
    if not kept:
        raise source.unsupported(f"{written}.* whose EXCEPT names all fields", at=at, hint="Keep one of them.")
    return [Item(column.tree, checked_name(column.name, source, at), at, is_of_star=True) for column in kept]


def qualified(tree: Expression, sources: Sources, source: Text, items: Iterable[Item], clause: str) -> Expression:
    """Qualifies every name in `tree`, which is in a clause that cannot use aliases of SELECT, as `alias.column`.

    Raises SpecError as `Sources.qualify` does; if the unknown name is that of one of `items`, the message says so.
    """
    with explained(tree, sources, source, items, clause):
        return sources.qualify(tree, source)


@contextmanager
def explained(tree: Expression, sources: Sources, source: Text, items: Iterable[Item], clause: str) -> Iterator[None]:
    """Raises a better error if the block does not know a name in `tree` that is the alias of one of `items`."""
    try:
        yield
    except SpecError as error:
        if error.code != "unknown_column":
            raise
        folded = {item.name.casefold() for item in items}
        wrong = (part for part in walk(tree) if isinstance(part, Name) and part.qualifier is None)
        name = next((name for name in wrong if name.name.casefold() in folded and not _is_column(name, sources)), None)
        if name is None:
            raise
        detail = (
            f"{name.name} is an alias of SELECT, which cannot be used in {clause}. Repeat its expression, or define "
            "the alias in a derived table."
        )
        raise source.error("unknown_column", detail, at=name.at) from None


def _is_column(name: Name, sources: Sources) -> bool:
    return any(schema.find(name.name) is not None for schema in sources.scope.tables.values())


def _item(node: exp.Expr, aliases: ItemAliases, stars: _StarArguments, before: Sequence[Item]) -> Item:
    sources, source, at = aliases.sources, aliases.source, position(node)
    alias = name_of(node.args["alias"], source, at) if isinstance(node, exp.Alias) else None
    reader = ExpressionReader(source, aggregates=True, windows=PARTS)
    written, (node, shown_node) = node, stars.replaced(node)
    read = reader.read(node.this if isinstance(node, exp.Alias) else node)
    with explained(read, sources, source, before, "an aggregate or OVER of SELECT"):
        tree = aliases.resolved(read)
    if alias is not None:
        aliases.add(alias, tree)
    # `current_date` is parsed as a name; it is a call unless a column has that name.
    shown = tree if isinstance(tree, Call) and not tree.arguments else read
    if node is not written:
        shown = reader.read(shown_node.unalias())
    if source.literals and any(True for _ in node.find_all(exp.Placeholder)):
        # The name of a column must not depend on the values of parameters.
        named = ExpressionReader(source, aggregates=True, windows=PARTS, names_parameters=True)
        shown = named.read(shown_node.unalias())
    part = part_of(shown)
    otherwise = text_as_name(shown, f"column_{len(before) + 1}") if part is None else column_of(part)
    name = shown.name if isinstance(shown, Name | GetField) else otherwise
    return Item(tree, alias or checked_name(name, source, at), at, has_alias=aliases.is_used)


def _placed(tree: Expression, at: int | None) -> Expression:
    """Returns `tree` with the offset `at` for all its names."""
    if isinstance(tree, Name):
        return Name(tree.qualifier, tree.name, at)
    return map_children(tree, lambda child: _placed(child, at))


@dataclass(frozen=True)
class Grouping:
    """The keys, each once, in order of appearance; `sets` is empty if the query groups by all keys."""

    keys: tuple[Expression, ...]
    sets: tuple[Set, ...] = ()


def read_grouping(
    clause: exp.Group, source: Text, read_key: Callable[[exp.Expr], Expression], within: int | None
) -> Grouping:
    """Reads the keys and grouping sets of `clause`; `read_key` reads one key, `within` is an offset in its SELECT.

    Raises SpecError `unsupported_construct`, `query_too_deep`, and what `read_key` raises.
    """
    return _Reader(source, read_key, within).grouping(clause)


class _Reader:
    def __init__(self, source: Text, read_key: Callable[[exp.Expr], Expression], within: int | None) -> None:
        self._source = source
        self._within = within
        self._read_key = read_key

    def _place(self) -> int | None:
        return place_of(self._source, TokenType.GROUP_BY, self._within)

    def grouping(self, clause: exp.Group) -> Grouping:
        """Reads the keys and sets of the whole clause."""
        for key, value in clause.args.items():
            if value and key == "all":
                raise all_with_others("GROUP BY", self._source, self._place())
            if value and key not in {"expressions", "rollup", "cube", "grouping_sets"}:
                construct = f"GROUP BY with {key.upper()}"
                raise self._source.unsupported(construct, at=self._place(), hint="Name the keys.")
        plain = all(not isinstance(node, _SETS) for node in clause.expressions)
        suffixes = [kind for kind in ("rollup", "cube", "grouping_sets") if clause.args.get(kind)]
        if plain and not suffixes and not clause.expressions:
            raise self._source.error("sql_syntax", "GROUP BY needs at least one key.", at=self._place())
        if plain and not suffixes:
            return Grouping(_once(self._read_key(node) for node in clause.expressions))
        if suffixes:
            named = tuple(self._read_key(node) for node in clause.expressions)
            sets = self._sets_of_suffix(clause, suffixes[0], named)
            keys = _once([*named, *(key for one in sets for key in one)])
        else:
            parts = [self._sets(node) for node in clause.expressions]
            self._check(parts)
            sets = [_once(key for part in chosen for key in part) for chosen in product(*parts)]
            keys = _once(key for part in parts for one in part for key in one)
        if not keys:
            raise self._source.unsupported("GROUP BY without a key", at=self._place(), hint="Remove GROUP BY.")
        return Grouping(keys, tuple(sets))

    def _sets_of_suffix(self, clause: exp.Group, kind: str, keys: Set) -> list[Set]:
        if kind == "grouping_sets":
            (sets,) = clause.args[kind]
            return self._sets(sets)
        units: list[Set] = [(key,) for key in keys]
        return _rolled_up(units) if kind == "rollup" else self._cubed(units)

    def _sets(self, node: exp.Expr) -> list[Set]:
        """Returns the grouping sets of one element of GROUP BY."""
        if isinstance(node, exp.Rollup):
            return _rolled_up([self._set(each) for each in node.expressions])
        if isinstance(node, exp.Cube):
            return self._cubed([self._set(each) for each in node.expressions])
        if isinstance(node, exp.GroupingSets):
            return [one for each in node.expressions for one in self._sets(each)]
        return [self._set(node)]

    def _set(self, node: exp.Expr) -> Set:
        if isinstance(node, exp.Tuple):
            return _once(self._read_key(each) for each in node.expressions)
        return (self._read_key(node.this if isinstance(node, exp.Paren) else node),)

    def _cubed(self, units: list[Set]) -> list[Set]:
        if len(units) > CUBE_KEYS.most:
            raise self._source.beyond(CUBE_KEYS, len(units), at=self._place())
        chosen = (choice for size in range(len(units), -1, -1) for choice in combinations(units, size))
        return [_once(key for unit in choice for key in unit) for choice in chosen]

    def _check(self, parts: Sequence[Sequence[Set]]) -> None:
        count = 1
        for part in parts:
            count *= len(part)
        if count > GROUPING_SETS.most:
            raise self._source.beyond(GROUPING_SETS, count, at=self._place())


def all_with_others(clause: str, source: Text, at: int | None) -> SpecError:
    """Returns the error for ALL among other keys of `clause`: GROUP BY or ORDER BY."""
    hint = f"Write {clause} ALL without other keys, or name each key."
    return source.unsupported(f"{clause} ALL with other keys", at=at, hint=hint)


def _rolled_up(units: list[Set]) -> list[Set]:
    return [_once(key for unit in units[:size] for key in unit) for size in range(len(units), -1, -1)]


def _once(keys: Iterable[Expression]) -> Set:
    return tuple(dict.fromkeys(keys))


class WindowReader:
    """Finds the window of a SELECT, and replaces its start and end by columns."""

    def __init__(self, source: Text) -> None:
        self._source = source
        self._window: GroupWindow | None = None
        self._columns: dict[Part, str] = {}

    def read_key(self, node: exp.Expr) -> Expression | None:
        """Reads `node`, a key of GROUP BY, if it is a window; else returns None. Raises SpecError."""
        bare = node.unnest()
        if not isinstance(bare, exp.Anonymous) or str(bare.this).lower() not in WINDOWS:
            return None
        return ExpressionReader(self._source, aggregates=False, windows=WINDOWS).read(bare)

    def keys_without_window(self, keys: Iterable[Expression], *, has_sets: bool) -> list[Expression]:
        """Stores the window among `keys` and returns the other keys. Raises SpecError `unsupported_construct`."""
        windows: list[Call] = []
        others: list[Expression] = []
        for key in keys:
            if isinstance(key, Call) and is_window(key):
                windows.append(key)
            else:
                others.append(key)
        if len(windows) > 1:
            hint = "Group by one window, and write another job for the other one."
            raise self._source.unsupported("A second window in GROUP BY", at=position_of(windows[1]), hint=hint)
        if windows and has_sets:
            hint = "Group by the window and all keys, without ROLLUP, CUBE and GROUPING SETS."
            raise self._source.unsupported("A window in grouping sets", at=position_of(windows[0]), hint=hint)
        self._window = window_of(windows[0], self._source) if windows else None
        return others

    def is_hidden(self, trees: Sequence[Expression]) -> bool:
        """Whether none of `trees` is the start or the end of the query's window, so that rows may be duplicates."""
        return self._window is not None and all(part_of(tree) is None for tree in trees)

    def name_columns(self, items: Sequence[Item], fresh: Callable[[str], str]) -> None:
        """Names the start and end columns as SELECT does, or with names that `fresh` returns."""
        for item in items:
            part = part_of(item.tree)
            if part is not None:
                self._columns.setdefault(part, item.name)
        for part in Part if self._window is not None else ():
            if part not in self._columns:
                self._columns[part] = fresh(column_of(part))

    def column(self, tree: Expression) -> Name | None:
        """Returns the column for the start or end of a window, None if `tree` is neither. Raises SpecError
        `not_grouped`.
        """
        part = part_of(tree)
        if part is None or not isinstance(tree, Call):
            return None
        if self._window is None or window_of(tree, self._source) != self._window:
            window = PARTS[tree.name][0].upper()
            detail = f"{tree.name.upper()} needs GROUP BY {window}(…) with the same column and the same intervals."
            raise self._source.error("not_grouped", detail, at=tree.at)
        return Name(None, self._columns[part], tree.at)

    def query_window(self, text: Callable[[Expression, str, int | None], str]) -> TumblingWindow | HoppingWindow | None:
        """Returns the window for the structured query; `text` renders an expression at a pointer."""
        window = self._window
        if window is None:
            return None
        column = text(window.column, "/window", window.column.at)
        start, end = self._columns[Part.START], self._columns[Part.END]
        if window.slide == window.size:
            return TumblingWindow(kind="tumble", column=column, size=window.size, start=start, end=end)
        return HoppingWindow(kind="hop", column=column, size=window.size, slide=window.slide, start=start, end=end)


def over_columns(order: Order, items: Sequence[Item], alias: str, source: Text) -> Order:
    """Returns ORDER BY over the output columns `items` of the derived table `alias`, for DISTINCT around it.

    Raises SpecError `unsupported_construct` for an expression that is not one of its columns.
    """
    columns = {item.tree: Name(alias, item.name, item.at) for item in reversed(items)}

    def replaced(tree: Expression) -> Expression:
        if tree in columns:
            return columns[tree]
        if isinstance(tree, Name | Aggregate | Over):
            raise source.unsupported(
                "ORDER BY of SELECT DISTINCT by an expression that is not selected",
                at=tree.at,
                hint="Add it to SELECT.",
            )
        return map_children(tree, replaced)

    return [(replaced(tree), key) for tree, key in order]
