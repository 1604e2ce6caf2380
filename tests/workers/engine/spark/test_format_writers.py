"""Directories that Spark, DuckDB and polars write: partitions, compressed parts, and all formats of one program."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pytest

from tests.support.accepted import accepted, rows

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


POLARS: dict[str, tuple[str, Callable[[pl.DataFrame, Path], object]]] = {
    "CSV": ("t.csv", lambda frame, path: frame.write_csv(path)),
    "NDJSON": ("t.ndjson", lambda frame, path: frame.write_ndjson(path)),
    "Avro": ("t.avro", lambda frame, path: frame.write_avro(path, compression="snappy")),
    "Avro deflate": ("t.avro", lambda frame, path: frame.write_avro(path, compression="deflate")),
    "Parquet": ("t.parquet", lambda frame, path: frame.write_parquet(path)),
    "Delta": ("t", lambda frame, path: frame.write_delta(str(path))),
}


@pytest.mark.parametrize("format_", POLARS)
def test_files_that_polars_writes(spark: SparkSession, tmp_path: Path, format_: str) -> None:
    name, write = POLARS[format_]
    write(pl.DataFrame(ROWS), tmp_path / name)
    assert rows(spark, tmp_path, {"path": name}, SQL) == ROWS


def test_decimals_of_several_scales(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1.10,0.005\n-2.25,\n")
    table = {"path": "t.csv", "columns": {"a": "DECIMAL(10,2)", "b": "DECIMAL(4,3)"}}
    assert rows(spark, tmp_path, table, "SELECT SUM(a) AS a, SUM(b) AS b FROM t") == [
        {"a": Decimal("-1.15"), "b": Decimal("0.005")}
    ]
