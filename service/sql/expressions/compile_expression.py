"""Resolves names in expressions to columns (`TableScope`), and compiles the text of an expression into a `Scalar`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from service.contract.problems import SpecError, did_you_mean, nearest_names
from service.sql.expressions.limits import conditions_in, expanded, longest
from service.sql.expressions.nodes import Call, Column, Expression, GetField, Name, Over, map_children
from service.sql.expressions.reader import read_expression
from service.sql.expressions.regular_expressions import check_patterns
from service.sql.expressions.scalar import Scalar
from service.sql.parser import Text
from service.sql.types.data_types import NULL, UNKNOWN, DataType, Field, Schema, known
from service.sql.types.document_functions import PATHS, guarded_path
from service.sql.types.inference import Typing
from service.sql.types.nested_functions import guarded_sequence
from service.sql.types.windows import type_of_window

_WITHOUT_PARENTHESES = frozenset({"current_date", "current_timestamp"})

_LISTED = 12
"""A message lists a table's columns if there are at most this many and no similar name."""


def full_name(alias: str, column: str) -> str:
    """Returns the name of a column in the output of a scan."""
    return f"{alias}.{column}"


@dataclass(frozen=True)
class TableScope:
    """The columns of the visible tables, each called `alias.column`; the case of names is ignored.

    `hidden` are the right tables of semi and anti joins, which messages distinguish from unknown ones. `plan_names` are
    the aliases of tables in the plan, if they differ from the query's. By full name of a computed column, `longest` is
    an upper bound of its bytes and `sizes` the number of nodes of its expression. `unnamed` are queries in FROM without
    an alias, by which no name can be qualified.
    """

    tables: Mapping[str, Schema]
    hidden: frozenset[str] = frozenset()
    plan_names: Mapping[str, str] = field(default_factory=dict)
    longest: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    unnamed: frozenset[str] = frozenset()

    def with_tables(self, other: TableScope) -> TableScope:
        """Returns this scope with the tables of another."""
        return TableScope(
            {**self.tables, **other.tables},
            self.hidden | other.hidden,
            {**self.plan_names, **other.plan_names},
            {**self.longest, **other.longest},
            {**self.sizes, **other.sizes},
            self.unnamed | other.unnamed,
        )

    def without(self, alias: str) -> TableScope:
        """Returns this scope after a semi or anti join with the table `alias`."""
        left = {name: schema for name, schema in self.tables.items() if name != alias}
        return replace(self, tables=left, hidden=self.hidden | {alias})

    def full_name(self, alias: str, column: str) -> str:
        """Returns the name in the plan of a column of the table `alias`."""
        return full_name(self.plan_names.get(alias, alias), column)

    def find(self, name: Name, source: Text) -> Column:
        """Returns the column that `name` refers to. Raises SpecError as `locate` does."""
        alias, found = self.locate(name, source)
        full = self.full_name(alias, found.name)
        return Column(full, known(found.type), name.at, self.longest.get(full), self.sizes.get(full, 1))

    def locate(self, name: Name, source: Text) -> tuple[str, Field]:
        """Returns the alias and the field that `name` refers to.

        Raises SpecError `unknown_table`, `unknown_column`, `ambiguous_column`, `unsupported_construct`.
        """
        if name.qualifier is None:
            return self._unqualified(name, source)
        alias = matching(name.qualifier, self.tables)
        if alias is None:
            raise self._unknown_table(name, source)
        found = _field(self.tables[alias], name, source)
        if found is None:
            raise _unknown_column(f"{name.qualifier}.{name.name}", name, self.tables[alias].names, source, alias)
        return alias, found

    def expression(self, name: Name, source: Text) -> Column | GetField:
        """Returns the column that `name` refers to, or the field of a column. Raises SpecError as `locate` does."""
        around = self.column_around(name)
        return self.find(name, source) if around is None else GetField(self.find(around, source), name.name, name.at)

    def column_around(self, name: Name) -> Name | None:
        """Returns the column `s` if `name` is its field, `s.f`; None if it is a column, perhaps an unknown one."""
        qualifier = name.qualifier
        if qualifier is None:
            return None
        alias = matching(qualifier, self.tables)
        if alias is not None and self.tables[alias].alike(name.name):
            return None
        fields = [field for schema in self.tables.values() for field in schema.alike(qualifier)]
        # The type of a column of a derived table is not known before the query is bound.
        may_have_fields = any(field.type.is_nested or field.type in {NULL, UNKNOWN} for field in fields)
        return Name(None, qualifier, name.at) if may_have_fields else None

    def has_column(self, name: str) -> bool:
        """Whether a table has a column called `name`; case is ignored."""
        return any(schema.alike(name) for schema in self.tables.values())

    def call_by_name(self, name: Name, source: Text) -> Call | None:
        """Returns the call of a function without parentheses, if `name` is one and no column has that name.

        Raises SpecError `ambiguous_column`.
        """
        function = name.name.lower()
        if name.qualifier is not None or function not in _WITHOUT_PARENTHESES:
            return None
        is_column = any(_field(schema, name, source) is not None for schema in self.tables.values())
        return None if is_column else Call(function, (), name.at)

    def _unqualified(self, name: Name, source: Text) -> tuple[str, Field]:
        found = [
            (alias, column)
            for alias, schema in self.tables.items()
            if (column := _field(schema, name, source)) is not None
        ]
        if len(found) > 1:
            choices = [full_name(alias, column.name) for alias, column in found if alias not in self.unnamed]
            ways = [f"write {' or '.join(choices)}"] if choices else []
            if len(choices) < len(found):
                ways.append("give the query in FROM an alias")
            way_out = ", or ".join(ways)
            raise source.error(
                "ambiguous_column",
                f"{name.name} is a column of several tables. {way_out[0].upper()}{way_out[1:]}.",
                at=name.at,
                suggestions=choices,
            )
        if not found:
            # Without the generated columns of subqueries, which begin with the alias.
            names = [
                column
                for alias, schema in self.tables.items()
                for column in schema.names
                if alias not in self.unnamed or not column.startswith(alias)
            ]
            raise _unknown_column(name.name, name, names, source, None)
        return found[0]

    def _unknown_table(self, name: Name, source: Text) -> SpecError:
        qualifier = name.qualifier or ""
        if matching(qualifier, self.hidden) is not None:
            return source.error(
                "unknown_table",
                f"The columns of {qualifier} are not available here, because a semi or anti join only returns those of "
                "its left side. Use them in ON.",
                at=name.at,
            )
        named = [alias for alias in self.tables if alias not in self.unnamed]
        suggestions = nearest_names(qualifier, named)
        others = f" The tables are {', '.join(named[:8])}." if named and not suggestions else ""
        return source.error(
            "unknown_table",
            f"There is no table or alias {qualifier} in FROM.{others}{did_you_mean(suggestions)}",
            at=name.at,
            suggestions=suggestions,
        )


