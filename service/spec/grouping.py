"""What can be seen after GROUP BY: the keys, the aggregates, and expressions that are group keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from service.spec.bound import BoundCall
from service.spec.dialect import Text
from service.spec.errors import SpecError, did_you_mean, nearest_names
from service.spec.scalar import Scalar
from service.spec.scope import TableScope, resolve
from service.spec.tree import Column, Expression, Name, map_children, walk
from service.spec.types import known


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

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """What the aggregation emits: keys, then aggregates."""
        return (
            *(_column(key) for key in self.keys),
            *(
                Column(call.output.name, known(call.output.type), longest=_longest(call.arguments))
                for call in self.calls
            ),
        )

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the columns, case-folded."""
        return frozenset(column.name.casefold() for column in self.columns)

    @property
    def scalars(self) -> list[Scalar | None]:
        """Every expression that is evaluated over the tables."""
        scalars: list[Scalar | None] = [key.scalar for key in self.keys]
        for call in self.calls:
            scalars += [*call.arguments, call.filter, call.order_by]
        return scalars

    def resolve(self, tree: Expression, source: Text) -> Expression:
        """`tree` over keys and aggregates: by name, else as an expression that equals a group key.

        Raises SpecError `not_grouped`, `unknown_column` and what `TableScope.find` raises.
        """
        if isinstance(tree, Column):
            return tree
        if isinstance(tree, Name) and tree.qualifier is None:
            for column in self.columns:
                if column.name.casefold() == tree.name.casefold():
                    return replace(column, at=tree.at)
        key = self._key_that_equals(tree, source)
        if key is not None:
            return key
        if isinstance(tree, Name):
            call = self.tables.call_by_name(tree, source)
            if call is None:
                raise self._not_grouped(tree, source)
            return call
        return map_children(tree, lambda child: self.resolve(child, source))

    def _key_that_equals(self, tree: Expression, source: Text) -> Column | None:
        if not any(isinstance(part, Name) for part in walk(tree)):
            return None
        try:
            resolved = resolve(tree, self.tables, source)
        except SpecError:
            return None
        for key in self.keys:
            if key.tree == resolved:
                return _column(key)
        return None

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


def _column(key: Key) -> Column:
    return Column(key.name, key.scalar.type, longest=key.scalar.longest)


def _longest(arguments: Iterable[Scalar]) -> int | None:
    return max((argument.longest or 0 for argument in arguments), default=0) or None
