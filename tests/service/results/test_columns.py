"""Types of result columns: Spark's own where the files tell them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from service.results.columns import columns_of, served_schema


def spark_schema(*fields: tuple[str, pa.DataType, object]) -> pa.Schema:
    declared = {"type": "struct", "fields": [{"name": name, "type": spark} for name, _, spark in fields]}
    metadata = {b"org.apache.spark.sql.parquet.row.metadata": json.dumps(declared).encode()}
    return pa.schema([(name, arrow) for name, arrow, _ in fields], metadata=metadata)


@pytest.mark.parametrize(
    ("spark", "told"),
    [
        ("long", "BIGINT"),
        ("integer", "INT"),
        ("short", "SMALLINT"),
        ("byte", "TINYINT"),
        ("decimal(10,2)", "DECIMAL(10,2)"),
        ("timestamp_ntz", "TIMESTAMP_NTZ"),
        ({"type": "array", "elementType": "long", "containsNull": True}, "ARRAY<BIGINT>"),
        ({"type": "map", "keyType": "string", "valueType": "double"}, "MAP<STRING, DOUBLE>"),
        ({"type": "struct", "fields": [{"name": "a", "type": "date"}]}, "STRUCT<a: DATE>"),
        ({"type": "udt"}, "OTHER"),
    ],
)
def test_sparks_types(spark: object, told: str) -> None:
    assert columns_of(spark_schema(("c", pa.int64(), spark)))[0].type == told


def test_an_instant_stored_without_zone_is_served_with_one() -> None:
    schema = spark_schema(("at", pa.timestamp("ns"), "timestamp"), ("local", pa.timestamp("us"), "timestamp_ntz"))
    assert [column.type for column in columns_of(schema)] == ["TIMESTAMP", "TIMESTAMP_NTZ"]
    assert served_schema(schema).types == [pa.timestamp("us", "UTC"), pa.timestamp("us")]
