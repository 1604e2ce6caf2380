"""Binds a structured query to the schemas of its tables: resolves every name, and checks and types every expression.

Every table gets an alias that is unique in the plan (`Aliases`), however many queries use the same name. A table keeps
the columns that the query uses, in file order; if it uses none (`COUNT(*)`), the first column, so that rows can be
counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from types import MappingProxyType

from service.contract.problems import SpecError, did_you_mean, its_tables, nearest_names
from service.contract.query import (
    CONDITIONS,
    MAX_LIMIT,
    JoinKind,
    NullsOrder,
    Query,
    QueryRef,
    RecursiveRef,
    RowsRef,
    SortDirection,
    Source,
    TableRef,
    UnionRef,
    ValuesRef,
)
from service.sql.expressions.compile_expression import TableScope, full_name, resolve, scalar_of, window_of
from service.sql.expressions.limits import check_replaced, conditions_in
from service.sql.expressions.nodes import (
    Cast,
    Column,
    Comparison,
    Connective,
    Expression,
    Name,
    Over,
    columns_of,
    map_children,
    position_of,
)
from service.sql.expressions.reader import read_expression
from service.sql.expressions.scalar import Scalar
from service.sql.joins import ONE_SIDED
from service.sql.parser import Text, TextOf
from service.sql.resolve.aggregates import Grouped, Key, bind_call, check_keys, condition, over_keys, positions_of
from service.sql.resolve.bound import (
    BoundGenerator,
    BoundJoin,
    BoundQuery,
    BoundSource,
    BoundTable,
    BoundUnion,
    BoundValues,
    BoundWindow,
    Named,
    SortItem,
    pruned,
    queries_of,
    sources_of,
)
from service.sql.resolve.event_time import EventTimes, bind_window, with_time_bounds
from service.sql.resolve.from_clause import (
    Derived,
    Step,
    check_name,
    check_size,
    derived_table,
    longest_of,
    united,
    values_of,
    with_equalities,
)
from service.sql.resolve.generators import bind_generator
from service.sql.resolve.recursion import RecursiveRows, recursive_table
from service.sql.shown_names import changed, with_written_aliases
from service.sql.types import data_types
from service.sql.types.aggregates import OF_GROUPING_SETS
from service.sql.types.data_types import NUMERIC, TEMPORAL, UNKNOWN, DataType, Field, Schema
from service.sql.types.inference import Typing, cast_advice
from service.sql.types.intervals import WAY_OUT, IntervalKind, kind_of


class Aliases:
    """Assigns aliases, the query's own if no other table has it; shared by a query and all queries inside it.

    >>> aliases = Aliases()
    >>> aliases.claim("o", ""), aliases.claim("o", "x"), aliases.claim("O", "x"), aliases.claim("u", "x")
    ('o', 'x/o', 'x/O_2', 'u')
    >>> aliases.claim("a.b", "")
    'a_b'
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self.written: dict[str, str] = {}
        """The aliases in the query of tables that have another one in the plan, by the latter."""

    def claim(self, wanted: str, within: str) -> str:
        """Returns a unique alias for the table called `wanted`; `within` is that of the derived table around it.

        Case is ignored. No alias has a dot, because columns are `alias.column`, and `a.b` with `c` would equal `a` with
        `b.c`.
        """
        wanted = wanted.replace(".", "_")
        stem = wanted if wanted.casefold() not in self._taken or not within else f"{within}/{wanted}"
        name, number = stem, 1
        while name.casefold() in self._taken:
            number += 1
            name = f"{stem}_{number}"
        self._taken.add(name.casefold())
        if name != wanted:
            self.written[name] = wanted
        return name


