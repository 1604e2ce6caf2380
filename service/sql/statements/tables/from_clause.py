"""Reads FROM and its joins: the visible tables, the equalities that join them, and the columns of `*` and `table.*`.

Stars have Spark's order of columns: the columns of USING come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol

from sqlglot import exp

from service.contract.problems import SpecError, did_you_mean, its_tables, nearest_names
from service.contract.query import (
    JOINS,
    MAX_NAME_LENGTH,
    JoinKind,
    QueryRef,
    RecursiveRef,
    RowsRef,
    TableRef,
    UnionRef,
    ValuesRef,
)
from service.contract.query import Source as Relation
from service.sql.expressions.compile_expression import TableScope, matching
from service.sql.expressions.nodes import (
    Boolean,
    Comparison,
    Connective,
    Expression,
    GetField,
    Name,
    map_children,
    walk,
)
from service.sql.expressions.reader import ExpressionReader, position
from service.sql.joins import ONE_SIDED
from service.sql.parser import Text
from service.sql.refusals import CLAUSE_HINTS, CLAUSES, parentheses_around
from service.sql.statements.tables.from_trees import move_joins, renamed_columns, without_parentheses
from service.sql.statements.tables.generators import (
    Generated,
    called_in_from,
    is_generated,
    is_table_function,
    queried,
    read_generator,
)
from service.sql.statements.tables.visible import Visible, VisibleColumn, coalesced
from service.sql.types.data_types import NULL, Field, Schema

_KINDS = {
    ("", ""): JoinKind.INNER,
    ("", "INNER"): JoinKind.INNER,
    ("", "CROSS"): JoinKind.CROSS,
    ("LEFT", ""): JoinKind.LEFT,
    ("LEFT", "OUTER"): JoinKind.LEFT,
    ("RIGHT", ""): JoinKind.RIGHT,
    ("RIGHT", "OUTER"): JoinKind.RIGHT,
    ("FULL", ""): JoinKind.FULL,
    ("FULL", "OUTER"): JoinKind.FULL,
    ("", "SEMI"): JoinKind.LEFT_SEMI,
    ("LEFT", "SEMI"): JoinKind.LEFT_SEMI,
    ("", "ANTI"): JoinKind.LEFT_ANTI,
    ("LEFT", "ANTI"): JoinKind.LEFT_ANTI,
}
_METHODS = {
    "ASOF": "Join on the key and an inequality of the times, and keep the latest row: QUALIFY ROW_NUMBER() OVER "
    "(PARTITION BY a.id ORDER BY b.t DESC) = 1.",
}
"""What to write instead of some methods of joins."""


@dataclass(frozen=True)
class JoinedTable:
    """One join: equalities between an expression over the preceding tables and one over `table`, and the rest of ON."""

    kind: JoinKind
    table: Relation
    keys: tuple[tuple[Expression, Expression], ...]
    residual: Expression | None
    at: int | None


@dataclass(frozen=True)
class LateralTable:
    """A query after LATERAL as a table: the names of its columns, and `table`, which replaces it, with the join's keys
    and condition. `computed` are the expressions of the columns that `table` does not have, by name; `in_condition` are
    the same before a LEFT JOIN adds rows of NULLs.

    Without a `table`, all columns are `computed`, or `generated`. `is_one_row`: it has one row for every row before it.
    """

    alias: str
    names: tuple[str, ...]
    is_unnamed: bool
    table: QueryRef | None = None
    keys: tuple[tuple[Expression, Expression], ...] = ()
    residual: Expression | None = None
    generated: Generated | None = None
    computed: Mapping[str, Expression] = field(default_factory=dict)
    in_condition: Mapping[str, Expression] = field(default_factory=dict)
    is_one_row: bool = False

    @property
    def scope(self) -> TableScope:
        """The scope of this table alone."""
        schema = Schema(tuple(Field(name, NULL) for name in self.names))
        return TableScope({self.alias: schema}, unnamed=frozenset({self.alias} if self.is_unnamed else ()))

    def visible(self, before: Sources) -> Visible:
        """Returns the columns of `*`: those `before` it, and its own."""
        own = (VisibleColumn(self.alias, name, self.computed.get(name, Name(self.alias, name))) for name in self.names)
        return Visible((*before.visible.output, *own), before.visible.hidden)


@dataclass(frozen=True)
class Sources:
    """The tables of a FROM clause; `show` returns the columns of `*`.

    `merged` are the columns of USING, by case-folded name: one column for both sides. `computed` are the expressions of
    columns of queries after LATERAL, by alias and name, or, if the tables are in a derived table (`is_wrapped`), its
    columns.
    """

    first: Relation
    joins: tuple[JoinedTable, ...]
    scope: TableScope
    show: Callable[[], Visible]
    merged: Mapping[str, Expression] = field(default_factory=dict)
    generators: tuple[Generated, ...] = ()
    computed: Mapping[str, Mapping[str, Expression]] = field(default_factory=dict)
    is_wrapped: bool = False

    @property
    def has_expressions(self) -> bool:
        """Whether columns are computed after the joins."""
        computed = (tree for columns in self.computed.values() for tree in columns.values())
        return any(not isinstance(tree, Name) or tree.qualifier != self.first.name for tree in computed)

    @cached_property
    def visible(self) -> Visible:
        """The columns of `*`, found on first use: few queries need them, and they are all columns of all tables."""
        return self.show()

    def qualify(self, tree: Expression, source: Text) -> Expression:
        """Returns `tree` with every name as `alias.column`. Raises SpecError as `TableScope.locate` does."""
        if isinstance(tree, Name):
            folded = tree.name.casefold()
            if tree.qualifier is None and folded in self.merged:
                return self.merged[folded]
            call = self.scope.call_by_name(tree, source)
            if call is not None:
                return call
            around = self.scope.column_around(tree)
            if around is not None:
                return GetField(self.qualify(around, source), tree.name, tree.at)
            alias, found = self.scope.locate(tree, source)
            return self.computed.get(alias, {}).get(found.name) or Name(alias, found.name, tree.at)
        return map_children(tree, lambda child: self.qualify(child, source))


Derivation = QueryRef | UnionRef | ValuesRef | RecursiveRef | RowsRef
"""A query in FROM."""
Derived = Callable[[exp.Expr, str], tuple[Derivation, Schema] | None]
"""Compiles a node of FROM, with its JSON pointer, into a source and its columns; returns None for a table."""


@dataclass(frozen=True)
class Before:
    """The tables before a query after LATERAL, and a SELECT of them without columns."""

    sources: Sources
    tables: exp.Select


class Lateral(Protocol):
    """Reads a query after LATERAL, with the kind of its join, the tables before it, and the joined table's pointer.
    `has_condition`: its join has a condition.
    """

    def __call__(
        self, node: exp.Lateral, kind: JoinKind, before: Before, pointer: str, *, has_condition: bool
    ) -> LateralTable: ...


@dataclass(frozen=True)
class Readers:
    """Reads queries in FROM: derived tables, and queries after LATERAL; `wrap` puts tables into a derived table, and
    `row` is one row without columns.
    """

    derived: Derived
    lateral: Lateral
    wrap: Callable[[Sources, exp.Select], Sources]
    row: Sources


def read_from(
    select: exp.Select, source: Text, schemas: Mapping[str, Schema], readers: Readers, at: str = ""
) -> Sources:
    """Reads the tables of `select`; `readers` compile the queries among them, `at` is the pointer of the query.

    Raises SpecError `unknown_table`, `duplicate_table`, `unsupported_construct`, `name_too_long`, `query_too_deep` and
    what expressions raise.
    """
    clause = select.args["from_"]
    first_table = without_parentheses(clause.this)
    if first_table is not clause.this:
        clause = exp.From(this=first_table.copy())
        select = select.copy()
        select.set("from_", clause)
    move_joins(select, clause.this)
    reader = _FromReader(source, schemas, readers.derived, at)
    joins = list(select.args.get("joins") or [])
    if is_table_function(clause.this):
        sources, joins = readers.row, [exp.Join(this=called_in_from(clause.this.copy())), *joins]
    else:
        first, schema = reader.table(clause.this, f"{at}/source")
        sources = Sources(first, (), _scope(clause.this, first, schema), partial(Visible.of_table, first.name, schema))
    if len(joins) > JOINS.most:
        # Checked before any join is read: USING builds an expression that grows with each join.
        raise source.beyond(JOINS, len(joins), at=position(joins[JOINS.most].this))
    after_row = sources is readers.row
    for index, join in enumerate(joins):
        if is_generated(join.this) and reader.is_unconditional(join):
            sources = reader.generated_by_join(sources, join)
            continue
        earlier = [each.copy() for each in joins[:index]]
        tables = exp.Select(from_=clause.copy(), joins=earlier[1:] if after_row else earlier)
        is_outer = join.side.upper() in {"RIGHT", "FULL"} and sources.has_expressions
        if sources.generators or is_outer:
            sources = readers.wrap(sources, tables)
        if isinstance(join.this, exp.Lateral | exp.Unnest):
            sources = reader.joined_query(Before(sources, tables), queried(join), readers.lateral)
        else:
            sources = reader.joined(sources, join, _nested_join(join, source, schemas, readers, f"{at}/joins/{index}"))
    return with_views(sources, select, source)


def with_views(sources: Sources, select: exp.Select, source: Text) -> Sources:
    """Returns `sources`, the tables of `select`, with its LATERAL VIEWs. Raises SpecError as `read_from` does."""
    reader = _FromReader(source, {}, lambda _node, _pointer: None, "")
    for view in select.args.get("laterals") or []:
        sources = reader.generated(sources, view)
    return sources


def _nested_join(
    join: exp.Join, source: Text, schemas: Mapping[str, Schema], readers: Readers, at: str
) -> Sources | None:
    """Returns the tables of a join in parentheses on the right side of `join`, as one derived table."""
    table = without_parentheses(join.this)
    if table is join.this and not table.args.get("joins"):
        return None
    tables = exp.Select(from_=exp.From(this=table.copy()))
    move_joins(tables, tables.args["from_"].this)
    found = read_from(tables.copy(), source, schemas, readers, f"{at}/right/query")
    return readers.wrap(found, tables)


class _FromReader:
    def __init__(self, source: Text, schemas: Mapping[str, Schema], derived: Derived, at: str) -> None:
        self._source = source
        self._schemas = schemas
        self._derived = derived
        self._at = at
        self._reader = ExpressionReader(source, aggregates=False)

    def table(self, node: exp.Expr, pointer: str) -> tuple[Relation, Schema]:
        """Reads the table or query that is `node`, and its columns."""
        at = position(node)
        derived = self._derived(node, pointer)
        if derived is None and (renamed := renamed_columns(node)) is not None:
            derived = self._derived(renamed, pointer)
        if derived is not None:
            return derived
        if isinstance(node, exp.Subquery):
            what, hint = parentheses_around(node.this)
            raise self._source.unsupported(what, at=at, hint=hint)
        if isinstance(node, exp.Lateral) and not is_generated(node):
            raise self._source.unsupported("LATERAL before the first table", at=at, hint="Remove LATERAL.")
        if isinstance(node, exp.Lateral | exp.Unnest):
            hint = "Name one of the job's tables first: FROM t, UNNEST(t.a) AS u(x)."
            raise self._source.unsupported("LATERAL or UNNEST as the first table", at=at, hint=hint)
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier | exp.Dot):
            hint = "Name one of the job's tables in FROM; after it, write LATERAL explode(a) AS u(x)."
            raise self._source.unsupported("A table function", at=at, hint=hint)
        alias = node.args.get("alias")
        self._check_table(node, at)
        name = matching(node.name, self._schemas)
        if name is None:
            raise self._unknown(node.name, at)
        called = name_of(alias.this, self._source, at) if alias is not None else name
        return TableRef(kind="table", table=name, alias=called if called != name else None), self._schemas[name]

    def _check_table(self, node: exp.Table, at: int | None) -> None:
        if node.args.get("db") or node.args.get("catalog"):
            parts = ".".join(part.name for part in node.parts)
            hint = "Name one of the job's tables in FROM."
            if matching(parts, self._schemas) is not None:
                hint = f"Write the name of the job's table in backquotes: `{parts}`."
            raise self._source.unsupported("A table name of several parts", at=at, hint=hint)
        for key, value in node.args.items():
            if value and key not in {"this", "alias"}:
                construct = CLAUSES.get(key, f"A table with {key.upper()}")
                raise self._source.unsupported(construct, at=at, hint=CLAUSE_HINTS.get(key, ""))

    def _unknown(self, name: str, at: int | None) -> SpecError:
        suggestions = nearest_names(name, list(self._schemas))
        return self._source.error(
            "unknown_table",
            f"The job has no table {name}.{did_you_mean(suggestions) or its_tables(list(self._schemas))}",
            at=at,
            suggestions=suggestions,
        )

    def is_unconditional(self, join: exp.Join) -> bool:
        """Whether a join has no condition but TRUE."""
        condition = join.args.get("on")
        return condition is None or (isinstance(condition, exp.Boolean) and bool(condition.this))

    def generated_by_join(self, before: Sources, join: exp.Join) -> Sources:
        """Returns `before` with UNNEST or LATERAL as one more table."""
        at = position(join.this)
        kind = self._kind(join, at)
        if kind not in {JoinKind.INNER, JoinKind.CROSS, JoinKind.LEFT} or join.args.get("using"):
            hint = "Write CROSS JOIN or LEFT JOIN, and the condition after ON."
            raise self._source.unsupported("This join with UNNEST or LATERAL", at=at, hint=hint)
        return self.generated(before, join.this, outer=kind is JoinKind.LEFT)

    def generated(self, before: Sources, node: exp.Expr, *, outer: bool = False) -> Sources:
        """Returns `before` with the columns of a generator."""
        at = position(node)
        if not is_generated(node):
            raise self._source.unsupported("LATERAL", at=at, hint="Join a derived table on a key.")
        found = read_generator(
            node,
            len(before.generators) + 1,
            self._source,
            lambda part: before.qualify(self._reader.read(part), self._source),
            outer=outer,
        )
        if matching(found.alias, [*before.scope.tables, *before.scope.hidden]) is not None:
            detail = f"Two tables are called {found.alias}. Give one of them an alias."
            raise self._source.error("duplicate_table", detail, at=at)
        for name in (found.alias, *found.columns):
            checked_name(name, self._source, at)
        schema = Schema(tuple(Field(name, NULL) for name in found.columns))
        show = partial(_visible, before, found.alias, schema, JoinKind.CROSS, ()) if found.is_shown else before.show
        return replace(
            before,
            scope=before.scope.with_tables(TableScope({found.alias: schema})),
            show=show,
            generators=(*before.generators, found),
        )

    def joined_query(self, tables: Before, join: exp.Join, lateral: Lateral) -> Sources:
        """Returns the tables before with a query after LATERAL as one more table."""
        before = tables.sources
        at = position(join.this)
        kind, condition = self._kind(join, at), join.args.get("on")
        if kind not in {JoinKind.INNER, JoinKind.CROSS, JoinKind.LEFT} or "using" in join.args or join.method:
            hint = "Write CROSS JOIN LATERAL, or LEFT JOIN LATERAL … ON TRUE, and move the condition to WHERE."
            raise self._source.unsupported("This join with LATERAL", at=at, hint=hint)
        has_condition = not self.is_unconditional(join)
        pointer = f"{self._at}/joins/{len(before.joins)}/right"
        found = lateral(join.this, kind, tables, pointer, has_condition=has_condition)
        if matching(found.alias, [*before.scope.tables, *before.scope.hidden]) is not None:
            detail = f"Two tables are called {found.alias}. Give one of them an alias."
            raise self._source.error("duplicate_table", detail, at=at)
        for name in (found.alias, *found.names):
            checked_name(name, self._source, at)
        after = replace(
            before,
            scope=before.scope.with_tables(found.scope),
            show=partial(found.visible, before),
            computed={**before.computed, found.alias: found.computed},
        )
        if condition == exp.true():
            condition = None
        if found.generated is not None:
            return replace(after, generators=(*before.generators, found.generated))
        if found.table is None:
            return after
        keys, rest = list(found.keys), [found.residual] if found.residual is not None else []
        if condition is not None:
            both = replace(after, computed={**before.computed, found.alias: found.in_condition})
            more = self._split(self._reader.read(condition), both, found.alias)
            keys, rest = [*keys, *more[0]], [*rest, *more[1]]
        if found.is_one_row:
            kind = JoinKind.LEFT
        elif kind is not JoinKind.LEFT:
            kind = JoinKind.INNER if keys or rest else JoinKind.CROSS
        residual = None if not rest else rest[0] if len(rest) == 1 else Connective("AND", tuple(rest))
        step = JoinedTable(kind, found.table, tuple(keys), residual, at)
        return replace(after, joins=(*before.joins, step))

    def joined(self, before: Sources, join: exp.Join, nested: Sources | None) -> Sources:
        """Returns `before` with one more join; `nested` are the tables of a join in parentheses, as one."""
        at = position(join.this)
        kind = self._kind(join, at)
        if nested is None:
            table, schema = self.table(join.this, f"{self._at}/joins/{len(before.joins)}/right")
            right = Sources(table, (), _scope(join.this, table, schema), partial(Visible.of_table, table.name, schema))
        else:
            table, schema, right = nested.first, Schema(()), nested
        for name in right.scope.tables:
            if matching(name, [*before.scope.tables, *before.scope.hidden]) is not None:
                raise self._source.error(
                    "duplicate_table", f"Two tables are called {name}. Give one of them an alias.", at=at
                )
        both = replace(
            before,
            joins=(),
            scope=before.scope.with_tables(right.scope),
            computed={**before.computed, **right.computed},
        )
        merged = dict(before.merged)
        columns = join.args.get("using") or []
        if nested is not None and (columns or join.args.get("method")):
            hint = "Write the condition after ON."
            raise self._source.unsupported("USING or NATURAL with a join in parentheses", at=at, hint=hint)
        if join.args.get("method"):
            columns = _natural(before, schema, at)
        if "using" in join.args and not columns:
            raise self._source.error("sql_syntax", "USING needs at least one column.", at=at)
        keys = [self._using(column, before, table, schema, kind, merged) for column in columns]
        show = partial(_shown_with, before, right, kind, tuple(keys))
        rest: list[Expression] = []
        condition = join.args.get("on")
        if condition is not None:
            keys, rest = self._split(self._reader.read(condition), both, table.name)
        if kind is JoinKind.INNER and not keys and rest == []:
            kind = JoinKind.CROSS
        if kind is JoinKind.CROSS and (keys or rest):
            kind = JoinKind.INNER
        residual = None if not rest else rest[0] if len(rest) == 1 else Connective("AND", tuple(rest))
        scope = both.scope
        for name in right.scope.tables if kind in ONE_SIDED else ():
            scope = scope.without(name)
        step = JoinedTable(kind, table, tuple(keys), residual, at)
        return replace(both, joins=(*before.joins, step), scope=scope, show=show, merged={**right.merged, **merged})

    def _kind(self, join: exp.Join, at: int | None) -> JoinKind:
        for key, value in join.args.items():
            if value and key not in {"this", "side", "kind", "on", "using"} and value != "NATURAL":
                named = f"{value} JOIN" if key == "method" else f"A join with {key.upper()}"
                raise self._source.unsupported(named, at=at, hint=_METHODS.get(value, ""))
        kind = _KINDS.get((join.side.upper(), join.kind.upper()))
        if kind is None and join.kind.upper() == "STRAIGHT_JOIN":
            raise self._source.unsupported("STRAIGHT_JOIN", at=at, hint="Write JOIN.")
        if kind is None:
            hint = "Swap both sides, and write LEFT." if join.side.upper() == "RIGHT" else ""
            raise self._source.unsupported(f"{join.side} {join.kind} JOIN".strip(), at=at, hint=hint)
        return kind

    def _using(
        self,
        using: exp.Expr,
        before: Sources,
        table: Relation,
        schema: Schema,
        kind: JoinKind,
        merged: dict[str, Expression],
    ) -> tuple[Expression, Expression]:
        if isinstance(using, exp.Placeholder):
            raise self._source.unsupported("A parameter in place of a name", at=position(using), hint="Write the name.")
        name = Name(None, using.name, position(using))
        left = before.qualify(name, self._source)
        alias, found = TableScope({table.name: schema}).locate(name, self._source)
        right = Name(alias, found.name, name.at)
        folded = using.name.casefold()
        if kind is JoinKind.RIGHT:
            merged[folded] = right
        elif kind is JoinKind.FULL:
            merged[folded] = coalesced(left, right, name.at)
        else:
            merged[folded] = left
        return left, right

    def _split(
        self, condition: Expression, both: Sources, alias: str
    ) -> tuple[list[tuple[Expression, Expression]], list[Expression]]:
        """Splits a condition into the equalities between the preceding tables and the table `alias`, and the rest."""
        terms = condition.terms if isinstance(condition, Connective) and condition.operator == "AND" else (condition,)
        keys: list[tuple[Expression, Expression]] = []
        rest: list[Expression] = []
        for term in terms:
            if term == Boolean(True):
                continue
            qualified = both.qualify(term, self._source)
            pair = _equality(qualified, alias)
            if pair is None:
                rest.append(qualified)
            else:
                keys.append(pair)
        return keys, rest


def _natural(before: Sources, schema: Schema, at: int | None) -> list[exp.Identifier]:
    """Returns the columns of a NATURAL JOIN with a table of `schema`: those that both sides have."""
    names = dict.fromkeys(column.name for column in before.visible.output if schema.find(column.name) is not None)
    columns = [exp.to_identifier(name, quoted=True) for name in names]
    for column in columns:
        column.meta["start"] = at
    return columns


def _visible(
    before: Sources, alias: str, schema: Schema, kind: JoinKind, using: Sequence[tuple[Expression, Expression]]
) -> Visible:
    return before.visible.joined(Visible.of_table(alias, schema), kind, using)


def _shown_with(
    before: Sources, right: Sources, kind: JoinKind, using: Sequence[tuple[Expression, Expression]]
) -> Visible:
    return before.visible.joined(right.visible, kind, using)


def _scope(node: exp.Expr, table: Relation, schema: Schema) -> TableScope:
    """Returns the scope of `table` alone; `node` is the node of FROM."""
    is_unnamed = isinstance(node, exp.Subquery | exp.Values) and node.args.get("alias") is None
    return TableScope({table.name: schema}, unnamed=frozenset({table.name} if is_unnamed else ()))


def name_of(alias: exp.Expr | None, source: Text, at: int | None) -> str:
    """Returns the name after AS. Raises SpecError `unsupported_construct`, `sql_syntax`, `name_too_long`."""
    if not isinstance(alias, exp.Identifier):
        raise source.unsupported("A parameter in place of a name", at=at, hint="Write the name.")
    return checked_name(alias.name, source, at)


def checked_name(name: str, source: Text, at: int | None) -> str:
    """Returns `name` if it is valid for a column or a table. Raises SpecError `sql_syntax`, `name_too_long`."""
    if not name:
        raise source.error("sql_syntax", "A name is empty.", at=at)
    if len(name) > MAX_NAME_LENGTH:
        detail = f"The name {name[:20]}… has {len(name)} characters. Use at most {MAX_NAME_LENGTH}."
        raise source.error("name_too_long", detail, at=at)
    return name


def _equality(term: Expression, alias: str) -> tuple[Expression, Expression] | None:
    if not isinstance(term, Comparison) or term.operator != "=":
        return None
    left = {part.qualifier == alias for part in walk(term.left) if isinstance(part, Name)}
    right = {part.qualifier == alias for part in walk(term.right) if isinstance(part, Name)}
    if left == {False} and right == {True}:
        return term.left, term.right
    if left == {True} and right == {False}:
        return term.right, term.left
    return None
