"""Files that pandas, polars, DuckDB, deltalake, fastavro, Arrow and Spark write: types, NULLs, partitions, and columns
that change.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import fastavro
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyarrow import orc

from service.contract.problems import SpecError
from tests.support.accepted import accepted, planned, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SQL = "SELECT id, name, price, day FROM t ORDER BY id"
ROWS: list[dict[str, Any]] = [
    {
        "id": number,
        "name": None if number == 2 else f"n{number}",
        "price": number / 4,
        "day": date(2024, 1, 1 + number % 2),
    }
    for number in range(6)
]


@pytest.mark.parametrize("format_", ["csv", "json", "parquet", "orc", "xml"])
def test_partitions_that_spark_writes(spark: SparkSession, tmp_path: Path, format_: str) -> None:
    options = (
        {"header": "true", "compression": "gzip"} if format_ == "csv" else {"rowTag": "o"} if format_ == "xml" else {}
    )
    frame = spark.createDataFrame(
        [(row["id"], row["name"], row["price"], row["day"]) for row in ROWS],
        "id LONG, name STRING, price DOUBLE, day DATE",
    )
    writer = frame.write.format(format_).options(**options)
    if format_ == "xml":
        writer.save(f"file://{tmp_path}/t")
    else:
        writer.partitionBy("day").save(f"file://{tmp_path}/t")
    table = {"path": "t", **({"options": {"rowTag": "o"}} if format_ == "xml" else {})}
    assert rows(spark, tmp_path, table, SQL) == ROWS


def test_types_of_orc_that_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql(
        "SELECT 1Y AS b, TIMESTAMP'2024-07-01 10:00:00' AS t, TIMESTAMP_NTZ'2024-07-01 10:00:00' AS n, "
        "CAST(1.5 AS DECIMAL(10,2)) AS d, ARRAY(1, 2) AS a, NAMED_STRUCT('q', 1) AS s"
    )
    frame.write.orc(f"file://{tmp_path}/t")
    assert rows(spark, tmp_path, {"path": "t"}) == [row.asDict() for row in frame.collect()]


def _duckdb(directory: Path, options: str) -> None:
    directory.mkdir()
    values = ", ".join(
        f"({row['id']}, {'NULL' if row['name'] is None else repr(row['name'])}, {row['price']}, DATE '{row['day']}')"
        for row in ROWS
    )
    select = f"SELECT * FROM (VALUES {values}) v(id, name, price, day)"
    duckdb.sql(f"COPY ({select}) TO '{directory}' ({options}, OVERWRITE_OR_IGNORE)")


DUCKDB = {
    "Parquet": "FORMAT parquet, PARTITION_BY (day), COMPRESSION zstd",
    "CSV": "FORMAT csv, PARTITION_BY (day), HEADER",
    "JSON": "FORMAT json, PARTITION_BY (day), FILE_EXTENSION 'json.gz', COMPRESSION gzip",
}


@pytest.mark.parametrize("format_", DUCKDB)
def test_partitions_that_duckdb_writes(spark: SparkSession, tmp_path: Path, format_: str) -> None:
    _duckdb(tmp_path / "t", DUCKDB[format_])
    found = rows(spark, tmp_path, {"path": "t"}, SQL)
    assert [{**row, "price": float(row["price"])} for row in found] == ROWS
    assert accepted(tmp_path, {"path": "t"}).partitions == "day DATE"


TYPED = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "name": pa.array(["a", None, 'ü "q", x']),
        "price": pa.array([Decimal("1.50"), None, Decimal("-99999999.25")], pa.decimal128(10, 2)),
        "day": pa.array([date(2024, 1, 1), None, date(1969, 12, 31)]),
        "at": pa.array(
            [
                datetime(2024, 7, 1, 10, tzinfo=timezone(timedelta(hours=2))),
                None,
                datetime(1969, 7, 20, 20, 17, tzinfo=UTC),
            ],
            pa.timestamp("us", "UTC"),
        ),
        "local": pa.array(["2024-03-31T02:30:00", None, "2024-01-01T00:00:00.123"]).cast(pa.timestamp("us")),
        "ratio": pa.array([0.1, None, -2.5e300]),
        "ok": pa.array([True, None, False]),
        "tags": pa.array([["x", None], [], None], pa.list_(pa.string())),
        "place": pa.array(
            [{"x": 1, "y": "p"}, None, {"x": 2**53 + 1, "y": None}], pa.struct([("x", pa.int64()), ("y", pa.string())])
        ),
    }
)
NESTED = ("tags", "place")
IN_TEXT = {"price": "DECIMAL(10,2)", "at": "TIMESTAMP", "local": "TIMESTAMP_NTZ"}
"""The types of columns that text does not show."""


@dataclass(frozen=True)
class Written:
    """What a program writes: the path, how, what the job says besides the path, and the columns that it leaves out."""

    path: str
    write: Callable[[pa.Table, Path, SparkSession], object]
    table: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()


def _pandas(table: pa.Table) -> Any:
    """Returns a DataFrame of pandas with Arrow's types, which keep decimals, dates and nested values."""
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def _fastavro(table: pa.Table, path: Path, _: SparkSession) -> None:
    place = {
        "type": "record",
        "name": "place",
        "fields": [{"name": "x", "type": "long"}, {"name": "y", "type": ["null", "string"]}],
    }
    types = {
        "id": "long",
        "name": "string",
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        "day": {"type": "int", "logicalType": "date"},
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "local": {"type": "long", "logicalType": "local-timestamp-micros"},
        "ratio": "double",
        "ok": "boolean",
        "tags": {"type": "array", "items": ["null", "string"]},
        "place": place,
    }
    fields = [{"name": name, "type": ["null", type_]} for name, type_ in types.items()]
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, table.to_pylist(), codec="deflate")


