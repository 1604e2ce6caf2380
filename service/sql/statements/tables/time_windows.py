"""Replaces windows of time in one SELECT: Spark's `window(t, '10 minutes', '5 minutes')` in batch jobs, and Flink's
`CUMULATE(t, INTERVAL '1' HOUR, INTERVAL '1' DAY)` in GROUP BY, with CUMULATE_START and CUMULATE_END.

A tumbling window becomes a structure of its start and end, computed by `time_bucket`. Rows whose time is NULL are left
out. Other windows become a generator: a row is copied into each of its windows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from service.contract.problems import SpecError
from service.sql.expressions.calls import MAX_WINDOWS_PER_ROW
from service.sql.expressions.compile_expression import matching
from service.sql.expressions.nodes import Name
from service.sql.expressions.reader import position
from service.sql.parser import Text
from service.sql.statements import trees
from service.sql.statements.nested import Nested
from service.sql.statements.tables.from_clause import Sources
from service.sql.types.data_types import DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ, DataType

TIME_WINDOWS = "windows of time in batch jobs"
"""What `Origins.constructs` contains for a query that workers before version 17 refuse."""
CUMULATIVE_WINDOWS = "cumulative windows"
"""The same for workers before version 22."""
WINDOW, CUMULATE = "window", "cumulate"
_FORM = "Write window(t, '10 minutes'), or window(t, '10 minutes', '5 minutes') with the size and the slide."
_CUMULATE_FORM = (
    "Write CUMULATE(t, INTERVAL '1' HOUR, INTERVAL '1' DAY) in GROUP BY, with the step and the size, a multiple of it, "
    "and CUMULATE_START and CUMULATE_END with the same arguments."
)
_NAMES = {
    WINDOW: (WINDOW, None),
    CUMULATE: (WINDOW, None),
    "cumulate_start": ("window_start", "start"),
    "cumulate_end": ("window_end", "end"),
}
"""The functions: the name of their column in SELECT, and the field of the window that they are."""
_CLAUSES = ("expressions", "group", "having", "qualify", "order")
_UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_LENGTH = re.compile(rf"\s*([+-]?\d{{1,9}})\s+({'|'.join(_UNITS)})s?(?=\s|$)", re.ASCII | re.IGNORECASE)
LONGEST = 999_999_999_000_000
"""The longest window in microseconds: the digits of an interval's literal limit it."""


def has_time_window(select: exp.Select) -> bool:
    """Whether a clause of `select` calls the function."""
    return next(_calls(select), None) is not None


def with_time_windows(select: exp.Select, nested: Nested, source: Text) -> exp.Select:
    """Returns `select` with its calls of the function, and the columns of that name, replaced. Raises SpecError."""
    calls = list(_calls(select))
    first = calls[0]
    other = next((call for call in calls if call.expressions != first.expressions), None)
    other = other or next((call for call in calls if (_name(call) == WINDOW) is not (_name(first) == WINDOW)), None)
    if other is not None:
        hint = "Compute one of them in a derived table."
        raise source.unsupported("A second window of time in one SELECT", at=position(other), hint=hint)
    group = select.args.get("group")
    keys = group.expressions if group is not None else []
    if _name(first) != WINDOW and not any(_name(key) == CUMULATE for key in keys):
        what = f"{_name(first).upper()} without CUMULATE as a key of GROUP BY"
        raise source.unsupported(what, at=position(first), hint=_CUMULATE_FORM)
    return _Windows(select.copy(), first, nested, source).replaced()


def _name(node: exp.Expr) -> str:
    return str(node.this).lower() if isinstance(node, exp.Anonymous) else ""


def _is_call(node: exp.Expr) -> bool:
    return _name(node) in _NAMES


def _parts(select: exp.Select) -> Iterator[exp.Expr]:
    for key in _CLAUSES:
        value = select.args.get(key)
        yield from value if isinstance(value, list) else [value] if value is not None else []


def _calls(select: exp.Select) -> Iterator[exp.Expr]:
    for part in _parts(select):
        for node in part.walk(prune=lambda each: isinstance(each, exp.Query)):
            if _is_call(node):
                yield node


