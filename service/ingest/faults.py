"""What is wrong with posted rows, and where: one shape for every format."""

from __future__ import annotations

from collections.abc import Sequence

from service.errors import InvalidRowsError
from service.spec.errors import Issue, did_you_mean, nearest_names

_SHOWN = 100


class BadValueError(Exception):
    """A value that its column cannot hold: the `row`, from 0, and the reason, which goes on from `it`."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


def invalid_rows(
    code: str,
    detail: str,
    *,
    line: int | None = None,
    column: str | None = None,
    suggestions: Sequence[str] = (),
    unit: str = "Line",
) -> InvalidRowsError:
    """The refusal of a whole body for one thing in it. `line` counts from 1, in what `unit` says."""
    place = f"{unit} {line}: " if line is not None else ""
    pointer = None if column is None else "/" + column.replace("~", "~0").replace("/", "~1")
    issue = Issue(code=code, detail=detail, pointer=pointer, line=line, suggestions=tuple(suggestions))
    return InvalidRowsError(f"{place}{detail} No row of this batch was stored.", issues=[issue])


def bad_value(error: BadValueError, column: str, line: int, *, unit: str = "Line") -> InvalidRowsError:
    """The refusal for a value of `column`."""
    detail = f"The value of column '{shown(column)}' cannot be taken: it {error.reason}."
    return invalid_rows("invalid_value", detail, line=line, column=column, unit=unit)


def unknown_column(name: str, names: Sequence[str], *, line: int | None = None, hint: str = "") -> InvalidRowsError:
    """The refusal for a column that the stream has not; a `hint` ends it."""
    nearest = nearest_names(name, names)
    detail = f"The stream has no column '{shown(name)}'.{did_you_mean(nearest)}{f' {hint}' if hint else ''}"
    return invalid_rows("unknown_column", detail, line=line, column=name[:_SHOWN], suggestions=nearest)


def no_rows() -> InvalidRowsError:
    """The refusal of a batch without rows."""
    return invalid_rows("no_rows", "There is no row in the body.")


def shown(text: str) -> str:
    """A text of the client's, short and on one line."""
    kept = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return kept.encode("unicode_escape").decode() if not kept.isprintable() else kept
