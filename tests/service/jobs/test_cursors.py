"""Cursors: opaque, and of one list alone."""

from __future__ import annotations

import pytest

from service.contract.errors import InvalidCursorError
from service.jobs.views import decode_cursor, encode_cursor


@pytest.mark.parametrize("position", [[1, "a"], [0, ""], [2**63 - 1, "ü/+"]])
def test_a_cursor_gives_back_its_position(position: list[int | str]) -> None:
    assert decode_cursor(encode_cursor(position, "list"), "list", (int, str)) == position


@pytest.mark.parametrize("shape", [(int,), (str, int), (int, str, int), ()])
def test_another_shape_is_refused(shape: tuple[type, ...]) -> None:
    with pytest.raises(InvalidCursorError):
        decode_cursor(encode_cursor([1, "a"], "list"), "list", shape)


def test_another_list_is_refused() -> None:
    with pytest.raises(InvalidCursorError, match="other filters"):
        decode_cursor(encode_cursor([1], "one"), "two", (int,))


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30])
def test_a_number_that_no_database_holds_is_refused(number: int) -> None:
    with pytest.raises(InvalidCursorError):
        decode_cursor(encode_cursor([number], "list"), "list", (int,))


def test_true_is_no_number() -> None:
    with pytest.raises(InvalidCursorError):
        decode_cursor(encode_cursor([True], "list"), "list", (int,))
