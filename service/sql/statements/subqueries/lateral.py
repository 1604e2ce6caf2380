"""Replaces a query after LATERAL by a join with a derived table, whose rows do not depend on the tables before it.

| query after LATERAL | becomes |
| --- | --- |
| without FROM | the expressions of its columns; with WHERE or UNION ALL, the rows of `inline` |
| without aggregates | a join: equalities of WHERE are its keys, other conditions its residual |
| with LIMIT | the same, of the first rows of each key (ROW_NUMBER) |
| with GROUP BY | a join with the groups of each key |
| with aggregates only | a LEFT JOIN with one row for each key: COUNT is 0 where there is none |
| any other one | a join with its rows for each combination of the values that it reads (`domain.py`) |

Expressions of SELECT may read the tables before it too; they are computed after the join.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from service.contract.problems import SpecError
from service.contract.query import EXPANDED_NODES, GeneratorFunction, JoinKind
from service.sql.expressions.compile_expression import TableScope
from service.sql.expressions.nodes import (
    Call,
    Case,
    Comparison,
    Connective,
    Expression,
    Name,
    NodeCounter,
    Not,
    Null,
    String,
    Test,
)
from service.sql.expressions.reader import ExpressionReader, position
from service.sql.expressions.window_functions import with_named_windows
from service.sql.parser import Text
from service.sql.statements import trees
from service.sql.statements.clauses.aliases import ALIASES, Resolution, with_aliases
from service.sql.statements.clauses.lists import text_as_name
from service.sql.statements.nested import Nested, error_of
from service.sql.statements.subqueries.correlated_values import CORRELATED
from service.sql.statements.subqueries.correlation import Correlated, Correlation
from service.sql.statements.subqueries.domain import DOMAIN, Domain
from service.sql.statements.subqueries.keyed_rows import COLUMNS, KeyedRows
from service.sql.statements.subqueries.lateral_generators import GENERATED, columns_of_generator, generator_in
from service.sql.statements.subqueries.moved_conditions import with_moved_conditions
from service.sql.statements.tables.from_clause import Before, LateralTable, Sources, name_of
from service.sql.statements.tables.generators import Generated, is_generated, is_generator
from service.sql.types.data_types import NULL, Field, Schema

_JOIN = "Join a derived table instead, with the comparison in ON; aggregate in the query around the join."
_UNKNOWN = frozenset({"unknown_table", "unknown_column"})
_OF_ROW = frozenset({"expressions", "where"})
"""The clauses of a query without FROM."""


def read_lateral(
    node: exp.Lateral,
    kind: JoinKind,
    before: Before,
    source: Text,
    nested: Nested,
    pointer: str,
    *,
    has_condition: bool = False,
) -> LateralTable:
    """Reads a query after LATERAL, which may use the tables `before` it; `pointer` is that of the joined table.
    `has_condition`: the join has one in ON.

    Raises SpecError `unsupported_construct` for a query that cannot be replaced, and what compiling one raises.
    """
    return _Lateral(node, kind, before, source, nested, pointer).table(has_condition=has_condition)


@dataclass
class _Columns:
    """The columns of the query that replaces the one after LATERAL: what is selected, and, by name, the expressions of
    the columns that are computed after the join. `hidden` are the names of those that follow the visible ones.
    """

    selected: list[exp.Expr] = field(default_factory=list)
    added: list[exp.Expr] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    computed: dict[int, exp.Expr] = field(default_factory=dict)


class _Lateral:
    def __init__(
        self, node: exp.Lateral, kind: JoinKind, before: Before, source: Text, nested: Nested, pointer: str
    ) -> None:
        self._kind = kind
        self._before = before.sources
        self._tables = before.tables
        self._source = source
        self._nested = nested
        self._pointer = pointer
        self._at = position(node)
        self._query = trees.query_in(node.this)
        self._names = Correlation(before.sources, source, nested.sources)
        self._reader = ExpressionReader(source, aggregates=False)
        self._prefix = nested.alias()
        alias = node.args.get("alias")
        called = alias.this if alias is not None else None
        self._is_unnamed = called is None
        self._alias = self._prefix if called is None else name_of(called, source, self._at)
        listed = alias.args.get("columns") if alias is not None else None
        self._listed = tuple(name_of(column, source, self._at) for column in listed or ())

    def table(self, *, has_condition: bool) -> LateralTable:
        """Returns the table that replaces the query. Raises SpecError."""
        try:
            found = self._table()
            if has_condition and (found.table is None or found.is_one_row):
                hint = "Write ON TRUE, and the condition in the WHERE of the query around it."
                raise self._refused("A condition in ON of this query after LATERAL", hint)
            return found
        except SpecError as error:
            try:
                by_keys = self._by_keys()
            except SpecError as second:
                chosen = error_of(error, second)
                raise (self._explained(error) if chosen is error else chosen) from None
            if by_keys is None:
                raise self._explained(error) from None
            self._nested.constructs.add(DOMAIN)
            return by_keys

    def _by_keys(self) -> LateralTable | None:
        """Returns the rows of the query for each combination of the values that it reads; None if it reads none."""
        domain = Domain(self._tables, self._names, self._source, self._nested.alias, self._nested.constructs)
        keyed = domain.keyed(self._query)
        if keyed is None:
            return None
        ref = self._nested.compile(keyed.query, self._pointer)
        visible = [item.name for item in ref.query.select][: -len(keyed.names)]
        names = self._named(visible)
        ref = ref.model_copy(update={"alias": self._alias, "columns": (*names, *keyed.names)})
        pairs = zip(keyed.outer, keyed.names, strict=True)
        equal: list[Expression] = [
            Comparison("<=>", self._tree(outer.copy(), self._before), Name(self._alias, name, position(outer)))
            for outer, name in pairs
        ]
        return LateralTable(self._alias, names, is_unnamed=self._is_unnamed, table=ref, residual=_all_of(equal))

    def _table(self) -> LateralTable:
        query = self._query
        generator = generator_in(query)
        if generator is not None:
            return self._of_generator(*generator)
        branches = _branches(query)
        if branches and all(branch.args.get("from_") is None for branch in branches):
            return self._of_rows(branches)
        if not isinstance(query, exp.Select):
            hint = (
                "Write UNION ALL between whole queries, each with LATERAL; instead of VALUES, write "
                "LATERAL (SELECT t.a UNION ALL SELECT t.b)."
            )
            raise self._refused("A set operation or VALUES after LATERAL", hint)
        return self._of_tables(with_named_windows(query.copy(), self._source))

    def _refused(self, construct: str, hint: str, node: exp.Expr | None = None) -> SpecError:
        at = position(node) if node is not None else None
        return self._source.unsupported(construct, at=self._at if at is None else at, hint=hint)

    def _explained(self, error: SpecError) -> SpecError:
        """Returns `error`, or a better one for a column of an earlier table that a query inside this one reads."""
        issue = error.issues[0]
        if issue.code not in _UNKNOWN:
            return error
        for column in self._query.find_all(exp.Column):
            found = self._source.error(issue.code, "", at=position(column)).issues[0]
            if (found.line, found.column) != (issue.line, issue.column):
                continue
            if not self._names.is_outer(column):
                return error
            text = ".".join(part.name for part in column.parts)[:60]
            called = column.find_ancestor(exp.Unnest, exp.Lateral)
            if called is not None and called.find_ancestor(exp.Lateral) is not None:
                return self._generator(called, column)
            if column.find_ancestor(exp.Select) is self._query:
                return self._misplaced(column)
            hint = (
                "Let that query return the column that it is compared with, and compare both in WHERE of the query "
                "after LATERAL; or join a derived table."
            )
            what = f"{text}, a column of an earlier table, in a query inside the one after LATERAL"
            return self._refused(what, hint, column)
        return error

    def _misplaced(self, node: exp.Expr) -> SpecError:
        what = "A column of an earlier table outside of SELECT and WHERE"
        return self._refused(what, f"Compare it in WHERE. {_JOIN}", node)

    def _generator(self, node: exp.Expr, at: exp.Expr) -> SpecError:
        """Returns the error for a generator in the query that reads an earlier table."""
        called = node.this if isinstance(node, exp.Lateral) else node
        name = "UNNEST" if isinstance(called, exp.Unnest) else str(called.this).lower()
        hint = (
            f"Write LATERAL {name}(…) AS x(y) after the last table of the query around it, in place of this query; "
            "filter, group and aggregate in the query around it."
        )
        return self._refused(f"{name} of an earlier table in a query after LATERAL", hint, at)

    # Queries without FROM

    def _of_rows(self, branches: list[exp.Select]) -> LateralTable:
        rows = [self._row(branch) for branch in branches]
        names = self._named([name for name, _ in rows[0]])
        conditions = [branch.args.get("where") for branch in branches]
        if len(branches) == 1 and conditions[0] is None:
            trees_ = {name: tree for name, (_, tree) in zip(names, rows[0], strict=True)}
            return LateralTable(self._alias, names, is_unnamed=self._is_unnamed, computed=trees_)
        if any(len(row) != len(names) for row in rows):
            raise self._refused("A UNION ALL of queries with different numbers of columns", "Select equally many.")
        if len(branches) > 1 and any(condition is not None for condition in conditions):
            hint = "Filter in the WHERE of the query around it."
            raise self._refused("WHERE before UNION ALL in a query after LATERAL without FROM", hint)
        made = tuple(_structure(dict(zip(names, (tree for _, tree in row), strict=True))) for row in rows)
        argument: Expression = Call("array", made, self._at)
        if conditions[0] is not None:
            condition = self._before.qualify(self._reader.read(conditions[0].this), self._source)
            argument = Call("if", (condition, argument, Null()), self._at)
        generated = Generated(
            GeneratorFunction.INLINE, (argument,), self._alias, names, self._kind is JoinKind.LEFT, self._at
        )
        return LateralTable(self._alias, names, is_unnamed=self._is_unnamed, generated=generated)

    def _without_aliases(self, query: exp.Select, is_own: Callable[[exp.Column], bool]) -> exp.Select:
        reader = ExpressionReader(self._source, aggregates=True)
        resolution = Resolution(
            is_own,
            self._names.is_outer,
            lambda item, number: _name_of_item(item, reader.read(item.copy()), number),
        )
        changed = with_aliases(query, resolution, self._source)
        if changed is not query:
            self._nested.constructs.add(ALIASES)
        return changed

    def _row(self, select: exp.Select) -> list[tuple[str, Expression]]:
        clause = next((key for key, value in select.args.items() if value and key not in _OF_ROW), None)
        if clause is not None:
            hint = "Write only SELECT and WHERE, or add FROM."
            raise self._refused(f"{clause.strip('_').upper()} in a query after LATERAL without FROM", hint, select)
        row = []
        select = self._without_aliases(select, lambda _column: False)
        for number, item in enumerate(select.expressions, start=1):
            self._check_plain(item)
            if next(trees.calls_in(item), None) is not None:
                hint = "The query has one row: select the value itself, or aggregate in the query around it."
                raise self._refused("An aggregate in a query after LATERAL without FROM", hint, item)
            if is_generator(item.unalias()):
                raise self._generator(item.unalias(), item)
            tree = self._reader.read(item.unalias())
            row.append((_name_of_item(item, tree, number), self._sized(self._before.qualify(tree, self._source))))
        return row

    def _check_plain(self, item: exp.Expr) -> None:
        if item.find(exp.Window) is not None or trees.has_subquery(item):
            raise self._refused("OVER or a subquery next to a column of an earlier table", COLUMNS, item)
        if item.is_star:
            raise self._refused("* next to columns of an earlier table", "Name the columns.", item)

    def _sized(self, tree: Expression) -> Expression:
        """Returns `tree`, in which columns of earlier LATERAL queries are replaced. Raises SpecError if it is large."""
        nodes = NodeCounter().count(tree)
        if nodes > EXPANDED_NODES.most:
            raise self._source.beyond(EXPANDED_NODES, nodes, at=self._at)
        return tree

    # Queries of a generator

    def _of_generator(self, select: exp.Select, node: exp.Expr) -> LateralTable:
        self._nested.constructs.add(GENERATED)
        columns = columns_of_generator(node, self._alias, self._prefix, self._before, self._source)
        select = self._without_aliases(select, columns.is_own)
        items: list[tuple[str, Expression]] = []
        for number, item in enumerate(select.expressions, start=1):
            if isinstance(item, exp.Star) and not any(item.args.values()):
                items += [(name, columns.qualified(Name(None, name, self._at))) for name in columns.found.columns]
                continue
            self._check_plain(item)
            if next(trees.calls_in(item), None) is not None or is_generator(item.unalias()):
                raise self._generator(node, item)
            tree = self._reader.read(item.unalias())
            items.append((_name_of_item(item, tree, number), self._sized(columns.qualified(tree))))
        generated, where = columns.found, select.args.get("where")
        if where is not None:
            if trees.has_subquery(where):
                raise self._generator(node, where)
            filtered = columns.filtered(self._reader.read(where.this), self._prefix)
            if filtered is None:
                raise self._generator(node, where)
            generated = filtered
        is_left = self._kind is JoinKind.LEFT
        if is_left and not all(isinstance(tree, Name) and tree.name in columns.hidden for _, tree in items):
            # Other expressions would have values for a row without elements.
            raise self._generator(node, node)
        names = self._named([name for name, _ in items])
        generated = replace(
            generated, alias=self._alias, columns=columns.hidden, outer=generated.outer or is_left, is_shown=False
        )
        computed = {name: tree for name, (_, tree) in zip(names, items, strict=True)}
        return LateralTable(self._alias, names, is_unnamed=self._is_unnamed, generated=generated, computed=computed)

    # Queries with FROM

    def _of_tables(self, query: exp.Select) -> LateralTable:
        first = query.args["from_"].this
        if isinstance(first, exp.Table) and is_generator(first.this):
            first = first.this
        if is_generated(first) or is_generator(first):
            raise self._generator(first, first)
        moved = with_moved_conditions(query, self._names, self._nested.alias)
        if moved is not query:
            self._nested.constructs.add(CORRELATED)
        query = moved
        correlated = self._names.conditions(query)
        inner = self._names.sources_of(query)
        query = self._without_aliases(query, lambda column: self._names.is_of(column, inner))
        for part in _parts_without_outer_columns(query):
            if self._names.reads_outside(part, inner):
                raise self._misplaced(part)
        has_outer = [self._names.reads_outside(item, inner) for item in query.expressions]
        if correlated.is_empty and not any(has_outer):
            return self._joined(query, _Columns(), Correlated([], [], []), is_one_row=False)
        is_aggregated = trees.is_aggregated(query)
        is_one_row = is_aggregated and not query.args.get("group")
        self._check_clauses(query, correlated, is_aggregated=is_aggregated, is_one_row=is_one_row)
        columns = self._of_aggregates(query, inner) if is_one_row else self._of_items(query, has_outer, inner)
        return self._joined(query, columns, correlated, is_one_row=is_one_row)

    def _check_clauses(
        self, query: exp.Select, correlated: Correlated, *, is_aggregated: bool, is_one_row: bool
    ) -> None:
        has_limit = any(query.args.get(key) for key in ("limit", "offset"))
        has_windows = any(item.find(exp.Window) for item in query.expressions)
        has_windows_of_row = has_windows or query.args.get("qualify")
        is_plain = not (is_aggregated or has_limit or has_windows or query.args.get("distinct"))
        if correlated.others and not (is_plain and not query.args.get("qualify")):
            what = "A comparison other than = with an earlier table, next to aggregates, DISTINCT, OVER or LIMIT,"
            raise self._refused(what, _JOIN, correlated.others[0])
        if is_one_row and (has_limit or query.args.get("having") or has_windows_of_row):
            hint = "Aggregate with LATERAL, and write the condition in the WHERE of the query around it."
            raise self._refused("HAVING, OVER, QUALIFY or LIMIT of a single row after LATERAL", hint)
        if has_limit and (query.args.get("distinct") or query.args.get("qualify")):
            hint = "Write DISTINCT or QUALIFY in a derived table, in the FROM of the query after LATERAL."
            raise self._refused("LIMIT next to DISTINCT or QUALIFY after LATERAL", hint)
        if trees.has_grouping_sets(query):
            raise self._refused("Grouping sets in a query after LATERAL", _JOIN)

    def _of_items(self, query: exp.Select, has_outer: list[bool], inner: Sources) -> _Columns:
        columns = _Columns()
        is_changed = trees.is_aggregated(query) or query.args.get("distinct")
        names: dict[exp.Expr, str] = {}

        def own(part: exp.Expr) -> exp.Expr:
            if not isinstance(part, exp.Column) or not self._names.is_own(part, inner):
                return part
            name = names.get(part)
            if name is None:
                name = names[part] = self._hidden(columns, part.copy())
            return trees.column(self._alias, name, position(part))

        for index, item in enumerate(query.expressions):
            if not has_outer[index] and not (any(has_outer) and item.is_star):
                columns.selected.append(item)
                continue
            self._check_plain(item)
            if is_changed or any(True for _ in trees.calls_in(item)):
                raise self._refused("A column of an earlier table next to aggregates", COLUMNS, item)
            columns.computed[index] = trees.mapped(item.unalias().copy(), own)
            columns.selected.append(self._placeholder(item, index))
        return columns

    def _of_aggregates(self, query: exp.Select, inner: Sources) -> _Columns:
        """Returns the columns of a query of one row, which it also has for a key without rows."""
        columns = _Columns()

        def value(part: exp.Expr) -> exp.Expr:
            found = trees.column(self._alias, self._hidden(columns, part.copy()), position(part))
            return trees.without_rows(part, found)

        for index, item in enumerate(query.expressions):
            self._check_plain(item)
            if self._names.reads_outside(item, inner):
                raise self._refused("A column of an earlier table next to aggregates", COLUMNS, item)
            bare = item.unalias()
            if trees.function_of(bare) in trees.AGGREGATES - trees.COUNTS - trees.LISTS:
                columns.selected.append(item)
                continue
            computed = trees.mapped_calls(bare.copy(), value)
            for column in trees.columns_in(computed):
                if column.name not in columns.hidden:
                    detail = f"{column.sql()} stands outside of aggregates. Write MAX({column.sql()}), or group by it."
                    raise self._source.error("not_grouped", detail, at=position(column))
            columns.computed[index] = computed
            columns.selected.append(self._placeholder(item, index))
        return columns

    def _placeholder(self, item: exp.Expr, index: int) -> exp.Expr:
        """Returns an unused column with the name of `item`, which is computed after the join."""
        name = item.alias
        if not name:
            # The text of an aggregate is read as its name only.
            tree = ExpressionReader(self._source, aggregates=True).read(item.copy())
            name = _name_of_item(item, tree, index + 1)
        return trees.placed(exp.Alias(this=exp.Null(), alias=trees.identifier(name)), position(item))

    def _hidden(self, columns: _Columns, node: exp.Expr) -> str:
        """Adds a column after the visible ones. Returns its name."""
        name = f"{self._prefix}_{len(columns.hidden) + 1}"
        columns.hidden.append(name)
        columns.added.append(trees.placed(exp.Alias(this=node, alias=trees.identifier(name)), position(node)))
        return name

    def _joined(
        self, query: exp.Select, columns: _Columns, correlated: Correlated, *, is_one_row: bool
    ) -> LateralTable:
        keys = [(self._hidden(columns, own.copy()), own, outer) for own, outer in correlated.keys]
        others = [self._residual(condition, columns, query) for condition in correlated.others]
        kind = JoinKind.LEFT if is_one_row or self._kind is JoinKind.LEFT else JoinKind.INNER
        needs_mark = columns.computed and kind is JoinKind.LEFT and not is_one_row
        mark = self._hidden(columns, exp.Boolean(this=True)) if needs_mark else None
        rows = query
        if columns.hidden:
            selected = [*(columns.selected or query.expressions), *columns.added]
            rows = KeyedRows(self._names, self._source, self._refused).rows(query, selected, correlated)
        ref = self._nested.compile(rows, self._pointer)
        visible = [item.name for item in ref.query.select][: len(ref.query.select) - len(columns.hidden)]
        names = self._named(visible)
        ref = ref.model_copy(update={"alias": self._alias, "columns": (*names, *columns.hidden)})
        # Without the visible names: they would make equal names of earlier tables ambiguous.
        both = self._with_columns(tuple(columns.hidden))
        trees_ = {names[index]: self._tree(node, both) for index, node in columns.computed.items()}
        residual = [both.qualify(self._reader.read(condition), self._source) for condition in others]
        return LateralTable(
            self._alias,
            names,
            is_unnamed=self._is_unnamed,
            table=ref,
            keys=tuple(
                (self._tree(outer.copy(), self._before), Name(self._alias, name, position(own)))
                for name, own, outer in keys
            ),
            residual=_all_of(residual),
            computed={name: self._marked(tree, mark) for name, tree in trees_.items()},
            in_condition=trees_,
            is_one_row=is_one_row,
        )

    def _residual(self, condition: exp.Expr, columns: _Columns, query: exp.Select) -> exp.Expr:
        inner = self._names.sources_of(query)

        def own(part: exp.Expr) -> exp.Expr:
            if not isinstance(part, exp.Column) or not self._names.is_own(part, inner):
                return part
            return trees.column(self._alias, self._hidden(columns, part.copy()), position(part))

        return trees.mapped(condition.copy(), own)

    def _tree(self, node: exp.Expr, sources: Sources) -> Expression:
        return self._sized(sources.qualify(self._reader.read(node), self._source))

    def _with_columns(self, names: tuple[str, ...]) -> Sources:
        schema = Schema(tuple(Field(name, NULL) for name in names))
        return replace(self._before, scope=self._before.scope.with_tables(TableScope({self._alias: schema})))

    def _marked(self, tree: Expression, mark: str | None) -> Expression:
        """Returns `tree`, or NULL for a row of the left side without a partner."""
        if mark is None:
            return tree
        return Case(None, ((Not(Test(Name(self._alias, mark), "NULL")), tree),), None)

    def _named(self, names: list[str]) -> tuple[str, ...]:
        if self._listed and len(self._listed) != len(names):
            detail = (
                f"{self._alias} has {len(names)} columns, but the list after its name has {len(self._listed)}. Name "
                "every column once."
            )
            raise self._source.error("unsupported_construct", detail, at=self._at)
        found = self._listed or tuple(names)
        folded = [name.casefold() for name in found]
        twice = next((name for name in found if folded.count(name.casefold()) > 1), None)
        if twice is not None:
            detail = f"Two columns are called {twice} (case is ignored). Rename one of them with AS."
            raise self._source.error("duplicate_column", detail, at=self._at)
        return found


def _branches(query: exp.Expr) -> list[exp.Select]:
    """Returns the queries of a UNION ALL, or the only SELECT; none for another query."""
    if isinstance(query, exp.Select):
        return [query]
    arranged = any(query.args.get(key) for key in ("order", "limit", "offset", "with_", "distinct"))
    if not isinstance(query, exp.Union) or arranged:
        return []
    sides = [_branches(trees.query_in(side)) for side in (query.this, query.expression)]
    return [*sides[0], *sides[1]] if all(sides) else []


def _structure(columns: Mapping[str, Expression]) -> Expression:
    return Call("named_struct", tuple(part for name, tree in columns.items() for part in (String(name), tree)))


def _parts_without_outer_columns(query: exp.Select) -> list[exp.Expr]:
    parts = [query.args.get(key) for key in ("group", "having", "qualify", "order")]
    parts += [join.args.get("on") for join in query.args.get("joins") or []]
    parts += query.args.get("laterals") or []
    return [part for part in parts if part is not None]


def _name_of_item(item: exp.Expr, tree: Expression, number: int) -> str:
    if item.alias:
        return item.alias
    return item.name if isinstance(item, exp.Column) else text_as_name(tree, f"column_{number}")


def _all_of(terms: list[Expression]) -> Expression | None:
    return None if not terms else terms[0] if len(terms) == 1 else Connective("AND", tuple(terms))
