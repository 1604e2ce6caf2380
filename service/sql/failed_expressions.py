"""Finds the expressions of a job's query by the text that Spark names when one of them fails, and where they stand.

Spark got the text of a tree (`Scalar.sql`), and its errors have the part of that text that failed. `QueryExpressions`
compiles the query again and compares that part with the text of each node. Rules may have moved the expression or
merged it with others; a part that is not the text of a node of the query is not found, so no place is a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.sql.compile import compile_sql, event_times_of
from service.sql.expressions.nodes import (
    Aggregate,
    Call,
    Cast,
    Column,
    Comparison,
    Expression,
    children,
    map_children,
    walk,
)
from service.sql.expressions.reader import read_expression
from service.sql.expressions.scalar import render
from service.sql.expressions.spans import Place, Spans
from service.sql.parser import Text, tokens_of
from service.sql.resolve.binder import bind
from service.sql.resolve.bound import BoundDerived, BoundQuery, BoundUnion, queries_of, sources_of
from service.sql.resolve.bound_trees import trees_of
from service.sql.types.data_types import Schema

_MOST_NODES = 20_000
"""The most nodes that are compared; a larger query gets no places."""

_CAST = re.compile(r"CAST\((.+) AS \w+(?:\([\d, ]+\))?\)", re.DOTALL)
_SEPARATOR = " , "
"""Between the expressions of a structured query, which are searched as one text."""


@dataclass(frozen=True)
class Occurrence:
    """An expression of the query: its tree, the part of the text where it is written, the JSON pointer of that text,
    and, in SQL, its line and column, from 1. `operands` are the texts of its direct parts as written.
    """

    tree: Expression
    text: str
    pointer: str
    line: int | None
    column: int | None
    operands: tuple[str, ...]


@dataclass(frozen=True)
class _Node:
    """A node of the query, and the same node with columns of derived tables replaced, as Spark's optimizer does."""

    tree: Expression
    expanded: tuple[Expression, ...]


class QueryExpressions:
    """The expressions of the query of `spec`, whose tables have `schemas`."""

    def __init__(self, spec: JobSpec, schemas: Mapping[str, Schema]) -> None:
        self._spec = spec
        self._schemas = schemas
        self._regions: list[tuple[int, str]] = []
        self._parts: list[str] = []

    def named(self, fragment: str, *, in_casts: bool = False) -> tuple[Occurrence, ...]:
        """Returns where the expression stands that Spark knows by the text `fragment`, in order of the text.

        `in_casts`: an operand of a cast failed. Spark names the cast around it if its optimizer removes the cast.
        """
        while in_casts and (cast := _CAST.fullmatch(fragment)) is not None:
            fragment = cast[1]
        wanted = _folded(fragment)
        return self._where(lambda node: any(wanted in _texts(tree) for tree in (node.tree, *node.expanded)))

    def casts_to(self, type_: str) -> tuple[Occurrence, ...]:
        """Returns the casts to `type_`; none if a function of the query may cast its arguments to it as well."""
        if any(isinstance(node.tree, Call) and len(node.tree.arguments) > 1 for node in self._nodes):
            return ()
        return self._where(lambda node: isinstance(node.tree, Cast) and str(node.tree.type) == type_)

    def calls_of(self, *names: str) -> tuple[Occurrence, ...]:
        """Returns the calls of these functions and aggregates."""
        return self._where(
            lambda node: (
                (isinstance(node.tree, Call) and node.tree.name in names)
                or (isinstance(node.tree, Aggregate) and node.tree.function.value.lower() in names)
            )
        )

    def calls_that_begin(self, prefix: str) -> tuple[Occurrence, ...]:
        """Returns the calls of functions whose names begin with `prefix`."""
        return self._where(lambda node: isinstance(node.tree, Call) and node.tree.name.startswith(prefix))

    def _where(self, is_wanted: Callable[[_Node], bool]) -> tuple[Occurrence, ...]:
        found: dict[tuple[str, int], Occurrence] = {}
        for node in filter(is_wanted, self._nodes):
            place = self._spans.of(node.tree)
            if place is None:
                # One of the places is not known, so that the others may be the wrong ones.
                return ()
            found[place.text, place.start] = self._occurrence(node.tree, place)
        return tuple(found[key] for key in sorted(found, key=lambda key: key[1]))

    def _occurrence(self, tree: Expression, place: Place) -> Occurrence:
        parts = tree.arguments if isinstance(tree, Aggregate) else children(tree)
        written = [self._spans.operand(part) for part in parts]
        texts = tuple(" ".join(part.text.split()) for part in written if part is not None)
        pointer, line, column = self._located(place.start)
        shown = " ".join(place.text.split())
        return Occurrence(tree, shown, pointer, line, column, texts if len(texts) == len(written) else ())

    def _located(self, at: int) -> tuple[str, int | None, int | None]:
        if self._spec.query is None:
            text = self._text
            return "/sql", text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        return next(pointer for start, pointer in reversed(self._regions) if start <= at), None, None

    @cached_property
    def _text(self) -> str:
        return self._spec.sql or "" if self._spec.query is None else _SEPARATOR.join(self._parts)

    @cached_property
    def _spans(self) -> Spans:
        # `_nodes` first: the binding of a structured query collects its texts.
        return Spans(self._text, tokens_of(Text(self._text, "/sql")) if self._nodes else ())

    @cached_property
    def _nodes(self) -> tuple[_Node, ...]:
        """The nodes of all expressions of the query; none if it cannot be compiled any more, or is too large."""
        try:
            nodes = tuple(islice(_nodes(self._bound()), _MOST_NODES + 1))
            tokens_of(Text(self._text, "/sql"))
        except (SpecError, RecursionError):
            return ()
        return nodes if len(nodes) <= _MOST_NODES else ()

    def _bound(self) -> BoundQuery:
        spec, schemas = self._spec, self._schemas
        if spec.query is not None:
            return bind(spec.query, schemas, event_times=event_times_of(spec), text_of=self._text_of)
        compiled = compile_sql(spec.sql or "", schemas, spec.parameters, is_accepted=True)
        return bind(compiled.query, schemas, event_times=event_times_of(spec), text_of=compiled.text_of)

    def _text_of(self, text: str, pointer: str) -> Text:
        """Returns an expression of a structured query, with offsets in the text of all of them."""
        source = Text(text, pointer, is_accepted=True)
        if not text:
            return source
        base = sum(map(len, self._parts)) + len(_SEPARATOR) * len(self._parts)
        self._regions.append((base, pointer))
        self._parts.append(text)
        return Text(text, pointer, _moved(read_expression(source), base), is_accepted=True)


