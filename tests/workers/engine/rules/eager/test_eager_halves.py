"""BIGINTs in halves."""

from __future__ import annotations

import pytest

from service.sql.types.data_types import BIGINT, INT, decimal
from tests.support.joined import col, text
from tests.support.scalars import scalar
from workers.engine.rules.eager.wide_sums import WHOLE, halves_of, needs_halves, whole_of


def in_python(sql: str, value: int) -> int:
    """The text of a half, as Spark computes it."""
    signed = (value + 2**63) % 2**64 - 2**63
    functions = {
        "shiftright": lambda of, by: of >> by,
        "shiftleft": lambda of, by: ((of << by) + 2**63) % 2**64 - 2**63,
        "x": signed,
    }
    return int(eval(sql.replace("`l.b`", "x").replace("1L", "1"), functions))


@pytest.mark.parametrize("value", [0, 1, -1, 2**31, -(2**31), 2**31 - 1, 2**32, 2**63 - 1, -(2**63), 6_442_450_944])
def test_both_halves_are_the_value_and_have_32_bits(value: int) -> None:
    high, low = (in_python(half.sql, value) for half in halves_of(col("l.b")))
    assert high * 2**32 + low == value
    assert -(2**31) <= low < 2**31
    assert -(2**31) <= high <= 2**31


def test_sums_of_halves_are_put_together() -> None:
    whole = whole_of(col("l.k"), col("l.b"))
    assert str(whole) == "CAST(l.k AS DECIMAL(20,0)) * 4294967296 + CAST(l.b AS DECIMAL(20,0))"
    assert (whole.type, whole_of(col("l.k"), col("l.b"), decimal(38, 0)).type) == (WHOLE, decimal(38, 0))


def test_integers_of_64_bits_are_halved() -> None:
    assert [needs_halves(value) for value in (col("l.b"), col("l.i"), col("l.m"))] == [True, False, False]
    assert needs_halves(text("l.i + 1L", "l.i", type_=BIGINT))
    assert not needs_halves(scalar("`l.i`", None))
    assert not needs_halves(text("1", type_=INT))
