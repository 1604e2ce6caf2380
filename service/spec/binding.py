"""A structured query over tables of known schemas: every name resolved, every expression checked and typed.

A table keeps the columns that the query uses, in file order; one of which it uses none (`COUNT(*)`) keeps its first
column, so that its rows can still be counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from service.spec import coercion
from service.spec.aggregates import IDEMPOTENT, ORDERED, result_type, takes
from service.spec.bound import BoundCall, BoundJoin, BoundName, BoundQuery, BoundSort, BoundTable
from service.spec.dialect import Text
from service.spec.errors import SpecError, did_you_mean, nearest_names
from service.spec.expressions import scalar_of
from service.spec.grouping import Grouped, Key
from service.spec.inference import Typing
from service.spec.parsing import read_expression
from service.spec.query import (
    AggregateCall,
    AggregateFunction,
    Join,
    JoinKind,
    NullsOrder,
    Query,
    SortDirection,
    TableRef,
)
from service.spec.scalar import Scalar
from service.spec.scope import TableScope, full_name, resolve
from service.spec.tree import Cast, Column, Expression, Name, map_children
from service.spec.types import NUMERIC, TEMPORAL, UNKNOWN, DataType, Field, Schema, TypeName

_ONE_SIDED = {JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI}


def bind(query: Query, schemas: Mapping[str, Schema], pointer: str = "/query") -> BoundQuery:
    """The bound form of `query`; `schemas` are those of the job's tables, by name.

    Raises SpecError `unknown_table`, `unknown_column`, `ambiguous_column`, `duplicate_column`, `duplicate_table`,
    `not_grouped`, `type_mismatch`, `unsupported_construct`, `unsupported_function`, `sql_syntax`, `query_too_deep`,
    with a pointer below `pointer` and, where an expression is at fault, line and column in its text.
    """
    return _Binder(query, schemas, pointer).bind()


class _Binder:
    def __init__(self, query: Query, schemas: Mapping[str, Schema], pointer: str) -> None:
        self._query = query
        self._schemas = schemas
        self._pointer = pointer
        self._aliases: dict[str, tuple[str, Schema]] = {}

    def bind(self) -> BoundQuery:
        query = self._query
        scope = TableScope({query.source.name: self._table(query.source, "/source")})
        joins: list[tuple[Join, tuple[tuple[Scalar, Scalar], ...], Scalar | None]] = []
        for index, join in enumerate(query.joins):
            at = f"/joins/{index}"
            right = self._table(join.right, f"{at}/right")
            both = scope.with_table(join.right.name, right)
            joins.append((join, *self._join(join, at, scope, TableScope({join.right.name: right}), both)))
            scope = both.without(join.right.name) if join.kind in _ONE_SIDED else both
        where = self._condition(query.where, "/where", scope, "WHERE") if query.where is not None else None
        if query.group_by or query.aggregates:
            return self._finish(scope, joins, where, self._grouped(scope))
        if query.having is not None:
            raise self._error("unsupported_construct", "HAVING needs GROUP BY or an aggregate.", "/having")
        if not query.select:
            raise self._error(
                "unsupported_construct", "A query without group_by and aggregates needs 'select'.", "/select"
            )
        return self._finish(scope, joins, where, None)

    def _error(self, code: str, detail: str, at: str, suggestions: tuple[str, ...] = ()) -> SpecError:
        return SpecError.of(code, detail, pointer=self._pointer + at, suggestions=suggestions)

    def _text(self, text: str, at: str) -> Text:
        return Text(text, self._pointer + at)

    # FROM

    def _table(self, table: TableRef, at: str) -> Schema:
        if table.table not in self._schemas:
            suggestions = nearest_names(table.table, list(self._schemas))
            detail = f"The job has no table {table.table}.{did_you_mean(suggestions)}"
            raise self._error("unknown_table", detail, f"{at}/table", suggestions)
        if table.name.casefold() in {alias.casefold() for alias in self._aliases}:
            raise self._error("duplicate_table", f"Two tables are called {table.name}: give one an alias.", at)
        self._check_name(table.name, at)
        schema = self._schemas[table.table]
        self._aliases[table.name] = (table.table, schema)
        return schema

    def _join(
        self, join: Join, at: str, left: TableScope, right: TableScope, both: TableScope
    ) -> tuple[tuple[tuple[Scalar, Scalar], ...], Scalar | None]:
        if join.kind is JoinKind.CROSS and (join.on or join.residual is not None):
            raise self._error("unsupported_construct", "A cross join has no condition: use an inner join.", at)
        if join.kind is not JoinKind.CROSS and not join.on:
            raise self._error(
                "unsupported_construct",
                f"The {join.kind} join with {join.right.name} needs an equality between both sides.",
                at,
            )
        keys = []
        for index, key in enumerate(join.on):
            left_text = self._text(key.left, f"{at}/on/{index}/left")
            right_text = self._text(key.right, f"{at}/on/{index}/right")
            one = resolve(read_expression(left_text), left, left_text)
            other = resolve(read_expression(right_text), right, right_text)
            keys.append(_join_key(one, left_text, other, right_text))
        residual = self._condition(join.residual, f"{at}/residual", both, "ON") if join.residual is not None else None
        return tuple(keys), residual

    def _condition(self, text: str, at: str, scope: TableScope, what: str) -> Scalar:
        source = self._text(text, at)
        tree = resolve(read_expression(source), scope, source)
        Typing(source).require_condition(tree, what)
        return scalar_of(tree, source)

    # GROUP BY and aggregates

    def _grouped(self, scope: TableScope) -> Grouped:
        taken: set[str] = set()
        keys = []
        for index, item in enumerate(self._query.group_by):
            at = f"/group_by/{index}"
            self._claim(item.name, taken, f"{at}/name")
            source = self._text(item.expression, f"{at}/expression")
            tree = resolve(read_expression(source), scope, source)
            Typing(source).computable(tree)
            keys.append(Key(item.name, tree, scalar_of(tree, source)))
        calls = []
        for index, call in enumerate(self._query.aggregates):
            at = f"/aggregates/{index}"
            self._claim(call.name, taken, f"{at}/name")
            calls.append(self._call(call, at, scope))
        return Grouped(tuple(keys), tuple(calls), scope)

    def _check_name(self, name: str, at: str) -> None:
        # Spark replaces `${env:…}` by the worker's environment wherever it stands, and names cannot escape it.
        if "${" in name:
            raise self._error("unsupported_construct", f"The name {name} holds '${{', which no name may.", at)

    def _claim(self, name: str, taken: set[str], at: str) -> None:
        self._check_name(name, at)
        if name.casefold() in taken:
            raise self._error("duplicate_column", f"Two columns would be called {name} (case does not count).", at)
        taken.add(name.casefold())

    def _call(self, call: AggregateCall, at: str, scope: TableScope) -> BoundCall:
        self._check_shape(call, at)
        arguments = []
        for index, text in enumerate(call.arguments):
            source = self._text(text, f"{at}/arguments/{index}")
            tree = resolve(read_expression(source), scope, source)
            type_ = Typing(source).type_of(tree)
            counted = call.function is AggregateFunction.COUNT and not call.distinct
            if type_ is not None and not counted and not _accepts(call, type_):
                raise Typing(source).mismatch(f"{call.function} does not take {text}, which is {type_}.", tree)
            arguments.append(scalar_of(tree, source))
        order_by = None
        if call.order_by is not None:
            source = self._text(call.order_by, f"{at}/order_by")
            tree = resolve(read_expression(source), scope, source)
            Typing(source).computable(tree)
            order_by = scalar_of(tree, source)
        condition = self._condition(call.filter, f"{at}/filter", scope, "FILTER") if call.filter is not None else None
        type_ = result_type(call.function, arguments[0].type if arguments else None)
        distinct = call.distinct and call.function not in IDEMPOTENT
        output = Field(call.name, type_ or UNKNOWN)
        return BoundCall(call.function, tuple(arguments), distinct, condition, order_by, output)

    def _check_shape(self, call: AggregateCall, at: str) -> None:
        count = len(call.arguments)
        refused = None
        if call.function is AggregateFunction.COUNT:
            if call.distinct and not count:
                refused = "COUNT(DISTINCT *) is not supported: name the columns."
            elif count > 1 and not call.distinct:
                refused = "COUNT takes several arguments with DISTINCT alone."
        elif count != 1:
            refused = f"{call.function} takes one argument, not {count}."
        if call.function in ORDERED:
            if call.distinct:
                refused = f"{call.function} has no DISTINCT."
            if call.order_by is None:
                refused = (
                    f"{call.function} needs an order, for example {call.function}(x ORDER BY t): "
                    "without one its result would be arbitrary."
                )
        elif call.order_by is not None:
            refused = f"{call.function} does not depend on an order: remove it."
        if refused is not None:
            raise self._error("unsupported_construct", refused, at)

    # SELECT, HAVING, ORDER BY

    def _finish(
        self,
        scope: TableScope,
        joins: list[tuple[Join, tuple[tuple[Scalar, Scalar], ...], Scalar | None]],
        where: Scalar | None,
        grouped: Grouped | None,
    ) -> BoundQuery:
        query = self._query
        selected = self._selected(scope, grouped)
        trees = {name.casefold(): tree for name, tree, _ in selected}
        having = None
        if grouped is not None and query.having is not None:
            source = self._text(query.having, "/having")
            tree = grouped.resolve(_replace(read_expression(source), trees, grouped.names), source)
            Typing(source).require_condition(tree, "HAVING")
            having = scalar_of(tree, source)
        order_by = tuple(self._sorts(scope, grouped, trees))
        select = tuple(BoundName(scalar, name) for name, _, scalar in selected)
        used = _Used(joins, where, grouped, select, order_by)
        tables = {alias: self._pruned(alias, used.columns) for alias in self._aliases}
        return BoundQuery(
            source=tables[query.source.name],
            joins=tuple(BoundJoin(join.kind, tables[join.right.name], keys, rest) for join, keys, rest in joins),
            where=where,
            is_aggregate=grouped is not None,
            keys=tuple(BoundName(key.scalar, key.name) for key in grouped.keys) if grouped is not None else (),
            calls=grouped.calls if grouped is not None else (),
            having=having,
            order_by=order_by,
            limit=query.limit,
            select=select,
            output=Schema(tuple(Field(item.name, item.expression.type or UNKNOWN) for item in select)),
        )

    def _selected(self, scope: TableScope, grouped: Grouped | None) -> list[tuple[str, Expression, Scalar]]:
        items = self._query.select
        if not items and grouped is not None:
            return [(column.name, column, Scalar(*_reference(column))) for column in grouped.columns]
        taken: set[str] = set()
        selected = []
        for index, item in enumerate(items):
            at = f"/select/{index}"
            self._claim(item.name, taken, f"{at}/name")
            source = self._text(item.expression, f"{at}/expression")
            tree = self._resolve(read_expression(source), scope, grouped, source)
            selected.append((item.name, tree, scalar_of(tree, source)))
        return selected

    def _resolve(self, tree: Expression, scope: TableScope, grouped: Grouped | None, source: Text) -> Expression:
        return resolve(tree, scope, source) if grouped is None else grouped.resolve(tree, source)

    def _sorts(
        self, scope: TableScope, grouped: Grouped | None, selected: Mapping[str, Expression]
    ) -> Iterator[BoundSort]:
        for index, key in enumerate(self._query.order_by):
            source = self._text(key.expression, f"/order_by/{index}/expression")
            tree = _replace(read_expression(source), selected, frozenset())
            tree = self._resolve(tree, scope, grouped, source)
            Typing(source).computable(tree)
            nulls = key.nulls
            if nulls is None:
                nulls = NullsOrder.FIRST if key.direction is SortDirection.ASC else NullsOrder.LAST
            yield BoundSort(scalar_of(tree, source), key.direction, nulls)

    def _pruned(self, alias: str, used: frozenset[str]) -> BoundTable:
        table, schema = self._aliases[alias]
        fields = [field for field in schema.fields if full_name(alias, field.name) in used] or schema.fields[:1]
        for field in fields:
            self._check_name(field.name, "/source" if alias == self._query.source.name else "/joins")
        columns = tuple((Field(full_name(alias, field.name), field.type), field.name) for field in fields)
        return BoundTable(table, alias, columns)


class _Used:
    """The table columns that a query reads."""

    def __init__(
        self,
        joins: list[tuple[Join, tuple[tuple[Scalar, Scalar], ...], Scalar | None]],
        where: Scalar | None,
        grouped: Grouped | None,
        select: tuple[BoundName, ...],
        order_by: tuple[BoundSort, ...],
    ) -> None:
        scalars: list[Scalar | None] = [where]
        for _, keys, residual in joins:
            scalars += [side for key in keys for side in key] + [residual]
        if grouped is not None:
            scalars += grouped.scalars
        else:
            scalars += [item.expression for item in select] + [item.expression for item in order_by]
        self.columns = frozenset(name for scalar in scalars if scalar is not None for name in scalar.columns)


def _reference(column: Column) -> tuple[str, tuple[str, ...], DataType | None]:
    scalar = scalar_of(column, Text("", ""))
    return scalar.sql, scalar.columns, scalar.type


def _replace(tree: Expression, selected: Mapping[str, Expression], names: frozenset[str]) -> Expression:
    """`tree` with the aliases of SELECT put in place, except where `names` takes precedence."""
    if isinstance(tree, Name):
        folded = tree.name.casefold()
        replaces = tree.qualifier is None and folded in selected and folded not in names
        return selected[folded] if replaces else tree
    return map_children(tree, lambda child: _replace(child, selected, names))


def _accepts(call: AggregateCall, type_: DataType) -> bool:
    return takes(call.function, type_) and not (call.distinct and type_.name is TypeName.OTHER)


def _join_key(left: Expression, left_text: Text, right: Expression, right_text: Text) -> tuple[Scalar, Scalar]:
    """Both sides of an equality, cast to one type where they differ: both sides must hash alike."""
    one, other = Typing(left_text).computable(left), Typing(right_text).computable(right)
    if one is None or other is None or one == other:
        return scalar_of(left, left_text), scalar_of(right, right_text)
    names = {one.name, other.name}
    if not (names <= NUMERIC or names <= TEMPORAL):
        raise Typing(right_text).mismatch(
            f"The join key {left_text.text} is {one} and {right_text.text} is {other}: cast one of them.", right
        )
    common = coercion.common_type(one, other, strings_convert=False)
    return (
        scalar_of(_cast(left, one, common), left_text),
        scalar_of(_cast(right, other, common), right_text),
    )


def _cast(tree: Expression, type_: DataType, common: DataType | None) -> Expression:
    return tree if common is None or type_ == common else Cast(tree, common, tries=False)
