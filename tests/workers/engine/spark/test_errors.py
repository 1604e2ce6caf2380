"""Every error of Spark becomes a problem with a stable code and the message of Spark's condition, without a stack."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from service.contract.problems import Problem
from service.contract.read_options import TableFormat
from service.data.file_io import UriFile
from service.data.files import TableFiles
from service.sql.types.data_types import BIGINT, DATE, STRING, DataType, Field, Schema, decimal
from tests.support.accepted import rows
from tests.support.tables import on_disk
from workers.engine.plan.nodes import Scan
from workers.engine.spark.error_mapping import problem_of_spark_error
from workers.engine.spark.malformed_records import columns_of_records
from workers.engine.spark.sources import TableInput, read_scan

pytestmark = pytest.mark.spark

Tables = Callable[..., TableInput]
Scans = Callable[..., Scan]


def problem_of(run: Callable[[], object]) -> Problem:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which of PySpark's classes it is, is not the point
        run()
    problem = problem_of_spark_error(caught.value)
    assert problem is not None
    for trace in ("\n", "\tat ", ".scala:", ".java:", "spark.sql.ansi"):
        assert trace not in problem.detail
    assert len(problem.detail) <= 1000
    assert problem.type == f"/problems/{problem.code}"
    return problem


@pytest.mark.parametrize(
    ("expression", "code", "expected"),
    [
        ("sum(9223372036854775807L + id * 0)", "arithmetic_overflow", "does not fit into its type"),
        ("CAST(id AS INT) + 2147483647", "arithmetic_overflow", "does not fit into its type"),
        (
            "sum(CAST('99999999999999999999999999999999999999' AS DECIMAL(38,0)))",
            "arithmetic_overflow",
            "DECIMAL(38, 0)",
        ),
        ("CAST(id + 3000000000 AS INT)", "arithmetic_overflow", "INT"),
        ("1 / (id - id)", "divide_by_zero", "division by zero"),
        ("CAST(concat('x', id) AS INT)", "invalid_cast", "'x"),
        ("CAST(concat('2013-13-0', id) AS DATE)", "invalid_cast", "'2013-13-0"),
        ("raise_error('a mess')", "raised_error", "a mess"),
    ],
)
def test_errors_of_the_data(spark: SparkSession, tmp_path: Path, expression: str, code: str, expected: str) -> None:
    frame = spark.range(5).selectExpr(f"{expression} AS x")
    for run in (frame.collect, lambda: frame.write.parquet(str(tmp_path / "out"))):
        problem = problem_of(run)
        assert (problem.code, problem.status) == (code, 422)
        assert expected in problem.detail
        assert not problem.detail.startswith("[")


def test_a_subquery_that_is_a_value_returns_one_row(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(2).coalesce(1).write.parquet(str(tmp_path / "t"))
    table = {"path": "t", "format": "parquet"}
    problem = problem_of(lambda: rows(spark, tmp_path, table, "SELECT id, (SELECT id FROM t) AS x FROM t"))
    assert (problem.code, problem.status) == ("raised_error", 422)
    assert "more than one row" in problem.detail
    one = rows(spark, tmp_path, table, "SELECT id, (SELECT id FROM t WHERE id > 0) AS x FROM t ORDER BY id")
    assert one == [{"id": 0, "x": 1}, {"id": 1, "x": 1}]


def corrupted(table: TableInput, content: bytes) -> TableInput:
    on_disk(table.files)[0].write_bytes(content)
    return table


@pytest.mark.parametrize(
    "content", [b"PAR1 not really PAR1", b"nonsense", b"PAR1" + b"\xff" * 200 + b"PAR1"], ids=["ends", "none", "inner"]
)
def test_corrupt_parquet(spark: SparkSession, parquet_table: Tables, scan_of: Scans, content: bytes) -> None:
    table = corrupted(parquet_table(pa.table({"a": [1, 2]})), content)
    problem = problem_of(read_scan(spark, scan_of(table), table).collect)
    assert (problem.code, problem.status) == ("corrupt_file", 422)
    assert "part-000.parquet" in problem.detail


def test_a_column_of_another_type(spark: SparkSession, parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"a": [1, 2]}))
    promised = TableInput(table.source, table.files, Schema((Field("a", STRING),)))
    problem = problem_of(read_scan(spark, scan_of(promised), promised).collect)
    assert problem.code == "schema_mismatch"
    assert "The column a of the file 'part-000.parquet' is INT64" in problem.detail


def test_a_file_that_is_gone(spark: SparkSession, parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"a": [1, 2]}), files=2)
    frame = read_scan(spark, scan_of(table), table)
    on_disk(table.files)[1].unlink()
    assert problem_of(frame.collect).code == "path_not_found"
    assert problem_of(lambda: read_scan(spark, scan_of(table), table)).code == "path_not_found"


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("uid,name\n1,a\nx,b\n", "corrupt_file", '"x"'),
        ("uid,name\n2\n", "corrupt_file", "part-000.csv"),
        ("name,uid\na,1\n", "schema_mismatch", "found: name"),
    ],
)
def test_malformed_csv(
    spark: SparkSession, text_table: Tables, scan_of: Scans, text: str, code: str, expected: str
) -> None:
    table = text_table(TableFormat.CSV, [text], (Field("uid", BIGINT), Field("name", STRING)), header=True)
    problem = problem_of(read_scan(spark, scan_of(table), table).collect)
    assert problem.code == code
    assert expected in problem.detail
    assert "PERMISSIVE" not in problem.detail


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        (
            decimal(10, 2),
            "abc",
            "the value of the column amount is not of the type DECIMAL(10,2), in the record that was",
        ),
        (DATE, "2024-13-01", "the value of the column amount is not of the type DATE"),
        (
            BIGINT,
            "1.5",
            '"1.5" is not a number, in the record that was read as [null,Bob]; the value of the column amount',
        ),
    ],
)
def test_malformed_csv_names_the_column(
    spark: SparkSession, text_table: Tables, scan_of: Scans, type_: DataType, value: str, expected: str
) -> None:
    """Also if Spark reads only some of the columns."""
    fields = (Field("note", BIGINT), Field("amount", type_), Field("name", STRING))
    table = text_table(TableFormat.CSV, [f"note,amount,name\n,1,Ann\n,{value},Bob\n"], fields, header=True)
    scan = scan_of(table, "t", "amount", "name")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - as above
        read_scan(spark, scan, table).collect()
    problem = problem_of_spark_error(caught.value, columns=columns_of_records(scan, {scan.table: table}))
    assert problem is not None
    assert expected in problem.detail


def test_malformed_json(spark: SparkSession, text_table: Tables, scan_of: Scans) -> None:
    table = text_table(TableFormat.JSON, ['{"uid": "x"}\n'], (Field("uid", BIGINT),))
    problem = problem_of(read_scan(spark, scan_of(table), table).collect)
    assert problem.code == "corrupt_file"
    assert "the field uid has the value x, which is not of the type" in problem.detail


def test_a_python_without_its_packages_is_the_operators(spark: SparkSession) -> None:
    def read(batches: Any) -> Any:
        import a_package_that_is_missing  # type: ignore[import-not-found]  # noqa: F401

        yield from batches

    problem = problem_of(spark.range(1).mapInArrow(read, "id BIGINT").collect)
    assert (problem.code, problem.status) == ("engine_error", 500)
    assert "No module named 'a_package_that_is_missing'. The service operator must set EVENKEEL_SPARK_PYTHON" in (
        problem.detail
    )


def test_columns_that_differ_in_case_alone(spark: SparkSession, tmp_path: Path) -> None:
    frame: DataFrame = spark.range(2).selectExpr("id AS a", "id AS A")
    assert problem_of(lambda: frame.write.parquet(str(tmp_path / "out"))).code == "duplicate_column"


def test_an_analysis_error_is_reported_without_the_plan(spark: SparkSession) -> None:
    problem = problem_of(lambda: spark.range(5).selectExpr("nowhere"))
    assert problem.code == "engine_error"
    assert "Project" not in problem.detail


def test_out_of_memory_is_named(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    cause = jvm.java.lang.OutOfMemoryError("Java heap space")
    error = Py4JJavaError("collect", jvm.java.lang.RuntimeException("task failed", cause))
    problem = problem_of_spark_error(error)
    assert problem is not None
    assert (problem.code, problem.status) == ("out_of_memory", 500)


def test_a_stack_that_overflows_is_the_querys_fault(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    overflow = jvm.java.lang.StackOverflowError()
    problem = problem_of_spark_error(Py4JJavaError("plan", jvm.java.lang.RuntimeException("planning failed", overflow)))
    assert problem is not None
    assert (problem.code, problem.status) == ("query_too_complex", 422)
    assert "split the query" in problem.detail


@pytest.mark.parametrize("expected", ["No space left on device", "File too large", "Disk quota exceeded"])
def test_a_full_disk_is_named_and_who_fixes_it(spark: SparkSession, expected: str) -> None:
    jvm = spark._jvm
    assert jvm is not None
    # As Hadoop's FSError, which nobody else may make.
    cause = jvm.java.lang.Error(jvm.java.io.IOException(expected))
    failed = jvm.org.apache.spark.sql.errors.QueryExecutionErrors.taskFailedWhileWritingRowsError("file:/stage", cause)
    problem = problem_of_spark_error(Py4JJavaError("x", jvm.java.lang.RuntimeException("Job aborted", failed)))
    assert problem is not None
    assert (problem.code, problem.status) == ("disk_full", 500)
    assert expected in problem.detail
    assert "EVENKEEL_DATA_RESULTS" in problem.detail
    assert "/stage" not in problem.detail


def fail(number: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a task that fails with the error of this number."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise OSError(number, os.strerror(number))

    return task


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EDQUOT])
def test_a_full_disk_of_a_task_in_python(spark: SparkSession, number: int) -> None:
    # Of a driver, as its own error; its text may have a path of the service.
    of_driver = problem_of_spark_error(OSError(number, os.strerror(number), "/state/of/the/service"))
    of_task = problem_of(spark.range(1).mapInArrow(fail(number), "id BIGINT").collect)
    assert of_driver == of_task
    assert (of_task.code, of_task.status) == ("disk_full", 500)
    assert "EVENKEEL_DATA_STREAMS" in of_task.detail
    assert problem_of_spark_error(OSError(errno.EACCES, os.strerror(errno.EACCES))) is None


def test_words_of_a_query_fill_no_disk(spark: SparkSession) -> None:
    problem = problem_of(spark.range(1).selectExpr("raise_error('No space left on device') AS x").collect)
    assert (problem.code, problem.status) == ("raised_error", 422)


def test_an_error_without_a_condition_is_an_engine_error_of_status_500(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    error = Py4JJavaError("x", jvm.java.lang.IllegalStateException("broken\n\tat org.apache.spark.X(X.scala:1)"))
    problem = problem_of_spark_error(error)
    assert problem is not None
    assert (problem.code, problem.status) == ("engine_error", 500)
    assert problem.detail == "Spark could not run the query. Spark says: IllegalStateException: broken"


def test_the_path_of_the_result_is_not_reported(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    errors = jvm.org.apache.spark.sql.errors.QueryExecutionErrors
    failed = errors.taskFailedWhileWritingRowsError("file:/stage", jvm.java.lang.OutOfMemoryError("Java heap space"))
    error = Py4JJavaError("x", jvm.java.lang.RuntimeException("Job aborted", failed))
    problem = problem_of_spark_error(error)
    assert problem is not None
    assert problem.code == "out_of_memory"
    assert problem.detail.endswith("Spark says: OutOfMemoryError: Java heap space")
    assert problem_of_spark_error(error, lambda text: None if "heap" in text else text) is None


def test_other_errors_are_not_problems_of_spark() -> None:
    assert problem_of_spark_error(ValueError("x")) is None
    assert problem_of_spark_error(ConnectionRefusedError()) is None


def at(uri: str, table: TableInput) -> TableInput:
    """The table, with one file that Spark reads at `uri`."""
    files = TableFiles("t", Path("/"), (UriFile(uri, uri.split("/", 3)[3], 1),), 1)
    return TableInput(table.source, files, table.schema)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [("s3a://bucket/x.parquet", "S3AFileSystem"), ("s3://bucket/x.parquet", 'No FileSystem for scheme "s3"')],
)
def test_a_scheme_for_which_spark_has_no_jar(
    spark: SparkSession, parquet_table: Tables, scan_of: Scans, uri: str, expected: str
) -> None:
    table = at(uri, parquet_table(pa.table({"a": [1]})))
    problem = problem_of(lambda: read_scan(spark, scan_of(table), table).collect())
    assert (problem.code, problem.status) == ("unsupported_filesystem", 500)
    assert expected in problem.detail
    assert "EVENKEEL_SPARK_PROPERTIES_FILE" in problem.detail


def test_a_name_node_that_is_not_there(spark: SparkSession, parquet_table: Tables, scan_of: Scans) -> None:
    session = spark.newSession()
    session.conf.set("ipc.client.connect.max.retries", "0")
    table = at("hdfs://127.0.0.1:1/x.parquet", parquet_table(pa.table({"a": [1]})))
    problem = problem_of(lambda: read_scan(session, scan_of(table), table).collect())
    assert (problem.code, problem.status) == ("storage_unavailable", 500)
    assert "Spark's settings for it." in problem.detail


@pytest.mark.parametrize(
    ("java_class", "code", "status"),
    [
        ("java.nio.file.AccessDeniedException", "unreadable_file", 422),
        ("org.apache.hadoop.security.AccessControlException", "unreadable_file", 422),
        ("org.apache.hadoop.net.ConnectTimeoutException", "storage_unavailable", 500),
        ("org.apache.hadoop.ipc.StandbyException", "storage_unavailable", 500),
        ("java.net.SocketException", "storage_unavailable", 500),
    ],
)
def test_errors_of_file_systems(spark: SparkSession, java_class: str, code: str, status: int) -> None:
    gateway = SparkContext._gateway
    assert gateway is not None
    error = getattr(gateway.jvm, java_class)("x.parquet")
    problem = problem_of(gateway.jvm.java.util.concurrent.CompletableFuture.failedFuture(error).get)
    assert (problem.code, problem.status) == (code, status)
    assert "x.parquet" in problem.detail


def test_executors_that_lose_each_other_are_no_fault_of_a_store(spark: SparkSession) -> None:
    gateway = SparkContext._gateway
    assert gateway is not None
    lost = gateway.jvm.org.apache.spark.SparkException("Job aborted", gateway.jvm.java.net.ConnectException("refused"))
    problem = problem_of(gateway.jvm.java.util.concurrent.CompletableFuture.failedFuture(lost).get)
    assert problem.code == "engine_error"
