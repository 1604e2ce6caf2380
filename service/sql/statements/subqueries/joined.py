"""Replaces the subqueries in the expressions of a SELECT by joins with derived tables.

| subquery | becomes |
| --- | --- |
| `x IN (…)` and `EXISTS (…)`, joined by AND in WHERE | a LEFT SEMI JOIN |
| `NOT EXISTS (…)`, likewise | a LEFT ANTI JOIN |
| `x NOT IN (…)`, likewise | a LEFT ANTI JOIN, and a CROSS JOIN with the counts of rows and values, for NULL |
| IN and EXISTS elsewhere | a LEFT JOIN with the distinct keys |
| a value | a CROSS JOIN with one row |
| a value that depends on the outer row | a LEFT JOIN with the values, grouped by the columns compared |
| any other one that reads columns of the outer query | a join with its rows for each of their values (`domain.py`) |

Those in HAVING, SELECT and ORDER BY of a query with aggregates are joined with its groups, after the aggregation.

Equalities of its columns with those of the outer query in its WHERE become join keys; other conditions become the
condition of a semi or anti join. Kim's aggregation before the join (ACM TODS 7(3), 1982) has an outer join, so that
COUNT is 0 for an outer row without partners.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

from sqlglot import exp

from service.contract.problems import SpecError
from service.contract.query import JoinKind, QueryRef
from service.sql.expressions.compile_expression import TableScope
from service.sql.expressions.nodes import Comparison, Connective, Expression, Name, walk
from service.sql.expressions.reader import ExpressionReader, position
from service.sql.parser import Text
from service.sql.statements import trees
from service.sql.statements.clauses.aliases import ALIASES, Resolution, with_aliases
from service.sql.statements.nested import Nested, Unnested, error_of
from service.sql.statements.subqueries.correlated_values import (
    CLAUSES_OF_ROWS,
    CORRELATED,
    CorrelatedValue,
    keeps_first_row,
)
from service.sql.statements.subqueries.correlation import Correlated, Correlation
from service.sql.statements.subqueries.domain import DOMAIN, Domain, Keyed, ValueShape
from service.sql.statements.subqueries.subquery_trees import (
    as_exists,
    counted_rows,
    in_value,
    name_items,
    only_row,
    tables_of,
)
from service.sql.statements.tables.from_clause import JoinedTable, Sources
from service.sql.statements.tables.generators import refuse_outer_arguments
from service.sql.types.data_types import NULL, Field, Schema

_T = TypeVar("_T")
LATER = "/later"
"""The pointer of the joins with the groups, below that of the SELECT, until the caller moves them."""
_JOIN_INSTEAD = "Write the subquery as a derived table in FROM, and join it."
_OR_JOIN = "Otherwise, write it as a derived table in FROM, and join it."
_MAY_BE_OUTER = frozenset({"unsupported_construct", "unknown_table", "unknown_column", "sql_syntax"})
"""The errors of a subquery that may be possible with the distinct values of the outer columns."""


def unnest(select: exp.Select, sources: Sources, source: Text, nested: Nested) -> Unnested:
    """Replaces the subqueries in the expressions of `select`, which reads `sources`.

    Raises SpecError `unsupported_construct` for a subquery that cannot be replaced, and what compiling one raises.
    """
    if not any(trees.has_subquery(part) for part in trees.expressions_of(select)):
        return Unnested(select, sources)
    return _Unnesting(select, sources, source, nested).result()


class _Unnesting:
    def __init__(self, select: exp.Select, sources: Sources, source: Text, nested: Nested) -> None:
        self._select = select.copy()
        self._original = select
        self._outer = sources
        self._sources = sources
        self._source = source
        self._nested = nested
        self._reader = ExpressionReader(source, aggregates=False)
        self._later: list[JoinedTable] = []
        self._is_later = False
        self._added = TableScope({})
        self._names = Correlation(sources, source, nested.sources)

    def result(self) -> Unnested:
        where = self._select.args.get("where")
        if where is not None:
            kept = [term for part in trees.terms(where.this, exp.And) for term in self._condition(part)]
            self._select.set("where", exp.Where(this=trees.chained(kept, exp.And)) if kept else None)
        group = self._select.args.get("group")
        if group is not None:
            group.set("expressions", [self._key(key) for key in group.expressions])
        self._is_later = trees.is_aggregated(self._select)
        name_items(self._select)
        keys = trees.selected_keys(self._select)
        for index, item in enumerate(list(self._select.expressions)):
            is_key, is_later = index in keys, self._is_later
            self._is_later = is_later and not is_key
            self._select.expressions[index] = self._item(item)
            self._is_later = is_later
        self._select.set("expressions", self._select.expressions)
        for clause in ("having", "qualify", "order"):
            if (node := self._select.args.get(clause)) is not None:
                self._select.set(clause, self._replaced(node, is_condition=clause != "order"))
        scope = self._sources.scope.with_tables(self._added)
        return Unnested(self._select, replace(self._sources, scope=scope), tuple(self._later))

    def _key(self, node: exp.Expr) -> exp.Expr:
        """Returns a key of GROUP BY without subqueries: the number of the column of SELECT that is the same."""
        if not trees.has_subquery(node):
            return node
        bare = [item.unalias() for item in self._select.expressions]
        self._nested.constructs.add(DOMAIN)
        return trees.number(bare.index(node) + 1) if node in bare else self._replaced(node)

    def _item(self, node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Alias):
            return self._replaced(node)
        node.set("this", self._replaced(node.this))
        return node

    # Conditions of WHERE

    def _condition(self, node: exp.Expr) -> list[exp.Expr]:
        """Adds joins for one of the conditions that AND joins. Returns the conditions that remain."""
        bare, is_negated = trees.without_not(node)
        bare, inverts = trees.as_in(bare)
        is_negated ^= inverts
        if isinstance(bare, exp.Exists):
            return self._exists(bare, is_negated)
        if isinstance(bare, exp.In) and bare.args.get("query") and not trees.has_subquery(bare.this):
            return self._in(bare, is_negated)
        return [self._replaced(node, is_condition=True)]

    def _exists(self, node: exp.Exists, is_negated: bool) -> list[exp.Expr]:
        return self._either(
            lambda: self._exists_by_conditions(node, is_negated), lambda: self._exists_by_keys(node, is_negated)
        )

    def _exists_by_keys(self, node: exp.Exists, is_negated: bool) -> list[exp.Expr]:
        rows = self._keyed(trees.query_in(node.this)).rows(self._nested.alias())
        kind = JoinKind.LEFT_ANTI if is_negated else JoinKind.LEFT_SEMI
        self._join_by_keys(kind, rows, node)
        return []

    def _exists_by_conditions(self, node: exp.Exists, is_negated: bool) -> list[exp.Expr]:
        query = trees.query_in(node.this)
        correlated = self._correlated(query)
        if correlated.is_empty:
            return [self._has_rows(query, node, is_negated=is_negated)]
        self._semi_join(self._plain(query, "EXISTS", node), correlated, [], is_negated, node)
        return []

    def _in(self, node: exp.In, is_negated: bool) -> list[exp.Expr]:
        return self._either(
            lambda: self._in_by_conditions(node, is_negated),
            lambda: self._exists(self._as_exists(node, is_negated), is_negated),
        )

    def _as_exists(self, node: exp.In, is_negated: bool) -> exp.Exists:
        return as_exists(node, self._operands(node), self._nested.alias(), is_negated=is_negated)

    def _in_by_conditions(self, node: exp.In, is_negated: bool) -> list[exp.Expr]:
        query = trees.query_in(node.args["query"])
        operands = self._operands(node)
        correlated = self._correlated(query)
        if not correlated.is_empty:
            query = self._plain(query, "IN", node)
            items = [item.unalias() for item in query.expressions]
            self._check_columns(len(items), len(operands), node)
            pairs = list(zip(items, operands, strict=True))
            self._semi_join(query, correlated, pairs, is_negated, node)
            return []
        table = self._table(query, node, len(operands))
        keys = [
            (self._outer_tree(operand, node), Name(table.name, name, position(node)))
            for operand, name in zip(operands, table.columns, strict=True)
        ]
        kind = JoinKind.LEFT_ANTI if is_negated else JoinKind.LEFT_SEMI
        if not is_negated:
            self._join(kind, table, keys, node)
            return []
        if len(operands) > 1:
            hint = (
                "Write NOT EXISTS, and compare the columns in the WHERE of the subquery. Unlike NOT IN, it keeps rows "
                "in which a compared column is NULL."
            )
            raise self._source.unsupported("NOT IN of several columns", at=position(node), hint=hint)
        self._join(kind, table, keys, node)
        rows, values = self._counts(query, node)
        # NULL is not known to differ from any value.
        without_null = exp.And(
            this=exp.Not(this=trees.is_null(operands[0])), expression=exp.EQ(this=rows, expression=values)
        )
        return [
            exp.Paren(this=exp.Or(this=exp.EQ(this=rows.copy(), expression=trees.number(0)), expression=without_null))
        ]

    def _counts(self, query: exp.Expr, node: exp.Expr) -> tuple[exp.Column, exp.Column]:
        """Joins the numbers of rows and of values of `query`, which has one column. Returns their columns."""
        counted = trees.counted(query, self._nested.alias(), "COUNT")
        rows, values = self._one_row(counted, node, 2)
        return rows, values

    def _semi_join(
        self,
        query: exp.Select,
        correlated: Correlated,
        compared: list[tuple[exp.Expr, exp.Expr]],
        is_negated: bool,
        node: exp.Expr,
    ) -> None:
        """Adds a semi or anti join with `query`. `compared` are the columns of IN with the expressions before IN."""
        inner = self._names.sources_of(query)
        alias = self._nested.alias()
        names: dict[exp.Expr, str] = {}

        def column(tree: exp.Expr) -> exp.Column:
            name = names.setdefault(tree, f"{alias}_{len(names) + 1}")
            return trees.column(alias, name, position(tree))

        equal = [*correlated.keys, *([] if is_negated else compared)]
        all_pairs = [(column(own), outer) for own, outer in equal]
        conditions = [
            trees.mapped(
                condition.copy(),
                lambda part: column(part) if isinstance(part, exp.Column) and self._names.is_own(part, inner) else part,
            )
            for condition in correlated.others
        ]
        if is_negated:
            conditions += [trees.may_equal(outer, column(own)) for own, outer in compared]
        expressions: list[exp.Expr] = [
            exp.Alias(this=tree.copy(), alias=trees.identifier(name)) for tree, name in names.items()
        ]
        table = self._compiled(trees.rows_of(query, correlated.own, expressions), alias, tuple(names.values()), node)
        scope = self._sources.scope.with_tables(self._added).with_tables(_scope_of(table))
        both = replace(self._sources, scope=scope)
        keys = [(self._outer_tree(outer, node), Name(table.name, own.name, position(node))) for own, outer in all_pairs]
        residual = [both.qualify(self._reader.read(condition), self._source) for condition in conditions]
        kind = JoinKind.LEFT_ANTI if is_negated else JoinKind.LEFT_SEMI
        self._join(kind, table, keys, node, residual)

    # Subqueries as values

    def _replaced(self, node: exp.Expr, *, is_condition: bool = False) -> exp.Expr:
        """Returns `node` with its subqueries replaced by columns. `is_condition`: NULL is the same as FALSE for it.
        In any other place, Spark's IN with a subquery returns FALSE where the standard says NULL.
        """
        normal, inverts = trees.as_in(node)
        if inverts:
            return self._replaced(exp.Not(this=exp.Paren(this=normal)), is_condition=is_condition)
        if isinstance(normal, exp.Exists):
            return exp.Paren(this=self._exists_value(normal))
        bare, is_negated = trees.without_not(normal)
        if isinstance(bare, exp.In) and bare.args.get("query"):
            bare.set("this", self._replaced(bare.this))
            return self._either(
                lambda: self._in_replaced(bare, is_negated, is_condition=is_condition),
                lambda: self._in_as_exists(bare, is_negated),
            )
        if isinstance(normal, exp.Any | exp.All):
            # Other comparisons with ANY and ALL are refused when the expression is read.
            return normal
        if isinstance(normal, exp.Query):
            return self._value(trees.query_in(normal), normal)
        if self._is_later and trees.function_of(normal) in trees.AGGREGATES:
            # Its arguments are computed before the groups.
            self._is_later = False
            self._replace_parts(normal, is_condition=False)
            self._is_later = True
            return normal
        if trees.has_subquery(normal) and (inverted := trees.inverted(normal)) is not None:
            return self._replaced(inverted, is_condition=is_condition)
        self._replace_parts(normal, is_condition=is_condition)
        return normal

    def _in_replaced(self, bare: exp.In, is_negated: bool, *, is_condition: bool) -> exp.Expr:
        if not is_negated:
            return exp.Paren(this=self._is_found(bare)[0])
        negated = exp.Not(this=exp.Paren(this=self._in_value(bare)))
        return exp.Paren(this=negated) if is_condition else trees.call("COALESCE", negated, exp.Boolean(this=False))

    def _in_as_exists(self, bare: exp.In, is_negated: bool) -> exp.Expr:
        found = self._exists_value(self._as_exists(bare, is_negated))
        return exp.Paren(this=exp.Not(this=exp.Paren(this=found)) if is_negated else found)

    def _replace_parts(self, normal: exp.Expr, *, is_condition: bool) -> None:
        is_connective = isinstance(normal, exp.And | exp.Or | exp.Paren | exp.Having | exp.Qualify)
        for key, value in list(normal.args.items()):
            if isinstance(value, exp.Expr):
                normal.set(key, self._replaced(value, is_condition=is_condition and is_connective))
            elif isinstance(value, list):
                normal.set(key, [self._replaced(part) if isinstance(part, exp.Expr) else part for part in value])

    def _exists_value(self, node: exp.Exists) -> exp.Expr:
        return self._either(lambda: self._exists_value_by_conditions(node), lambda: self._exists_value_by_keys(node))

    def _exists_value_by_keys(self, node: exp.Exists) -> exp.Expr:
        rows = self._keyed(trees.query_in(node.this)).rows(self._nested.alias())
        return exp.Not(this=trees.is_null(self._join_by_keys(JoinKind.LEFT, rows, node)[0]))

    def _exists_value_by_conditions(self, node: exp.Exists) -> exp.Expr:
        query = trees.query_in(node.this)
        correlated = self._correlated(query)
        if correlated.is_empty:
            return self._has_rows(query, node)
        return exp.Not(this=trees.is_null(self._mark(self._plain(query, "EXISTS", node), correlated, [], node)))

    def _is_found(self, node: exp.In) -> tuple[exp.Expr, exp.Expr, exp.Expr]:
        """Returns whether a row of the subquery is equal, the value before IN, and the subquery."""
        query = trees.query_in(node.args["query"])
        operands = self._operands(node)
        correlated = self._correlated(query)
        if len(operands) > 1:
            hint = f"Move it to WHERE, joined by AND. {_OR_JOIN}"
            raise self._source.unsupported("IN of several columns here", at=position(node), hint=hint)
        if correlated.is_empty:
            inner, name = self._nested.alias(), f"{self._nested.alias()}_1"
            value = trees.column(inner, name)
            rows = exp.Select(expressions=[value.copy()], from_=trees.from_query(query, inner, [name]))
            mark = self._mark(rows, Correlated([], [], []), [(value, operands[0])], node)
        else:
            plain = self._plain(query, "IN", node)
            self._check_columns(len(plain.expressions), 1, node)
            mark = self._mark(plain, correlated, [(plain.expressions[0].unalias(), operands[0])], node)
        return exp.Not(this=trees.is_null(mark)), operands[0], query

    def _in_value(self, node: exp.In) -> exp.Expr:
        """Returns TRUE, FALSE or NULL."""
        if not self._correlated(trees.query_in(node.args["query"])).is_empty:
            hint = f"Move it to WHERE, joined by AND. {_OR_JOIN}"
            raise self._source.unsupported("A correlated IN as a value", at=position(node), hint=hint)
        is_found, operand, query = self._is_found(node)
        rows, values = self._counts(query, node)
        is_unknown = exp.Or(this=trees.is_null(operand), expression=exp.NEQ(this=rows, expression=values))
        return in_value(is_found, rows, is_unknown)

    def _mark(
        self, query: exp.Select, correlated: Correlated, pairs: list[tuple[exp.Expr, exp.Expr]], node: exp.Expr
    ) -> exp.Column:
        """Joins the distinct keys of `query`. Returns a column that is NULL if an outer row has no partner."""
        if correlated.others:
            hint = f"Move it to WHERE, joined by AND. {_OR_JOIN}"
            if self._is_later:
                hint = "Write the aggregates in a derived table, and EXISTS in the WHERE of the query around it."
            raise self._source.unsupported("A comparison other than = in this subquery", at=position(node), hint=hint)
        keys = [*correlated.keys, *pairs]
        expressions = [own.copy() for own, _ in keys]
        rows = trees.rows_of(query, correlated.own, expressions)
        rows.set("distinct", exp.Distinct())
        return self._left_join(rows, [outer for _, outer in keys], 0, node)[0]

    def _value(self, query: exp.Expr, node: exp.Expr) -> exp.Expr:
        """Joins the value of a scalar subquery. Returns the expression for it."""
        return self._either(lambda: self._value_by_conditions(query, node), lambda: self._value_by_keys(query, node))

    def _value_by_keys(self, query: exp.Expr, node: exp.Expr) -> exp.Expr:
        shape = ValueShape(query, self._source)
        keyed = self._keyed(query, keeps_empty=not shape.is_call)
        rows = keyed.values(self._nested.alias(), is_single=shape.is_single)
        columns = self._join_by_keys(JoinKind.LEFT, rows, node)
        if not shape.is_single:
            return only_row(*columns)
        return trees.without_rows(query.expressions[0].unalias(), columns[0]) if shape.is_call else columns[0]

    def _value_by_conditions(self, query: exp.Expr, node: exp.Expr) -> exp.Expr:
        correlated = self._correlated(query)
        if not correlated.is_empty:
            return self._value_by_key(query, correlated, node)
        if isinstance(query, exp.Select) and not any(item.is_star for item in query.expressions):
            self._check_columns(len(query.expressions), 1, node)
        if isinstance(query, exp.Select) and trees.is_one_row(query):
            return self._one_row(query, node, 1)[0]
        counted = trees.counted(query, self._nested.alias(), "MIN")
        # In the subquery, so that conditions on the value cannot fail, and are moved below joins.
        counted.set("expressions", [only_row(*(item.unalias() for item in counted.expressions))])
        return self._one_row(counted, node, 1)[0]

    def _value_by_key(self, query: exp.Expr, correlated: Correlated, node: exp.Expr) -> exp.Expr:
        if not isinstance(query, exp.Select):
            raise self._source.unsupported("A set operation as a value here", at=position(node), hint=_JOIN_INSTEAD)
        if correlated.others or not correlated.keys:
            raise self._source.unsupported(
                "A comparison other than = with the outer query in a subquery that is a value",
                at=position((correlated.others or [node])[0]),
                hint=_JOIN_INSTEAD,
            )
        self._check_columns(len(query.expressions), 1, node)
        shape = CorrelatedValue(query, correlated, self._names, self._source)
        if shape.is_new:
            self._nested.constructs.add(CORRELATED)
        outer = [key for _, key in correlated.keys]
        if shape.has_rows_by_key:
            rows, is_single = shape.rows_by_key(self._nested.alias)
            columns = self._left_join(rows, outer, 1 if is_single else 2, node)[1:]
            return columns[0] if is_single else only_row(*columns)
        item = shape.item()
        self._nested.constructs.update({CLAUSES_OF_ROWS} if shape.has_alias_of_column else ())
        own = [key.copy() for key, _ in correlated.keys]
        calls = list(dict.fromkeys(trees.calls_in(item)))
        is_aggregated = bool(calls)
        if not is_aggregated:
            calls = [trees.call("COUNT", exp.Star()), trees.call("MIN", item)]
        rows = trees.rows_of(query, correlated.own, [*own, *(call.copy() for call in calls)])
        rows.set("group", exp.Group(expressions=[key.copy() for key in own]))
        columns = self._left_join(rows, outer, len(calls), node)[1:]
        if not is_aggregated:
            return only_row(*columns)
        by_call = dict(zip(calls, columns, strict=True))

        def column(part: exp.Expr) -> exp.Expr:
            return trees.without_rows(part, by_call[part].copy())

        return exp.Paren(this=trees.mapped_calls(item, column))

    def _has_rows(self, query: exp.Expr, node: exp.Expr, *, is_negated: bool = False) -> exp.Expr:
        counted = counted_rows(query, self._nested.alias(), self._nested.alias())
        rows = self._one_row(counted, node, 1)[0]
        return (exp.EQ if is_negated else exp.GT)(this=rows, expression=trees.number(0))

    # Joins

    def _either(self, usual: Callable[[], _T], by_keys: Callable[[], _T]) -> _T:
        """Returns what `usual` does, or, if that refuses the subquery, what `by_keys` does. Raises SpecError of the
        first.
        """
        before = self._sources, list(self._later), self._added
        try:
            return usual()
        except SpecError as error:
            if error.code not in _MAY_BE_OUTER:
                raise
            self._sources, self._later, self._added = before
            try:
                found = by_keys()
            except SpecError as second:
                raise error_of(error, second) from None
        self._nested.constructs.add(DOMAIN)
        return found

    def _keyed(self, query: exp.Expr, *, keeps_empty: bool = True) -> Keyed:
        found = self._domain.keyed(query, keeps_empty=keeps_empty)
        if found is None:
            # The error of the other way is the one that is raised.
            raise self._source.error("unknown_column", "It has no outer column.", at=position(query))
        return found

    @cached_property
    def _domain(self) -> Domain:
        tables = tables_of(self._original)
        return Domain(tables, self._names, self._source, self._nested.alias, self._nested.constructs)

    def _join_by_keys(self, kind: JoinKind, rows: Keyed, node: exp.Expr) -> list[exp.Column]:
        """Joins `rows` where its keys are those of the outer row. Returns its other columns."""
        count = len(rows.outer)
        table = self._table(rows.query, node, len(rows.query.expressions))
        keys = [Name(table.name, name, position(node)) for name in table.columns[-count:]]
        outer = [self._outer_tree(column, node) for column in rows.outer]
        pairs = zip(outer, keys, strict=True)
        self._join(kind, table, (), node, [Comparison("<=>", left, right) for left, right in pairs])
        if kind is JoinKind.LEFT:
            self._added = self._added.with_tables(_scope_of(table))
        return self._columns(table, node)[:-count]

    def _one_row(self, query: exp.Expr, node: exp.Expr, columns: int) -> list[exp.Column]:
        """Cross joins `query`, which returns one row. Returns its columns."""
        table = self._table(query, node, columns)
        self._join(JoinKind.CROSS, table, (), node)
        self._added = self._added.with_tables(_scope_of(table))
        return self._columns(table, node)

    def _left_join(self, rows: exp.Select, outer: list[exp.Expr], values: int, node: exp.Expr) -> list[exp.Column]:
        """Left joins `rows` by its first columns with the expressions `outer`. Returns its first column, and its last
        `values` columns.
        """
        table = self._table(rows, node, len(outer) + values)
        keys = [
            (self._outer_tree(tree, node), Name(table.name, name, position(node)))
            for tree, name in zip(outer, table.columns, strict=False)
        ]
        self._join(JoinKind.LEFT, table, keys, node)
        self._added = self._added.with_tables(_scope_of(table))
        columns = self._columns(table, node)
        return [columns[0], *columns[len(outer) :]]

    def _join(
        self,
        kind: JoinKind,
        table: QueryRef,
        keys: Sequence[tuple[Expression, Expression]],
        node: exp.Expr,
        residual: Sequence[Expression] = (),
    ) -> None:
        condition = None if not residual else residual[0] if len(residual) == 1 else Connective("AND", tuple(residual))
        joined = JoinedTable(kind, table, tuple(keys), condition, position(node))
        if self._is_later:
            self._nested.constructs.update({CORRELATED} if keys else ())
            self._later.append(joined)
        else:
            self._sources = replace(self._sources, joins=(*self._sources.joins, joined))

    def _table(self, query: exp.Expr, node: exp.Expr, columns: int) -> QueryRef:
        """Compiles `query` under an unused alias, with new names for its columns."""
        alias = self._nested.alias()
        names = tuple(f"{alias}_{number + 1}" for number in range(columns))
        return self._compiled(query, alias, names, node)

    def _compiled(self, query: exp.Expr, alias: str, names: tuple[str, ...], node: exp.Expr) -> QueryRef:
        joins = f"{LATER}/{len(self._later)}" if self._is_later else f"/joins/{len(self._sources.joins)}"
        ref = self._nested.compile(query, f"{joins}/right")
        self._check_columns(len(ref.query.select), len(names), node)
        return ref.model_copy(update={"alias": alias, "columns": names})

    def _columns(self, table: QueryRef, node: exp.Expr) -> list[exp.Column]:
        at = position(node)
        return [trees.column(table.name, name, at) for name in table.columns]

    def _outer_tree(self, node: exp.Expr, subquery: exp.Expr) -> Expression:
        """Returns an expression over the outer tables that is compared with a column of the subquery."""
        if any(True for _ in trees.calls_in(node)):
            hint = "Write the aggregates in a derived table, and the subquery in the WHERE of the query around it."
            what = "An aggregate that is compared with a column of a subquery"
            raise self._source.unsupported(what, at=position(subquery), hint=hint)
        scope = self._outer.scope.with_tables(self._added)
        tree = replace(self._outer, scope=scope).qualify(self._reader.read(node.copy()), self._source)
        if not any(isinstance(part, Name) for part in walk(tree)):
            raise self._source.unsupported(
                "A value without a column that is compared with a subquery",
                at=position(subquery),
                hint="Write EXISTS, with the comparison in the WHERE of the subquery.",
            )
        return tree

    def _operands(self, node: exp.In) -> list[exp.Expr]:
        operands = list(node.this.expressions) if isinstance(node.this, exp.Tuple) else [node.this]
        return [trees.mapped(each.copy(), self._without_alias) for each in operands]

    def _without_alias(self, part: exp.Expr) -> exp.Expr:
        """Returns the expression of an alias of SELECT; columns of the tables come first."""
        if not isinstance(part, exp.Column) or part.table or self._names.is_outer(part):
            return part
        named = [item.this for item in self._original.expressions if item.alias.casefold() == part.name.casefold()]
        if len(named) != 1 or trees.has_subquery(named[0]):
            return part
        self._nested.constructs.add(DOMAIN)
        return exp.Paren(this=named[0].copy())

    def _check_columns(self, found: int, wanted: int, node: exp.Expr) -> None:
        if found != wanted:
            columns = "1 column" if found == 1 else f"{found} columns"
            detail = f"The subquery returns {columns}; {wanted} {'is' if wanted == 1 else 'are'} needed here."
            raise self._source.error("unsupported_construct", detail, at=position(node))

    def _plain(self, query: exp.Expr, what: str, node: exp.Expr) -> exp.Select:
        """Returns `query`. Raises SpecError if its rows are not those of its tables that match its conditions."""
        if what == "EXISTS" and isinstance(query, exp.Select) and keeps_first_row(query, self._source):
            self._nested.constructs.update({CORRELATED} if query.args.get("limit") else ())
            query = query.copy()
            query.set("limit", None)
        if (
            not isinstance(query, exp.Select)
            or any(query.args.get(key) for key in ("having", "limit", "offset"))
            or any(True for item in query.expressions for _ in trees.calls_in(item))
        ):
            hint = f"Leave out aggregates, HAVING, LIMIT and OFFSET. {_OR_JOIN}"
            raise self._source.unsupported(f"This subquery of {what}", at=position(node), hint=hint)
        inner = self._names.sources_of(query)
        resolution = Resolution(
            lambda column: self._names.is_of(column, inner), self._names.is_outer, lambda _item, number: f"_{number}"
        )
        changed = with_aliases(query, resolution, self._source)
        if changed is not query:
            self._nested.constructs.add(ALIASES)
        return changed

    def _correlated(self, query: exp.Expr) -> Correlated:
        """Returns the conditions of a subquery, by the tables that they read."""
        refuse_outer_arguments(query, self._outer.scope, self._source)
        found = self._names.conditions(query)
        if not found.is_empty and (
            query.args.get("qualify") or any(item.find(exp.Window) for item in query.expressions)
        ):
            # The rows of a window would be those of all keys.
            at = position(query)
            raise self._source.unsupported("OVER or QUALIFY in a correlated subquery", at=at, hint=_JOIN_INSTEAD)
        return found


def _scope_of(table: QueryRef) -> TableScope:
    schema = Schema(tuple(Field(name, NULL) for name in table.columns))
    return TableScope({table.name: schema}, unnamed=frozenset({table.name}))
