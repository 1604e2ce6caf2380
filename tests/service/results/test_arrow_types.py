"""Spark's types in Arrow."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from service.results.columns import arrow_schema, arrow_type, one_row
from service.sql.types.data_types import (
    ATOMIC,
    BIGINT,
    NULL,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    UNKNOWN,
    DataType,
    Field,
    TypeName,
    array,
    decimal,
    mapping,
    struct,
)


@pytest.mark.parametrize("name", sorted(ATOMIC))
def test_every_atomic_type_has_one(name: TypeName) -> None:
    type_ = decimal(10, 2) if name is TypeName.DECIMAL else DataType(name)
    assert arrow_type(array(type_)).value_type == arrow_type(type_)


def test_nested_types() -> None:
    inner = struct([Field("a", decimal(38, 10)), Field("b `c", TIMESTAMP), Field("d", struct([]))])
    expected = pa.struct(
        [
            ("a", pa.decimal128(38, 10)),
            ("b `c", pa.timestamp("us", tz="UTC")),
            ("d", pa.struct([])),
        ]
    )
    assert arrow_type(inner) == expected
    assert arrow_type(mapping(BIGINT, array(inner))) == pa.map_(pa.int64(), pa.list_(pa.field("element", expected)))
    assert arrow_type(DataType(TypeName.OTHER, text="array< varchar(10) >")).value_type == pa.string()
    assert arrow_type(TIMESTAMP_NTZ) == pa.timestamp("us")


@pytest.mark.parametrize(
    "type_",
    [
        NULL,
        UNKNOWN,
        *(
            DataType(TypeName.OTHER, text=text)
            for text in (
                "INTERVAL DAY TO SECOND",
                "ARRAY<",
                "ARRAY<INT>>",
                "STRUCT<a INT>",
                "DECIMAL(a)",
                "DECIMAL(1;",
                "§",
            )
        ),
    ],
    ids=str,
)
def test_what_files_cannot_hold(type_: DataType) -> None:
    with pytest.raises(ValueError, match=r"The column c: the type .* cannot be stored"):
        arrow_schema([Field("c", type_)])


def test_a_row_of_json_values() -> None:
    fields = [
        Field("n", BIGINT),
        Field("d", decimal(3, 1)),
        Field("t", TIMESTAMP_NTZ),
        Field("none", decimal(3, 1)),
        Field("b", DataType(TypeName.BOOLEAN)),
    ]
    row = one_row((0, 0, "2026-01-02T03:04:05", None, True), arrow_schema(fields))
    assert row.to_pylist() == [
        {"n": 0, "d": Decimal("0.0"), "t": datetime.fromisoformat("2026-01-02T03:04:05"), "none": None, "b": True}
    ]
