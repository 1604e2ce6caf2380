"""Bitmaps of integers: which types have a bit. `tests/conformance/test_distinct_methods.py` checks their counts."""

from __future__ import annotations

import pytest

from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, BOOLEAN, DATE, DOUBLE, INT, STRING, DataType, decimal
from workers.engine.rules.distinct.bitmaps import (
    BLOCK,
    BLOCK_BYTES,
    LANE,
    LANES,
    as_integer,
    bitmap_of,
    bits_in,
    lanes_of,
    place_in_block,
)

V = column("t.v", BIGINT)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (BIGINT, "t.v"),
        (INT, "CAST(t.v AS BIGINT)"),
        (BOOLEAN, "CAST(t.v AS BIGINT)"),
        (DATE, "CAST(unix_date(t.v) AS BIGINT)"),
        (decimal(18, 18), "CAST(t.v * 1000000000000000000BD AS BIGINT)"),
        (decimal(19, 0), None),
        (STRING, None),
        (DOUBLE, None),
        (None, None),
    ],
)
def test_integers_by_type(type_: DataType | None, text: str | None) -> None:
    made = as_integer(column("t.v", type_))
    assert (None if made is None else str(made)) == text


@pytest.mark.parametrize(("width", "lanes", "shift"), [(LANE, 1, 6), (LANES, 4, 8)])
def test_lanes_and_bitmaps(width: int, lanes: int, shift: int) -> None:
    assert str(bitmap_of(V, width)) == f"shiftright(t.v, {shift})"
    assert len(lanes_of(V, width)) == lanes
    assert str(bits_in((V,) * lanes)) == " + ".join(["bit_count(t.v)"] * lanes)


def test_blocks() -> None:
    assert str(bitmap_of(V, BLOCK)) == "shiftright(t.v, 15)"
    assert str(place_in_block(V)) == "t.v & 32767L"
    assert BLOCK < 8 * BLOCK_BYTES
