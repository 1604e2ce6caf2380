"""Reads the functions that make several rows of one: in LATERAL VIEW, in FROM (UNNEST, LATERAL), and in SELECT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlglot import exp

from service.contract.query import GeneratorFunction
from service.sql.expressions.compile_expression import TableScope, matching
from service.sql.expressions.nodes import Expression
from service.sql.expressions.reader import position
from service.sql.parser import Text
from service.sql.statements import trees

_OUTER = "_outer"
_NAMES = frozenset(GeneratorFunction) | {
    f"{name}{_OUTER}" for name in (GeneratorFunction.EXPLODE, GeneratorFunction.POSEXPLODE, GeneratorFunction.INLINE)
}
_DEFAULTS = {GeneratorFunction.EXPLODE: ("col",), GeneratorFunction.POSEXPLODE: ("pos", "col")}
_DERIVED = "Write it in a derived table."


@dataclass(frozen=True)
class Generated:
    """A call in FROM. `is_shown`: `*` includes its columns."""

    function: GeneratorFunction
    arguments: tuple[Expression, ...]
    alias: str
    columns: tuple[str, ...]
    outer: bool
    at: int | None
    is_shown: bool = True


def is_generator(node: exp.Expr) -> bool:
    """Whether `node` is a call of a function that makes several rows of one."""
    return isinstance(node, exp.Anonymous) and isinstance(node.this, str) and node.this.lower() in _NAMES


def is_generated(node: exp.Expr) -> bool:
    """Whether a node of FROM is a generator: UNNEST, or LATERAL before it or another call."""
    called = node.this if isinstance(node, exp.Lateral) else node
    return isinstance(called, exp.Unnest) or (called is not node and isinstance(called, exp.Anonymous))


def is_table_function(node: exp.Expr) -> bool:
    """Whether a node of FROM is a generator, with or without LATERAL."""
    return is_generated(node) or (isinstance(node, exp.Table) and is_generator(node.this))


def called_in_from(node: exp.Expr) -> exp.Expr:
    """Returns a generator in FROM, whose parts it takes, as one after LATERAL."""
    if not isinstance(node, exp.Table):
        return node
    return trees.placed(exp.Lateral(this=node.this, alias=node.args.get("alias")), position(node.this))


def queried(join: exp.Join) -> exp.Join:
    """Returns a join with a generator as one with a query of it."""
    node = join.this
    if not is_generated(node):
        return join
    alias = node.args.get("alias")
    query = exp.Select(expressions=[exp.Star()], from_=exp.From(this=node.copy()))
    named = exp.TableAlias(this=alias.this.copy()) if alias is not None and alias.this is not None else None
    changed = join.copy()
    changed.set("this", trees.placed(exp.Lateral(this=exp.Subquery(this=query), alias=named), position(node)))
    return changed


def _arguments_in(query: exp.Expr) -> Iterator[tuple[exp.Column, bool]]:
    """Yields the columns that are arguments of generators in `query`, and whether their SELECT reads no table before
    the generator.
    """
    for node in query.walk():
        if not (isinstance(node, exp.Unnest) or is_generator(node)):
            continue
        select = node.find_ancestor(exp.Select)
        from_ = select.args.get("from_") if select is not None else None
        is_first = from_ is None or is_generated(from_.this)
        for column in node.find_all(exp.Column):
            yield column, is_first


def refuse_outer_arguments(query: exp.Expr, outer: TableScope, source: Text) -> None:
    """Raises SpecError for a generator in the subquery `query` whose argument is a column of the tables `outer`."""
    aliases = {node.alias_or_name for node in query.find_all(exp.Table, exp.Subquery, exp.Lateral, exp.Unnest)}
    for column, is_first in _arguments_in(query):
        first = column.parts[0].name
        of_table = len(column.parts) > 1 and matching(first, outer.tables) is not None
        is_outer = matching(first, aliases) is None if of_table else is_first
        if is_outer and (of_table or outer.has_column(first)):
            text = ".".join(part.name for part in column.parts)[:60]
            hint = (
                f"Write a function of arrays, such as exists({text}, x -> x > 1) or "
                f"aggregate({text}, 0L, (total, x) -> total + x), or LATERAL VIEW explode in the outer query."
            )
            what = f"explode or UNNEST of {text}, a column of the outer query, in a subquery"
            raise source.unsupported(what, at=position(column), hint=hint)


def read_generator(
    node: exp.Expr,
    number: int,
    source: Text,
    read: Callable[[exp.Expr], Expression],
    *,
    outer: bool = False,
) -> Generated:
    """Reads a LATERAL VIEW, or UNNEST or LATERAL in FROM; `number` is its place, `read` reads an argument.

    Raises SpecError `unsupported_construct`, and what expressions raise.
    """
    at = position(node)
    call = node if isinstance(node, exp.Unnest) else node.this
    if isinstance(call, exp.Unnest):
        function, arguments = GeneratorFunction.EXPLODE, list(call.expressions)
        if len(arguments) != 1 or call.args.get("offset") or node.args.get("ordinality"):
            hint = "Write UNNEST(a) AS t(x), or LATERAL VIEW posexplode(a) t AS place, x."
            raise source.unsupported("UNNEST of several arrays, or WITH ORDINALITY", at=at, hint=hint)
    elif is_generator(call):
        name = str(call.this).lower()
        outer = outer or bool(node.args.get("outer")) or name.endswith(_OUTER)
        function, arguments = GeneratorFunction(name.removesuffix(_OUTER)), list(call.expressions)
        if node.args.get("ordinality"):
            raise source.unsupported("WITH ORDINALITY", at=at, hint="Write posexplode(a).")
    else:
        hint = f"Use {', '.join(sorted(_NAMES))}."
        raise source.unsupported("This function after LATERAL", at=at, hint=hint)
    alias = node.args.get("alias")
    called = alias.this.name if alias is not None and isinstance(alias.this, exp.Identifier) else f"lateral_{number}"
    columns = tuple(column.name for column in (alias.args.get("columns") or ())) if alias is not None else ()
    if not columns and isinstance(call, exp.Unnest):
        columns = (called,)
    columns = columns or _default_names(function, arguments, source, at)
    return Generated(function, tuple(map(read, arguments)), called, columns, outer, at, not node.meta.get("hidden"))


def _default_names(
    function: GeneratorFunction, arguments: list[exp.Expr], source: Text, at: int | None
) -> tuple[str, ...]:
    if function in _DEFAULTS:
        return _DEFAULTS[function]
    if function is GeneratorFunction.JSON_TUPLE:
        return tuple(f"c{index}" for index in range(len(arguments) - 1)) or ("c0",)
    first = arguments[0] if arguments else None
    if function is GeneratorFunction.STACK and isinstance(first, exp.Literal) and first.name.isdecimal():
        rows = max(int(first.name[:9]), 1)
        return tuple(f"col{index}" for index in range(max(-(-(len(arguments) - 1) // rows), 1)))
    raise source.unsupported(f"{function} without names of its columns", at=at, hint="Name them after AS.")


def with_laterals(select: exp.Select, alias: str, source: Text) -> exp.Select:
    """Returns `select` with a generator among its columns as a LATERAL VIEW called `alias`. If it has aggregates or
    calls with OVER, the view is one of a query around it.

    Raises SpecError `unsupported_construct` for several generators.
    """
    found = [item for item in select.expressions if is_generator(_bare(item))]
    if not found:
        return select
    if len(found) == 1 and _is_grouped(select):
        return with_laterals(_around_groups(select, found[0], alias), alias, source)
    item = found[0]
    call, at = _bare(item), position(item)
    name = str(call.this).lower()
    if len(found) > 1:
        hint = "Write LATERAL VIEW for each of them."
        raise source.unsupported(f"A second function such as {name} in SELECT", at=position(found[1]), hint=hint)
    function = GeneratorFunction(name.removesuffix(_OUTER))
    names = _written_names(item) or _default_names(function, list(call.expressions), source, at)
    view = exp.Lateral(
        this=call,
        view=True,
        outer=False,
        alias=exp.TableAlias(this=trees.identifier(alias), columns=[trees.identifier(each) for each in names]),
    )
    view.meta["hidden"] = True
    shown = [
        trees.placed(exp.Alias(this=trees.column(alias, each, at), alias=trees.identifier(each)), at) for each in names
    ]
    items = [part for each in select.expressions for part in (shown if each is item else [each])]
    select.set("expressions", items)
    select.set("laterals", [*(select.args.get("laterals") or []), view])
    return select


def _bare(item: exp.Expr) -> exp.Expr:
    inner = item.this if isinstance(item, exp.Alias | exp.Aliases) else item
    return inner if isinstance(inner, exp.Expr) else item


def _written_names(item: exp.Expr) -> tuple[str, ...]:
    if isinstance(item, exp.Aliases):
        return tuple(each.name for each in item.expressions)
    return (item.alias,) if isinstance(item, exp.Alias) else ()


def _is_grouped(select: exp.Select) -> bool:
    windows = any(item.find(exp.Window) for item in select.expressions)
    return windows or trees.is_aggregated(select) or any(select.args.get(key) for key in ("having", "qualify"))


def _around_groups(select: exp.Select, item: exp.Expr, alias: str) -> exp.Select:
    """Returns a query of the generator `item` over the other columns of `select` and its arguments."""
    inner, call = select.copy(), _bare(item)
    arguments = [f"{alias}_a{number}" for number in range(1, len(call.expressions) + 1)]
    kept, shown = list[exp.Expr](), list[exp.Expr]()
    for number, each in enumerate(select.expressions, start=1):
        if each is item:
            changed = item.copy()
            columns = [trees.column(f"{alias}_q", name, position(call)) for name in arguments]
            called = [
                part.copy() if isinstance(part, exp.Literal) else column
                for part, column in zip(call.expressions, columns, strict=True)
            ]
            _bare(changed).set("expressions", called)
            shown.append(changed)
            continue
        name = each.alias_or_name or f"column_{number}"
        kept.append(trees.placed(exp.Alias(this=each.unalias().copy(), alias=trees.identifier(name)), position(each)))
        column = trees.column(f"{alias}_q", name, position(each))
        shown.append(trees.placed(exp.Alias(this=column, alias=trees.identifier(name)), position(each)))
    kept += [
        exp.Alias(this=part.copy(), alias=trees.identifier(name))
        for part, name in zip(call.expressions, arguments, strict=True)
    ]
    inner.set("expressions", kept)
    around = exp.Select(expressions=shown)
    for clause in ("distinct", "order", "limit", "offset", "with_", "hint"):
        around.set(clause, inner.args.get(clause))
        inner.set(clause, None)
    around.set("from_", trees.from_query(trees.placed(inner, position(select)), f"{alias}_q", []))
    return around
