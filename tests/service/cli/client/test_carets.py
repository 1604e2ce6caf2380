"""The caret stands below the column, whatever is before it."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from service.cli.client.carets import pointed_out


@pytest.mark.parametrize("before", ["", "SELECT ", "\t\t", "'大きさ' AS ", "x" * 200])
def test_the_caret_is_below(before: str) -> None:
    line, caret = pointed_out(f"SELECT\n{before}@ FROM t{' ' * 100}y", 2, len(before) + 1)
    assert cell_len(line.partition("@")[0]) == len(caret) - 1
    assert cell_len(line) <= 80


def test_an_escape_in_the_sql_is_not_obeyed() -> None:
    line, caret = pointed_out("SELECT '\x1b[31m' @", 1, 16)
    assert line == r"SELECT '\x1b[31m' @"
    assert line[len(caret) - 1] == "@"


def test_without_a_column_the_line_alone() -> None:
    assert pointed_out("a\nb", 2, None) == ("b",)
    assert pointed_out("a\nb", 2, 99) == ("b",)


@pytest.mark.parametrize("line", [0, 3])
def test_no_such_line(line: int) -> None:
    assert pointed_out("a\nb", line, 1) == ()
