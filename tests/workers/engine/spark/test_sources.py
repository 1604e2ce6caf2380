"""Spark reads tables file by file, with the needed columns as `alias.column`; malformed text is an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from service.contract.problems import SpecError
from service.contract.query import JoinKind
from service.contract.read_options import TableFormat
from service.data.file_io import UriFile
from service.data.files import TableFiles, find_table_files
from service.data.roots import DirectoryRoot
from service.sql.ddl import parse_schema
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, STRING, Field, array, mapping, struct
from tests.support.tables import on_disk
from workers.engine.plan.nodes import Join, Scan
from workers.engine.spark import scan_cache
from workers.engine.spark.corrupt_records import CorruptRecords
from workers.engine.spark.error_mapping import problem_of_spark_error
from workers.engine.spark.lowering import lower
from workers.engine.spark.scan_cache import ScanCache
from workers.engine.spark.sources import ScanReads, TableInput, read_scan, scans_of
from workers.engine.spark.table_statistics import sizes_only
from workers.engine.statistics.partitioning import size_of

pytestmark = pytest.mark.spark

Tables = Callable[..., TableInput]
Scans = Callable[..., Scan]

UID_NAME = (Field("uid", BIGINT), Field("name", STRING))


def test_reads_the_scans_columns_under_its_alias(spark: SparkSession, parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"a": [1, 2], "b": ["x", "y"], "c": [True, False]}))
    frame = read_scan(spark, scan_of(table, "o", "b", "a"), table)
    assert frame.columns == ["o.a", "o.b"]
    assert sorted(map(tuple, frame.collect())) == [(1, "x"), (2, "y")]


def test_a_table_may_be_scanned_under_two_aliases(spark: SparkSession, parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"a": [1, 2]}))
    left, right = scan_of(table, "x"), scan_of(table, "y")
    keys = ((column("x.a", BIGINT), column("y.a", BIGINT)),)
    frames = ScanReads(spark, {"t": table}, CorruptRecords()).frames(Join(left, right, JoinKind.INNER, keys))
    assert {alias: frame.columns for alias, frame in frames.items()} == {"x": ["x.a"], "y": ["y.a"]}


def test_scans_of_one_alias_are_merged(parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"a": [1], "b": [2]}))
    plan = Join(scan_of(table, "o", "a"), scan_of(table, "o", "b"), JoinKind.CROSS, ())
    assert scans_of(plan) == (scan_of(table, "o"),)


@pytest.mark.parametrize("format_", [TableFormat.PARQUET, TableFormat.CSV, TableFormat.JSON])
def test_a_scan_of_no_column_has_every_row(
    spark: SparkSession, parquet_table: Tables, text_table: Tables, format_: TableFormat
) -> None:
    if format_ is TableFormat.PARQUET:
        table = parquet_table(pa.table({"uid": [1, 2, 3]}))
    else:
        text = "1,a\n2,b\n3,c\n" if format_ is TableFormat.CSV else '{"uid":1}\n{"uid":2}\n{"uid":3}\n'
        table = text_table(format_, [text], UID_NAME)
    frame = read_scan(spark, Scan("t", "o", ()), table)
    assert frame.columns == []
    assert frame.count() == 3


def test_a_nested_column_is_readable(spark: SparkSession, parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"list": [[1, 2], None], "a": [1, 2]}), file_name="p[1]")
    assert read_scan(spark, scan_of(table, "o", "list"), table).selectExpr("count(`o.list`)").collect()[0][0] == 1
    assert read_scan(spark, Scan("t", "o", ()), table).count() == 2


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("file_name", ["p[1]{x}* a%20#", "p?", "a\\[b", "*"])
def test_a_pattern_in_a_file_name_is_a_name(
    spark: SparkSession, parquet_table: Tables, scan_of: Scans, file_name: str, files: int
) -> None:
    table = parquet_table(pa.table({"a": [1, 2, 3]}), file_name=file_name, files=files)
    assert sorted(row[0] for row in read_scan(spark, scan_of(table), table).collect()) == [1, 2, 3]


def test_a_colon_in_a_file_name_is_refused(spark: SparkSession, parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"a": [1]}), file_name="12:30")
    with pytest.raises(SpecError) as caught:
        read_scan(spark, scan_of(table), table)
    assert caught.value.code == "unreadable_file"


def test_only_the_files_of_the_list_are_read(spark: SparkSession, parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"a": [1, 2, 3]}))
    path = on_disk(table.files)[0]
    path.with_name("part-late.parquet").write_bytes(path.read_bytes())
    assert read_scan(spark, scan_of(table), table).count() == 3


def test_csv_by_rfc_4180(spark: SparkSession, text_table: Tables, scan_of: Scans) -> None:
    table = text_table(TableFormat.CSV, ['uid,name\n1,"a ""q"" \\, b"\n2,\n,c\n'], UID_NAME, header=True)
    rows = set(map(tuple, read_scan(spark, scan_of(table), table).collect()))
    assert rows == {(1, 'a "q" \\, b'), (2, None), (None, "c")}


def test_csv_options_are_honoured(spark: SparkSession, text_table: Tables, scan_of: Scans) -> None:
    table = text_table(
        TableFormat.CSV, ["1|'x|y'\nNA|NA\n"], UID_NAME, delimiter="|", quote="'", null_value="NA", header=False
    )
    assert set(map(tuple, read_scan(spark, scan_of(table), table).collect())) == {(1, "x|y"), (None, None)}


def test_csv_with_values_over_several_lines(spark: SparkSession, text_table: Tables, scan_of: Scans) -> None:
    text = 'uid,name\n1,"a\n""b"",c"\n\n,"\n"\n2,\n'
    table = text_table(TableFormat.CSV, [text, text], UID_NAME, header=True, multi_line=True)
    rows = [tuple(row) for row in read_scan(spark, scan_of(table), table).collect()]
    assert sorted(rows, key=str) == sorted([(1, 'a\n"b",c'), (None, "\n"), (2, None)] * 2, key=str)


def test_lines_may_end_otherwise_than_those_inside_of_values(
    spark: SparkSession, text_table: Tables, scan_of: Scans
) -> None:
    # As spreadsheets write them. Were the first break inside a value, it would be that of all rows: see `read_schema`.
    text = 'uid,"na\r\nme"\r\n5,"a\nb"\r\n6,5" pipe\r\n7,"a\r\nb"\r\n'
    fields = (Field("uid", BIGINT), Field("na\nme", STRING))
    table = text_table(TableFormat.CSV, [text], fields, header=True, multi_line=True)
    rows = [tuple(row) for row in read_scan(spark, scan_of(table), table).collect()]
    assert sorted(rows) == [(5, "a\nb"), (6, '5" pipe'), (7, "a\nb")]


def test_a_quote_that_is_not_closed_takes_no_more_than_a_value_may_hold(
    spark: SparkSession, text_table: Tables, scan_of: Scans
) -> None:
    table = text_table(TableFormat.CSV, ['1,"a\n' + "2,b\n" * 300_000], UID_NAME, multi_line=True)
    with pytest.raises(Py4JJavaError) as caught:
        read_scan(spark, scan_of(table), table).collect()
    problem = problem_of_spark_error(caught.value)
    assert problem is not None
    assert (problem.code, problem.status) == ("corrupt_file", 422)
    assert "part-000.csv" in (problem.detail or "")
    assert len(problem.detail or "") <= 1_000


def test_json_over_several_lines(spark: SparkSession, text_table: Tables, scan_of: Scans) -> None:
    table = text_table(TableFormat.JSON, ['[{"uid": 1,\n"name": "a"},\n{"uid": 2}]'], UID_NAME, multi_line=True)
    assert set(map(tuple, read_scan(spark, scan_of(table), table).collect())) == {(1, "a"), (2, None)}


def test_nested_columns_of_json(spark: SparkSession, text_table: Tables, scan_of: Scans) -> None:
    parts = struct((Field("b c", array(BIGINT)), Field("m", mapping(STRING, BIGINT))))
    lines = '{"uid": 1, "s": {"b c": [1, 2], "m": {"x": 3}}}\n{"uid": 2, "s": null}\n'
    table = text_table(TableFormat.JSON, [lines], (Field("uid", BIGINT), Field("s", parts)))
    rows = {row[0]: row[1] for row in read_scan(spark, scan_of(table), table).collect()}
    assert rows == {1: ([1, 2], {"x": 3}), 2: None}


@pytest.mark.parametrize(
    ("format_", "text"),
    [
        (TableFormat.CSV, "uid,name\n1,a\nx,b\n"),
        (TableFormat.CSV, "uid,name\n1,a\n2\n"),
        (TableFormat.CSV, "name,uid\na,1\n"),
        (TableFormat.JSON, '{"uid":1}\n{"uid":"x"}\n'),
        (TableFormat.JSON, '{"uid":1}\n{"uid"\n'),
    ],
    ids=["csv type", "csv too short", "csv header in another order", "json type", "json syntax"],
)
def test_malformed_text_fails_the_query(
    spark: SparkSession, text_table: Tables, scan_of: Scans, format_: TableFormat, text: str
) -> None:
    options = {"header": True} if format_ is TableFormat.CSV else {}
    table = text_table(format_, [text], UID_NAME, **options)
    with pytest.raises(Py4JJavaError, match=r"part-000"):
        read_scan(spark, scan_of(table), table).collect()


def by_uri(table: TableInput) -> TableInput:
    """The same table, whose root is configured as `file:///…`."""
    paths = on_disk(table.files)
    root = DirectoryRoot(paths[0].parent.parent)
    source = table.source.model_copy(update={"path": paths[0].parent.name})
    return TableInput(source, find_table_files(table.files.table, source, [root]), table.schema)


@pytest.fixture
def elsewhere(spark: SparkSession) -> SparkSession:
    """A session of its own in which paths without a scheme are those of an HDFS that nobody reaches."""
    session = spark.newSession()
    # Settings of a session go before those of Hadoop, which all sessions share.
    session.conf.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    session.conf.set("ipc.client.connect.max.retries", "0")
    return session


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("file_name", ["p[1]{x}* a%20%#ü+&日", "p?", "a\\[b"])
def test_local_files_are_read_with_another_default_file_system(
    elsewhere: SparkSession, parquet_table: Tables, scan_of: Scans, file_name: str, files: int
) -> None:
    table = parquet_table(pa.table({"a": [1, 2, 3]}), file_name=file_name, files=files)
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1|Connection refused"):
        elsewhere.read.parquet(str(table.files.directory_or_file)).collect()
    assert sorted(row[0] for row in read_scan(elsewhere, scan_of(table), table).collect()) == [1, 2, 3]


@pytest.mark.parametrize("format_", [TableFormat.CSV, TableFormat.JSON])
def test_local_text_is_read_with_another_default_file_system(
    elsewhere: SparkSession, text_table: Tables, scan_of: Scans, format_: TableFormat
) -> None:
    text = "1,a\n" if format_ is TableFormat.CSV else '{"uid":1,"name":"a"}\n'
    table = text_table(format_, [text, text], UID_NAME)
    assert [tuple(row) for row in read_scan(elsewhere, scan_of(table), table).collect()] == [(1, "a")] * 2


@pytest.mark.parametrize("file_name", ["part", "p[1]{x}* a%20#", "p?", "a\\[b"])
def test_files_by_their_uris(spark: SparkSession, parquet_table: Tables, scan_of: Scans, file_name: str) -> None:
    table = by_uri(parquet_table(pa.table({"a": [1, 2, 3]}), file_name=file_name, files=3))
    frame = read_scan(spark, scan_of(table), table)
    assert sorted(row[0] for row in frame.collect()) == [1, 2, 3]
    assert all(name.startswith("file:///") for name in frame.inputFiles())


def test_text_by_its_uri(spark: SparkSession, text_table: Tables, scan_of: Scans) -> None:
    table = by_uri(text_table(TableFormat.CSV, ["uid,name\n1,a\n"], UID_NAME, header=True))
    assert [tuple(row) for row in read_scan(spark, scan_of(table), table).collect()] == [(1, "a")]


def test_a_colon_in_a_uri_is_refused_after_its_authority_alone(
    spark: SparkSession, parquet_table: Tables, scan_of: Scans
) -> None:
    table = parquet_table(pa.table({"a": [1]}))
    files = TableFiles("t", Path("/"), (UriFile("hdfs://namenode:8020/x/12:30", "x/12:30", 1),), 1)
    with pytest.raises(SpecError) as caught:
        read_scan(spark, scan_of(table), TableInput(table.source, files, table.schema))
    assert caught.value.code == "unreadable_file"
    assert "'x/12:30'" in str(caught.value)


@pytest.mark.parametrize("columns", [["a"], ["b", "d"], ["n"], ["n", "a"], ["a", "b", "c", "d"]])
def test_the_planner_knows_sparks_estimate_of_the_size(
    spark: SparkSession, parquet_table: Tables, scan_of: Scans, columns: list[str]
) -> None:
    types = {"a": pa.int64(), "b": pa.string(), "c": pa.decimal128(20, 2), "d": pa.date32(), "n": pa.list_(pa.int64())}
    written = parquet_table(pa.table({name: pa.array([None], type_) for name, type_ in types.items()}))
    schema = parse_schema("a BIGINT, b STRING, c DECIMAL(20,2), d DATE, n ARRAY<BIGINT>", pointer="")
    table = replace(written, schema=schema)
    scan = scan_of(table, "o", *columns)
    frame = ScanReads(spark, {"t": table}, CorruptRecords()).frames(scan)["o"]
    known = sizes_only([scan], {"t": table}, 2, "")
    assert size_of(scan, known) == int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())


def test_aliases_with_other_columns_share_a_read(spark: SparkSession, parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"a": [1, 2], "b": [3, 4]}))
    plan = Join(scan_of(table, "x", "a"), scan_of(table, "y", "b"), JoinKind.CROSS, ())
    reads = ScanReads(spark, {"t": table}, CorruptRecords())
    assert {alias: frame.columns for alias, frame in reads.frames(plan).items()} == {"x": ["x.a"], "y": ["y.b"]}
    assert len(reads._read) == 1


def _sums(spark: SparkSession, table: TableInput, cache: ScanCache, *scans: Scan) -> list[int]:
    frames = ScanReads(spark.newSession(), {"t": table}, CorruptRecords(), cache)
    return [int(frames.frames(scan)[scan.alias].selectExpr(f"sum(`{scan.alias}.a`)").collect()[0][0]) for scan in scans]


def test_a_cached_scan_reads_the_files_as_they_are(spark: SparkSession, parquet_table: Tables, scan_of: Scans) -> None:
    cache = ScanCache(spark)
    table = parquet_table(pa.table({"a": [1, 2], "b": [3, 4]}))
    scans = scan_of(table, "o"), scan_of(table, "p", "a"), scan_of(table, "o", "a")
    assert _sums(spark, table, cache, *scans) == [3, 3, 3]
    plans = len(cache)
    assert _sums(spark, table, cache, *scans) == [3, 3, 3]
    assert len(cache) == plans
    pq.write_table(pa.table({"a": [10, 20, 30], "b": [0, 0, 0]}), on_disk(table.files)[0])
    written = replace(table, files=replace(table.files, versions=()))
    assert _sums(spark, written, cache, *scans) == [60, 60, 60]
    assert len(cache) == 2 * plans


def test_a_cached_scan_can_be_joined_with_itself(spark: SparkSession, parquet_table: Tables, scan_of: Scans) -> None:
    cache = ScanCache(spark)
    table = parquet_table(pa.table({"a": [1, 2, 2], "b": [3, 4, 5]}))
    left, right = scan_of(table, "x"), scan_of(table, "y")
    keys = ((column("x.a", BIGINT), column("y.a", BIGINT)),)
    plan = Join(left, right, JoinKind.INNER, keys)
    for _ in range(2):
        session = spark.newSession()
        frames = ScanReads(session, {"t": table}, CorruptRecords(), cache).frames(plan)
        assert lower(plan, frames, session).count() == 5


def test_the_least_recently_used_scans_are_dropped(
    spark: SparkSession, parquet_table: Tables, scan_of: Scans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_cache, "MAX_FILES", 3)
    cache = ScanCache(spark)
    table = parquet_table(pa.table({"a": [1, 2, 3]}), files=2)
    assert _sums(spark, table, cache, scan_of(table, "o"), scan_of(table, "p")) == [6, 6]
    assert len(cache) == 1
