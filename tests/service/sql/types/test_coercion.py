"""Rules of types that need no Spark to be told; `test_inference` compares the rest with it."""

from __future__ import annotations

import pytest

from service.sql.types.data_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    DataType,
    Incompatible,
    TypeName,
    arithmetic,
    common_type,
    comparable,
    decimal,
    wider_number,
    widest,
)


@pytest.mark.parametrize(
    ("operator", "left", "right", "result"),
    [
        ("+", INT, BIGINT, BIGINT),
        ("/", INT, INT, DOUBLE),
        ("*", FLOAT, FLOAT, FLOAT),
        ("+", FLOAT, INT, DOUBLE),
        ("+", decimal(10, 2), INT, decimal(13, 2)),
        ("*", decimal(38, 10), decimal(38, 10), decimal(38, 6)),
        ("/", decimal(10, 2), decimal(10, 2), decimal(23, 13)),
        ("+", DATE, INT, DATE),
        ("+", INT, NULL, INT),
        ("+", NULL, NULL, None),
    ],
)
def test_arithmetic(operator: str, left: DataType, right: DataType, result: DataType | None) -> None:
    assert arithmetic(operator, left, right) == result


@pytest.mark.parametrize(("left", "right"), [(BOOLEAN, INT), (STRING, STRING), (DATE, DATE), (TIMESTAMP, INT)])
def test_no_sum_of_these(left: DataType, right: DataType) -> None:
    with pytest.raises(Incompatible):
        arithmetic("+", left, right)


def test_widening() -> None:
    assert wider_number(INT, decimal(10, 2)) == decimal(12, 2)
    assert wider_number(decimal(38, 0), decimal(38, 20)) == decimal(38, 6)
    assert common_type(STRING, INT, strings_convert=True) == BIGINT
    assert widest([INT, None], strings_convert=True) is None
    assert widest([NULL, INT, BIGINT], strings_convert=True) == BIGINT
    assert widest([STRING, INT, DOUBLE], strings_convert=True) is None
    with pytest.raises(Incompatible):
        common_type(DATE, INT, strings_convert=True)
    array = DataType(TypeName.OTHER, text="ARRAY<INT>")
    assert common_type(array, array, strings_convert=True) == array
    for other in (STRING, INT, DataType(TypeName.OTHER, text="ARRAY<STRING>")):
        with pytest.raises(Incompatible):
            common_type(array, other, strings_convert=True)


def test_comparable() -> None:
    assert comparable(STRING, BOOLEAN)
    assert comparable(DATE, TIMESTAMP)
    assert comparable(NULL, BOOLEAN)
    assert not comparable(BOOLEAN, INT)
    assert not comparable(DATE, INT)
