"""Small results are collected into the same file that Spark would write; others are not collected."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from service.contract.query import JoinKind
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, BOOLEAN, STRING, TIMESTAMP, Field
from tests.support.scalars import scalar
from workers.engine.plan.nodes import Aggregate, Filter, Join, Limit, Named, Node, Project, Scan, Union, Windows, Within
from workers.engine.plan.sql import sql_of
from workers.engine.spark.engine import result_files, write_parquet
from workers.engine.spark.small_results import (
    MOST_BYTES,
    MOST_GROUPS,
    MOST_ROWS_OF_TEXT,
    collect_parquet,
    estimated_bytes,
    is_limited_by_input,
    is_small,
)
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

VALUES = """
    SELECT id AS `a b`, CAST(id AS STRING) AS `o.s`, CAST(id AS TINYINT) AS i8, CAST(id AS SMALLINT) AS i16,
      CAST(id AS INT) AS i32, CAST(id AS FLOAT) AS f, CAST('NaN' AS DOUBLE) AS d, id > 1 AS b,
      CAST(id AS DECIMAL(7, 2)) AS dec, CAST(id AS DECIMAL(38, 10)) AS wide, DATE '0001-01-01' AS day,
      TIMESTAMP '9999-12-31 23:59:59.123456' AS t, TIMESTAMP_NTZ '1582-10-04 00:00:00' AS n, X'00FF' AS bin,
      IF(id = 0, NULL, id) AS maybe
    FROM range(3) ORDER BY id DESC"""
SCAN = Scan("t", "t", ())
NUMBERS = StructType().add("n", LongType())
TEXTS = StructType().add("n", LongType()).add("s", StringType())
LISTS = StructType().add("a", ArrayType(LongType()))


def known(rows: int, *, exact: bool = True) -> Statistics:
    return Statistics({"t": TableSize("t", 1, rows, rows, exact)}, {}, 2)


def grouped(rows: int, groups: int, width: int = 1) -> Statistics:
    """Statistics by which `GROUPS` has so many rows."""
    sketch = KeySketch("t", ("t.n",), min(rows, 64_000), groups, 0.0, ())
    return Statistics({"t": TableSize("t", 1, rows * width, rows, True)}, {("t.n",): sketch}, 2)


KEY = Field("t.n", BIGINT)
GROUPS = Aggregate(Scan("t", "t", ((KEY, "n"),)), (Named(column(KEY.name, KEY.type), "n"),), ())
OTHER = Field("t.m", BIGINT)
PAIRS = Aggregate(
    Scan("t", "t", ((KEY, "n"), (OTHER, "m"))),
    (Named(column(KEY.name, KEY.type), "n"), Named(column(OTHER.name, OTHER.type), "m")),
    (),
)
KEEPS = scalar("`n` > 3", BOOLEAN)
PADDED = Named(scalar("rpad(`t.s`, 100000000, 'x')", STRING), "s")


def singly_known(rows: int, values: int) -> Statistics:
    """Statistics by which each key of `PAIRS` has so many values. How many pairs there are is not known."""
    keys: dict[tuple[str, ...], KeySketch] = {
        (name,): KeySketch("t", (name,), 64_000, values, 0.0, ()) for name in (KEY.name, OTHER.name)
    }
    return Statistics({"t": TableSize("t", 1, rows, rows, True)}, keys, 2)


def joined(kind: JoinKind, rows: int = 9) -> Join:
    return Join(Limit(SCAN, 9), Limit(SCAN, rows), kind, ())


def fields(table: pa.Table) -> list[pa.Field]:
    return [field.with_nullable(True) for field in table.schema]


@pytest.mark.parametrize(
    ("plan", "statistics", "schema", "small"),
    [
        pytest.param(Limit(SCAN, MOST_ROWS_OF_TEXT), known(10**9), TEXTS, True, id="few rows of text"),
        pytest.param(Limit(SCAN, MOST_ROWS_OF_TEXT + 1), known(10**9), TEXTS, False, id="more rows of text"),
        pytest.param(Project(SCAN, ()), known(MOST_BYTES // 8), NUMBERS, True, id="a small table"),
        pytest.param(SCAN, known(MOST_BYTES // 8 + 1), NUMBERS, False, id="a larger table"),
        pytest.param(SCAN, known(10, exact=False), NUMBERS, False, id="an estimated table"),
        pytest.param(Aggregate(SCAN, (), ()), known(10**9), NUMBERS, True, id="one group"),
        pytest.param(GROUPS, grouped(10**6, 1_000), NUMBERS, True, id="few groups"),
        pytest.param(Filter(GROUPS, KEEPS), grouped(10**6, 1_000), TEXTS, True, id="few groups with texts"),
        pytest.param(GROUPS, grouped(10**6, 1_000, width=10_000), TEXTS, False, id="few groups with long texts"),
        pytest.param(PAIRS, singly_known(10**6, 30), NUMBERS, True, id="few groups by a guess"),
        pytest.param(PAIRS, singly_known(10**6, 3_000), NUMBERS, False, id="many groups by a guess"),
        pytest.param(GROUPS, grouped(10**6, MOST_GROUPS + 1), NUMBERS, False, id="many groups"),
        pytest.param(GROUPS, grouped(10**8, 1_000), NUMBERS, False, id="groups that may be many"),
        pytest.param(Join(GROUPS, SCAN, JoinKind.LEFT, ()), grouped(10**6, 9), NUMBERS, False, id="joined groups"),
        pytest.param(Union((Limit(SCAN, 60), Limit(SCAN, 60))), known(10**9), TEXTS, False, id="a union"),
        pytest.param(joined(JoinKind.LEFT), known(10**9), TEXTS, True, id="pairs of few rows"),
        pytest.param(joined(JoinKind.LEFT_SEMI, 10**9), known(10**9), TEXTS, True, id="a semi-join"),
        pytest.param(joined(JoinKind.LEFT, 10**9), known(10**9), NUMBERS, False, id="pairs of many rows"),
        pytest.param(Project(Limit(SCAN, 9), (PADDED,)), known(10), TEXTS, False, id="a long text"),
        pytest.param(Limit(SCAN, 1), known(10), LISTS, False, id="nested values"),
        pytest.param(Limit(SCAN, None, 5), known(10**9), NUMBERS, False, id="an offset"),
    ],
)
def test_only_results_with_a_small_bound_are_collected(
    plan: Node, statistics: Statistics, schema: StructType, *, small: bool
) -> None:
    assert is_small(plan, sql_of(plan), statistics, schema) is small


TIME = scalar("`t.t`", TIMESTAMP)


@pytest.mark.parametrize(
    ("plan", "schema", "limited"),
    [
        pytest.param(Aggregate(Union((SCAN, SCAN)), (), ()), TEXTS, True, id="groups"),
        pytest.param(Project(SCAN, ()), NUMBERS, True, id="rows"),
        pytest.param(Join(SCAN, SCAN, JoinKind.INNER, ()), NUMBERS, True, id="a static table"),
        pytest.param(
            Join(SCAN, SCAN, JoinKind.INNER, (), within=Within(TIME, TIME, 0, 1)), NUMBERS, False, id="two streams"
        ),
        pytest.param(Aggregate(Windows(SCAN, TIME, 1000, 1000, "w"), (), ()), NUMBERS, False, id="windows"),
        pytest.param(SCAN, LISTS, False, id="nested values"),
    ],
)
def test_a_mini_batch_that_emits_other_rows_than_it_reads_is_not_limited(
    plan: Node, schema: StructType, *, limited: bool
) -> None:
    assert is_limited_by_input(plan, "", schema) is limited


def test_a_mini_batch_with_long_texts_is_not_limited() -> None:
    padded = Project(SCAN, (PADDED,))
    assert is_limited_by_input(padded, "", TEXTS)
    assert not is_limited_by_input(padded, sql_of(padded), TEXTS)


@pytest.mark.spark
def test_the_estimate_is_that_of_the_files(spark: SparkSession, tmp_path: Path) -> None:
    for rows in (10, 100_000):
        spark.range(rows).write.parquet(f"{tmp_path}/{rows}")
    small, large = (estimated_bytes(spark.read.parquet(f"{tmp_path}/{rows}")) for rows in (10, 100_000))
    assert small < 10_000 < 100_000 < large


@pytest.mark.spark
@pytest.mark.parametrize("query", [VALUES, f"SELECT * FROM ({VALUES}) WHERE i32 > 5"], ids=["rows", "no rows"])
def test_the_file_has_the_values_and_types_that_spark_writes(spark: SparkSession, tmp_path: Path, query: str) -> None:
    found = []
    for name in ("spark", "collected"):
        frame, directory = spark.sql(query), tmp_path / name
        if name == "spark":
            write_parquet(frame, directory)
        else:
            directory.mkdir()
            (directory / "part-9.parquet").write_bytes(b"of an earlier try")
            assert collect_parquet(frame, directory)
        found.append(pa.concat_tables([pq.read_table(path) for path in result_files(directory)]))
    # Spark knows after its optimization of more columns that they have no NULL.
    assert fields(found[0]) == fields(found[1])
    key = b"org.apache.spark.sql.parquet.row.metadata"
    types = [[field["type"] for field in json.loads(table.schema.metadata[key])["fields"]] for table in found]
    assert types[0] == types[1]
    # As texts: NaN is not equal to itself.
    assert str(found[0].to_pylist()) == str(found[1].to_pylist())


@pytest.mark.spark
def test_an_error_of_the_query_is_raised(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("SELECT 1 DIV (id - 1) AS a FROM range(3)")
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        collect_parquet(frame, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.spark
def test_a_file_that_cannot_be_written_is_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not collect_parquet(spark.range(1), tmp_path / "file" / "out")


@pytest.mark.spark
def test_a_result_that_is_too_large_for_the_driver_is_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    properties, key = spark.sparkContext._jsc.sc().conf(), "spark.driver.maxResultSize"
    properties.set(key, "10")
    try:
        assert not collect_parquet(spark.range(1000), tmp_path / "out")
    finally:
        properties.remove(key)
