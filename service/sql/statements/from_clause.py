"""Reads FROM and its joins: the visible tables, the equalities that join them, and the columns of `*` and `table.*`.

Stars have Spark's order of columns: the columns of USING come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

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
    Call,
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
from service.sql.statements.generators import Generated, is_generated, read_generator
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
class VisibleColumn:
    """A column: its table (None for the column of USING of a full join), its name and its expression."""

    alias: str | None
    name: str
    tree: Expression


@dataclass(frozen=True)
class Visible:
    """`output` are the columns of `*`; `hidden` are the other sides of USING, which only `table.*` includes, first."""

    output: tuple[VisibleColumn, ...]
    hidden: tuple[VisibleColumn, ...] = ()

    @classmethod
    def of_table(cls, alias: str, schema: Schema) -> Visible:
        """Returns the columns of one table in its own order."""
        return cls(tuple(VisibleColumn(alias, name, Name(alias, name)) for name in schema.names))

    def of(self, alias: str) -> tuple[VisibleColumn, ...]:
        """Returns the columns of `alias.*`."""
        return tuple(column for column in (*self.hidden, *self.output) if column.alias == alias)

    def joined(self, right: Visible, kind: JoinKind, using: Sequence[tuple[Expression, Expression]]) -> Visible:
        """Returns these columns joined with those of another table; `using` has both sides of each column of USING."""
        left_keys = [_column(self, left) for left, _ in using]
        right_keys = [_column(right, other) for _, other in using]
        merged, hidden = left_keys, right_keys
        if kind is JoinKind.RIGHT:
            merged, hidden = right_keys, left_keys
        elif kind is JoinKind.FULL:
            merged, hidden = (
                [_merged(*pair) for pair in zip(left_keys, right_keys, strict=True)],
                left_keys + right_keys,
            )
        rest = _without(self.output, left_keys)
        if kind in ONE_SIDED:
            return Visible((*merged, *rest), self.hidden)
        return Visible((*merged, *rest, *_without(right.output, right_keys)), (*hidden, *self.hidden))


def _without(output: tuple[VisibleColumn, ...], keys: Sequence[VisibleColumn]) -> Sequence[VisibleColumn]:
    if not keys:
        return output
    left_out = {id(key) for key in keys}
    return [column for column in output if id(column) not in left_out]


def _column(side: Visible, tree: Expression) -> VisibleColumn:
    return next(column for column in side.output if column.tree == tree)


def _merged(left: VisibleColumn, right: VisibleColumn) -> VisibleColumn:
    return VisibleColumn(None, left.name, coalesced(left.tree, right.tree))


def coalesced(left: Expression, right: Expression, at: int | None = None) -> Call:
    """Returns the column of USING of a full join. A chain of full joins becomes a single call, so its depth is one."""
    known = left.arguments if isinstance(left, Call) and left.name == "coalesce" else (left,)
    return Call("coalesce", (*known, right), at)


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
    columns of queries after LATERAL, by alias and name.
    """

    first: Relation
    joins: tuple[JoinedTable, ...]
    scope: TableScope
    show: Callable[[], Visible]
    merged: Mapping[str, Expression] = field(default_factory=dict)
    generators: tuple[Generated, ...] = ()
    computed: Mapping[str, Mapping[str, Expression]] = field(default_factory=dict)

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


Lateral = Callable[[exp.Lateral, JoinKind, Sources, str], LateralTable]
"""Reads a query after LATERAL, with the kind of its join, the tables before it, and the pointer of the joined table."""


def read_from(
    select: exp.Select, source: Text, schemas: Mapping[str, Schema], derived: Derived, lateral: Lateral, at: str = ""
) -> Sources:
    """Reads the tables of `select`; `derived` and `lateral` compile the queries among them, `at` is the pointer of the
    query.

    Raises SpecError `unknown_table`, `duplicate_table`, `unsupported_construct`, `name_too_long`, `query_too_deep` and
    what expressions raise.
    """
    clause = select.args["from_"]
    _move_joins(select, clause.this)
    reader = _FromReader(source, schemas, derived, at)
    first, schema = reader.table(clause.this, f"{at}/source")
    sources = Sources(first, (), _scope(clause.this, first, schema), partial(Visible.of_table, first.name, schema))
    joins = select.args.get("joins") or []
    if len(joins) > JOINS.most:
        # Checked before any join is read: USING builds an expression that grows with each join.
        raise source.beyond(JOINS, len(joins), at=position(joins[JOINS.most].this))
    for join in joins:
        if is_generated(join.this):
            sources = reader.generated_by_join(sources, join)
        elif isinstance(join.this, exp.Lateral):
            sources = reader.joined_query(sources, join, lateral)
        else:
            sources = reader.joined(sources, join)
    return with_views(sources, select, source)


def with_views(sources: Sources, select: exp.Select, source: Text) -> Sources:
    """Returns `sources`, the tables of `select`, with its LATERAL VIEWs. Raises SpecError as `read_from` does."""
    reader = _FromReader(source, {}, lambda _node, _pointer: None, "")
    for view in select.args.get("laterals") or []:
        sources = reader.generated(sources, view)
    return sources


