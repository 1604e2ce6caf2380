"""Literals are exact and have the column's type, or there is none."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from service.sql.types.data_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    TypeName,
    decimal,
)
from workers.engine.plan.expressions import MAX_LENGTH, NULL_LITERAL, identity_of, literal, typed_null

NOON = datetime(2013, 1, 2, 12, 0, 0, 5)  # noqa: DTZ001 - as files have it
NESTED = DataType(TypeName.OTHER, text="ARRAY<INT>")


@pytest.mark.parametrize(
    ("value", "type_", "text"),
    [
        (7, BIGINT, "7L"),
        (-(2**63) + 1, BIGINT, "-9223372036854775807L"),
        ("-12", INT, "-12"),
        (5, DataType(TypeName.TINYINT), "5Y"),
        (5, DataType(TypeName.SMALLINT), "5S"),
        (True, BOOLEAN, "TRUE"),
        ("false", BOOLEAN, "FALSE"),
        ("it's \\ ${env:HOME}\n' OR 1 = 1 --", STRING, r"'it\'s \\ \u0024{env:HOME}\n\' OR 1 = 1 --'"),
        (b"\x00\xff", BINARY, "X'00ff'"),
        (date(2013, 1, 2), DATE, "CAST('2013-01-02' AS DATE)"),
        ("2013-01-02", DATE, "CAST('2013-01-02' AS DATE)"),
        (NOON.replace(tzinfo=UTC), TIMESTAMP, "CAST('2013-01-02 12:00:00.000005+00:00' AS TIMESTAMP)"),
        (NOON, TIMESTAMP_NTZ, "CAST('2013-01-02 12:00:00.000005' AS TIMESTAMP_NTZ)"),
        (Decimal("-1E+2"), decimal(10, 2), "CAST(-100.00 AS DECIMAL(10,2))"),
        ("1.50", decimal(10, 2), "CAST(1.50 AS DECIMAL(10,2))"),
        # One value has one literal, however it is written.
        ("007", INT, "7"),
        ("-0", BIGINT, "0L"),
        ("01.5", decimal(10, 2), "CAST(1.50 AS DECIMAL(10,2))"),
        ("-0.0", decimal(10, 2), "CAST(0.00 AS DECIMAL(10,2))"),
        (
            NOON.replace(tzinfo=timezone(timedelta(hours=-5))),
            TIMESTAMP,
            "CAST('2013-01-02 17:00:00.000005+00:00' AS TIMESTAMP)",
        ),
    ],
)
def test_a_literal_of_the_columns_type(value: object, type_: DataType, text: str) -> None:
    made = literal(value, type_)
    assert made is not None
    assert (made.sql, made.columns, made.type) == (text, (), type_)


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (0.1, DOUBLE),
        (2**31, INT),
        (-(2**63), BIGINT),
        (True, BIGINT),
        (" 7", BIGINT),
        ("1e3", decimal(10, 2)),
        ("1.555", decimal(10, 2)),
        (Decimal("1E+9"), decimal(10, 2)),
        (Decimal("NaN"), decimal(10, 2)),
        ("yes", BOOLEAN),
        ("2013-02-30", DATE),
        (datetime(2013, 1, 2), DATE),  # noqa: DTZ001 - a time without a zone is what is refused
        (NOON, TIMESTAMP),
        (NOON.replace(tzinfo=UTC), TIMESTAMP_NTZ),
        (7, STRING),
        ([1], NESTED),
    ],
)
def test_what_has_no_exact_literal(value: object, type_: DataType) -> None:
    assert literal(value, type_) is None


def test_values_are_the_same_whatever_the_width_of_their_type() -> None:
    seven = [literal(value, type_) for value, type_ in ((7, INT), ("007", BIGINT), ("7", STRING), ("7L", STRING))]
    identities = [identity_of((one,)) for one in seven if one is not None]
    assert identities[0] == identities[1]
    assert len(set(identities)) == 3


def test_null() -> None:
    assert literal(None, BIGINT) == NULL_LITERAL
    null = typed_null(decimal(10, 2))
    assert null is not None
    assert (null.sql, null.type) == ("CAST(NULL AS DECIMAL(10,2))", decimal(10, 2))
    assert typed_null(NESTED) is None


def test_what_is_long_has_none() -> None:
    assert literal("x" * MAX_LENGTH, STRING) is not None
    assert literal("x" * (MAX_LENGTH + 1), STRING) is None
    assert literal(b"x" * MAX_LENGTH, BINARY) is not None
    assert literal(b"x" * (MAX_LENGTH + 1), BINARY) is None