def resolve(node: Expression, scope: TableScope, source: Text) -> Expression:
    """Returns `node` with every name replaced by its column. Raises SpecError as `TableScope.find` does."""
    if isinstance(node, Name):
        return scope.call_by_name(node, source) or scope.expression(node, source)
    return map_children(node, lambda child: resolve(child, scope, source))


def matching(name: str, candidates: Iterable[str]) -> str | None:
    """Returns the candidate called `name`: the exact spelling if there is one, else one that only differs in case."""
    candidates = list(candidates)
    if name in candidates:
        return name
    return next((candidate for candidate in candidates if candidate.casefold() == name.casefold()), None)


def _field(schema: Schema, name: Name, source: Text) -> Field | None:
    found = schema.find(name.name)
    if found is None:
        alike = [other.name for other in schema.alike(name.name)]
        if alike:
            raise source.error(
                "ambiguous_column",
                f"{name.name} could be any of {', '.join(alike)}, which only differ in case. Write one of these.",
                at=name.at,
                suggestions=alike,
            )
    return found


def _unknown_column(
    text: str, name: Name, candidates: list[str] | tuple[str, ...], source: Text, table: str | None
) -> SpecError:
    suggestions = nearest_names(name.name, candidates)
    if table is not None:
        suggestions = tuple(f"{name.qualifier}.{suggestion}" for suggestion in suggestions)
    hint = did_you_mean(suggestions)
    if not suggestions and 0 < len(candidates) <= _LISTED:
        # For example if a CSV file was read without its header.
        hint = f" The columns are {', '.join(candidates)}."
    return source.error(
        "unknown_column",
        f"There is no column {text}.{hint}",
        at=name.at,
        suggestions=suggestions,
    )


def compile_expression(text: str, scope: TableScope, pointer: str) -> Scalar:
    """Compiles `text` over the columns of `scope`.

    `pointer` is the JSON pointer of the text, for errors. Raises SpecError `sql_syntax`, `query_too_deep`,
    `unsupported_construct`, `unsupported_function`, `unknown_table`, `unknown_column`, `ambiguous_column`,
    `type_mismatch`.
    """
    source = Text(text, pointer)
    tree = resolve(read_expression(source), scope, source)
    return scalar_of(tree, source)


def scalar_of(tree: Expression, source: Text) -> Scalar:
    """Returns the scalar of a resolved tree, after checking its type and size.

    Raises SpecError `type_mismatch`; `unsupported_construct` for values that could become too long and patterns that
    could take too long; `query_too_deep` for expressions that become too large once derived tables are merged.
    """
    typing = Typing(source)
    return _checked(tree, typing.type_of(tree), typing, source)


def _guarded(tree: Expression, typing: Typing) -> Expression:
    """Returns `tree` with calls that must fail for some values replaced by ones that do."""
    if not typing.guarded:
        return tree
    types = typing.guarded.get(id(tree))
    found = map_children(tree, lambda child: _guarded(child, typing))
    if types is None or not isinstance(found, Call):
        return found
    return guarded_path(found) if found.name in PATHS else guarded_sequence(found, types)


def window_of(call: Over, source: Text) -> Scalar:
    """Returns the scalar of a resolved call with OVER. Raises SpecError as `scalar_of` and `type_of_window` do."""
    typing = Typing(source)
    return _checked(call, type_of_window(call, typing), typing, source)


def _checked(tree: Expression, type_: DataType | None, typing: Typing, source: Text) -> Scalar:
    guarded = _guarded(tree, typing)
    scalar = Scalar(guarded, type_, longest(tree, source), expanded(guarded, source))
    conditions_in(tree, source)
    check_patterns(tree, source)
    return scalar