def _copied(options: str) -> Callable[[pa.Table, Path, SparkSession], object]:
    def write(table: pa.Table, path: Path, _: SparkSession) -> None:
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.register("written", table)
            connection.execute(f"COPY written TO '{path}' ({options})")

    return write


def _saved(format_: str, **options: str) -> Callable[[pa.Table, Path, SparkSession], object]:
    def write(table: pa.Table, path: Path, spark: SparkSession) -> None:
        source = path.with_name("source.parquet")
        pq.write_table(table, source)
        spark.read.parquet(f"file://{source}").coalesce(1).write.format(format_).options(**options).save(
            f"file://{path}"
        )

    return write


WRITTEN = {
    "pandas Parquet": Written("t.parquet", lambda table, path, _: _pandas(table).to_parquet(path)),
    "pandas ORC": Written("t.orc", lambda table, path, _: _pandas(table).to_orc(path), without=("local",)),
    "pandas CSV": Written(
        "t.csv.gz", lambda table, path, _: _pandas(table).to_csv(path, index=False), {"columns": IN_TEXT}, NESTED
    ),
    "polars Parquet": Written("t.parquet", lambda table, path, _: pl.DataFrame(table).write_parquet(path)),
    "polars CSV": Written(
        "t.csv", lambda table, path, _: pl.DataFrame(table).write_csv(path), {"columns": IN_TEXT}, NESTED
    ),
    "polars NDJSON": Written(
        "t.ndjson", lambda table, path, _: pl.DataFrame(table).write_ndjson(path), {"columns": IN_TEXT}
    ),
    "polars Avro": Written(
        "t.avro",
        lambda table, path, _: pl.DataFrame(table).write_avro(path, "deflate"),
        without=("price", "at", "local"),
    ),
    "polars Delta": Written("t", lambda table, path, _: pl.DataFrame(table).write_delta(str(path))),
    "DuckDB Parquet": Written("t.parquet", _copied("FORMAT parquet, COMPRESSION zstd")),
    "DuckDB CSV": Written("t.csv", _copied("FORMAT csv, HEADER"), {"columns": IN_TEXT}, NESTED),
    "DuckDB JSON": Written("t.json", _copied("FORMAT json"), {"columns": IN_TEXT}),
    "DuckDB a JSON array": Written("t.json", _copied("FORMAT json, ARRAY true"), {"columns": IN_TEXT}),
    "deltalake": Written("t", lambda table, path, _: write_deltalake(path, table)),
    "fastavro": Written("t.avro", _fastavro),
    "Arrow ORC": Written("t.orc", lambda table, path, _: orc.write_table(table, str(path)), without=("local",)),
    "Spark Parquet": Written("t", _saved("parquet")),
    "Spark ORC": Written("t", _saved("orc")),
    "Spark CSV": Written(
        "t", _saved("csv", header="true", compression="bzip2", escape='"'), {"columns": IN_TEXT}, NESTED
    ),
    "Spark JSON": Written("t", _saved("json", compression="gzip"), {"columns": IN_TEXT}),
    "Spark XML": Written("t", _saved("xml", rowTag="r"), {"columns": IN_TEXT, "options": {"row_tag": "r"}}, NESTED),
}
"""Arrow's ORC has no times without a zone: it writes them as instants."""


