"""Group windows as SQL calls them, as Flink does: TUMBLE and HOP in GROUP BY, their start and end in SELECT."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum

from service.spec.dialect import Text
from service.spec.errors import SpecError
from service.spec.tree import Call, Expression, Interval, Name, walk

MAX_WINDOWS_PER_ROW = 144
"""Sliding windows that a row may be in. It is written out once for each, by an expression for each in the plan, which
is made anew for every mini-batch: with 288 that took twenty seconds on two busy cores."""

SESSIONS = frozenset({"session", "session_start", "session_end", "session_window"})
"""Windows that are refused, by Flink's names and by Spark's."""


class Part(StrEnum):
    """What of its window a query may ask for."""

    START = "start"
    END = "end"


WINDOWS = {"tumble": 1, "hop": 2}
"""What GROUP BY may hold, in lower case, and how many intervals it takes."""

PARTS = {f"{window}_{part}": (window, part) for window in WINDOWS for part in Part}
"""What SELECT, HAVING and ORDER BY may hold then."""

_UNITS = {"WEEK": 604_800_000, "DAY": 86_400_000, "HOUR": 3_600_000, "MINUTE": 60_000, "SECOND": 1000}
_FORMS = {
    "tumble": "TUMBLE(ts, INTERVAL '10' MINUTE)",
    "hop": "HOP(ts, INTERVAL '1' MINUTE, INTERVAL '10' MINUTE), of which the first interval is the slide",
}


@dataclass(frozen=True)
class GroupWindow:
    """Windows over an event-time column, as the query names it: of `size` each, one beginning every `slide`."""

    column: Name
    size: timedelta
    slide: timedelta


def is_window(tree: Expression) -> bool:
    """Whether `tree` is a window, as GROUP BY holds it."""
    return isinstance(tree, Call) and tree.name in WINDOWS


def part_of(tree: Expression) -> Part | None:
    """What of a window `tree` is; None where it is no such thing."""
    return PARTS[tree.name][1] if isinstance(tree, Call) and tree.name in PARTS else None


def column_of(part: Part) -> str:
    """The column of a window's start or end, where the query gives it no name."""
    return f"window_{part}"


def parts_in(tree: Expression) -> bool:
    """Whether `tree` asks for the start or the end of a window."""
    return any(part_of(node) is not None for node in walk(tree))


def window_of(call: Call, source: Text) -> GroupWindow:
    """The window that a call of WINDOWS or PARTS is, or is a part of. Raises SpecError `unsupported_construct`."""
    kind = call.name if call.name in WINDOWS else PARTS[call.name][0]
    told = call.name.upper()
    hint = f"Write {_FORMS[kind].replace(kind.upper(), told, 1)}."
    if len(call.arguments) != 1 + WINDOWS[kind]:
        raise source.unsupported(f"{told} with {len(call.arguments)} arguments", at=call.at, hint=hint)
    column, *intervals = call.arguments
    if not isinstance(column, Name):
        hint = "Name the column that is the event time of its stream."
        raise source.unsupported(f"{told} over anything but a column", at=call.at, hint=hint)
    lengths = [_length(interval, told, hint, call.at, source) for interval in intervals]
    return GroupWindow(column, size=lengths[-1], slide=lengths[0])


def milliseconds_of(interval: Interval) -> Decimal | None:
    """How long an interval is; None for months and years, of which not all are as long."""
    length = _UNITS.get(interval.unit)
    return None if length is None else Decimal(interval.value) * length


def misplaced(name: str, at: int | None, source: Text) -> SpecError:
    """The error where a window, or a part of one, stands where it cannot."""
    if source.pointer != "/sql":
        hint = "A group window is the query's `window`, whose `start` and `end` are columns of `select`."
    elif name in WINDOWS:
        hint = f"It stands alone in GROUP BY; SELECT has {name.upper()}_START and {name.upper()}_END."
    else:
        window = PARTS[name][0].upper()
        hint = f"It stands in SELECT, HAVING and ORDER BY, outside of aggregates; GROUP BY has {window}."
    return source.unsupported(name.upper(), at=at, hint=hint)


def session_refused(name: str, at: int | None, source: Text) -> SpecError:
    """The error for a session window."""
    detail = (
        f"{name.upper()}: a session window grows and joins others as rows come, so that what was emitted would have to "
        "be taken back, which Spark cannot. Use TUMBLE or HOP."
    )
    return source.error("session_window", detail, at=at)


def _length(tree: Expression, told: str, hint: str, at: int | None, source: Text) -> timedelta:
    if not isinstance(tree, Interval):
        raise source.unsupported(f"{told} with anything but an interval behind its column", at=at, hint=hint)
    milliseconds = milliseconds_of(tree)
    if milliseconds is None:
        detail = f"{told} with an interval of {tree.unit}"
        raise source.unsupported(detail, at=at, hint="Not all of them are as long: use DAY, or shorter units.")
    if milliseconds != int(milliseconds) or not 1 <= milliseconds <= _LONGEST // timedelta(milliseconds=1):
        hint = "A window, and a slide, are whole milliseconds, and at most 3650 days."
        raise source.unsupported(f"{told} with the interval '{tree.value}' {tree.unit}", at=at, hint=hint)
    return timedelta(milliseconds=int(milliseconds))


_LONGEST = timedelta(days=3650)
