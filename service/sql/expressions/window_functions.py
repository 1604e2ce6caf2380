"""Reads calls with OVER: window functions, and aggregates over a window.

`with_named_windows` replaces the names of the WINDOW clause by what they stand for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from sqlglot import exp

from service.contract.problems import SpecError, did_you_mean, nearest_names
from service.contract.query import GROUP_KEYS, SORT_KEYS, WINDOWS, AggregateFunction
from service.sql.expressions.aggregate_parameters import check_parameter, is_parameter
from service.sql.expressions.calls import function_named, milliseconds_of, where_all_are_known
from service.sql.expressions.nodes import (
    Boolean,
    Expression,
    Frame,
    FrameBound,
    Interval,
    Name,
    Negation,
    Number,
    OrderKey,
    Over,
)
from service.sql.parser import FIRST, Text
from service.sql.types.aggregates import BITS, CONDITIONAL, NEAREST, PAIRED

WINDOW_FUNCTIONS = {
    "row_number": (0, 0),
    "rank": (0, 0),
    "dense_rank": (0, 0),
    "percent_rank": (0, 0),
    "cume_dist": (0, 0),
    "ntile": (1, 1),
    "lag": (1, 3),
    "lead": (1, 3),
    "first_value": (1, 1),
    "last_value": (1, 1),
    "nth_value": (2, 2),
}
"""The window functions, and the smallest and largest number of their arguments."""
AGGREGATES_OVER_WINDOWS = frozenset(
    {
        AggregateFunction.COUNT,
        AggregateFunction.SUM,
        AggregateFunction.AVG,
        AggregateFunction.MIN,
        AggregateFunction.MAX,
        AggregateFunction.STDDEV_POP,
        AggregateFunction.STDDEV_SAMP,
        AggregateFunction.VAR_POP,
        AggregateFunction.VAR_SAMP,
        AggregateFunction.SKEWNESS,
        AggregateFunction.KURTOSIS,
        AggregateFunction.TRY_SUM,
        AggregateFunction.TRY_AVG,
        AggregateFunction.LISTAGG,
        AggregateFunction.COLLECT_LIST,
        AggregateFunction.COLLECT_SET,
        AggregateFunction.APPROX_COUNT_DISTINCT,
        AggregateFunction.PERCENTILE,
        AggregateFunction.APPROX_PERCENTILE,
        AggregateFunction.MODE,
        *CONDITIONAL,
        *BITS,
        *NEAREST,
        *PAIRED,
    }
)
"""The aggregate functions that may have OVER."""
_ARITY = {
    AggregateFunction.LISTAGG: (1, 2),
    AggregateFunction.PERCENTILE: (2, 2),
    AggregateFunction.APPROX_PERCENTILE: (2, 3),
    AggregateFunction.MODE: (1, 2),
    **dict.fromkeys(NEAREST | PAIRED, (2, 2)),
}
"""The smallest and largest number of arguments of aggregates, unless they take one."""
_UNFRAMED = frozenset({"row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead"})
"""Functions whose result does not depend on a frame. Spark accepts none."""
_ORDERED = _UNFRAMED | {"nth_value"}
"""Functions that Spark only accepts with ORDER BY."""
_SKIP_NULLS = frozenset({"lag", "lead", "first_value", "last_value", "nth_value"})
"""Functions that may have IGNORE NULLS."""
_FIRST_OR_LAST = {"first": "first_value", "any_value": "first_value", "last": "last_value"}
"""Other names of window functions."""
_SWITCHES = {"first_value": 1, "last_value": 1, "nth_value": 2}
"""By function, the position of an argument that says whether it ignores NULLs."""
_FILTERED = frozenset({"first_value", "last_value"})
"""Window functions that may have FILTER, as aggregates."""
_MOST_ROWS = (1 << 31) - 1
_LITERALS = {"ntile": 0, "nth_value": 1, "lag": 1, "lead": 1}
"""By function, the position of the argument that is an integer literal."""
_EXAMPLES = {"ntile": "4", "nth_value": "x, 2"}
"""Arguments for examples in messages, unless they are `x` or none."""
_FRAME = "Write for example ROWS BETWEEN 2 PRECEDING AND CURRENT ROW."
_CURRENT_ROW = "CURRENT ROW"
_PARTS = ("partition_by", "order", "spec")
"""The parts of a window, by sqlglot's name."""


