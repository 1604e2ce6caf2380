"""The group window of one SELECT: TUMBLE or HOP in GROUP BY, and the columns that its start and end become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sqlglot import exp

from service.spec.dialect import Text
from service.spec.parsing import ExpressionReader
from service.spec.query import HoppingWindow, TumblingWindow
from service.spec.sql_items import Item
from service.spec.tree import Call, Expression, Name, position_of
from service.spec.windows import PARTS, WINDOWS, GroupWindow, Part, column_of, is_window, part_of, window_of


class WindowReader:
    """Finds the window of a SELECT, and puts columns in the place of its start and end."""

    def __init__(self, source: Text) -> None:
        self._source = source
        self._window: GroupWindow | None = None
        self._columns: dict[Part, str] = {}

    def read_key(self, node: exp.Expr) -> Expression | None:
        """The window that `node`, a key of GROUP BY, is, where it is nothing but one. Raises SpecError."""
        bare = node.unnest()
        if not isinstance(bare, exp.Anonymous) or str(bare.this).lower() not in WINDOWS:
            return None
        return ExpressionReader(self._source, aggregates=False, windows=WINDOWS).read(bare)

    def keys_beside(self, keys: Iterable[Expression], *, has_sets: bool) -> list[Expression]:
        """The keys of GROUP BY but the window, which is noted. Raises SpecError `unsupported_construct`."""
        windows: list[Call] = []
        others: list[Expression] = []
        for key in keys:
            if isinstance(key, Call) and is_window(key):
                windows.append(key)
            else:
                others.append(key)
        if len(windows) > 1:
            raise self._source.unsupported("A second window in GROUP BY", at=position_of(windows[1]))
        if windows and has_sets:
            hint = "Group by the window and all keys."
            raise self._source.unsupported("A window in grouping sets", at=position_of(windows[0]), hint=hint)
        self._window = window_of(windows[0], self._source) if windows else None
        return others

    def is_hidden(self, trees: Sequence[Expression]) -> bool:
        """Whether none of `trees` tells the query's windows apart: either end does."""
        return self._window is not None and all(part_of(tree) is None for tree in trees)

    def name_columns(self, items: Sequence[Item], fresh: Callable[[str], str]) -> None:
        """Gives start and end the names that SELECT has for them, else some that `fresh` makes."""
        for item in items:
            part = part_of(item.tree)
            if part is not None:
                self._columns.setdefault(part, item.name)
        for part in Part if self._window is not None else ():
            if part not in self._columns:
                self._columns[part] = fresh(column_of(part))

    def column(self, tree: Expression) -> Name | None:
        """The column that `tree` is, where it is the start or the end of a window. Raises SpecError `not_grouped`."""
        part = part_of(tree)
        if part is None or not isinstance(tree, Call):
            return None
        if self._window is None or window_of(tree, self._source) != self._window:
            window = PARTS[tree.name][0].upper()
            detail = f"{tree.name.upper()} needs GROUP BY {window}(…) over the same column with the same intervals."
            raise self._source.error("not_grouped", detail, at=tree.at)
        return Name(None, self._columns[part], tree.at)

    def query_window(self, text: Callable[[Expression, str, int | None], str]) -> TumblingWindow | HoppingWindow | None:
        """The window for the structured query; `text` renders an expression at a pointer."""
        window = self._window
        if window is None:
            return None
        column = text(window.column, "/window", window.column.at)
        start, end = self._columns[Part.START], self._columns[Part.END]
        if window.slide == window.size:
            return TumblingWindow(kind="tumble", column=column, size=window.size, start=start, end=end)
        return HoppingWindow(kind="hop", column=column, size=window.size, slide=window.slide, start=start, end=end)
