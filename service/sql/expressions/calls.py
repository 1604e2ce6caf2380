"""Reads calls of group windows (TUMBLE and HOP, as in Flink) and of aggregates.

An aggregate call may have DISTINCT and an order, inside its parentheses or after them (WITHIN GROUP).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum

from sqlglot import exp

from service.contract.problems import SpecError
from service.contract.query import AggregateFunction
from service.sql.expressions.nodes import (
    Aggregate,
    Call,
    Case,
    Connective,
    Expression,
    Interval,
    Name,
    Not,
    Number,
    Test,
    walk,
)
from service.sql.parser import Text

MAX_WINDOWS_PER_ROW = 144
"""The number of sliding windows that may contain a row. A row is copied into each of them, by one expression each in
the plan, which Spark compiles again for every mini-batch: with 288 that took twenty seconds on two busy cores."""

SESSION_FUNCTIONS = frozenset({"session", "session_start", "session_end", "session_window"})
"""Functions of session windows, in Flink and in Spark (`service.sql.statements.session_windows`)."""
SESSION_FORM = "Write GROUP BY SESSION(t, INTERVAL '10' MINUTE), or GROUP BY session_window(t, '10 minutes')."
WINDOWS = {"tumble": 1, "hop": 2}
"""Window functions of GROUP BY, in lower case, and the number of their intervals."""
_MAX_LENGTH = timedelta(days=3650)
_UNITS = {"WEEK": 604_800_000, "DAY": 86_400_000, "HOUR": 3_600_000, "MINUTE": 60_000, "SECOND": 1000}
_FORMS = {
    "tumble": "TUMBLE(ts, INTERVAL '10' MINUTE)",
    "hop": "HOP(ts, INTERVAL '1' MINUTE, INTERVAL '10' MINUTE), with the slide first and the size second",
}
SYNONYMS = {
    "VARIANCE": AggregateFunction.VAR_SAMP,
    "STDDEV": AggregateFunction.STDDEV_SAMP,
    "STD": AggregateFunction.STDDEV_SAMP,
    "STRING_AGG": AggregateFunction.LISTAGG,
    "MEAN": AggregateFunction.AVG,
    "PERCENTILE_CONT": AggregateFunction.PERCENTILE,
    "MEDIAN": AggregateFunction.PERCENTILE,
    "PERCENTILE_APPROX": AggregateFunction.APPROX_PERCENTILE,
    "EVERY": AggregateFunction.BOOL_AND,
    "ANY": AggregateFunction.BOOL_OR,
    "SOME": AggregateFunction.BOOL_OR,
    "ARRAY_AGG": AggregateFunction.COLLECT_LIST,
}
"""Other names of the aggregate functions; PERCENTILE_CONT and MEDIAN take other arguments too."""
WITHIN_GROUP = frozenset({"LISTAGG", "STRING_AGG", "PERCENTILE_CONT", "PERCENTILE_DISC", "MODE"})
"""Functions whose order is written after the call, in WITHIN GROUP."""

_ONLY_ORDERED = frozenset({"PERCENTILE_CONT", "PERCENTILE_DISC"})
"""Functions that must have WITHIN GROUP."""
_ORDERS_ITS_VALUES = {
    "PERCENTILE_CONT": "Order ascending, and write the value of 1 - p.",
    "PERCENTILE_DISC": "For numbers, write -PERCENTILE_DISC(p) WITHIN GROUP (ORDER BY -x).",
    "MODE": "Order ascending, or write MODE(x).",
}
"""Functions whose values are written as an order, and what to do about a descending one."""


class Part(StrEnum):
    """The bounds of a window that a query may select."""

    START = "start"
    END = "end"


PARTS = {f"{window}_{part}": (window, part) for window in WINDOWS for part in Part}
"""Functions of SELECT, HAVING and ORDER BY that return a bound of the window."""


@dataclass(frozen=True)
class GroupWindow:
    """Windows over an event-time column: each has the length `size`, and one begins every `slide`."""

    column: Name
    size: timedelta
    slide: timedelta


def is_window(tree: Expression) -> bool:
    """Whether `tree` is a call of a window function of GROUP BY."""
    return isinstance(tree, Call) and tree.name in WINDOWS


def part_of(tree: Expression) -> Part | None:
    """Returns the bound of a window that `tree` is a call of; None if it is another expression."""
    return PARTS[tree.name][1] if isinstance(tree, Call) and tree.name in PARTS else None


def column_of(part: Part) -> str:
    """Returns the default name of the column with a window's start or end."""
    return f"window_{part}"