def _plain(value: Any) -> Any:
    """Returns a value as all writers and readers have it: instants as times in UTC, and rows as mappings."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value.asDict() if hasattr(value, "asDict") else value


@pytest.mark.parametrize("writer", WRITTEN)
def test_values_of_all_types(spark: SparkSession, tmp_path: Path, writer: str) -> None:
    written = WRITTEN[writer]
    table = TYPED.drop_columns(list(written.without))
    written.write(table, tmp_path / written.path, spark)
    given = {"path": written.path, **written.table}
    if "columns" in given:
        given["columns"] = {name: type_ for name, type_ in given["columns"].items() if name in table.column_names}
    found = [
        {name: _plain(value) for name, value in row.items()}
        for row in rows(spark, tmp_path, given, "SELECT * FROM t ORDER BY id")
    ]
    if "columns" in given:
        # Structures and arrays of JSON that are read as text are read without a loss.
        found = [
            {
                name: json.loads(value) if name in NESTED and isinstance(value, str) else value
                for name, value in row.items()
            }
            for row in found
        ]
        assert [_without_null(row) for row in found] == [
            _without_null(row) for row in map(_plain_row, table.to_pylist())
        ]
        return
    assert found == list(map(_plain_row, table.to_pylist()))


def _plain_row(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in row.items()}


def _without_null(value: Any) -> Any:
    """Returns a value without fields that are NULL: Spark's JSON leaves them out."""
    if isinstance(value, dict):
        return {name: _without_null(one) for name, one in value.items() if one is not None}
    return value


