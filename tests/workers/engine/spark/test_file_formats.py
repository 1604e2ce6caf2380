"""ORC, Avro, XML, Delta and evolved Parquet files, as other programs write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import orc

from service.contract.problems import SpecError
from tests.support.accepted import accepted, planned, rows
from workers.engine.spark.error_mapping import problem_of_spark_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TYPED = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "name": pa.array(["a", None, "ü"]),
        "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(10, 2)),
        "day": pa.array([date(2024, 1, 1), None, date(2024, 2, 29)]),
        "at": pa.array(
            [datetime(2024, 1, 1, 10, tzinfo=UTC), None, datetime(1969, 7, 20, 20, 17, tzinfo=UTC)],
            pa.timestamp("us", "UTC"),
        ),
        "ratio": pa.array([0.5, float("nan"), None]),
        "ok": pa.array([True, None, False]),
        "tags": pa.array([["x"], [], None], pa.list_(pa.string())),
    }
)
SQL = "SELECT * FROM t ORDER BY id"


def _avro(path: Path, codec: str = "deflate") -> None:
    nullable: list[tuple[str, Any]] = [
        ("id", "long"),
        ("name", "string"),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
        ("day", {"type": "int", "logicalType": "date"}),
        ("at", {"type": "long", "logicalType": "timestamp-micros"}),
        ("ratio", "double"),
        ("ok", "boolean"),
        ("tags", {"type": "array", "items": "string"}),
    ]
    schema = {
        "type": "record",
        "name": "order",
        "fields": [{"name": name, "type": ["null", type_]} for name, type_ in nullable],
    }
    with path.open("wb") as file:
        fastavro.writer(file, schema, TYPED.to_pylist(), codec=codec)


WRITERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "Arrow ORC": ("t.orc", lambda path: orc.write_table(TYPED, str(path))),
    "Arrow ORC zstd": ("t.orc", lambda path: orc.write_table(TYPED, str(path), compression="zstd")),
    "fastavro deflate": ("t.avro", _avro),
    "fastavro bzip2": ("t.avro", lambda path: _avro(path, "bzip2")),
    "fastavro without compression": ("t.avro", lambda path: _avro(path, "null")),
    "Delta": ("t", lambda path: write_deltalake(path, TYPED)),
    "Parquet": ("t.parquet", lambda path: pq.write_table(TYPED, path)),
    "Parquet without a suffix": ("t", lambda path: pq.write_table(TYPED, path)),
}


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    at = row["at"]
    return {**row, "at": None if at is None else at.replace(tzinfo=None), "ratio": str(row["ratio"])}


@pytest.mark.parametrize("writer", WRITERS)
def test_files_of_other_programs(spark: SparkSession, tmp_path: Path, writer: str) -> None:
    name, write = WRITERS[writer]
    write(tmp_path / name)
    found = rows(spark, tmp_path, {"path": name}, SQL)
    assert list(map(_plain, found)) == list(map(_plain, TYPED.to_pylist()))
    grouped = planned(spark, tmp_path, {"path": name}, "SELECT ok, SUM(price) AS s FROM t WHERE id < 3 GROUP BY ok")
    assert sorted(map(str, grouped.frame.collect())) == ["Row(ok=None, s=None)", "Row(ok=True, s=Decimal('1.50'))"]
    (size,) = grouped.report.tables
    assert size.rows == 3


def test_avro_in_partitions_and_large(spark: SparkSession, tmp_path: Path) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "v", "type": "long"}, {"name": "s", "type": "string"}]}
    for day in ("2024-01-01", "2024-01-02"):
        (tmp_path / "t" / f"day={day}").mkdir(parents=True)
        with (tmp_path / "t" / f"day={day}" / "a.avro").open("wb") as file:
            fastavro.writer(file, schema, ({"v": number, "s": "x" * 20} for number in range(60_000)), codec="deflate")
    found = rows(
        spark, tmp_path, {"path": "t"}, "SELECT day, COUNT(*) AS n, SUM(v) AS s FROM t GROUP BY day ORDER BY day"
    )
    assert found == [{"day": date(2024, 1, day), "n": 60_000, "s": sum(range(60_000))} for day in (1, 2)]


def test_a_damaged_avro_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    _avro(tmp_path / "t.avro")
    data = (tmp_path / "t.avro").read_bytes()
    (tmp_path / "t.avro").write_bytes(data[:-20])
    with pytest.raises(Exception, match="AvroFileError") as caught:
        rows(spark, tmp_path, {"path": "t.avro"}, SQL)
    problem = problem_of_spark_error(caught.value)
    assert problem is not None
    assert (problem.code, problem.detail) == ("corrupt_file", "'t.avro' is damaged, or ends within a block.")


def test_xml(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t.xml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?><orders xmlns:x="urn:x">'
        '<order id="7"><price>1.5</price><day>2024-01-01</day><name>ä &amp; b</name><item><n>1</n></item></order>'
        '<order id="8"><price/><day>2024-01-02</day></order></orders>'
    )
    table = {"path": "t.xml", "options": {"rowTag": "order"}}
    assert accepted(tmp_path, table).declared_schema == "_id BIGINT, price DOUBLE, day DATE, name STRING, item STRING"
    assert rows(spark, tmp_path, table) == [
        {"_id": 7, "price": 1.5, "day": date(2024, 1, 1), "name": "ä & b", "item": "<n>1</n>"},
        {"_id": 8, "price": None, "day": date(2024, 1, 2), "name": None, "item": None},
    ]


class TestDelta:
    """Versions, partitions and evolved columns of Delta tables."""

    def test_versions(self, spark: SparkSession, tmp_path: Path) -> None:
        for number in range(3):
            write_deltalake(tmp_path / "t", pa.table({"v": [number]}), mode="overwrite" if number == 2 else "append")
        assert accepted(tmp_path, {"path": "t"}).version == 2
        assert rows(spark, tmp_path, {"path": "t"}) == [{"v": 2}]
        sql = "SELECT COUNT(*) AS n, SUM(v) AS s FROM t"
        assert rows(spark, tmp_path, {"path": "t", "version": 1, "format": "delta"}, sql) == [{"n": 2, "s": 1}]
        with pytest.raises(SpecError, match="has no version 7"):
            accepted(tmp_path, {"path": "t", "version": 7})

    def test_deleted_rows_and_new_columns(self, spark: SparkSession, tmp_path: Path) -> None:
        write_deltalake(tmp_path / "t", pa.table({"v": [1, 2, 3]}))
        DeltaTable(tmp_path / "t").delete("v = 2")
        write_deltalake(tmp_path / "t", pa.table({"v": [4], "w": ["new"]}), mode="append", schema_mode="merge")
        assert rows(spark, tmp_path, {"path": "t"}, "SELECT v, w FROM t ORDER BY v") == [
            {"v": 1, "w": None},
            {"v": 3, "w": None},
            {"v": 4, "w": "new"},
        ]
        assert rows(
            spark, tmp_path, {"path": "t"}, "SELECT COUNT(DISTINCT w) AS n, COUNT(v) AS m FROM t WHERE v > 1"
        ) == [{"n": 1, "m": 2}]

    @pytest.mark.parametrize("region", ["plain", "ü", "a/b", "%20"])
    def test_partition_values_are_those_of_the_log(self, spark: SparkSession, tmp_path: Path, region: str) -> None:
        days = [date(2024, 1, 1), None, date(2024, 1, 3)]
        table = pa.table({"day": pa.array(days), "v": [1, 2, 3], "region": [region, "x", None]})
        write_deltalake(tmp_path / "t", table, partition_by=["day", "region"])
        assert rows(spark, tmp_path, {"path": "t"}, "SELECT * FROM t ORDER BY v") == table.to_pylist()
        found = planned(spark, tmp_path, {"path": "t"}, "SELECT region FROM t WHERE day = DATE '2024-01-01'")
        assert found.frame.collect() == [(region,)]
        assert str(found.report.physical_plan).count("- Scan parquet") == 1

    def test_the_checkpoint_is_read(self, spark: SparkSession, tmp_path: Path) -> None:
        for number in range(5):
            write_deltalake(tmp_path / "t", pa.table({"v": [number]}), mode="append")
        DeltaTable(tmp_path / "t").create_checkpoint()
        write_deltalake(tmp_path / "t", pa.table({"v": [5]}), mode="append")
        assert rows(spark, tmp_path, {"path": "t"}, "SELECT SUM(v) AS s FROM t") == [{"s": 15}]


class TestMergedSchemas:
    """Parquet files whose columns differ. `test_format_writers.py` has ORC and Avro."""

    def test_columns_of_all_files_with_the_wider_type(self, spark: SparkSession, tmp_path: Path) -> None:
        (tmp_path / "t").mkdir()
        pq.write_table(
            pa.table(
                {
                    "id": pa.array([1], pa.int32()),
                    "f": pa.array([0.5], pa.float32()),
                    "d": pa.array([Decimal("1.5")], pa.decimal128(5, 1)),
                }
            ),
            tmp_path / "t" / "1.parquet",
        )
        pq.write_table(
            pa.table(
                {
                    "id": pa.array([2**40], pa.int64()),
                    "f": [0.25],
                    "d": pa.array([Decimal("2.25")], pa.decimal128(12, 2)),
                    "new": ["x"],
                }
            ),
            tmp_path / "t" / "2.parquet",
        )
        with pytest.raises(SpecError, match="merge_schema"):
            accepted(tmp_path, {"path": "t"})
        table = {"path": "t", "options": {"mergeSchema": True}}
        assert rows(spark, tmp_path, table, SQL) == [
            {"id": 1, "f": 0.5, "d": Decimal("1.50"), "new": None},
            {"id": 2**40, "f": 0.25, "d": Decimal("2.25"), "new": "x"},
        ]
        found = planned(spark, tmp_path, table, "SELECT new, COUNT(DISTINCT id) AS n FROM t WHERE id > 1 GROUP BY new")
        assert found.frame.collect() == [("x", 1)]
        assert not [note for note in found.statistics.warnings if note[0] is not None]

    def test_types_without_a_common_one(self, tmp_path: Path) -> None:
        (tmp_path / "t").mkdir()
        for number, values in enumerate(([1], ["x"])):
            pq.write_table(pa.table({"v": values}), tmp_path / "t" / f"{number}.parquet")
        with pytest.raises(SpecError, match="no type of Spark has the values of both"):
            accepted(tmp_path, {"path": "t", "options": {"merge_schema": True}})


def _with_add(root: Path, **changes: Any) -> None:
    """Changes the file of a Delta table in its log."""
    write_deltalake(root / "t", pa.table({"v": [1]}))
    log = root / "t" / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"].update(changes)
    log.write_text("\n".join(map(json.dumps, actions)))


class TestHostileLogs:
    """Logs of Delta tables that name files which the table does not have."""

    @pytest.mark.withstands(
        "a Delta log that names files outside of its table",
        kind="attack",
        how="`..`, absolute paths, URIs, encoded slashes and dots, backslashes and U+0000 in the path of a file",
        times=9,
        guaranteed="422 `path_outside_data_roots`; no file outside of the table's directory is opened",
    )
    @pytest.mark.parametrize(
        "path",
        [
            "../secret.parquet",
            "a/../../secret.parquet",
            "/etc/passwd",
            "file:///etc/passwd",
            "s3://b/x",
            "%2E%2E/s",
            "a%2F..%2F..%2Fs",
            "..%5Cs",
            "x%00y",
        ],
    )
    def test_a_path_that_leads_out(self, tmp_path: Path, path: str) -> None:
        pq.write_table(pa.table({"v": [1]}), tmp_path / "secret.parquet")
        _with_add(tmp_path, path=path)
        with pytest.raises(SpecError) as caught:
            accepted(tmp_path, {"path": "t"})
        assert caught.value.code == "path_outside_data_roots"

    def test_links(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"v": [1]}), tmp_path / "secret.parquet")
        _with_add(tmp_path, path="link.parquet")
        (tmp_path / "t" / "link.parquet").symlink_to(tmp_path / "secret.parquet")
        with pytest.raises(SpecError) as caught:
            accepted(tmp_path, {"path": "t"})
        assert caught.value.code == "path_outside_data_roots"
        (tmp_path / "t" / "_delta_log" / f"{1:020}.json").symlink_to("/etc/passwd")
        with pytest.raises(SpecError, match="link"):
            accepted(tmp_path, {"path": "t"})

    def test_a_removed_file_and_a_damaged_log(self, tmp_path: Path) -> None:
        _with_add(tmp_path, path="gone.parquet")
        with pytest.raises(SpecError, match="VACUUM"):
            accepted(tmp_path, {"path": "t"})
        (tmp_path / "t" / "_delta_log" / f"{0:020}.json").write_text("{}garbage")
        with pytest.raises(SpecError) as caught:
            accepted(tmp_path, {"path": "t"})
        assert caught.value.code == "corrupt_file"

    @pytest.mark.parametrize("is_used", [True, False])
    def test_deletion_vectors(self, tmp_path: Path, is_used: bool) -> None:
        features = ["deletionVectors"]
        vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 4, "cardinality": 1}
        _with_add(tmp_path, **({"deletionVector": vector} if is_used else {}))
        log = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            if "protocol" in action:
                action["protocol"] = {
                    "minReaderVersion": 3,
                    "minWriterVersion": 7,
                    "readerFeatures": features,
                    "writerFeatures": features,
                }
        log.write_text("\n".join(map(json.dumps, actions)))
        if is_used:
            with pytest.raises(SpecError, match="deletion vectors"):
                accepted(tmp_path, {"path": "t"})
        else:
            assert accepted(tmp_path, {"path": "t"}).version == 0

    def test_mapped_columns(self, tmp_path: Path) -> None:
        _with_add(tmp_path)
        log = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
        log.write_text(
            log.read_text().replace('"configuration": {}', '"configuration": {"delta.columnMapping.mode": "name"}')
        )
        with pytest.raises(SpecError, match="maps its columns"):
            accepted(tmp_path, {"path": "t"})