def bind(
    query: Query,
    schemas: Mapping[str, Schema],
    pointer: str = "/query",
    *,
    event_times: EventTimes | None = None,
    text_of: TextOf = Text,
) -> BoundQuery:
    """Returns the bound form of `query`.

    `schemas` are those of the job's tables by name, `event_times` those of its streams, None for a batch job. `text_of`
    creates the `Text` for an expression and its pointer.

    Raises SpecError `unknown_table`, `unknown_column`, `ambiguous_column`, `duplicate_column`, `duplicate_table`,
    `not_grouped`, `type_mismatch`, `unsupported_construct`, `unsupported_function`, `sql_syntax`, `query_too_deep`,
    `window_without_stream`, `watermark_required`, with a pointer below `pointer` and, for an
    expression, line and column in its text.
    """
    check_size(query, pointer)
    aliases = Aliases()
    binder = _Binder(query, schemas, pointer, aliases, "", event_times, text_of)
    try:
        bound = pruned(binder.bind())
    except SpecError as error:
        raise changed(error, lambda detail: with_written_aliases(detail, aliases.written)) from None
    source = text_of("", pointer)
    if binder.conditions > CONDITIONS.most and not source.is_accepted:
        raise source.beyond(CONDITIONS, binder.conditions)
    _check_columns(bound, pointer)
    return replace(bound, written_aliases=aliases.written)


def _check_columns(query: BoundQuery, pointer: str) -> None:
    """Raises SpecError if a column that is read has a name in which Spark would replace variables."""
    for inner in queries_of(query):
        for index, source in enumerate(sources_of(inner)):
            at = "" if inner is not query else "/joins" if index else "/source"
            for _, name in source.columns if isinstance(source, BoundTable) else ():
                check_name(name, pointer + at)


_NO_RECURSIONS: Mapping[str, RecursiveRows] = MappingProxyType({})