def _moved(tree: Expression, base: int) -> Expression:
    """Returns `tree` with its offsets increased by `base`."""
    moved = map_children(tree, lambda part: _moved(part, base))
    at = getattr(moved, "at", None)
    return replace(moved, at=at + base) if at is not None else moved


def _texts(tree: Expression) -> tuple[str, ...]:
    text = _folded(render(tree))
    if isinstance(tree, Aggregate) and tree.filter is not None:
        return text, text[: text.rindex(" filter (where ")]
    if isinstance(tree, Comparison):
        # The keys of a join, as `workers.engine.plan.expressions` writes them.
        return text, _folded(f"({render(tree.left)}) {tree.operator} ({render(tree.right)})")
    return (text,)


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def _nodes(query: BoundQuery) -> Iterator[_Node]:
    for inner in queries_of(query):
        columns = _derived_columns(inner)
        for tree in trees_of(inner):
            for node in walk(tree):
                # A column alone is not what fails, but the expression that computes it, which has a node of its own.
                yield _Node(node, () if not columns or isinstance(node, Column) else (_expanded(node, columns),))
        # A sort reads the columns of SELECT.
        outputs = {item.expression.tree: Column(item.name, None) for item in inner.select}
        for key in inner.order_by:
            for node in walk(key.expression.tree):
                yield _Node(node, () if isinstance(node, Column) else (_renamed(node, outputs),))


def _renamed(tree: Expression, outputs: Mapping[Expression, Column]) -> Expression:
    """Returns `tree` with the parts that SELECT computes replaced by the columns of its output."""
    return outputs.get(tree) or map_children(tree, lambda part: _renamed(part, outputs))


def _derived_columns(query: BoundQuery) -> Mapping[str, Expression]:
    columns: dict[str, Expression] = {}
    for source in sources_of(query):
        if not isinstance(source, BoundDerived) or isinstance(source.query, BoundUnion):
            continue
        items = {item.name: item.expression.tree for item in source.query.select}
        inner = _derived_columns(source.query)
        for field, name in source.columns:
            columns[field.name] = _expanded(items[name], inner)
    return columns


def _expanded(tree: Expression, columns: Mapping[str, Expression]) -> Expression:
    if isinstance(tree, Column):
        return columns.get(tree.name, tree)
    return map_children(tree, lambda part: _expanded(part, columns))