@dataclass
class _Windows:
    select: exp.Select
    call: exp.Expr
    nested: Nested
    source: Text

    def replaced(self) -> exp.Select:
        """Returns the SELECT. Raises SpecError."""
        sources = self.nested.sources(self.select)
        is_cumulative = _name(self.call) != WINDOW
        time, spans = self._cumulative(sources) if is_cumulative else self._sliding(sources)
        windows = [structure(start, end) for start, end in spans]
        tree: exp.Expr = exp.Paren(this=windows[0])
        condition = exp.Not(this=trees.is_null(time))
        if len(windows) > 1:
            elements = [
                exp.Case(ifs=[exp.If(this=exp.GT(this=end, expression=time.copy()), true=window)])
                for (_, end), window in zip(spans, windows, strict=True)
            ]
            tree = self._generated(trees.call("ARRAY", *elements))
            condition = exp.Not(this=trees.is_null(tree))
        where = self.select.args.get("where")
        terms = [*([where.this] if where is not None else []), condition]
        self.select.set("where", exp.Where(this=trees.chained(terms, exp.And)))
        self._replace(tree, sources)
        self.nested.constructs.add(CUMULATIVE_WINDOWS if is_cumulative else TIME_WINDOWS)
        return self.select

    def _sliding(self, sources: Sources) -> tuple[exp.Expr, list[tuple[exp.Expr, exp.Expr]]]:
        """Returns the time, and the starts and ends of all windows that may contain it."""
        time, *lengths = self.call.expressions or [None]
        if time is None or not 1 <= len(lengths) <= 3:
            raise self._refused(f"window with {_number_of(len(self.call.expressions))}")
        size, slide, begin = self._lengths(lengths)
        count = -(-size // slide)
        if count > MAX_WINDOWS_PER_ROW:
            raise self._refused(
                f"window with {count} windows for a row", f"Use a slide of at least a {MAX_WINDOWS_PER_ROW}th."
            )
        time = as_time(time, sources, self.source)
        bucket = moved(trees.call("TIME_BUCKET", _interval(slide), moved(time, -begin)), begin)
        starts = [moved(bucket, -number * slide) for number in range(count)]
        return time, [(start, moved(start, size)) for start in starts]

    def _cumulative(self, sources: Sources) -> tuple[exp.Expr, list[tuple[exp.Expr, exp.Expr]]]:
        """The same for windows with a common start, each of which is a step longer than the one before."""
        name = _name(self.call).upper()
        time, *lengths = self.call.expressions or [None]
        step, size = (length_of(each) or 0 for each in lengths) if len(lengths) == 2 else (0, 0)
        if time is None or not 0 < step <= size <= LONGEST or size % step:
            raise self._refused(f"{name} with these arguments", _CUMULATE_FORM)
        if size // step > MAX_WINDOWS_PER_ROW:
            hint = f"Use a step of at least a {MAX_WINDOWS_PER_ROW}th of the size."
            raise self._refused(f"{name} with {size // step} windows for a row", hint)
        check_time(time, sources, self.source, position(self.call))
        time = as_time(time, sources, self.source)
        start = trees.call("TIME_BUCKET", _interval(size), time)
        return time, [(start, moved(start, end)) for end in range(step, size + 1, step)]

    def _generated(self, array: exp.Expr) -> exp.Column:
        """Adds a generator of the elements of `array`. Returns its column."""
        at, alias = position(self.call), self.nested.alias()
        table = f"{alias}_g"
        named = exp.TableAlias(this=trees.identifier(table), columns=[trees.identifier(alias)])
        call = trees.placed(trees.call("EXPLODE", array), at)
        view = trees.placed(exp.Lateral(this=call, view=True, outer=False, alias=named), at)
        view.meta["hidden"] = True
        self.select.set("laterals", [*(self.select.args.get("laterals") or []), view])
        return trees.column(table, alias, at)

    def _replace(self, window: exp.Expr, sources: Sources) -> None:
        has_name = (
            _name(self.call) != WINDOW
            or sources.scope.has_column(WINDOW)
            or matching(WINDOW, sources.scope.tables) is not None
        )

        def replaced(part: exp.Expr) -> exp.Expr:
            if _is_call(part):
                _, bound = _NAMES[_name(part)]
                whole = window.copy()
                call = whole if bound is None else exp.Dot(this=whole, expression=trees.identifier(bound))
                return trees.placed(call, position(part))
            if has_name or not isinstance(part, exp.Column) or part.parts[0].name.casefold() != WINDOW:
                return part
            if isinstance(part.this, exp.Star):
                hint = "Write window.start and window.end."
                raise self.source.unsupported("The * of a window of time", at=position(part), hint=hint)
            tree = window.copy()
            for field in part.parts[1:]:
                tree = exp.Dot(this=tree, expression=trees.identifier(field.name))
            return trees.placed(tree, position(part))

        for key in _CLAUSES:
            value = self.select.args.get(key)
            if isinstance(value, list):
                self.select.set(key, [self._item(part, trees.mapped(part.copy(), replaced)) for part in value])
            elif value is not None:
                self.select.set(key, trees.mapped(value.copy(), replaced))

    def _item(self, old: exp.Expr, new: exp.Expr) -> exp.Expr:
        """Returns a column of SELECT, with the name that it had."""
        is_window = _is_call(old) or (isinstance(old, exp.Column) and old.name.casefold() == WINDOW)
        if new == old or isinstance(new, exp.Alias) or not (is_window or isinstance(old, exp.Column | exp.Dot)):
            return new
        own, _ = _NAMES.get(_name(old), (WINDOW, None))
        name = trees.identifier(own if is_window else old.name)
        return trees.placed(exp.Alias(this=new, alias=name), position(old))

    def _lengths(self, given: list[exp.Expr]) -> tuple[int, int, int]:
        size, *rest = (self._length(node) for node in given)
        slide = rest[0] if rest else size
        begin = rest[1] if len(rest) > 1 else 0
        if not 0 < slide <= size <= LONGEST or abs(begin) >= slide:
            hint = "The size is positive, the slide at most the size, and the start less than the slide."
            raise self._refused("window with these lengths", hint)
        return size, slide, begin

    def _length(self, node: exp.Expr) -> int:
        length = length_of(node) if isinstance(node, exp.Literal) else None
        if length is None:
            hint = f"{_FORM} The units are {', '.join(_UNITS)}."
            raise self._refused("window with a length that is not such a string", hint)
        return length

    def _refused(self, construct: str, hint: str = _FORM) -> SpecError:
        return self.source.unsupported(construct, at=position(self.call), hint=hint)


def length_of(node: exp.Expr) -> int | None:
    """Returns the microseconds of a text such as '10 minutes', or of an INTERVAL; None for others."""
    if isinstance(node, exp.Interval) and node.this is not None and node.args.get("unit") is not None:
        text = f"{node.this.name} {node.args['unit'].name}"
    else:
        text = node.name if isinstance(node, exp.Literal) and node.is_string else ""
    text = re.sub(r"^\s*interval\s", "", text, flags=re.IGNORECASE)
    total, place = 0, 0
    while (found := _LENGTH.match(text, place)) is not None:
        total, place = total + int(found[1]) * _UNITS[found[2].lower()], found.end()
    return total if text.strip() and not text[place:].strip() else None


def _number_of(arguments: int) -> str:
    return f"{arguments} argument{'' if arguments == 1 else 's'}"


def as_time(node: exp.Expr, sources: Sources, source: Text) -> exp.Expr:
    """Returns a column of dates or texts as a TIMESTAMP; another expression as it is."""
    if _type_of(node, sources, source) not in {DATE, STRING}:
        return node
    return exp.Cast(this=node, to=exp.DataType(this=exp.DType.TIMESTAMPTZ))


def check_time(node: exp.Expr, sources: Sources, source: Text, at: int | None) -> None:
    """Raises SpecError `type_mismatch` for a column that is no time."""
    found = _type_of(node, sources, source)
    if found is not None and found.is_known and found not in {DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ}:
        detail = (
            f"The time of a window is a TIMESTAMP, but {node.sql()[:60]} is {found}. CAST it, or name another column."
        )
        raise source.error("type_mismatch", detail, at=at)


def _type_of(node: exp.Expr, sources: Sources, source: Text) -> DataType | None:
    """Returns the type of a column; None for another expression."""
    if not isinstance(node, exp.Column) or len(node.parts) > 2:
        return None
    first, *rest = (part.name for part in node.parts)
    name = Name(first if rest else None, rest[0] if rest else first, position(node))
    try:
        _, found = sources.scope.locate(name, source)
    except SpecError:
        # A field of a structure, or a wrong name, which is refused later.
        return None
    return found.type


def _interval(microseconds: int) -> exp.Expr:
    whole, rest = divmod(microseconds, 1_000_000)
    value = f"{whole}.{rest:06}" if rest else str(whole)
    return exp.Interval(this=exp.Literal.string(value), unit=exp.Var(this="SECOND"))


def moved(time: exp.Expr, microseconds: int) -> exp.Expr:
    """Returns `time` plus the microseconds."""
    if not microseconds:
        return time.copy()
    kind = exp.Add if microseconds > 0 else exp.Sub
    return exp.Paren(this=kind(this=time.copy(), expression=_interval(abs(microseconds))))


def structure(start: exp.Expr, end: exp.Expr) -> exp.Expr:
    """Returns a window."""
    names = exp.Literal.string("start"), exp.Literal.string("end")
    return trees.call("NAMED_STRUCT", names[0], start, names[1], end)