def test_decimals_of_several_scales(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1.10,0.005\n-2.25,\n")
    table = {"path": "t.csv", "columns": {"a": "DECIMAL(10,2)", "b": "DECIMAL(4,3)"}}
    assert rows(spark, tmp_path, table, "SELECT SUM(a) AS a, SUM(b) AS b FROM t") == [
        {"a": Decimal("-1.15"), "b": Decimal("0.005")}
    ]


class TestChangedColumns:
    """Tables whose later files have other columns than the first ones."""

    def test_parquet(self, spark: SparkSession, tmp_path: Path) -> None:
        (tmp_path / "t").mkdir()
        pq.write_table(pa.table({"a": pa.array([1], pa.int32()), "b": ["x"]}), tmp_path / "t" / "1.parquet")
        pl.DataFrame({"c": [0.5], "b": ["y"], "a": [2**40]}).write_parquet(tmp_path / "t" / "2.parquet")
        assert rows(
            spark, tmp_path, {"path": "t", "options": {"merge_schema": True}}, "SELECT a, b, c FROM t ORDER BY a"
        ) == [
            {"a": 1, "b": "x", "c": None},
            {"a": 2**40, "b": "y", "c": 0.5},
        ]

    def test_parquet_with_columns_in_another_order(self, spark: SparkSession, tmp_path: Path) -> None:
        (tmp_path / "t").mkdir()
        pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "t" / "1.parquet")
        pq.write_table(pa.table({"b": ["y"], "a": [2]}), tmp_path / "t" / "2.parquet")
        assert rows(spark, tmp_path, {"path": "t"}, "SELECT a, b FROM t ORDER BY a") == [
            {"a": 1, "b": "x"},
            {"a": 2, "b": "y"},
        ]

    def test_delta(self, spark: SparkSession, tmp_path: Path) -> None:
        write_deltalake(tmp_path / "t", pa.table({"a": pa.array([1], pa.int32())}))
        write_deltalake(
            tmp_path / "t", pa.table({"b": ["y"], "a": pa.array([2], pa.int32())}), mode="append", schema_mode="merge"
        )
        assert rows(spark, tmp_path, {"path": "t"}, "SELECT a, b FROM t ORDER BY a") == [
            {"a": 1, "b": None},
            {"a": 2, "b": "y"},
        ]

    def test_avro(self, spark: SparkSession, tmp_path: Path) -> None:
        (tmp_path / "t").mkdir()
        _write_avro(
            tmp_path / "t" / "1.avro", [{"a": 1, "f": 0.5, "b": "x"}], {"a": "int", "f": "float", "b": "string"}
        )
        later = {"c": ["null", "string"], "f": "double", "a": "long"}
        _write_avro(
            tmp_path / "t" / "2.avro", [{"c": "y", "f": 0.25, "a": 2**40}, {"c": None, "f": 1.0, "a": 2}], later
        )
        with pytest.raises(
            SpecError, match=r"The column a is INT in .* and BIGINT in .* Set the option 'merge_schema'"
        ):
            accepted(tmp_path, {"path": "t"})
        table = {"path": "t", "options": {"merge_schema": True}}
        assert rows(spark, tmp_path, table, "SELECT a, f, b, c FROM t ORDER BY a") == [
            {"a": 1, "f": 0.5, "b": "x", "c": None},
            {"a": 2, "f": 1.0, "b": None, "c": None},
            {"a": 2**40, "f": 0.25, "b": None, "c": "y"},
        ]
        found = planned(spark, tmp_path, table, "SELECT c, COUNT(DISTINCT a) AS n FROM t WHERE a > 1 GROUP BY c")
        assert set(found.frame.collect()) == {(None, 1), ("y", 1)}
        assert not [note for note in found.statistics.warnings if note[0] is not None]

    def test_orc(self, spark: SparkSession, tmp_path: Path) -> None:
        (tmp_path / "t").mkdir()
        old = pa.table({"a": pa.array([1], pa.int32()), "f": pa.array([0.5], pa.float32()), "b": ["x"]})
        orc.write_table(old, tmp_path / "t" / "1.orc")
        orc.write_table(pa.table({"c": ["y", None], "f": [0.25, 1.0], "a": [2**40, 2]}), tmp_path / "t" / "2.orc")
        with pytest.raises(SpecError, match="merge_schema"):
            accepted(tmp_path, {"path": "t"})
        table = {"path": "t", "options": {"merge_schema": True}}
        assert rows(spark, tmp_path, table, "SELECT a, f, b, c FROM t ORDER BY a") == [
            {"a": 1, "f": 0.5, "b": "x", "c": None},
            {"a": 2, "f": 1.0, "b": None, "c": None},
            {"a": 2**40, "f": 0.25, "b": None, "c": "y"},
        ]
        found = planned(spark, tmp_path, table, "SELECT c, COUNT(DISTINCT a) AS n FROM t WHERE a > 1 GROUP BY c")
        assert set(found.frame.collect()) == {(None, 1), ("y", 1)}
        assert not [note for note in found.statistics.warnings if note[0] is not None]


def _write_avro(path: Path, records: list[dict[str, Any]], types: dict[str, Any]) -> None:
    fields = [{"name": name, "type": type_} for name, type_ in types.items()]
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, records)
