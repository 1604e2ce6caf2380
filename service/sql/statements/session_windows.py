"""Replaces session windows in GROUP BY of one SELECT: `SESSION(t, INTERVAL '10' MINUTE)` with SESSION_START and
SESSION_END, as in Flink, and Spark's `session_window(t, '10 minutes')`.

    SELECT k, session_window.start AS s, COUNT(*) AS n FROM e GROUP BY k, session_window(t, '10 minutes')

becomes a query of the rows with the start of their session, which calls with OVER find:

    SELECT k, s, COUNT(*) AS n FROM (
      SELECT k, t, MAX(first) OVER (PARTITION BY k ORDER BY t) AS s FROM (
        SELECT k, t, CASE WHEN t <= LAG(t) OVER (PARTITION BY k ORDER BY t) + INTERVAL '10' MINUTE THEN NULL ELSE t END
          AS first FROM e WHERE t IS NOT NULL))
    GROUP BY k, s

A session ends its length after its last row, and a row at this time still belongs to it, as in Spark and Flink.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from sqlglot import exp

from service.sql.expressions.calls import SESSION_FORM, SESSION_FUNCTIONS
from service.sql.expressions.reader import position
from service.sql.parser import Text
from service.sql.statements import trees
from service.sql.statements.nested import Nested
from service.sql.statements.subqueries.derived_stage import Groups
from service.sql.statements.tables.time_windows import LONGEST, as_time, check_time, length_of, moved, structure

SESSION_WINDOWS = "session windows"
"""What `Origins.constructs` contains for a query that workers before version 22 refuse."""
SESSION, SESSION_WINDOW = "session", "session_window"
_CLAUSES = ("expressions", "group", "having", "qualify", "order")


class _Part(Enum):
    """What is read of a session. The values are the names of columns in SELECT without an alias."""

    WHOLE = SESSION_WINDOW
    START = "window_start"
    END = "window_end"


_PARTS = {SESSION: _Part.WHOLE, SESSION_WINDOW: _Part.WHOLE, "session_start": _Part.START, "session_end": _Part.END}
_FIELDS = {"start": _Part.START, "end": _Part.END}


def has_session(select: exp.Select) -> bool:
    """Whether a clause of `select` calls a function of session windows."""
    return next(_calls(select), None) is not None


def with_sessions(select: exp.Select, nested: Nested, source: Text) -> exp.Select:
    """Returns `select` over rows with the start of their session. Raises SpecError."""
    group = select.args.get("group")
    first = next(_calls(select))
    if group is None:
        raise source.unsupported(_needs_key(first), at=position(first), hint=SESSION_FORM)
    if any(group.args.get(name) for name in ("rollup", "cube", "grouping_sets")) or any(
        isinstance(key, exp.Rollup | exp.Cube | exp.GroupingSets) for key in group.expressions
    ):
        hint = "Compute the sessions in a derived table, and group its rows."
        raise source.unsupported("A session window next to grouping sets", at=position(first), hint=hint)
    star = next((item for item in select.expressions if trees.is_star(item)), None)
    if star is not None:
        raise source.unsupported(f"* next to {str(first.this).upper()}", at=position(star), hint="Name the columns.")
    return _Sessions(select, first, nested, source).query()


def _needs_key(call: exp.Expr) -> str:
    return f"{str(call.this).upper()} without a session window as a key of GROUP BY"


def _name(node: exp.Expr) -> str:
    return str(node.this).lower() if isinstance(node, exp.Anonymous) and isinstance(node.this, str) else ""


def _calls(select: exp.Select) -> Iterator[exp.Anonymous]:
    for key in _CLAUSES:
        value = select.args.get(key)
        for part in value if isinstance(value, list) else [value] if value is not None else []:
            for node in part.walk(prune=lambda each: isinstance(each, exp.Query)):
                if isinstance(node, exp.Anonymous) and _name(node) in SESSION_FUNCTIONS:
                    yield node


class _Sessions(Groups):
    """The derived table has the group keys, the time, the start of the session, and the columns that the query reads;
    its rows are grouped by the keys and the start.
    """

    def __init__(self, select: exp.Select, first: exp.Expr, nested: Nested, source: Text) -> None:
        self._windows: list[exp.Expr] = []
        self._is_in_aggregate = False
        super().__init__(select.copy(), nested, source, SESSION_WINDOWS)
        if not self._windows:
            raise source.unsupported(_needs_key(first), at=position(first), hint=SESSION_FORM)
        self._by = frozenset(name for _, name in self._computed.values())
        self._call = self._windows[0]
        time, self._length = self._arguments(self._call)
        check_time(time, self._sources, source, position(self._call))
        where = self._select.args.get("where")
        terms = [*([where.this] if where is not None else []), exp.Not(this=trees.is_null(time))]
        self._select.set("where", exp.Where(this=trees.chained([term.copy() for term in terms], exp.And)))
        self._time = self._add(as_time(time.copy(), self._sources, source)).name
        self._start = f"{SESSION_WINDOW}.start"

    def _arguments(self, call: exp.Expr) -> tuple[exp.Expr, int]:
        """Returns the time and the length in microseconds. Raises SpecError."""
        time, length = call.expressions if len(call.expressions) == 2 else (None, None)
        microseconds = length_of(length) if length is not None else None
        if time is None or microseconds is None or not 0 < microseconds <= LONGEST:
            hint = f"{SESSION_FORM} The length is a positive literal in units from microseconds to weeks."
            what = f"{str(call.this).upper()} with other arguments than a time and a length"
            raise self._source.unsupported(what, at=position(call), hint=hint)
        return time, microseconds

    def _check_same(self, call: exp.Expr) -> None:
        time, length = self._arguments(call)
        own, _ = self._arguments(self._call)
        if length != self._length or self._canonical(time) != self._canonical(own):
            hint = f"Give all of them the arguments of {str(self._call.this).upper()} in GROUP BY."
            raise self._source.unsupported("A second session window in one SELECT", at=position(call), hint=hint)

    def _keys(self) -> Iterator[exp.Expr]:
        """Yields the other keys than the session window."""
        for key in super()._keys():
            inner = key
            while isinstance(inner, exp.Paren | exp.Dot):
                inner = inner.this
            if _name(inner) in SESSION_FUNCTIONS:
                self._windows.append(inner)
            else:
                yield key

    def _grouping(self) -> exp.Expr | None:
        return None

    def _set_conditions(self, around: exp.Select) -> None:
        keys = [trees.column(self._alias, name) for name in (*sorted(self._by), self._start)]
        around.set("group", trees.placed(exp.Group(expressions=keys), position(self._select)))
        for name, kind in (("having", exp.Having), ("qualify", exp.Qualify)):
            clause = self._select.args.get(name)
            if clause is not None:
                around.set(name, kind(this=self._moved(clause.this, name)))

    def _column(self, part: exp.Expr) -> exp.Expr | None:
        found = _PARTS.get(_name(part))
        if found is not None:
            self._check_same(part)
            return self._bound(found, part)
        if trees.function_of(part) not in trees.AGGREGATES or isinstance(part, exp.Window) or self._is_in_aggregate:
            return self._known(part)
        aggregate = part.copy()
        self._is_in_aggregate = True
        for key, value in aggregate.args.items():
            if isinstance(value, list):
                moved_parts = [
                    self._moved(each, "expressions") if isinstance(each, exp.Expr) else each for each in value
                ]
                aggregate.set(key, moved_parts)
            elif isinstance(value, exp.Expr):
                aggregate.set(key, self._moved(value, "expressions"))
        self._is_in_aggregate = False
        return aggregate

    def _moved_name(self, column: exp.Column, clause: str) -> exp.Expr:
        first, *rest = (part.name.casefold() for part in column.parts)
        if first == SESSION_WINDOW and not self._names.is_outer(column):
            field = _Part.WHOLE if not rest else _FIELDS.get(rest[0]) if len(rest) == 1 else None
            if field is not None:
                return self._bound(field, column)
        return super()._moved_name(column, clause)

    def _known(self, part: exp.Expr) -> exp.Column | None:
        found = super()._known(part)
        return found if found is not None and (self._is_in_aggregate or found.name in self._by) else None

    def _bound(self, part: _Part, of: exp.Expr) -> exp.Expr:
        if self._is_in_aggregate and part is not _Part.START:
            hint = "Compute the sessions in a derived table, and aggregate its rows."
            raise self._source.unsupported("The end of a session inside an aggregate", at=position(of), hint=hint)
        start = trees.column(self._alias, self._start)
        end = moved(trees.call("MAX", trees.column(self._alias, self._time)), self._length)
        whole = {_Part.START: start, _Part.END: end}.get(part) or structure(start, end)
        return trees.placed(whole, position(of))

    def _missing(self, column: exp.Column) -> exp.Expr:
        return self._add(column) if self._is_in_aggregate else super()._missing(column)

    def _name(self, item: exp.Expr, place: int) -> str:
        if isinstance(item, exp.Column) and item.parts[0].name.casefold() == SESSION_WINDOW:
            return item.name

        def named(part: exp.Expr) -> exp.Expr:
            found = _PARTS.get(_name(part))
            return part if found is None else exp.Column(this=trees.identifier(found.value))

        return super()._name(trees.mapped(item.copy(), named), place)

    def _from(self, inner: exp.Select, names: list[str]) -> exp.From:
        first, second, at = f"{self._alias}_f", f"{self._alias}_s", position(self._select)
        begins = f"{self._alias}_first"
        time = trees.column(first, self._time)
        before = self._over(trees.call("LAG", time), first)
        continues = exp.LTE(this=time.copy(), expression=moved(before, self._length))
        of_first = exp.Case(ifs=[exp.If(this=continues, true=exp.Null())], default=time.copy())
        rows = self._with(inner, first, names, of_first, begins)
        start = self._over(trees.call("MAX", trees.column(second, begins)), second)
        rows = self._with(rows, second, names, start, self._start, [begins])
        return trees.from_query(trees.placed(rows, at), self._alias, [*names, self._start])

    def _with(
        self, inner: exp.Select, alias: str, names: list[str], value: exp.Expr, name: str, more: list[str] | None = None
    ) -> exp.Select:
        """Returns the columns `names` of `inner`, and `value` as `name`; `more` are other columns that it has."""
        at = position(self._select)
        items = [exp.Alias(this=trees.column(alias, each), alias=trees.identifier(each)) for each in names]
        items.append(exp.Alias(this=value, alias=trees.identifier(name)))
        select = exp.Select(expressions=[trees.placed(item, at) for item in items])
        select.set("from_", trees.from_query(trees.placed(inner, at), alias, [*names, *(more or [])]))
        return select

    def _over(self, call: exp.Expr, alias: str) -> exp.Expr:
        return exp.Window(
            this=call,
            partition_by=[trees.column(alias, name) for name in sorted(self._by)],
            order=exp.Order(expressions=[exp.Ordered(this=trees.column(alias, self._time), nulls_first=True)]),
            over="OVER",
        )