def with_named_windows(select: exp.Select, source: Text) -> exp.Select:
    """Returns `select` without its WINDOW clause, and with the windows of that clause in its calls.

    Raises SpecError `unsupported_construct` for a name that the clause does not define, or defines twice.
    """
    if "over" not in source.text.casefold() and not select.args.get("windows"):
        return select
    named: dict[str, exp.Window] = {}
    for window in select.args.get("windows") or ():
        name = window.this.name
        at = window.this.meta.get("start")
        if name.casefold() in named:
            detail = f"Two windows are called {name}. Rename one of them."
            raise source.error("unsupported_construct", detail, at=at)
        named[name.casefold()] = _defined(window, named, source)
    found = _windows_of(select)
    if len(found) > WINDOWS.most and not source.is_accepted:
        raise source.beyond(WINDOWS, len(found), at=found[0].meta.get(FIRST))
    calls = [window for window in found if window.args.get("alias") is not None]
    if not calls and not named:
        return select
    for call in calls:
        _define(call, named, source)
    select.set("windows", None)
    return select


def _windows_of(select: exp.Select) -> list[exp.Window]:
    """Returns the calls of `select` with OVER, without those of queries inside it."""
    found = []
    pending = [
        part
        for key, value in select.args.items()
        if key not in {"windows", "with_", "from_", "joins"}
        for part in (value if isinstance(value, list) else [value])
        if isinstance(part, exp.Expr)
    ]
    while pending:
        node = pending.pop()
        if isinstance(node, exp.Query):
            continue
        if isinstance(node, exp.Window):
            found.append(node)
        pending += list(node.iter_expressions())
    return found


def _defined(window: exp.Window, named: dict[str, exp.Window], source: Text) -> exp.Window:
    """Returns a window of the WINDOW clause; it may be another name for one of `named`."""
    if window.args.get("alias") is not None:
        _define(window, named, source)
    return window


def _define(call: exp.Window, named: dict[str, exp.Window], source: Text) -> None:
    alias = call.args["alias"]
    name, at = alias.name, alias.meta.get("start")
    window = named.get(name.casefold())
    if window is None:
        suggestions = nearest_names(name, [each.this.name for each in named.values()])
        detail = f"There is no window {name[:60]}. Define it after FROM and WHERE: WINDOW {name[:60]} AS (ORDER BY t)."
        raise source.error("unsupported_construct", detail + did_you_mean(suggestions), at=at, suggestions=suggestions)
    changes = {key for key in _PARTS if call.args.get(key)}
    has = {key for key in _PARTS if window.args.get(key)}
    if changes and ("partition_by" in changes or "spec" in has or changes & has):
        hint = "Add ORDER BY or a frame only to a window that has neither, or repeat its parts in the parentheses."
        raise source.unsupported("A window that changes a named window", at=at, hint=hint)
    for key in _PARTS:
        value = window.args.get(key)
        if value:
            call.set(key, [part.copy() for part in value] if isinstance(value, list) else value.copy())
    call.set("alias", None)


