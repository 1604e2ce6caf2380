"""Replaces the subqueries in the expressions of a SELECT by joins with derived tables.

| subquery | becomes |
| --- | --- |
| `x IN (…)` and `EXISTS (…)`, joined by AND in WHERE | a LEFT SEMI JOIN |
| `NOT EXISTS (…)`, likewise | a LEFT ANTI JOIN |
| `x NOT IN (…)`, likewise | a LEFT ANTI JOIN, and a CROSS JOIN with the counts of rows and values, for NULL |
| IN and EXISTS elsewhere | a LEFT JOIN with the distinct keys |
| a value | a CROSS JOIN with one row |
| a value that depends on the outer row | a LEFT JOIN with the values, grouped by the columns compared |

A subquery may compare its columns with those of the outer query in its WHERE. Equalities become join keys; other
conditions are only possible in semi and anti joins. Kim's aggregation before the join (ACM TODS 7(3), 1982) is used
with an outer join, so that COUNT is 0 for an outer row without partners.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from service.contract.query import JoinKind, QueryRef
from service.sql.expressions.compile_expression import TableScope
from service.sql.expressions.nodes import Connective, Expression, Name, walk
from service.sql.expressions.reader import ExpressionReader, position
from service.sql.parser import Text
from service.sql.statements import trees
from service.sql.statements.correlation import Correlated, Correlation
from service.sql.statements.from_clause import JoinedTable, Sources
from service.sql.statements.generators import refuse_outer_arguments
from service.sql.types.data_types import NULL, Field, Schema

_TOO_MANY_ROWS = "A subquery that is used as a value returned more than one row."
LATER = "/later"
"""The pointer of the joins with the groups, below that of the SELECT, until the caller moves them."""
_JOIN_INSTEAD = "Write the subquery as a derived table in FROM, and join it."
_OR_JOIN = "Otherwise, write it as a derived table in FROM, and join it."

_OTHER_QUERIES = ("exists", "values", "table", "with")
"""Words that a query without SELECT and FROM may begin with, or that stand before a query."""


@dataclass(frozen=True)
class Nested:
    """How subqueries are compiled: `compile` returns the compiled query of a tree, whose pointer is given below that of
    the SELECT; `sources` reads FROM of a subquery, to resolve its names; `alias` returns an unused alias.
    """

    compile: Callable[[exp.Expr, str], QueryRef]
    sources: Callable[[exp.Select], Sources]
    alias: Callable[[], str]


@dataclass(frozen=True)
class Unnested:
    """A SELECT without subqueries in its expressions, and its tables, which include those of its subqueries. `later`
    are cross joins with the rows of its groups: subqueries of a SELECT with aggregates.
    """

    select: exp.Select
    sources: Sources
    later: tuple[JoinedTable, ...] = ()


def may_have_subqueries(text: str) -> bool:
    """Whether the case-folded `text` may have a query inside an expression, as an upper bound.

    >>> may_have_subqueries("select k from t"), may_have_subqueries("select k from t where k in (select k from u)")
    (False, True)
    """
    return text.count("select") > 1 or text.count("from") > 1 or any(word in text for word in _OTHER_QUERIES)


def unnest(select: exp.Select, sources: Sources, source: Text, nested: Nested) -> Unnested:
    """Replaces the subqueries in the expressions of `select`, which reads `sources`.

    Raises SpecError `unsupported_construct` for a subquery that cannot be replaced, and what compiling one raises.
    """
    if not any(trees.has_subquery(part) for part in trees.expressions_of(select)):
        return Unnested(select, sources)
    return _Unnesting(select.copy(), sources, source, nested).result()


def refuse_in_clauses(select: exp.Select, source: Text) -> None:
    """Raises SpecError `unsupported_construct` for a subquery in ON or GROUP BY."""
    for join in select.args.get("joins") or []:
        for node in trees.subqueries_in(join.args.get("on")):
            hint = "Move the condition to WHERE, or join a derived table."
            raise source.unsupported("A subquery in ON", at=position(node), hint=hint)
    for node in trees.subqueries_in(select.args.get("group")):
        hint = "Compute it as a column of a derived table, and group by that column."
        raise source.unsupported("A subquery in GROUP BY", at=position(node), hint=hint)


class _Unnesting:
    def __init__(self, select: exp.Select, sources: Sources, source: Text, nested: Nested) -> None:
        self._select = select
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
        self._is_later = trees.is_aggregated(self._select)
        for index, item in enumerate(self._select.expressions):
            if trees.has_subquery(item) and not isinstance(item, exp.Alias):
                # The expression that replaces the subquery would name the column.
                named = exp.Alias(this=item.copy(), alias=exp.to_identifier(f"column_{index + 1}"))
                self._select.expressions[index] = trees.placed(named, position(item))
        keys = trees.selected_keys(self._select)
        for index, item in enumerate(list(self._select.expressions)):
            is_key, is_later = index in keys, self._is_later
            self._is_later = is_later and not is_key
            self._select.expressions[index] = self._item(item)
            self._is_later = is_later
        self._select.set("expressions", self._select.expressions)
        for clause in ("having", "qualify", "order"):
            node = self._select.args.get(clause)
            if node is not None:
                self._select.set(clause, self._replaced(node, is_condition=clause != "order"))
        scope = self._sources.scope.with_tables(self._added)
        return Unnested(self._select, replace(self._sources, scope=scope), tuple(self._later))

    def _item(self, node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Alias):
            return self._replaced(node, is_value=True)
        node.set("this", self._replaced(node.this, is_value=True))
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
        query = trees.query_in(node.this)
        correlated = self._correlated(query)
        if correlated.is_empty:
            return [self._has_rows(query, node, is_negated=is_negated)]
        self._semi_join(self._plain(query, "EXISTS", node), correlated, [], is_negated, node)
        return []

    def _in(self, node: exp.In, is_negated: bool) -> list[exp.Expr]:
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

    def _replaced(self, node: exp.Expr, *, is_condition: bool = False, is_value: bool = False) -> exp.Expr:
        """Returns `node` with its subqueries replaced by columns. `is_condition`: NULL is the same as FALSE for it.
        `is_value`: it is a column of SELECT.
        """
        normal, inverts = trees.as_in(node)
        if inverts:
            return self._replaced(exp.Not(this=exp.Paren(this=normal)))
        if isinstance(normal, exp.Exists):
            return exp.Paren(this=self._exists_value(normal))
        bare, is_negated = trees.without_not(normal)
        if isinstance(bare, exp.In) and bare.args.get("query"):
            bare.set("this", self._replaced(bare.this))
            if is_condition and not is_negated:
                return exp.Paren(this=self._is_found(bare)[0])
            value = self._in_value(bare)
            negated: exp.Expr = exp.Not(this=exp.Paren(this=value)) if is_negated else value
            # Spark's IN with a subquery returns FALSE where the standard says NULL, if it is not part of a condition.
            return trees.call("COALESCE", negated, exp.Boolean(this=False)) if is_value else exp.Paren(this=negated)
        if isinstance(normal, exp.Any | exp.All):
            # Other comparisons with ANY and ALL are refused when the expression is read.
            return normal
        if isinstance(normal, exp.Query):
            return self._value(trees.query_in(normal), normal)
        if self._is_later and trees.function_of(normal) in trees.AGGREGATES:
            # Its arguments are computed before the groups.
            self._is_later = False
            self._replace_parts(normal)
            self._is_later = True
            return normal
        self._replace_parts(normal, is_condition=is_condition)
        return normal

    def _replace_parts(self, normal: exp.Expr, *, is_condition: bool = False) -> None:
        is_connective = isinstance(normal, exp.And | exp.Or | exp.Paren | exp.Having | exp.Qualify)
        for key, value in list(normal.args.items()):
            if isinstance(value, exp.Expr):
                normal.set(key, self._replaced(value, is_condition=is_condition and is_connective))
            elif isinstance(value, list):
                normal.set(key, [self._replaced(part) if isinstance(part, exp.Expr) else part for part in value])

    def _exists_value(self, node: exp.Exists) -> exp.Expr:
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
        return exp.Case(
            ifs=[
                exp.If(this=is_found, true=exp.Boolean(this=True)),
                exp.If(this=exp.EQ(this=rows.copy(), expression=trees.number(0)), true=exp.Boolean(this=False)),
                exp.If(this=is_unknown, true=exp.Null()),
            ],
            default=exp.Boolean(this=False),
        )

    def _mark(
        self, query: exp.Select, correlated: Correlated, pairs: list[tuple[exp.Expr, exp.Expr]], node: exp.Expr
    ) -> exp.Column:
        """Joins the distinct keys of `query`. Returns a column that is NULL if an outer row has no partner."""
        self._check_before_aggregation(node)
        if correlated.others:
            hint = f"Move it to WHERE, joined by AND. {_OR_JOIN}"
            raise self._source.unsupported("A comparison other than = in this subquery", at=position(node), hint=hint)
        keys = [*correlated.keys, *pairs]
        expressions = [own.copy() for own, _ in keys]
        rows = trees.rows_of(query, correlated.own, expressions)
        rows.set("distinct", exp.Distinct())
        return self._left_join(rows, [outer for _, outer in keys], 0, node)[0]

    def _value(self, query: exp.Expr, node: exp.Expr) -> exp.Expr:
        """Joins the value of a scalar subquery. Returns the expression for it."""
        correlated = self._correlated(query)
        if not correlated.is_empty:
            return self._value_by_key(query, correlated, node)
        if isinstance(query, exp.Select) and not any(item.is_star for item in query.expressions):
            self._check_columns(len(query.expressions), 1, node)
        if isinstance(query, exp.Select) and trees.is_one_row(query):
            return self._one_row(query, node, 1)[0]
        counted = trees.counted(query, self._nested.alias(), "MIN")
        rows, found = self._one_row(counted, node, 2)
        return _only_row(rows, found)

    def _value_by_key(self, query: exp.Expr, correlated: Correlated, node: exp.Expr) -> exp.Expr:
        self._check_before_aggregation(node)
        if not isinstance(query, exp.Select) or any(
            query.args.get(key) for key in ("group", "having", "limit", "offset")
        ):
            hint = f"Leave out GROUP BY, HAVING, LIMIT and OFFSET. {_OR_JOIN}"
            raise self._source.unsupported("This subquery as a value", at=position(node), hint=hint)
        if correlated.others or not correlated.keys:
            raise self._source.unsupported(
                "A comparison other than = with the outer query in a subquery that is a value",
                at=position((correlated.others or [node])[0]),
                hint=_JOIN_INSTEAD,
            )
        self._check_columns(len(query.expressions), 1, node)
        item = query.expressions[0].unalias().copy()
        outer = [key for _, key in correlated.keys]
        own = [key.copy() for key, _ in correlated.keys]
        calls = list(dict.fromkeys(trees.calls_in(item)))
        is_aggregated = bool(calls)
        if not is_aggregated:
            calls = [trees.call("COUNT", exp.Star()), trees.call("MIN", item)]
        rows = trees.rows_of(query, correlated.own, [*own, *(call.copy() for call in calls)])
        rows.set("group", exp.Group(expressions=[key.copy() for key in own]))
        columns = self._left_join(rows, outer, len(calls), node)[1:]
        if not is_aggregated:
            return _only_row(*columns)
        by_call = dict(zip(calls, columns, strict=True))

        def column(part: exp.Expr) -> exp.Expr:
            found, function = by_call[part].copy(), trees.function_of(part)
            if function in trees.COUNTS:
                return trees.call("COALESCE", found, trees.number(0))
            return trees.call("COALESCE", found, trees.call("ARRAY")) if function in trees.LISTS else found

        return exp.Paren(this=trees.mapped_calls(item, column))

    def _has_rows(self, query: exp.Expr, node: exp.Expr, *, is_negated: bool = False) -> exp.Expr:
        inner = self._nested.alias()
        limited = exp.Select(
            expressions=[exp.Star()],
            from_=trees.from_query(query, inner, []),
            limit=exp.Limit(expression=trees.number(1)),
        )
        counted = exp.Select(
            expressions=[trees.call("COUNT", exp.Star())], from_=trees.from_query(limited, self._nested.alias(), [])
        )
        rows = self._one_row(counted, node, 1)[0]
        kind = exp.EQ if is_negated else exp.GT
        return kind(this=rows, expression=trees.number(0))

    # Joins

    def _one_row(self, query: exp.Expr, node: exp.Expr, columns: int) -> list[exp.Column]:
        """Cross joins `query`, which returns one row. Returns its columns."""
        pointer = f"{LATER}/{len(self._later)}/right" if self._is_later else None
        table = self._table(query, node, columns, pointer)
        joined = JoinedTable(JoinKind.CROSS, table, (), None, position(node))
        if self._is_later:
            self._later.append(joined)
        else:
            self._sources = replace(self._sources, joins=(*self._sources.joins, joined))
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
        self._sources = replace(self._sources, joins=(*self._sources.joins, joined))

    def _table(self, query: exp.Expr, node: exp.Expr, columns: int, pointer: str | None = None) -> QueryRef:
        """Compiles `query` under an unused alias, with new names for its columns."""
        alias = self._nested.alias()
        names = tuple(f"{alias}_{number + 1}" for number in range(columns))
        return self._compiled(query, alias, names, node, pointer)

    def _compiled(
        self, query: exp.Expr, alias: str, names: tuple[str, ...], node: exp.Expr, pointer: str | None = None
    ) -> QueryRef:
        ref = self._nested.compile(query, pointer or f"/joins/{len(self._sources.joins)}/right")
        self._check_columns(len(ref.query.select), len(names), node)
        return ref.model_copy(update={"alias": alias, "columns": names})

    def _columns(self, table: QueryRef, node: exp.Expr) -> list[exp.Column]:
        at = position(node)
        return [trees.column(table.name, name, at) for name in table.columns]

    def _outer_tree(self, node: exp.Expr, subquery: exp.Expr) -> Expression:
        """Returns an expression over the outer tables that is compared with a column of the subquery."""
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
        operand = node.this
        return list(operand.expressions) if isinstance(operand, exp.Tuple) else [operand]

    def _check_columns(self, found: int, wanted: int, node: exp.Expr) -> None:
        if found != wanted:
            columns = "1 column" if found == 1 else f"{found} columns"
            detail = f"The subquery returns {columns}; {wanted} {'is' if wanted == 1 else 'are'} needed here."
            raise self._source.error("unsupported_construct", detail, at=position(node))

    def _check_before_aggregation(self, node: exp.Expr) -> None:
        if self._is_later:
            raise self._source.unsupported(
                "A correlated subquery in SELECT, HAVING or ORDER BY of a query with aggregates",
                at=position(node),
                hint="Write the aggregates in a derived table, and the subquery in the query around it.",
            )

    def _plain(self, query: exp.Expr, what: str, node: exp.Expr) -> exp.Select:
        """Returns `query`. Raises SpecError if its rows are not those of its tables that match its conditions."""
        if (
            not isinstance(query, exp.Select)
            or any(query.args.get(key) for key in ("having", "limit", "offset"))
            or any(True for item in query.expressions for _ in trees.calls_in(item))
        ):
            hint = f"Leave out aggregates, HAVING, LIMIT and OFFSET. {_OR_JOIN}"
            raise self._source.unsupported(f"This subquery of {what}", at=position(node), hint=hint)
        return query

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


def _only_row(rows: exp.Expr, value: exp.Expr) -> exp.Expr:
    """Returns `value`; the query fails if there is more than one of `rows`."""
    fails = trees.call("RAISE_ERROR", exp.Literal.string(_TOO_MANY_ROWS))
    is_wrong = exp.GT(this=rows, expression=trees.number(1))
    return exp.Case(ifs=[exp.If(this=is_wrong, true=fails)], default=value)