class _Binder:
    """Binds one query. `within` is the alias in the plan of the derived table that it is, empty for the outermost.
    `recursions` are the rows that the step of a recursive query around it reads, by `RowsRef.rows`.
    """

    def __init__(
        self,
        query: Query,
        schemas: Mapping[str, Schema],
        pointer: str,
        aliases: Aliases,
        within: str,
        event_times: EventTimes | None,
        text_of: TextOf,
        recursions: Mapping[str, RecursiveRows] = _NO_RECURSIONS,
    ) -> None:
        self._recursions = recursions
        self._query = query
        self._schemas = schemas
        self._pointer = pointer
        self._aliases = aliases
        self._within = within
        self._event_times = event_times
        self._text_of = text_of
        self._own_conditions = 0
        self._conditions_below = 0
        self._plan_names: dict[str, str] = {}
        self._sources: dict[str, BoundSource] = {}
        self._windows: dict[Over, tuple[str, Scalar]] = {}
        self._generators: list[BoundGenerator] = []

    def bind(self) -> BoundQuery:
        """Returns the query with all columns of its tables; `pruned` removes the unused ones."""
        query = self._query
        if query.offset + (query.limit or 0) > MAX_LIMIT:
            raise self._error(
                "limit_out_of_range", f"LIMIT and OFFSET must be at most {MAX_LIMIT} together.", "/offset"
            )
        self._claim_aliases()
        scope = self._scope(query.source, "/source")
        steps: list[Step] = []
        for index, join in enumerate(query.joins):
            at = f"/joins/{index}"
            right = self._scope(join.right, f"{at}/right")
            both = scope.with_tables(right)
            steps.append(self._join(index, scope, right, both))
            scope = both.without(join.right.name) if join.kind in ONE_SIDED else both
        scope = self._generated(scope)
        where = self._where(scope, steps) if query.where is not None else None
        joins = self._bound_joins(steps, where)
        if query.window is not None:
            at = f"{self._pointer}/window"
            source = self._text(query.window.column, "/window/column")
            window = bind_window(query.window, scope, self._sources, joins, self._event_times, at, source)
            return replace(self._finish(scope, joins, where, self._grouped(scope, window)), window=window)
        if query.group_by or query.aggregates:
            return self._finish(scope, joins, where, self._grouped(scope, None))
        if query.having is not None:
            raise self._error("unsupported_construct", "HAVING needs GROUP BY or an aggregate. Use WHERE.", "/having")
        if not query.select:
            raise self._error(
                "unsupported_construct", "A query without group_by and aggregates needs 'select'.", "/select"
            )
        return self._finish(scope, joins, where, None)

    @property
    def conditions(self) -> int:
        """The number of conditions that Spark may join by AND when it pushes those of this query into an inner one."""
        return self._own_conditions + self._conditions_below

    def _error(self, code: str, detail: str, at: str, suggestions: tuple[str, ...] = ()) -> SpecError:
        return SpecError.of(code, detail, pointer=self._pointer + at, suggestions=suggestions)

    def _text(self, text: str, at: str) -> Text:
        return self._text_of(text, self._pointer + at)

    # FROM

    def _claim_aliases(self) -> None:
        # Before the inner queries, so that the tables of the outer one keep the names in the query.
        sources = [(self._query.source, "/source")]
        sources += [(join.right, f"/joins/{index}/right") for index, join in enumerate(self._query.joins)]
        named = [(source.name, at) for source, at in sources]
        named += [(each.alias, f"/generators/{index}") for index, each in enumerate(self._query.generators)]
        for name, at in named:
            if name.casefold() in {name.casefold() for name in self._plan_names}:
                detail = f"Two tables are called {name}. Give one of them an alias."
                raise self._error("duplicate_table", detail, at)
            check_name(name, self._pointer + at)
            self._plan_names[name] = self._aliases.claim(name, self._within)

    def _generated(self, scope: TableScope) -> TableScope:
        """Returns `scope` with the columns of the generators, and stores their bound forms."""
        for index, generator in enumerate(self._query.generators):
            at = f"/generators/{index}"
            for name in generator.columns:
                check_name(name, self._pointer + at)
            texts = [self._text(text, f"{at}/arguments/{place}") for place, text in enumerate(generator.arguments)]
            plan_name = self._plan_names[generator.alias]
            bound, made = bind_generator(generator, texts, scope, plan_name, self._pointer + at)
            self._generators.append(bound)
            scope = scope.with_tables(made)
        return scope

    def _scope(self, source: Source, at: str) -> TableScope:
        """Returns the scope of `source` alone, and stores its bound form."""
        alias = self._plan_names[source.name]
        if isinstance(source, TableRef):
            schema = self._table(source, at)
            longest: Mapping[str, int] = {}
            sizes: Mapping[str, int] = {}
            columns = tuple((Field(full_name(alias, field.name), field.type), field.name) for field in schema.fields)
            self._sources[source.name] = BoundTable(source.table, alias, columns)
        elif isinstance(source, ValuesRef):
            values = self._values(source, alias, at)
            self._sources[source.name] = values
            schema = Schema(tuple(Field(name, field.type) for field, name in values.columns))
            cells = zip(*values.rows, strict=True)
            longest = {
                field.name: max(map(longest_of, column))
                for (field, _), column in zip(values.columns, cells, strict=True)
            }
            sizes = {}
        elif isinstance(source, RowsRef):
            rows = self._recursions.get(source.rows)
            if rows is None:
                raise self._error("unknown_table", "The rows of a recursive query are read outside of its step.", at)
            self._sources[source.name], schema = rows.source(source, alias, self._pointer + at)
            longest, sizes = rows.longest_of(schema, alias), {}
        else:
            derived = self._derived(source, alias, at)
            schema, longest, sizes = derived.schema, derived.longest, derived.sizes
            self._sources[source.name] = derived.bound
        return TableScope({source.name: schema}, plan_names={source.name: alias}, longest=longest, sizes=sizes)

    def _table(self, table: TableRef, at: str) -> Schema:
        if table.table not in self._schemas:
            suggestions = nearest_names(table.table, list(self._schemas))
            hint = did_you_mean(suggestions) or its_tables(list(self._schemas))
            detail = f"The job has no table {table.table}.{hint}"
            raise self._error("unknown_table", detail, f"{at}/table", suggestions)
        return self._schemas[table.table]

    def _values(self, source: ValuesRef, alias: str, at: str) -> BoundValues:
        def bound(text: str, at: str) -> Scalar:
            cell = self._text(text, at)
            return scalar_of(resolve(read_expression(cell), TableScope({}), cell), cell)

        rows = [
            [bound(text, f"{at}/rows/{index}/{number}") for number, text in enumerate(row)]
            for index, row in enumerate(source.rows)
        ]
        return values_of(rows, alias, source.names, self._pointer + at)

    def _derived(self, source: QueryRef | UnionRef | RecursiveRef, alias: str, at: str) -> Derived:
        def bound(query: Query, pointer: str, recursions: Mapping[str, RecursiveRows] = self._recursions) -> BoundQuery:
            aliases = self._aliases
            binder = _Binder(
                query, self._schemas, pointer, aliases, alias, self._event_times, self._text_of, recursions
            )
            found = binder.bind()
            self._conditions_below = max(self._conditions_below, binder.conditions)
            return found

        pointer = self._pointer + at
        if isinstance(source, QueryRef):
            return derived_table(bound(source.query, f"{pointer}/query"), alias, source.columns, pointer)
        if isinstance(source, RecursiveRef):
            return recursive_table(source, bound, self._recursions, alias, pointer)
        branches = [bound(query, f"{pointer}/queries/{index}") for index, query in enumerate(source.queries)]
        union = united(branches, source.kind, f"{pointer}/queries")
        if source.kind != "union_all":
            self._check_comparable(union, f"{at}/queries")
        return derived_table(union, alias, source.columns, pointer)

    def _check_comparable(self, union: BoundUnion, at: str) -> None:
        """Raises SpecError `type_mismatch` for a column whose values have no equality."""
        for number, query in enumerate(union.queries):
            for index, item in enumerate(query.select):
                source = self._text("", f"{at}/{number}/select/{index}")
                Typing(source).groupable(item.expression.tree)

    def _join(self, index: int, left: TableScope, right: TableScope, both: TableScope) -> Step:
        join, at = self._query.joins[index], f"/joins/{index}"
        if join.kind is JoinKind.CROSS and (join.on or join.residual is not None):
            raise self._error("unsupported_construct", "A cross join has no condition. Use an inner join.", at)
        keys, nested = [], list[Expression]()
        for number, key in enumerate(join.on):
            left_text = self._text(key.left, f"{at}/on/{number}/left")
            right_text = self._text(key.right, f"{at}/on/{number}/right")
            one = resolve(read_expression(left_text), left, left_text)
            other = resolve(read_expression(right_text), right, right_text)
            for tree, text in ((one, left_text), (other, right_text)):
                if not columns_of(tree):
                    hint = "Put a condition on one side into `residual` or `where`."
                    raise text.unsupported("A join key without a column", at=position_of(tree), hint=hint)
            if _are_nested_unlike(one, left_text, other, right_text):
                # Spark converts both sides.
                nested.append(Comparison("=", one, other))
                Typing(left_text).require_condition(nested[-1], "ON")
                continue
            keys.append(_join_key(one, left_text, other, right_text))
        residual = None
        if join.residual is not None:
            residual = condition(self._text(join.residual, f"{at}/residual"), both, "ON")
        if nested:
            terms = (*nested, *([residual.tree] if residual is not None else []))
            tree = terms[0] if len(terms) == 1 else Connective("AND", terms)
            residual = scalar_of(tree, self._text("", f"{at}/on"))
        columns = frozenset(field.name for field, _ in self._sources[join.right.name].columns)
        return Step(index, join, join.right.name, columns, tuple(keys), residual)

    def _where(self, scope: TableScope, steps: list[Step]) -> Scalar | None:
        """Returns WHERE without the equalities that become join keys of `steps`."""
        source = self._text(self._query.where or "", "/where")
        tree = resolve(read_expression(source), scope, source)
        Typing(source).require_condition(tree, "WHERE")
        self._own_conditions += conditions_in(tree, source)
        first = frozenset(field.name for field, _ in self._sources[self._query.source.name].columns)
        joined, rest = with_equalities(first, steps, tree)
        steps[:] = (
            replace(step, keys=(*step.keys, *(_join_key(one, source, other, source) for one, other in step.moved)))
            for step in joined
        )
        return scalar_of(rest, source) if rest is not None else None

    # GROUP BY and aggregates

    def _grouped(self, scope: TableScope, window: BoundWindow | None) -> Grouped:
        taken: set[str] = set()
        ends = (window.start, window.end) if window is not None else ()
        for field, end in zip(ends, ("start", "end"), strict=False):
            self._claim(field.name, taken, f"/window/{end}")
        if window is not None and self._query.grouping_sets:
            detail = "A window with grouping sets is not supported. Remove one of them."
            raise self._error("unsupported_construct", detail, "/grouping_sets")
        keys = []
        for index, item in enumerate(self._query.group_by):
            at = f"/group_by/{index}"
            self._claim(item.name, taken, f"{at}/name")
            source = self._text(item.expression, f"{at}/expression")
            tree = resolve(read_expression(source), scope, source)
            Typing(source).groupable(tree)
            keys.append(Key(item.name, tree, scalar_of(tree, source)))
        if self._query.grouping_sets:
            check_keys(keys, self._pointer)
        calls = []
        for index, call in enumerate(self._query.aggregates):
            at = f"/aggregates/{index}"
            self._claim(call.name, taken, f"{at}/name")
            bound = bind_call(call, self._pointer + at, scope, self._text_of)
            if bound.function in OF_GROUPING_SETS:
                bound = over_keys(bound, keys, bool(self._query.grouping_sets), self._pointer + at)
            calls.append(bound)
        return Grouped(tuple(keys), tuple(calls), scope, bool(self._query.grouping_sets), ends)

    def _claim(self, name: str, taken: set[str], at: str) -> None:
        check_name(name, self._pointer + at)
        if name.casefold() in taken:
            detail = f"Two columns are called {name} (case is ignored). Rename one of them."
            raise self._error("duplicate_column", detail, at)
        taken.add(name.casefold())

    # SELECT, HAVING, ORDER BY

    def _finish(
        self,
        scope: TableScope,
        joins: tuple[BoundJoin, ...],
        where: Scalar | None,
        grouped: Grouped | None,
    ) -> BoundQuery:
        query = self._query
        selected = self._selected(scope, grouped)
        trees = {name.casefold(): tree for name, tree, _ in selected}
        having = None
        if grouped is not None and query.having is not None:
            source = self._text(query.having, "/having")
            tree = grouped.resolve(_replaced(source, trees, grouped.names), source)
            Typing(source).require_condition(tree, "HAVING")
            self._own_conditions += conditions_in(tree, source)
            having = scalar_of(tree, source)
        order_by = tuple(self._sorts(scope, grouped, trees))
        select = tuple(Named(scalar, name) for name, _, scalar in selected)
        windows = tuple(Named(scalar, name) for name, scalar in self._windows.values())
        return BoundQuery(
            source=self._sources[query.source.name],
            joins=joins,
            where=where,
            is_aggregate=grouped is not None,
            keys=tuple(Named(key.scalar, key.name) for key in grouped.keys) if grouped is not None else (),
            calls=grouped.calls if grouped is not None else (),
            having=having,
            order_by=order_by,
            limit=query.limit,
            select=select,
            grouping_sets=positions_of(query.grouping_sets, query.group_by, self._pointer),
            output=Schema(tuple(Field(item.name, item.expression.type or UNKNOWN) for item in select)),
            windows=windows,
            offset=query.offset,
            generators=tuple(self._generators),
        )

    def _bound_joins(self, steps: Sequence[Step], where: Scalar | None) -> tuple[BoundJoin, ...]:
        joins = tuple(self._bound_join(step) for step in steps)
        source = self._sources[self._query.source.name]
        return joins if self._event_times is None else with_time_bounds(source, joins, where, self._event_times)

    def _bound_join(self, step: Step) -> BoundJoin:
        join = step.join
        right = self._sources[step.alias]
        return BoundJoin(step.kind, right, step.keys, step.residual, join.ship, join.local, join.skew, step.index)

    def _selected(self, scope: TableScope, grouped: Grouped | None) -> list[tuple[str, Expression, Scalar]]:
        items = self._query.select
        if not items and grouped is not None:
            return [(column.name, column, scalar_of(column, Text("", ""))) for column in grouped.columns]
        taken: set[str] = set()
        selected = []
        for index, item in enumerate(items):
            at = f"/select/{index}"
            self._claim(item.name, taken, f"{at}/name")
            source = self._text(item.expression, f"{at}/expression")
            tree = self._resolve(read_expression(source), scope, grouped, source)
            if kind_of(tree) is IntervalKind.CALENDAR:
                detail = f"{item.name} is an interval, of which no table or result has a column. {WAY_OUT}"
                raise source.error("type_mismatch", detail, at=position_of(tree))
            selected.append((item.name, tree, scalar_of(self._over_windows(tree, grouped, source), source)))
        return selected

    def _over_windows(self, tree: Expression, grouped: Grouped | None, source: Text) -> Expression:
        """Returns `tree` with each call with OVER replaced by a column of `BoundQuery.windows`."""
        if not isinstance(tree, Over):
            return map_children(tree, lambda child: self._over_windows(child, grouped, source))
        if tree not in self._windows:
            taken = grouped.names if grouped is not None else frozenset[str]()
            number = len(self._windows) + 1
            name = next(name for extra in count() if (name := f"$over{number}{'_' * extra}") not in taken)
            self._windows[tree] = name, window_of(tree, source)
        name, window = self._windows[tree]
        return Column(name, window.type, tree.at, window.longest)

    def _resolve(self, tree: Expression, scope: TableScope, grouped: Grouped | None, source: Text) -> Expression:
        return resolve(tree, scope, source) if grouped is None else grouped.resolve(tree, source)

    def _sorts(
        self, scope: TableScope, grouped: Grouped | None, selected: Mapping[str, Expression]
    ) -> Iterator[SortItem]:
        for index, key in enumerate(self._query.order_by):
            source = self._text(key.expression, f"/order_by/{index}/expression")
            tree = _replaced(source, selected, frozenset())
            tree = self._over_windows(self._resolve(tree, scope, grouped, source), grouped, source)
            Typing(source).groupable(tree)
            nulls = key.nulls
            if nulls is None:
                nulls = NullsOrder.FIRST if key.direction is SortDirection.ASC else NullsOrder.LAST
            yield SortItem(scalar_of(tree, source), key.direction, nulls)


