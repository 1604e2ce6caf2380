"""What can be seen after GROUP BY: the keys, the aggregates, and expressions that are group keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from service.spec.bound import BoundCall
from service.spec.dialect import Text
from service.spec.errors import SpecError, did_you_mean, nearest_names
from service.spec.query import AggregateFunction, NamedExpression
from service.spec.scalar import Scalar
from service.spec.scope import TableScope, resolve
from service.spec.tree import Column, Expression, Name, Negation, Number, children, map_children, walk
from service.spec.types import Field, known


@dataclass(frozen=True)
class Key:
    """A group key: the name of its column and its expression over the tables."""

    name: str
    tree: Expression
    scalar: Scalar


@dataclass(frozen=True)
class Grouped:
    """The scope of HAVING, ORDER BY and SELECT of an aggregate query."""

    keys: tuple[Key, ...]
    calls: tuple[BoundCall, ...]
    tables: TableScope
    has_sets: bool = False
    """Whether there are grouping sets: a key is NULL outside of its own then, a constant too."""
    window: tuple[Field, ...] = ()
    """The columns that have the start and the end of a window, where there is one."""

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """What the aggregation emits: the window's start and end, keys, then aggregates."""
        return (
            *(Column(field.name, field.type) for field in self.window),
            *(_column(key) for key in self.keys),
            *(
                Column(call.output.name, known(call.output.type), longest=_longest(call.arguments))
                for call in self.calls
            ),
        )

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the columns, case-folded."""
        return frozenset(self._by_folded_name)

    @cached_property
    def _by_folded_name(self) -> dict[str, Column]:
        return {column.name.casefold(): column for column in reversed(self.columns)}

    def resolve(self, tree: Expression, source: Text) -> Expression:
        """`tree` over keys and aggregates: by name, else as an expression that equals a group key.

        Raises SpecError `not_grouped`, `unknown_column` and what `TableScope.find` raises.
        """
        return self._over(tree, self._over_tables(tree, source), source)

    def _over(self, tree: Expression, over_tables: Expression, source: Text) -> Expression:
        """`tree` over keys and aggregates; `over_tables` is `tree` with the names of columns of tables resolved."""
        if isinstance(tree, Column):
            return tree
        if isinstance(tree, Name) and tree.qualifier is None:
            column = self._by_folded_name.get(tree.name.casefold())
            if column is not None:
                return replace(column, at=tree.at)
        key = self._key_that_equals(tree, over_tables)
        if key is not None:
            return key
        if isinstance(tree, Name):
            call = self.tables.call_by_name(tree, source)
            if call is None:
                raise self._not_grouped(tree, source)
            return call
        if isinstance(tree, Negation) and isinstance(tree.operand, Number):
            # To Spark a negative number is one literal: the key 5 is no part of -5.
            return tree
        parts = iter(children(over_tables))
        return map_children(tree, lambda child: self._over(child, next(parts), source))

    def _over_tables(self, tree: Expression, source: Text) -> Expression:
        """`tree` with its names resolved; a name that is no column of a table stays, and equals no part of a key."""
        if isinstance(tree, Name):
            # Resolving it would build an error with suggestions, which takes long.
            if tree.qualifier is None and tree.name.casefold() in self.names and not self.tables.has_column(tree.name):
                return tree
            try:
                return resolve(tree, self.tables, source)
            except SpecError:
                return tree
        return map_children(tree, lambda child: self._over_tables(child, source))

    def _key_that_equals(self, tree: Expression, over_tables: Expression) -> Column | None:
        key = next((key for key in self.keys if key.tree == over_tables), None)
        # A constant is itself, whether it is a key or not.
        is_constant = key is not None and not any(isinstance(part, Name) for part in walk(tree))
        return None if key is None or (is_constant and not self.has_sets) else _column(key)

    def _not_grouped(self, name: Name, source: Text) -> SpecError:
        told = f"{name.qualifier}.{name.name}" if name.qualifier is not None else name.name
        try:
            self.tables.find(name, source)
        except SpecError as error:
            if error.code != "unknown_column" or name.qualifier is not None:
                return error
            suggestions = nearest_names(name.name, [column.name for column in self.columns]) or (
                error.issues[0].suggestions
            )
            return source.error(
                "unknown_column",
                f"There is no column {told} here.{did_you_mean(suggestions)}",
                at=name.at,
                suggestions=suggestions,
            )
        return source.error(
            "not_grouped",
            f"{told} is neither a group key nor an aggregate: add it to GROUP BY or put it into an aggregate.",
            at=name.at,
        )


def over_keys(call: BoundCall, keys: Sequence[Key], has_sets: bool, pointer: str) -> BoundCall:
    """GROUPING of a group key, or GROUPING_ID of all of them, which needs no arguments then.

    Raises SpecError `unsupported_construct`.
    """
    if not has_sets:
        detail = f"{call.function} needs ROLLUP, CUBE or GROUPING SETS."
        raise SpecError.of("unsupported_construct", detail, pointer=pointer)
    wanted = [key.scalar for key in keys]
    if call.function is AggregateFunction.GROUPING:
        if call.arguments[0] not in wanted:
            detail = "GROUPING takes one of the group keys."
            raise SpecError.of("unsupported_construct", detail, pointer=pointer)
        return call
    if call.arguments and list(call.arguments) != wanted:
        detail = "GROUPING_ID takes all group keys in the order of GROUP BY, or no argument, which is the same."
        raise SpecError.of("unsupported_construct", detail, pointer=pointer)
    return replace(call, arguments=())


def check_keys(keys: Sequence[Key], pointer: str) -> None:
    """Raises SpecError `unsupported_construct` where a key of grouping sets stands twice, under two names.

    It would be NULL in the sets of one name and not in those of the other, but both are one expression to GROUPING and
    to SELECT.
    """
    for index, key in enumerate(keys):
        first = next(other for other in keys if other.tree == key.tree)
        if first is not key:
            detail = f"{key.name} is the same key as {first.name}: grouping sets have each once, SELECT may repeat it."
            raise SpecError.of("unsupported_construct", detail, pointer=f"{pointer}/group_by/{index}/expression")


def positions_of(
    sets: Sequence[Sequence[str]], keys: Sequence[NamedExpression], pointer: str
) -> tuple[tuple[int, ...], ...]:
    """Grouping sets, given as names of keys, as positions in `keys`. Raises SpecError `unknown_column`."""
    names = [key.name.casefold() for key in keys]
    found = []
    for index, one in enumerate(sets):
        for name in one:
            if name.casefold() not in names:
                suggestions = nearest_names(name, [key.name for key in keys])
                detail = f"{name} is no name of group_by.{did_you_mean(suggestions)}"
                at = f"{pointer}/grouping_sets/{index}"
                raise SpecError.of("unknown_column", detail, pointer=at, suggestions=suggestions)
        found.append(tuple(dict.fromkeys(names.index(name.casefold()) for name in one)))
    if sets and not keys:
        detail = "grouping_sets needs group_by."
        raise SpecError.of("unsupported_construct", detail, pointer=f"{pointer}/grouping_sets")
    return tuple(found)


def _column(key: Key) -> Column:
    return Column(key.name, key.scalar.type, longest=key.scalar.longest, size=key.scalar.size)


def _longest(arguments: Iterable[Scalar]) -> int | None:
    return max((argument.longest or 0 for argument in arguments), default=0) or None
