"""Types and schemas as values."""

from __future__ import annotations

import pytest

from service.sql.types.data_types import (
    BIGINT,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    UNKNOWN,
    DataType,
    Field,
    Schema,
    TypeName,
    array,
    decimal,
    known,
    mapping,
    struct,
)

MAP = mapping(STRING, INT)


def test_spelling() -> None:
    assert str(decimal(10, 2)) == "DECIMAL(10,2)"
    assert str(DataType(TypeName.NULL)) == "VOID"
    assert str(DataType(TypeName.OTHER, text="ARRAY<INT>")) == "ARRAY<INT>"
    assert str(DataType(TypeName.OTHER)) == "OTHER"
    assert str(DataType(TypeName.TIMESTAMP_NTZ)) == "TIMESTAMP_NTZ"


def test_decimals_are_bounded_as_spark_bounds_them() -> None:
    assert decimal(48, 2) == decimal(38, 2)
    assert decimal(42, 42) == decimal(38, 38)


def test_kinds() -> None:
    assert INT.is_numeric
    assert INT.is_integral
    assert not INT.is_fractional
    assert decimal(5, 2).is_numeric
    assert not decimal(5, 2).is_integral
    assert DataType(TypeName.FLOAT).is_fractional
    assert not STRING.is_numeric


def test_nested_types_are_spelled_as_spark_spells_them() -> None:
    assert str(array(decimal(5, 2))) == "ARRAY<DECIMAL(5,2)>"
    fields = [Field("uid", BIGINT), Field("a b", array(STRING)), Field("`: INT>)", INT), Field("ä", INT)]
    assert str(struct(fields)) == "STRUCT<uid: BIGINT, `a b`: ARRAY<STRING>, ```: INT>)`: INT, `ä`: INT>"
    assert str(MAP) == "MAP<STRING, INT>"


@pytest.mark.parametrize(
    ("type_", "groups", "fractions"),
    [
        (INT, True, False),
        (DOUBLE, True, False),
        (array(INT), True, False),
        (array(struct([Field("x", array(FLOAT)), Field("t", STRING)])), True, True),
        (MAP, False, False),
        (array(MAP), False, False),
        (struct([Field("x", INT), Field("m", MAP)]), False, False),
        (struct([]), True, False),
        (array(UNKNOWN), False, False),
        (UNKNOWN, False, False),
    ],
    ids=str,
)
def test_what_can_be_grouped_by(type_: DataType, groups: bool, fractions: bool) -> None:
    assert (type_.is_groupable, type_.nests_fractions) == (groups, fractions)


def test_find_prefers_the_exact_spelling() -> None:
    schema = Schema((Field("a", INT), Field("A", BIGINT), Field("b", STRING)))
    assert schema.find("A") == Field("A", BIGINT)
    assert schema.find("a") == Field("a", INT)
    assert schema.find("B") == Field("b", STRING)
    assert schema.find("c") is None
    assert Schema((Field("ab", INT), Field("AB", INT))).find("Ab") is None
    assert schema.names == ("a", "A", "b")


def test_unknown_is_no_type() -> None:
    assert known(UNKNOWN) is None
    assert known(INT) == INT
