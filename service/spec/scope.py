"""Which columns a name may mean, and finding the one it does mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from service.spec.dialect import Text
from service.spec.errors import SpecError, did_you_mean, nearest_names
from service.spec.tree import Call, Column, Expression, Name, map_children
from service.spec.types import Field, Schema, TypeName, known

_WITHOUT_PARENTHESES = frozenset({"current_date", "current_timestamp"})


def full_name(alias: str, column: str) -> str:
    """The name under which a scan emits a column."""
    return f"{alias}.{column}"


@dataclass(frozen=True)
class TableScope:
    """The columns of the tables in sight, each emitted as `alias.column`; names match without regard to case.

    `hidden` are tables that a semi or anti join has consumed: told apart from unknown ones in messages.
    """

    tables: Mapping[str, Schema]
    hidden: frozenset[str] = frozenset()

    def with_table(self, alias: str, schema: Schema) -> TableScope:
        """This scope and one more table."""
        return TableScope({**self.tables, alias: schema}, self.hidden)

    def without(self, alias: str) -> TableScope:
        """This scope after a semi or anti join with the table `alias`."""
        return TableScope(
            {name: schema for name, schema in self.tables.items() if name != alias}, self.hidden | {alias}
        )

    def find(self, name: Name, source: Text) -> Column:
        """The column that `name` means. Raises SpecError as `locate` does."""
        alias, field = self.locate(name, source)
        return Column(full_name(alias, field.name), known(field.type), name.at)

    def locate(self, name: Name, source: Text) -> tuple[str, Field]:
        """The alias and the field that `name` means.

        Raises SpecError `unknown_table`, `unknown_column`, `ambiguous_column`, `unsupported_construct`.
        """
        if name.qualifier is None:
            return self._unqualified(name, source)
        alias = matching(name.qualifier, self.tables)
        if alias is None:
            raise self._unknown_table(name, source)
        field = _field(self.tables[alias], name, source)
        if field is None:
            raise _unknown_column(f"{name.qualifier}.{name.name}", name, self.tables[alias].names, source, alias)
        return alias, field

    def call_by_name(self, name: Name, source: Text) -> Call | None:
        """The call of a function that needs no parentheses, where `name` is that of one and of no column.

        Raises SpecError `ambiguous_column`.
        """
        function = name.name.lower()
        if name.qualifier is not None or function not in _WITHOUT_PARENTHESES:
            return None
        is_column = any(_field(schema, name, source) is not None for schema in self.tables.values())
        return None if is_column else Call(function, (), name.at)

    def _unqualified(self, name: Name, source: Text) -> tuple[str, Field]:
        found = [
            (alias, field)
            for alias, schema in self.tables.items()
            if (field := _field(schema, name, source)) is not None
        ]
        if len(found) > 1:
            choices = [full_name(alias, field.name) for alias, field in found]
            raise source.error(
                "ambiguous_column",
                f"{name.name} is a column of several tables: write {' or '.join(choices)}.",
                at=name.at,
                suggestions=choices,
            )
        if not found:
            names = [column for schema in self.tables.values() for column in schema.names]
            raise _unknown_column(name.name, name, names, source, None)
        return found[0]

    def _unknown_table(self, name: Name, source: Text) -> SpecError:
        qualifier = name.qualifier or ""
        if matching(qualifier, self.hidden) is not None:
            return source.error(
                "unknown_table",
                f"{qualifier} cannot be seen here: a semi or anti join keeps no column of it.",
                at=name.at,
            )
        nested = Name(None, qualifier)
        for schema in self.tables.values():
            field = schema.find(nested.name)
            if field is not None and field.type.name is TypeName.OTHER:
                return source.unsupported(f"Access to a field of {field.name}", at=name.at)
        suggestions = nearest_names(qualifier, list(self.tables))
        return source.error(
            "unknown_table",
            f"There is no table or alias {qualifier} here.{did_you_mean(suggestions)}",
            at=name.at,
            suggestions=suggestions,
        )


def resolve(node: Expression, scope: TableScope, source: Text) -> Expression:
    """`node` with every name replaced by what it means. Raises SpecError as `TableScope.find` does."""
    if isinstance(node, Name):
        return scope.call_by_name(node, source) or scope.find(node, source)
    return map_children(node, lambda child: resolve(child, scope, source))


def matching(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate called `name`: the exact spelling first, else one that differs in case alone."""
    candidates = list(candidates)
    if name in candidates:
        return name
    return next((candidate for candidate in candidates if candidate.casefold() == name.casefold()), None)


def _field(schema: Schema, name: Name, source: Text) -> Field | None:
    field = schema.find(name.name)
    if field is None:
        alike = [other for other in schema.names if other.casefold() == name.name.casefold()]
        if alike:
            raise source.error(
                "ambiguous_column",
                f"{name.name} could be any of {', '.join(alike)}, which differ in case alone.",
                at=name.at,
                suggestions=alike,
            )
    return field


def _unknown_column(
    told: str, name: Name, candidates: list[str] | tuple[str, ...], source: Text, table: str | None
) -> SpecError:
    suggestions = nearest_names(name.name, candidates)
    if table is not None:
        suggestions = tuple(f"{name.qualifier}.{suggestion}" for suggestion in suggestions)
    return source.error(
        "unknown_column",
        f"There is no column {told}.{did_you_mean(suggestions)}",
        at=name.at,
        suggestions=suggestions,
    )