def parts_in(tree: Expression) -> bool:
    """Whether `tree` contains the start or the end of a window."""
    return any(part_of(node) is not None for node in walk(tree))


def window_of(call: Call, source: Text) -> GroupWindow:
    """Returns the window of a call of WINDOWS or PARTS. Raises SpecError `unsupported_construct`."""
    kind = call.name if call.name in WINDOWS else PARTS[call.name][0]
    name = call.name.upper()
    hint = f"Write {_FORMS[kind].replace(kind.upper(), name, 1)}."
    count = len(call.arguments)
    if count != 1 + WINDOWS[kind]:
        plural = "" if count == 1 else "s"
        raise source.unsupported(f"{name} with {count} argument{plural}", at=call.at, hint=hint)
    column, *intervals = call.arguments
    if not isinstance(column, Name):
        hint = "Name the column that is declared as the 'event_time' of its table."
        raise source.unsupported(f"{name} over an expression", at=call.at, hint=hint)
    lengths = [_length(interval, name, hint, call.at, source) for interval in intervals]
    return GroupWindow(column, size=lengths[-1], slide=lengths[0])


def milliseconds_of(interval: Interval) -> Decimal | None:
    """Returns the length of an interval; None for months and years, whose length varies."""
    length = _UNITS.get(interval.unit)
    return None if length is None else Decimal(interval.value) * length


def misplaced(name: str, at: int | None, source: Text) -> SpecError:
    """Returns the error for a window, or a bound of one, in a clause that does not allow it."""
    if source.pointer != "/sql":
        hint = "Declare a group window as the query's `window`, and select its `start` and `end` by their names."
    elif name in WINDOWS:
        hint = f"Use it alone as a key of GROUP BY, and select {name.upper()}_START and {name.upper()}_END."
    else:
        window = PARTS[name][0].upper()
        hint = f"Use it in SELECT, HAVING or ORDER BY, outside of aggregates, and {window} in GROUP BY."
    return source.unsupported(name.upper(), at=at, hint=hint)


def misplaced_session(name: str, at: int | None, source: Text) -> SpecError:
    """Returns the error for a function of session windows where there is no such window."""
    if source.pointer != "/sql":
        return source.unsupported(name.upper(), at=at, hint="Write the query as SQL.")
    what = f"{name.upper()} outside of SELECT, HAVING and ORDER BY of a query with a session window in GROUP BY"
    return source.unsupported(what, at=at, hint=SESSION_FORM)


def _length(tree: Expression, name: str, hint: str, at: int | None, source: Text) -> timedelta:
    if not isinstance(tree, Interval):
        raise source.unsupported(f"{name} with an argument after its column that is not an interval", at=at, hint=hint)
    milliseconds = milliseconds_of(tree)
    if milliseconds is None:
        detail = f"{name} with an interval of {tree.unit}"
        hint = "Months and years vary in length: use DAY or a shorter unit."
        if " TO " in tree.unit:
            hint = "Write one unit, such as INTERVAL '90' MINUTE."
        raise source.unsupported(detail, at=at, hint=hint)
    if milliseconds != int(milliseconds) or not 1 <= milliseconds <= _MAX_LENGTH // timedelta(milliseconds=1):
        hint = f"Use whole milliseconds, and at most {_MAX_LENGTH.days} days."
        raise source.unsupported(f"{name} with the interval '{tree.value}' {tree.unit}", at=at, hint=hint)
    return timedelta(milliseconds=int(milliseconds))


def function_named(name: str) -> AggregateFunction | None:
    """Returns the aggregate function with the name or synonym `name`, whose case is ignored; None if there is none."""
    # The upper case of some letters outside ASCII is one of ASCII.
    upper = name.upper() if name.isascii() else name
    return AggregateFunction[upper] if upper in AggregateFunction.__members__ else SYNONYMS.get(upper)


def where_all_are_known(values: Sequence[Expression]) -> Expression:
    """Returns the argument of COUNT for `COUNT(a, b)`, which counts the rows in which no value is NULL."""
    return Case(None, ((Connective("AND", tuple(Not(Test(value, "NULL")) for value in values)), Number("1")),), None)