@dataclass(frozen=True)
class WindowCallReader:
    """Reads the calls with OVER of one text.

    `read` reads an expression, `check` refuses unsupported clauses of a node, and `refuse` creates the error for a
    node, a construct and a hint.
    """

    source: Text
    read: Callable[[exp.Expr], Expression]
    check: Callable[[exp.Expr], None]
    refuse: Callable[[exp.Expr, str, str], SpecError]

    def call(self, node: exp.Window, at: int | None) -> Over:
        """Reads a call and its window, which `with_named_windows` has replaced if it was a name. Raises SpecError."""
        if node.args.get("alias") is not None:
            hint = "Write PARTITION BY and ORDER BY in the parentheses after OVER."
            raise self.refuse(node, f"The window {node.args['alias'].name[:60]}", hint)
        inner, condition, ignores_nulls = self._inner(node)
        function = self._function(inner, at)
        inner, switched = self._without_switch(inner, function)
        ignores_nulls |= switched
        arguments = self._arguments(inner, function, at)
        name = function.upper()
        if ignores_nulls and function not in _SKIP_NULLS:
            raise self.refuse(node, f"IGNORE NULLS after {name}", f"Use it with {', '.join(sorted(_SKIP_NULLS))}.")
        if condition is not None and function in WINDOW_FUNCTIONS.keys() - _FILTERED:
            hint = "Only aggregates, first_value and last_value take it. Filter in a derived table."
            raise self.refuse(node, f"FILTER after {name}", hint)
        order = node.args.get("order")
        keys = tuple(self._order_key(key) for key in order.expressions) if order is not None else ()
        if function in _ORDERED and not keys:
            raise self.refuse(node, f"{name} without ORDER BY in OVER", _example(function))
        spec = node.args.get("spec")
        if spec is not None and function in _UNFRAMED:
            raise self.refuse(node, f"{name} with a frame", "Remove ROWS or RANGE: the result does not depend on it.")
        partition_by = tuple(self.read(key) for key in node.args.get("partition_by") or ())
        for limit, number in ((GROUP_KEYS, len(partition_by)), (SORT_KEYS, len(keys))):
            if number > limit.most and not self.source.is_accepted:
                raise self.source.beyond(limit, number, at=at)
        frame = self._frame(spec, node, keys) if spec is not None else None
        return Over(function, arguments, partition_by, keys, frame, condition, ignores_nulls, at)

    def _inner(self, node: exp.Window) -> tuple[exp.Anonymous, Expression | None, bool]:
        inner, condition, ignores_nulls = node.this, None, False
        while not isinstance(inner, exp.Anonymous):
            match inner:
                case exp.Filter(expression=exp.Where() as where):
                    condition = self.read(where.this)
                case exp.IgnoreNulls():
                    ignores_nulls = True
                case exp.RespectNulls():
                    pass
                case exp.WithinGroup():
                    hint = "Compute it with GROUP BY in a derived table, and join it by the group keys."
                    raise self.refuse(node, "OVER after WITHIN GROUP", hint)
                case _:
                    hint = "OVER follows the call of a window function or of an aggregate."
                    raise self.refuse(node, "OVER after this expression", hint)
            inner = inner.this
        return inner, condition, ignores_nulls

    def _without_switch(self, node: exp.Anonymous, function: str) -> tuple[exp.Anonymous, bool]:
        """Returns a call without the argument that says whether it ignores NULLs, and whether it does."""
        place = _SWITCHES.get(function)
        if place is None or len(node.expressions) != place + 1 or not isinstance(node.expressions[place], exp.Boolean):
            return node, False
        changed = node.copy()
        changed.set("expressions", changed.expressions[:place])
        return changed, bool(node.expressions[place].this)

    def _function(self, node: exp.Anonymous, at: int | None) -> str:
        name = str(node.this).lower() if isinstance(node.this, str) else ""
        name = _FIRST_OR_LAST.get(name, name)
        if name in WINDOW_FUNCTIONS:
            return name
        function = function_named(name)
        if function in AGGREGATES_OVER_WINDOWS:
            return function.value
        names = ", ".join([*WINDOW_FUNCTIONS, *sorted(each.lower() for each in AGGREGATES_OVER_WINDOWS)])
        called = node.name[:60]
        if not name:
            raise self.source.unsupported(f"The quoted function name {called}", at=at, hint="Remove the quotes.")
        raise self.source.unsupported(f"{called} with OVER", at=at, hint=f"The functions with OVER are {names}.")

    def _arguments(self, node: exp.Anonymous, function: str, at: int | None) -> tuple[Expression, ...]:
        raw = list(node.expressions)
        name = function.upper()
        for argument in raw:
            if isinstance(argument, exp.Distinct):
                hint = "Aggregate in a derived table with GROUP BY, and join it by the group keys."
                raise self.refuse(node, f"{name}(DISTINCT …) with OVER", hint)
            if isinstance(argument, exp.Order):
                raise self.refuse(node, f"ORDER BY inside {name} with OVER", _example(function))
            if isinstance(argument, exp.IgnoreNulls | exp.RespectNulls):
                raise self.refuse(
                    node, "IGNORE NULLS inside the parentheses", f"Write {name}(…) IGNORE NULLS OVER (…)."
                )
        if function == AggregateFunction.COUNT and len(raw) == 1 and isinstance(raw[0], exp.Star):
            self.check(raw[0])
            return ()
        if function == AggregateFunction.COUNT and len(raw) > 1:
            return (where_all_are_known(tuple(self.read(argument) for argument in raw)),)
        least, most = WINDOW_FUNCTIONS.get(function) or _ARITY.get(AggregateFunction(function), (1, 1))
        if node.name.upper() == "MEDIAN":
            least = most = 1
        if not least <= len(raw) <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            detail = f"{name} takes {wanted} argument{'' if wanted == '1' else 's'}, not {len(raw)}."
            raise self.source.error("unsupported_function", detail, at=at)
        arguments = tuple(self.read(argument) for argument in raw)
        if node.name.upper() == "MEDIAN":
            arguments = (*arguments, Number("0.5"))
        if function in AggregateFunction.__members__:
            self._check_parameters(arguments, raw, AggregateFunction(function))
            # One of several modes must not depend on the order of the rows.
            return (arguments[0], Boolean(True)) if function == AggregateFunction.MODE else arguments
        position = _LITERALS.get(function)
        if position is not None and position < len(arguments):
            self._check_literal(arguments[position], raw[position], function, node)
        return arguments

    def _check_parameters(
        self, arguments: tuple[Expression, ...], written: list[exp.Expr], function: AggregateFunction
    ) -> None:
        for index, (argument, node) in enumerate(zip(arguments, written, strict=False)):
            if is_parameter(function, index) and not _is_named_parameter(argument, node):
                check_parameter(function, index, argument, self.source)

    def _check_literal(self, value: Expression, written: exp.Expr, function: str, node: exp.Expr) -> None:
        signed = function in {"lag", "lead"}
        if signed and isinstance(value, Negation):
            value, written = value.operand, written.unnest().this
        if _is_named_parameter(value, written):
            return
        is_whole = isinstance(value, Number) and value.is_integer and not value.suffix
        if not is_whole or not (isinstance(value, Number) and (not signed) <= int(value.text) <= _MOST_ROWS):
            least = "an integer" if signed else "an integer from 1"
            hint = f"Write {least} to {_MOST_ROWS}."
            raise self.refuse(node, f"{function.upper()} with this number of rows", hint)

    def _order_key(self, node: exp.Expr) -> OrderKey:
        self.check(node)
        return OrderKey(self.read(node.this), bool(node.args.get("desc")), bool(node.args.get("nulls_first")))

    # Frames

    def _frame(self, spec: exp.Expr, node: exp.Window, keys: tuple[OrderKey, ...]) -> Frame:
        if spec.args.get("exclude"):
            raise self.refuse(node, "EXCLUDE in a frame", "Remove it.")
        unit = str(spec.args.get("kind")).upper()
        if unit not in {"ROWS", "RANGE"}:
            raise self.refuse(node, f"A frame of {unit}", "Use ROWS or RANGE.")
        start = self._bound(spec.args.get("start"), spec.args.get("start_side"), unit, node)
        end = FrameBound(_CURRENT_ROW)
        if spec.args.get("end") is not None:
            end = self._bound(spec.args["end"], spec.args.get("end_side"), unit, node)
        if _is_backwards(start, end):
            raise self.refuse(node, "A frame that ends before it begins", _FRAME)
        bounds = [bound for bound in (start, end) if bound.offset is not None]
        if unit == "RANGE" and bounds and len(keys) != 1:
            hint = "RANGE with an offset needs a single key in ORDER BY. Remove the other keys, or use ROWS."
            raise self.refuse(node, f"RANGE with an offset over {len(keys)} keys", hint)
        is_whole = start == FrameBound("PRECEDING") and end == FrameBound("FOLLOWING")
        units = {bound.offset.unit if isinstance(bound.offset, Interval) else None for bound in bounds}
        if len(units) > 1:
            hint = "Write two numbers, or two intervals of one unit."
            raise self.refuse(node, "A frame with offsets of two units", hint)
        if unit == "RANGE" and not keys and not is_whole:
            raise self.refuse(node, "RANGE without ORDER BY", "Add ORDER BY, or use ROWS.")
        return Frame(unit, start, end)

    def _bound(self, value: object, side: object, unit: str, node: exp.Window) -> FrameBound:
        if value == _CURRENT_ROW or str(value).upper() == _CURRENT_ROW:
            return FrameBound(_CURRENT_ROW)
        word = str(side).upper()
        if word not in {"PRECEDING", "FOLLOWING"}:
            raise self.refuse(node, "This frame", _FRAME)
        if not isinstance(value, exp.Expr):
            return FrameBound(word)
        offset = self.read(value)
        if not _is_named_parameter(offset, value) and not _is_offset(offset, unit):
            kinds = "a whole number" if unit == "ROWS" else "a number or an interval"
            raise self.refuse(node, f"This offset in a frame of {unit}", f"Write {kinds} without a sign. {_FRAME}")
        return FrameBound(word, offset)


