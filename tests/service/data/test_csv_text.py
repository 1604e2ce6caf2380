"""Where rows end: outside of quotes, which open at the beginning of a value alone."""

from __future__ import annotations

import io
from typing import Any

import pytest

from service.contract.read_options import ReadOptions
from service.data.file_io import (
    after_first_row,
    bytes_of,
    differing_breaks,
    first_values,
    read_first_row,
    rows_in,
    text_of,
    whole_rows,
)


def options(**given: Any) -> ReadOptions:
    return ReadOptions.model_validate({"multi_line": True, **given})


@pytest.mark.parametrize(
    ("text", "rows", "given"),
    [
        ("", 0, {}),
        ("a,b", 0, {}),
        ('1,"x\ny"\n2,z\r\n', 2, {}),
        ('1,"x\ny"\n2,z\r\n', 3, {"multi_line": False}),
        ('"a ""quoted""\nvalue",1\r2\r', 2, {}),
        ('5" pipe,"x\ny"\n6" pipe\n', 2, {}),
        ('"",""\n"",\n', 2, {}),
        ('1,"never closed\n2\n3\n', 0, {}),
        ("1^'x\ny'^\"\n2^\"\n", 2, {"delimiter": "^", "quote": "'"}),
        ("1§«x\ny«§2\n", 1, {"delimiter": "§", "quote": "«"}),
        ("]x\ny]-1\n", 1, {"delimiter": "-", "quote": "]"}),
    ],
)
def test_rows_end_at_breaks_outside_of_quotes(text: str, rows: int, given: dict[str, Any]) -> None:
    assert rows_in(text, options(**given)) == rows


def test_a_row_that_is_cut_is_left_out() -> None:
    assert whole_rows('1,"x\ny"\n2,"x\n', options()) == '1,"x\ny"\n'
    assert whole_rows('1,"x\n', options()) == ""


def test_the_first_row_is_told_from_the_rest() -> None:
    text = 'id ,"two\r\nlines"\r\n1,"a\nb"\r\n'
    assert first_values(text, options()) == ["id", "two\r\nlines"]
    assert after_first_row(text, options()) == '1,"a\nb"\r\n'
    assert first_values("", options()) == []
    with pytest.raises(UnicodeDecodeError):
        first_values(text_of(b"\xff,1\n"), options())


def test_pieces_of_characters_are_kept() -> None:
    data = "a,é".encode()[:-1]
    assert bytes_of(text_of(b"\xef\xbb\xbf" + data)) == data


@pytest.mark.parametrize("length", [10, (1 << 16) - 9, (1 << 16) - 8, 70_000])
def test_hardly_more_than_the_first_row_is_read(length: int) -> None:
    row = f'1,"x\n{"y" * length}"\r\n'
    stream = io.BytesIO((row + "2,z\r\n" * 100_000).encode())
    assert first_values(read_first_row(stream, options(), 1 << 20), options())[0] == "1"
    assert stream.tell() <= len(row) + (1 << 16)


def test_a_first_row_without_an_end_is_read_up_to_the_limit() -> None:
    assert len(read_first_row(io.BytesIO(b'"' + b"\n" * (1 << 20)), options(), 1 << 18)) == 1 << 18


@pytest.mark.parametrize(
    ("text", "differ"),
    [
        ('1,"a\nb"\r\n', True),
        ('1,"a\r\nb"\n', True),
        ('1,"a\rb"\n', True),
        ('1,"a\nb"\n', False),
        ('1,x\r\n2,"a\nb"\r\n', False),
        ('1,"a\nb"', False),
        ("1", False),
    ],
)
def test_a_break_inside_the_first_row_may_be_another_one(text: str, differ: bool) -> None:
    assert differing_breaks(text, options()) is differ
