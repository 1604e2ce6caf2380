"""Results are Parquet files in the order of the rows. Counting the rows does not run the query again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from workers.engine.spark.engine import result_files, write_parquet

pytestmark = pytest.mark.spark


def read(directory: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in result_files(directory)])


def test_counts_rows_and_bytes(spark: SparkSession, tmp_path: Path) -> None:
    written = write_parquet(spark.range(1000, numPartitions=3), tmp_path / "out")
    assert written.rows == 1000
    assert written.bytes == sum(path.stat().st_size for path in (tmp_path / "out").glob("*.parquet"))


def test_files_in_order_of_their_names_keep_the_rows_order(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(20_000, numPartitions=4).selectExpr("id", "hash(id) AS h")
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    try:
        write_parquet(frame.repartition(4).orderBy("h", "id").select("h"), tmp_path / "out")
    finally:
        spark.conf.unset("spark.sql.adaptive.coalescePartitions.enabled")
    assert len(result_files(tmp_path / "out")) == 2
    hashes = read(tmp_path / "out").column("h").to_pylist()
    assert hashes == sorted(hashes)


def test_nothing_but_the_files_with_the_rows_is_left(spark: SparkSession, tmp_path: Path) -> None:
    write_parquet(spark.range(10, numPartitions=3), tmp_path / "out")
    files = result_files(tmp_path / "out")
    assert len(files) == 3
    assert sorted((tmp_path / "out").iterdir()) == list(files)


@pytest.mark.parametrize("query", ["id < 0", "false"], ids=["found out at run time", "known before"])
def test_no_rows_is_a_file_with_the_schema(spark: SparkSession, tmp_path: Path, query: str) -> None:
    frame = spark.range(100, numPartitions=3).where(query).selectExpr("id AS `a b`", "CAST(id AS STRING) AS `o.s`")
    written = write_parquet(frame, tmp_path / "out")
    assert written.rows == 0
    assert len(result_files(tmp_path / "out")) == 1
    assert read(tmp_path / "out").schema.names == ["a b", "o.s"]


def test_the_files_of_an_earlier_try_are_replaced(spark: SparkSession, tmp_path: Path) -> None:
    write_parquet(spark.range(10, numPartitions=3), tmp_path / "out")
    assert write_parquet(spark.range(4, numPartitions=1), tmp_path / "out").rows == 4
    assert read(tmp_path / "out").num_rows == 4


def test_timestamps_of_any_year_are_readable(spark: SparkSession, tmp_path: Path) -> None:
    write_parquet(spark.sql("SELECT TIMESTAMP '9999-12-31 23:59:59.123456' AS t"), tmp_path / "out")
    (row,) = read(tmp_path / "out").to_pylist()
    assert str(row["t"]) == "9999-12-31 23:59:59.123456+00:00"