def _is_offset(offset: Expression, unit: str) -> bool:
    match offset:
        case Number():
            is_row = offset.is_integer and not offset.suffix and int(offset.text) <= _MOST_ROWS
            return is_row or unit == "RANGE"
        case Interval(value, _):
            return unit == "RANGE" and not value.startswith(("-", "+"))
        case _:
            return False


def _is_named_parameter(value: Expression, written: exp.Expr) -> bool:
    """Whether a parameter was read as its name, for the name of a column."""
    return isinstance(value, Name) and isinstance(written.unnest(), exp.Placeholder | exp.Interval)


def _example(function: str) -> str:
    otherwise = "" if WINDOW_FUNCTIONS.get(function) == (0, 0) else "x"
    arguments = _EXAMPLES.get(function, otherwise)
    return f"Write for example {function.upper()}({arguments}) OVER (PARTITION BY k ORDER BY t)."


def _is_backwards(start: FrameBound, end: FrameBound) -> bool:
    """Whether a frame is known to end before it begins."""
    first, last = _place(start), _place(end)
    if first > last or first == _PLACES - 1 or last == 0:
        return True
    one, other = _size(start.offset), _size(end.offset)
    if first != last or one is None or other is None:
        return False
    return one < other if start.side == "PRECEDING" else one > other


_PLACES = 5


def _place(bound: FrameBound) -> int:
    """Returns the place of a bound among `_PLACES`: 0 for the start of the partition, the last one for its end."""
    if bound.side == _CURRENT_ROW:
        return 2
    if bound.offset is None:
        return 0 if bound.side == "PRECEDING" else _PLACES - 1
    return 1 if bound.side == "PRECEDING" else 3


def _size(offset: Expression | None) -> Decimal | None:
    """Returns an offset as a number, in milliseconds if it is an interval; None if its length varies."""
    if isinstance(offset, Number):
        return Decimal(offset.text)
    return milliseconds_of(offset) if isinstance(offset, Interval) else None
