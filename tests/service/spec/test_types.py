"""Types and schemas as values."""

from __future__ import annotations

from service.spec.types import BIGINT, INT, STRING, UNKNOWN, DataType, Field, Schema, TypeName, decimal, known


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