def _move_joins(select: exp.Select, first: exp.Expr) -> None:
    """Gives `select` its joins: for `FROM t JOIN u ON … SELECT …`, sqlglot stores them in the first table's node."""
    joins = first.args.pop("joins", None)
    if joins:
        select.set("joins", [*joins, *(select.args.get("joins") or [])])


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
        self._check_table(node, alias, at)
        name = matching(node.name, self._schemas)
        if name is None:
            raise self._unknown(node.name, at)
        called = name_of(alias.this, self._source, at) if alias is not None else name
        return TableRef(kind="table", table=name, alias=called if called != name else None), self._schemas[name]

    def _check_table(self, node: exp.Table, alias: exp.Expr | None, at: int | None) -> None:
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
        if alias is not None and alias.args.get("columns"):
            hint = "Rename the columns in a derived table."
            raise self._source.unsupported("A list of column aliases", at=at, hint=hint)

    def _unknown(self, name: str, at: int | None) -> SpecError:
        suggestions = nearest_names(name, list(self._schemas))
        return self._source.error(
            "unknown_table",
            f"The job has no table {name}.{did_you_mean(suggestions) or its_tables(list(self._schemas))}",
            at=at,
            suggestions=suggestions,
        )

    def generated_by_join(self, before: Sources, join: exp.Join) -> Sources:
        """Returns `before` with UNNEST or LATERAL as one more table."""
        at = position(join.this)
        kind, condition = self._kind(join, at), join.args.get("on")
        is_plain = condition is None or (isinstance(condition, exp.Boolean) and bool(condition.this))
        if kind not in {JoinKind.INNER, JoinKind.CROSS, JoinKind.LEFT} or not is_plain or join.args.get("using"):
            hint = "Write CROSS JOIN, or LEFT JOIN … ON TRUE, and move the condition to WHERE."
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

    def joined_query(self, before: Sources, join: exp.Join, lateral: Lateral) -> Sources:
        """Returns `before` with a query after LATERAL as one more table."""
        at = position(join.this)
        kind, condition = self._kind(join, at), join.args.get("on")
        if kind not in {JoinKind.INNER, JoinKind.CROSS, JoinKind.LEFT} or "using" in join.args or join.method:
            hint = "Write CROSS JOIN LATERAL, or LEFT JOIN LATERAL … ON TRUE, and move the condition to WHERE."
            raise self._source.unsupported("This join with LATERAL", at=at, hint=hint)
        found = lateral(join.this, kind, before, f"{self._at}/joins/{len(before.joins)}/right")
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
        if condition is not None and (found.table is None or found.is_one_row):
            hint = "Write ON TRUE, and the condition in the WHERE of the query around it."
            raise self._source.unsupported("A condition in ON of this query after LATERAL", at=at, hint=hint)
        if found.generated is not None:
            return replace(after, generators=(*before.generators, found.generated))
        if found.table is None:
            return after
        if before.generators:
            hint = "Write the joins first, or put UNNEST or LATERAL into a derived table."
            raise self._source.unsupported("A join after UNNEST or LATERAL", at=at, hint=hint)
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

    def joined(self, before: Sources, join: exp.Join) -> Sources:
        """Returns `before` with one more join."""
        at = position(join.this)
        if before.generators:
            hint = "Write the joins first, or put UNNEST or LATERAL into a derived table."
            raise self._source.unsupported("A join after UNNEST or LATERAL", at=at, hint=hint)
        kind = self._kind(join, at)
        if before.computed and kind in {JoinKind.RIGHT, JoinKind.FULL}:
            # Columns that are computed after the joins would not be NULL for rows without a partner.
            hint = "Put the query after LATERAL, and the tables before it, into a derived table."
            raise self._source.unsupported("RIGHT JOIN or FULL JOIN after LATERAL", at=at, hint=hint)
        table, schema = self.table(join.this, f"{self._at}/joins/{len(before.joins)}/right")
        if matching(table.name, [*before.scope.tables, *before.scope.hidden]) is not None:
            raise self._source.error(
                "duplicate_table", f"Two tables are called {table.name}. Give one of them an alias.", at=at
            )
        both = replace(before, joins=(), scope=before.scope.with_tables(_scope(join.this, table, schema)))
        merged = dict(before.merged)
        columns = join.args.get("using") or []
        if join.args.get("method"):
            columns = _natural(before, schema, at)
        if "using" in join.args and not columns:
            raise self._source.error("sql_syntax", "USING needs at least one column.", at=at)
        keys = [self._using(column, before, table, schema, kind, merged) for column in columns]
        show = partial(_visible, before, table.name, schema, kind, tuple(keys))
        rest: list[Expression] = []
        condition = join.args.get("on")
        if condition is not None:
            keys, rest = self._split(self._reader.read(condition), both, table.name)
        if kind is JoinKind.INNER and not keys and rest == []:
            kind = JoinKind.CROSS
        if kind is JoinKind.CROSS and (keys or rest):
            kind = JoinKind.INNER
        residual = None if not rest else rest[0] if len(rest) == 1 else Connective("AND", tuple(rest))
        scope = both.scope.without(table.name) if kind in ONE_SIDED else both.scope
        step = JoinedTable(kind, table, tuple(keys), residual, at)
        return replace(before, joins=(*before.joins, step), scope=scope, show=show, merged=merged)

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