@dataclass(frozen=True)
class AggregateReader:
    """Reads the aggregate calls of one text.

    `read` reads an expression inside a call, `check` refuses unsupported clauses of a node, and `refuse` creates the
    error for a node, a construct and a hint.
    """

    source: Text
    read: Callable[[exp.Expr], Expression]
    check: Callable[[exp.Expr], None]
    refuse: Callable[[exp.Expr, str, str], SpecError]

    def call(self, function: AggregateFunction, node: exp.Anonymous, at: int | None) -> Aggregate:
        """Reads a call without the clauses after its parentheses. Raises SpecError."""
        name = node.name.upper()
        is_ordered = isinstance(node.parent, exp.WithinGroup)
        if name in _ONLY_ORDERED and not is_ordered:
            other = ", or PERCENTILE(x, 0.5)" if name == "PERCENTILE_CONT" else ""
            hint = f"Write {name}(0.5) WITHIN GROUP (ORDER BY x){other}."
            raise self.refuse(node, f"{name} without WITHIN GROUP", hint)
        raw = list(node.expressions)
        distinct = len(raw) == 1 and isinstance(raw[0], exp.Distinct)
        if distinct:
            self.check(raw[0])
            raw = list(raw[0].expressions)
        order: exp.Order | None = None
        if raw and isinstance(raw[-1], exp.Order):
            order = raw[-1]
            raw[-1] = order.this
            if not distinct and isinstance(raw[-1], exp.Distinct) and len(raw) == 1:
                self.check(raw[-1])
                distinct, raw = True, list(raw[-1].expressions)
        counts_all = function is AggregateFunction.COUNT and not distinct and len(raw) == 1
        if counts_all and isinstance(raw[0], exp.Star):
            self.check(raw[0])
            raw = []
        elif not raw and function is not AggregateFunction.GROUPING_ID and not (name == "MODE" and is_ordered):
            raise self.source.error("unsupported_function", f"{node.name.upper()} needs an argument.", at=at)
        arguments = tuple(self.read(argument) for argument in raw)
        if name == "MEDIAN":
            arguments = (*arguments, Number("0.5"))
        call = Aggregate(function, arguments, distinct, None, None, at)
        return call if order is None else self._ordered(call, order)

    def within_group(self, call: Aggregate, node: exp.WithinGroup) -> Aggregate:
        """Returns `call` with the order of WITHIN GROUP. Raises SpecError."""
        name = node.this.name.upper()
        order = node.expression
        if name not in WITHIN_GROUP or not isinstance(order, exp.Order) or call.order_by is not None:
            hint = f"Use it with {', '.join(sorted(WITHIN_GROUP))}."
            raise self.refuse(node, f"WITHIN GROUP after {name}", hint)
        ordered = self._ordered(call, order)
        if name not in _ORDERS_ITS_VALUES:
            return ordered
        if ordered.descending or ordered.order_by is None:
            raise self.refuse(node, f"A descending order in {name}", _ORDERS_ITS_VALUES[name])
        return replace(call, arguments=(ordered.order_by, *call.arguments))

    def _ordered(self, call: Aggregate, order: exp.Order) -> Aggregate:
        self.check(order)
        keys, function = order.expressions, call.function
        if len(keys) != 1 or not isinstance(keys[0], exp.Ordered):
            raise self.refuse(order, f"More than one order in {function}", "Order by a single expression.")
        descending = bool(keys[0].args.get("desc"))
        if descending and function in {AggregateFunction.FIRST_VALUE, AggregateFunction.LAST_VALUE}:
            other = "LAST_VALUE" if function is AggregateFunction.FIRST_VALUE else "FIRST_VALUE"
            raise self.refuse(order, f"A descending order in {function}", f"Use {other} with an ascending order.")
        self.check(keys[0])
        if bool(keys[0].args.get("nulls_first")) is descending:
            place = "FIRST" if descending else "LAST"
            hint = f"Remove it: {function} ignores rows whose order is NULL."
            if function is AggregateFunction.LISTAGG:
                hint = "Ascending, NULLs come first, descending last. To place them elsewhere, order by COALESCE(x, …)."
            raise self.refuse(order, f"NULLS {place} in {function}", hint)
        return replace(call, order_by=self.read(keys[0].this), descending=descending)