def _replaced(source: Text, selected: Mapping[str, Expression], names: frozenset[str]) -> Expression:
    """Returns the expression of `source` as `_replace` does. Raises SpecError, also if it becomes too large."""
    tree = _replace(read_expression(source), selected, names)
    check_replaced(tree, source)
    return tree


def _replace(tree: Expression, selected: Mapping[str, Expression], names: frozenset[str]) -> Expression:
    """Returns `tree` with aliases of SELECT replaced by their expressions, except for those in `names`."""
    if isinstance(tree, Name):
        folded = tree.name.casefold()
        replaces = tree.qualifier is None and folded in selected and folded not in names
        if not replaces:
            return tree
        found = selected[folded]
        # It has the offset of the alias, so that the expression around it is in one place.
        return replace(found, at=tree.at) if isinstance(found, Name | Column) else found
    return map_children(tree, lambda child: _replace(child, selected, names))


def _are_nested_unlike(left: Expression, left_text: Text, right: Expression, right_text: Text) -> bool:
    """Whether a side of an equality is nested, and the sides do not have one type whose values are comparable. Raises
    SpecError as `Typing` does.
    """
    one, other = Typing(left_text).value(left), Typing(right_text).value(right)
    if not any(type_ is not None and type_.is_nested for type_ in (one, other)):
        return False
    return one is None or one != other or not one.is_groupable


def _join_key(left: Expression, left_text: Text, right: Expression, right_text: Text) -> tuple[Scalar, Scalar]:
    """Returns both sides of an equality, cast to one type if theirs differ, since both sides must hash equally."""
    one, other = Typing(left_text).value(left), Typing(right_text).value(right)
    if one is None or other is None or one == other:
        return scalar_of(left, left_text), scalar_of(right, right_text)
    names = {one.name, other.name}
    if not (names <= NUMERIC or names <= TEMPORAL):
        left_name, right_name = (text.text.replace("`", "") for text in (left_text, right_text))
        detail = (
            f"= cannot compare {left_name}, which is {one}, with {right_name}, which is {other}. "
            f"{cast_advice(one, other)}"
        )
        raise Typing(right_text).mismatch(detail, right)
    common = data_types.common_type(one, other, strings_convert=False)
    return (
        scalar_of(_cast(left, one, common), left_text),
        scalar_of(_cast(right, other, common), right_text),
    )


def _cast(tree: Expression, type_: DataType, common: DataType | None) -> Expression:
    return tree if common is None or type_ == common else Cast(tree, common, tries=False)
