"""Rewrites any query that reads columns of the query around it: it returns its rows for each combination of values.

The distinct combinations, a derived table over the tables of the query around, become one more table of each SELECT
that reads such a column (Neumann and Kemper, Unnesting Arbitrary Queries, BTW 2015). Groups, windows, distinct rows and
the rows that LIMIT keeps are then those of each combination. Spark's own plan of such a query is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from service.contract.problems import SpecError
from service.sql.expressions.reader import ExpressionReader, position
from service.sql.expressions.window_functions import with_named_windows
from service.sql.parser import Text
from service.sql.statements import trees
from service.sql.statements.clauses.distinct_rows import with_distinct_first
from service.sql.statements.clauses.lists import text_as_name
from service.sql.statements.clauses.row_limits import read_limit
from service.sql.statements.subqueries.correlated_values import CLAUSES_OF_ROWS, keeps_first_row
from service.sql.statements.subqueries.correlation import Correlated, Correlation
from service.sql.statements.subqueries.inlining import inlined
from service.sql.statements.subqueries.keyed_rows import KeyedRows
from service.sql.statements.tables.generators import called_in_from, is_generated, is_table_function

DOMAIN = "queries over the distinct values of outer columns"
"""What `Origins.constructs` contains for a query that workers before version 16 refuse."""

_JOIN = "Write it as a derived table in FROM, and join it."
_MODIFIERS = ("order", "limit", "offset")
_GENERATED_NAMES = frozenset({"col", "pos", "key", "value"})
"""The names of the columns of generators without names."""


@dataclass(frozen=True)
class Keyed:
    """A query with more columns at its end, one for each of `outer`: the columns of the query around that it reads."""

    query: exp.Expr
    outer: tuple[exp.Column, ...]
    names: tuple[str, ...]

    def rows(self, alias: str) -> Keyed:
        """Returns a query of TRUE for each key with rows. `alias` is an unused alias."""
        keys = [trees.column(alias, name) for name in self.names]
        around = exp.Select(
            expressions=[exp.Boolean(this=True), *keys],
            distinct=exp.Distinct(),
            from_=trees.from_query(self.query, alias, []),
        )
        return self._around(around)

    def values(self, alias: str, *, is_single: bool) -> Keyed:
        """Returns a query of the only column for each key; unless it `is_single`, of the number of rows and a value."""
        value, *names = (f"{alias}_{number}" for number in range(len(self.names) + 1))
        keys = [trees.column(alias, name) for name in names]
        around = exp.Select(from_=trees.from_query(self.query, alias, [value, *names]))
        found = trees.column(alias, value, position(self.query))
        if is_single:
            around.set("expressions", [found, *keys])
        else:
            calls = [trees.call("COUNT", exp.Star()), trees.call("MIN", found)]
            around.set("expressions", [*calls, *keys])
            around.set("group", exp.Group(expressions=[key.copy() for key in keys]))
        return self._around(around)

    def _around(self, query: exp.Select) -> Keyed:
        trees.placed(query, position(self.query))
        return replace(self, query=query)


class ValueShape:
    """Whether a subquery that is a value has one row at most, `is_single`, and is a call of an aggregate, `is_call`."""

    def __init__(self, query: exp.Expr, source: Text) -> None:
        self.is_single = self.is_call = False
        if isinstance(query, exp.Select):
            is_row = trees.is_aggregated(query) and not query.args.get("group")
            is_call = trees.function_of(query.expressions[0].unalias()) in trees.AGGREGATES
            self.is_single = is_row or read_limit(query, source) == 1
            self.is_call = is_row and is_call and not query.args.get("having")


@dataclass(frozen=True)
class Domain:
    """The tables of the query around: `tables` is a SELECT of them, with FROM and WHERE, and `names` resolves names.
    `alias` returns an unused alias. `constructs` is that of `Origins`.
    """

    tables: exp.Select
    names: Correlation
    source: Text
    alias: Callable[[], str]
    constructs: set[str]

    def columns_read(self, query: exp.Expr) -> list[exp.Column]:
        """Returns the columns of the query around that `query` reads. Raises SpecError."""
        plain = self._prepared(query)
        found = {_text(column): column for column in plain.find_all(exp.Column) if self.names.is_outer(column)}
        if not found:
            return []
        trial = _Rewriting(self, found, is_trial=True)
        trial.rewritten(plain)
        return [column for text, column in found.items() if text in trial.used]

    def keyed(self, query: exp.Expr, *, keeps_empty: bool = True) -> Keyed | None:
        """Returns `query` with its keys; None if it reads no column of the query around.

        `keeps_empty`: a query of aggregates without GROUP BY has a row for each key, also for one without rows.
        Raises SpecError `unsupported_construct` for a query that cannot be rewritten.
        """
        keys = {_text(column): column for column in self.columns_read(query)}
        if not keys:
            return None
        rewriting = _Rewriting(self, keys, keeps_empty=keeps_empty)
        changed, found_keys = rewriting.rewritten(self._prepared(query), force=True)
        return Keyed(changed, tuple(keys.values()), found_keys.names if found_keys is not None else ())

    def _prepared(self, query: exp.Expr) -> exp.Expr:
        """Returns a copy of `query` without common table expressions, WINDOW, and DISTINCT next to LIMIT."""
        plain = inlined(query)
        for select in plain.find_all(exp.Select):
            if select.args.get("windows"):
                with_named_windows(select, self.source)
                self.constructs.add(CLAUSES_OF_ROWS)
        if with_distinct_first(plain, self.source, self.alias, self.name_of):
            self.constructs.add(CLAUSES_OF_ROWS)
        return plain

    def name_of(self, item: exp.Expr, number: int) -> str:
        """Returns the name of a column of SELECT without an alias; its number counts from 1."""
        if isinstance(item, exp.Column):
            return item.name
        return text_as_name(ExpressionReader(self.source, aggregates=True).read(item.copy()), f"column_{number}")


@dataclass(frozen=True)
class _Keys:
    """A table of a SELECT that has the keys: its alias, and their names."""

    alias: str
    names: tuple[str, ...]

    def columns(self) -> list[exp.Expr]:
        return [trees.column(self.alias, name) for name in self.names]

    def equal(self, other: _Keys) -> list[exp.Expr]:
        pairs = zip(self.columns(), other.columns(), strict=True)
        return [exp.NullSafeEQ(this=left, expression=right) for left, right in pairs]


@dataclass
class _From:
    """FROM of a SELECT: the tables that have the keys, and whether the first of them can be taken for all rows."""

    keyed: list[tuple[_Keys, exp.Expr]] = field(default_factory=list)
    is_plain: bool = True


class _Rewriting:
    """Rewrites one query. In a trial, a row of NULLs replaces the keys: it finds which columns are read."""

    def __init__(
        self, domain: Domain, keys: dict[str, exp.Column], *, keeps_empty: bool = True, is_trial: bool = False
    ) -> None:
        self.used: set[str] = set()
        self._domain = domain
        self._names = domain.names
        self._source = domain.source
        self._keys = keys
        self._keeps_empty = keeps_empty
        self._is_trial = is_trial
        self._whole: exp.Expr | None = None

    def rewritten(self, query: exp.Expr, *, force: bool = False) -> tuple[exp.Expr, _Keys | None]:
        """Returns `query`, which it changes, with the keys as its last columns, and their names; without them if it
        reads no column of the query around, unless `force`. Raises SpecError.
        """
        if self._whole is None:
            self._whole = query
        query = trees.query_in(query)
        if isinstance(query, exp.Select):
            return self._select(query, force=force)
        if isinstance(query, exp.SetOperation) and not any(query.args.get(key) for key in _MODIFIERS):
            return self._united(query, force=force)
        if isinstance(query, exp.Subquery | exp.SetOperation):
            inner = query.copy()
            around = exp.Select(expressions=[exp.Star()])
            for key in _MODIFIERS:
                around.set(key, inner.args.get(key))
                inner.set(key, None)
            around.set("from_", trees.from_query(trees.query_in(inner), self._domain.alias(), []))
            trees.placed(around, position(query))
            return self._select(around, force=force)
        if force and isinstance(query, exp.Values):
            around = exp.Select(expressions=[exp.Star()], from_=exp.From(this=query))
            trees.placed(around, position(query))
            return self._select(around, force=force)
        return query, None

    # Set operations

    def _united(self, query: exp.SetOperation, *, force: bool) -> tuple[exp.Expr, _Keys | None]:
        if not force and not any(self._is_dependent(leaf) for leaf in _leaves(query)):
            return query, None
        first: _Keys | None = None
        leftmost: exp.Expr = query
        pending: list[exp.Expr] = [query]
        while pending:
            node = pending.pop()
            for side in ("expression", "this"):
                part = trees.query_in(node.args[side])
                if isinstance(part, exp.SetOperation) and not any(part.args.get(key) for key in _MODIFIERS):
                    pending.append(part)
                    leftmost = part if side == "this" and node is leftmost else leftmost
                    continue
                changed, keys = self.rewritten(part, force=True)
                node.set(side, exp.Subquery(this=changed) if isinstance(changed, exp.Subquery) else changed)
                if side == "this" and node is leftmost:
                    first = keys
        return query, first

    def _is_dependent(self, query: exp.Expr) -> bool:
        trial = _Rewriting(self._domain, self._keys, is_trial=True)
        return trial.rewritten(query.copy())[1] is not None or bool(trial.used)

    # SELECT

    def _select(self, select: exp.Select, *, force: bool) -> tuple[exp.Expr, _Keys | None]:
        is_whole, at = select is self._whole, position(select)
        tables = self._tables(select)
        own = self._own_names(select)
        before = self._replaceable(
            select, own, ("where", "expressions", "group", "having", "qualify", "order", "windows")
        )
        in_from = self._replaceable_in_from(select, own)
        if not (before or in_from or tables.keyed or force):
            return select, None
        keys = self._with_keys(select, tables, in_from=bool(in_from))
        for column in [*before, *in_from]:
            text = _text(column)
            self.used.add(text)
            name = keys.names[list(self._keys).index(text)]
            column.replace(trees.column(keys.alias, name, position(column)))
        self._hide(select, [keys, *(each for each, _ in tables.keyed)])
        prefix = self._domain.alias()
        names = tuple(f"{prefix}_{number}" for number in range(1, len(self._keys) + 1))
        shown: list[exp.Expr] = [
            trees.placed(exp.Alias(this=column, alias=trees.identifier(name)), at)
            for column, name in zip(keys.columns(), names, strict=True)
        ]
        found = _Keys("", names)
        if trees.is_aggregated(select) and not select.args.get("group"):
            if select.args.get("qualify"):
                what = "QUALIFY next to aggregates without GROUP BY, in a query that reads outer columns,"
                hint = "Compute the aggregates with GROUP BY in a derived table in FROM, and join it."
                raise self._refused_clause(what, hint, select)
            if not keeps_first_row(select, self._source):
                raise self._refused("LIMIT 0 or OFFSET of a single row", select)
            if self._keeps_empty or not is_whole:
                return self._single_row(select, keys, shown, names, own), found
            select.set("limit", None)
        where = select.args.get("where")
        terms = [where.this] if where is not None else []
        pairs = [(column, column) for column in keys.columns()]
        correlated = Correlated(terms, [(left, right) for left, right in pairs], [])
        rows = KeyedRows(self._names, self._source, self._refused_clause).rows(
            select, [*select.expressions, *shown], correlated
        )
        return trees.placed(rows, at), found

    def _refused(self, construct: str, node: exp.Expr | None) -> SpecError:
        at = position(node) if node is not None else None
        return self._source.unsupported(construct, at=at, hint=_JOIN)

    def _refused_clause(self, construct: str, hint: str, node: exp.Expr | None = None) -> SpecError:
        at = position(node) if node is not None else None
        at = position(self._whole) if at is None and self._whole is not None else at
        return self._source.unsupported(construct, at=at, hint=hint)

    def _single_row(
        self,
        select: exp.Select,
        keys: _Keys,
        shown: list[exp.Expr],
        names: tuple[str, ...],
        is_own: Callable[[exp.Column, str], bool],
    ) -> exp.Expr:
        """Returns a query with a row of aggregates for each key, also for one without rows."""
        at, alias = position(select), self._domain.alias()
        having = select.args.get("having")
        parts = [*select.expressions, *([having.this] if having is not None else [])]
        calls = list(dict.fromkeys(call for part in parts for call in trees.calls_in(part)))
        called = [f"{alias}_{number}" for number in range(1, len(calls) + 1)]
        rows = select.copy()
        for clause in ("having", *_MODIFIERS):
            rows.set(clause, None)
        columns = [
            trees.placed(exp.Alias(this=call.copy(), alias=trees.identifier(name)), position(call))
            for call, name in zip(calls, called, strict=True)
        ]
        rows.set("expressions", [*(each.copy() for each in shown), *columns])
        rows.set("group", exp.Group(expressions=keys.columns()))
        table, all_keys = self._domain_table()
        by_call = {call: trees.column(alias, name, position(call)) for call, name in zip(calls, called, strict=True)}
        mine = dict(zip((column.name for column in keys.columns()), all_keys.columns(), strict=True))

        def over_keys(part: exp.Expr) -> exp.Expr:
            if isinstance(part, exp.Window):
                # Its rows are those of all keys.
                self._domain.constructs.add(CLAUSES_OF_ROWS)
                return trees.mapped_window(part, lambda each: trees.mapped(each, over_keys), all_keys.columns())
            if trees.function_of(part) in trees.AGGREGATES:
                return trees.without_rows(part, by_call[part].copy())
            if isinstance(part, exp.Column) and not trees.is_unit(part):
                if part.table != keys.alias or part.name not in mine:
                    detail = (
                        f"{part.sql()[:60]} stands outside of aggregates. Write it in an aggregate, such as MAX(…)."
                    )
                    raise self._source.error("not_grouped", detail, at=position(part))
                return mine[part.name].copy()
            return part

        def with_aliases(part: exp.Expr) -> exp.Expr:
            # Outside of aggregates, an alias comes before a column of the tables.
            if isinstance(part, exp.Column) and not part.table:
                named = (item for item in select.expressions if item.alias.casefold() == part.name.casefold())
                item = next(named, None)
                if item is not None:
                    self._domain.constructs.update({CLAUSES_OF_ROWS} if is_own(part, "where") else ())
                    return exp.Paren(this=trees.mapped(item.unalias().copy(), over_keys))
            return over_keys(part)

        items = []
        for number, item in enumerate(select.expressions, start=1):
            name = item.alias or self._domain.name_of(item, number)
            mapped = exp.Alias(this=trees.mapped(item.unalias().copy(), over_keys), alias=trees.identifier(name))
            items.append(trees.placed(mapped, position(item)))
        items += [
            exp.Alias(this=column, alias=trees.identifier(name))
            for column, name in zip(all_keys.columns(), names, strict=True)
        ]
        grouped = trees.from_query(trees.placed(rows, at), alias, [*names, *called]).this
        on = trees.chained(all_keys.equal(_Keys(alias, names)), exp.And)
        around = exp.Select(
            expressions=items,
            from_=exp.From(this=table),
            joins=[exp.Join(this=grouped, side="LEFT", on=on)],
        )
        if having is not None:
            around.set("where", exp.Where(this=trees.mapped(having.this.copy(), with_aliases)))
        return trees.placed(around, at)

    # FROM

    def _tables(self, select: exp.Select) -> _From:
        """Rewrites the derived tables of `select`."""
        found = _From()
        clause, joins = select.args.get("from_"), select.args.get("joins") or []
        for part in [clause, *joins]:
            table = part.this if part is not None else None
            if not isinstance(table, exp.Subquery) or not isinstance(table.this, exp.Query) or table.args.get("pivots"):
                continue
            changed, keys = self.rewritten(self._with_modifiers(table))
            if keys is None:
                continue
            alias = table.args.get("alias")
            if alias is None:
                alias = exp.TableAlias(this=trees.identifier(self._domain.alias()))
            elif alias.args.get("columns"):
                alias.set("columns", [*alias.args["columns"], *map(trees.identifier, keys.names)])
            part.set("this", trees.placed(exp.Subquery(this=changed, alias=alias), position(table)))
            found.keyed.append((_Keys(alias.this.name, keys.names), part))
        for join in joins:
            if join.side.upper() in {"RIGHT", "FULL"}:
                found.is_plain = False
        for _, part in found.keyed:
            if part is not clause and not _is_inner(part):
                found.is_plain = False
        return found

    def _with_modifiers(self, table: exp.Subquery) -> exp.Expr:
        inner = table.copy()
        inner.set("alias", None)
        return inner if any(inner.args.get(key) for key in _MODIFIERS) else inner.this

    def _with_keys(self, select: exp.Select, tables: _From, *, in_from: bool) -> _Keys:
        """Adds the keys to FROM of `select`, and joins its tables that have keys on them. Returns where they are."""
        conditions: list[exp.Expr] = []
        rest = tables.keyed
        if tables.keyed and tables.is_plain and not in_from:
            keys, rest = tables.keyed[0][0], tables.keyed[1:]
        else:
            table, keys = self._domain_table()
            self._place(select, table, tables, in_from=in_from)
        clause = select.args.get("from_")
        for own, part in rest:
            equal = keys.equal(own)
            if part is clause or isinstance(part, exp.From) or _is_inner(part):
                conditions += equal
                continue
            side = str(part.args.get("side") or "").upper()
            if side in {"RIGHT", "FULL"} or part.args.get("using") or part.args.get("method"):
                raise self._refused("An outer column in this join", part.this)
            condition = part.args.get("on")
            part.set("on", trees.chained([*([condition] if condition is not None else []), *equal], exp.And))
        if conditions:
            where = select.args.get("where")
            terms = [*([where.this] if where is not None else []), *conditions]
            select.set("where", exp.Where(this=trees.chained(terms, exp.And)))
        return keys

    def _place(self, select: exp.Select, table: exp.Expr, tables: _From, *, in_from: bool) -> None:
        """Adds the table of the keys to FROM: first, or after the last join that keeps rows of its right side."""
        clause, joins = select.args.get("from_"), list(select.args.get("joins") or [])
        last = max((at for at, join in enumerate(joins) if join.side.upper() in {"RIGHT", "FULL"}), default=None)
        if last is not None:
            if in_from or any(part is clause or part in joins[: last + 1] for _, part in tables.keyed):
                raise self._refused("An outer column in FROM, next to RIGHT or FULL JOIN,", select)
            joins.insert(last + 1, exp.Join(this=table, kind="CROSS"))
        else:
            if clause is not None:
                first = called_in_from(clause.this) if is_table_function(clause.this) else clause.this
                nested = first.args.pop("joins", None) or []
                joins = [exp.Join(this=first, kind="CROSS"), *nested, *joins]
            select.set("from_", exp.From(this=table))
        select.set("joins", joins)

    def _domain_table(self) -> tuple[exp.Expr, _Keys]:
        """Returns a derived table of the distinct values of the keys."""
        alias = self._domain.alias()
        names = tuple(f"{alias}_{number}" for number in range(1, len(self._keys) + 1))
        called = exp.TableAlias(this=trees.identifier(alias), columns=[trees.identifier(name) for name in names])
        if self._is_trial:
            row = exp.Tuple(expressions=[exp.Null() for _ in names])
            return exp.Values(expressions=[row], alias=called), _Keys(alias, names)
        around = self._domain.tables.copy()
        items = [
            trees.placed(exp.Alias(this=column.copy(), alias=trees.identifier(name)), position(column))
            for column, name in zip(self._keys.values(), names, strict=True)
        ]
        around.set("expressions", items)
        around.set("distinct", exp.Distinct())
        at = position(next(iter(self._keys.values())))
        table = exp.Subquery(this=trees.placed(around, at), alias=called)
        return trees.placed(table, at), _Keys(alias, names)

    # Names

    def _own_names(self, select: exp.Select) -> Callable[[exp.Column, str], bool]:
        """Returns whether a column in a clause of `select` is one of its own tables, or an alias of SELECT."""
        stripped = exp.Select(expressions=[exp.Star()])
        clause, joins = select.args.get("from_"), select.args.get("joins") or []
        generated: set[str] = set()
        for node in [*(join.this for join in joins), *(select.args.get("laterals") or [])]:
            if is_generated(node) or isinstance(node, exp.Lateral):
                generated |= set(_names_of_generator(node))
        if clause is not None and is_table_function(clause.this):
            generated |= set(_names_of_generator(clause.this))
        elif clause is not None:
            stripped.set("from_", clause.copy())
            kept = [join.copy() for join in joins if not isinstance(join.this, exp.Lateral | exp.Unnest)]
            for join in kept:
                join.set("on", None)
                join.set("using", None)
            stripped.set("joins", kept)
        inner = self._names.sources_of(stripped)
        aliases = {item.alias.casefold() for item in select.expressions if item.alias}

        def is_own(column: exp.Column, part: str) -> bool:
            first, *others = (each.name.casefold() for each in column.parts)
            if self._names.is_of(column, inner) or first in generated:
                return True
            return part != "where" and not others and first in aliases

        return is_own

    def _replaceable(
        self, select: exp.Select, is_own: Callable[[exp.Column, str], bool], clauses: Sequence[str]
    ) -> list[exp.Column]:
        found = []
        for key in clauses:
            value = select.args.get(key)
            for part in value if isinstance(value, list) else [value]:
                if part is not None:
                    found += [each for each in trees.columns_in(part) if self._is_outer(each, key, is_own)]
        return found

    def _replaceable_in_from(self, select: exp.Select, is_own: Callable[[exp.Column, str], bool]) -> list[exp.Column]:
        """Returns the outer columns in ON, in arguments of generators, and in queries after LATERAL."""
        parts = [join.args.get("on") for join in select.args.get("joins") or []]
        parts += [
            join.this for join in select.args.get("joins") or [] if isinstance(join.this, exp.Lateral | exp.Unnest)
        ]
        parts += select.args.get("laterals") or []
        clause = select.args.get("from_")
        if clause is not None and is_table_function(clause.this):
            parts.append(clause.this)
        found = []
        for part in parts:
            if part is not None:
                found += [each for each in trees.columns_in(part) if self._is_outer(each, "where", is_own)]
        return found

    def _is_outer(self, column: exp.Column, part: str, is_own: Callable[[exp.Column, str], bool]) -> bool:
        return not is_own(column, part) and _text(column) in self._keys and self._names.is_outer(column)

    def _hide(self, select: exp.Select, tables: list[_Keys]) -> None:
        """Leaves the keys out of the stars of `select`."""
        for item in trees.stars_of(select):
            star = item.this if isinstance(item, exp.Column) else item
            hidden = [
                trees.column(keys.alias, name)
                for keys in tables
                if isinstance(item, exp.Star) or keys.alias.casefold() == item.table.casefold()
                for name in keys.names
            ]
            if hidden:
                unique = list({(each.table, each.name): each for each in hidden}.values())
                star.set("except_", [*(star.args.get("except_") or []), *unique])


def _leaves(query: exp.Expr) -> Iterator[exp.Expr]:
    """Yields the queries that set operations unite."""
    pending = [query]
    while pending:
        node = trees.query_in(pending.pop())
        if isinstance(node, exp.SetOperation):
            pending += [node.expression, node.this]
        else:
            yield node


def _is_inner(join: exp.Expr) -> bool:
    return not join.args.get("side") and str(join.args.get("kind") or "").upper() in {"", "INNER", "CROSS"}


def _names_of_generator(node: exp.Expr) -> Iterator[str]:
    """Yields the case-folded names of a generator, or of a query after LATERAL, and of its columns."""
    alias = node.args.get("alias")
    columns = (alias.args.get("columns") or []) if alias is not None else []
    if alias is not None and alias.this is not None:
        yield alias.this.name.casefold()
    yield from (column.name.casefold() for column in columns)
    if not columns:
        yield from _GENERATED_NAMES
        query = node.this.this if isinstance(node.this, exp.Subquery) else None
        if isinstance(query, exp.Select):
            yield from (item.alias_or_name.casefold() for item in query.expressions)


def _text(column: exp.Column) -> str:
    return ".".join(part.name.casefold() for part in column.parts)
