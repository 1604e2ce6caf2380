"""Files that other programs write, read by jobs that name only their path."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from tests.support.accepted import planned, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def _datetime(*parts: int) -> datetime:
    """Returns a time as Spark's rows have it: without a zone, in that of the session."""
    return datetime(*parts)  # type: ignore[arg-type] # noqa: DTZ001


ROWS: dict[str, list[Any]] = {
    "id": [1, 2, 3],
    "name": ["a", 'b,"c"', None],
    "price": [1.5, None, -2.25],
    "day": [date(2024, 1, 1), date(2024, 2, 29), None],
    "at": [_datetime(2024, 1, 1, 10, 30), None, _datetime(2024, 7, 1, 0, 0, 1)],
    "ok": [True, False, None],
}


def as_rows(names: str = "id name price day at ok") -> list[dict[str, Any]]:
    return [{name: ROWS[name][place] for name in names.split()} for place in range(3)]


def _pandas_csv(path: Path) -> None:
    pd.DataFrame({name: pd.Series(values, dtype="object") for name, values in ROWS.items()}).to_csv(path, index=False)


def _arrow_csv(path: Path) -> None:
    pa_csv.write_csv(pa.table(ROWS), path)


def _duckdb_csv(path: Path) -> None:
    duckdb.from_arrow(pa.table(ROWS)).write_csv(str(path), header=True)


def _pandas_json(path: Path) -> None:
    frame = pd.DataFrame({name: pd.Series(values, dtype="object") for name, values in ROWS.items()})
    frame.astype({"day": "string", "at": "string"}).to_json(path, orient="records", lines=True)


def _json_array(path: Path) -> None:
    frame = pd.DataFrame({name: pd.Series(values, dtype="object") for name, values in ROWS.items()})
    frame.astype({"day": "string", "at": "string"}).to_json(path, orient="records", indent=2)


def _duckdb_json(path: Path) -> None:
    duckdb.sql("SET TimeZone = 'UTC'")
    duckdb.from_arrow(pa.table(ROWS)).query("r", f"COPY (SELECT * FROM r) TO '{path}' (FORMAT json)")


WRITERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "pandas CSV": ("t.csv", _pandas_csv),
    "pandas CSV gzip": ("t.csv.gz", _pandas_csv),
    "pandas CSV bzip2": ("t.csv.bz2", _pandas_csv),
    "Arrow CSV": ("t.csv", _arrow_csv),
    "DuckDB CSV": ("t.csv", _duckdb_csv),
    "DuckDB CSV zstd": ("t.csv.zst", _duckdb_csv),
    "pandas JSON lines": ("t.jsonl", _pandas_json),
    "pandas JSON lines gzip": ("t.ndjson.gz", _pandas_json),
    "pandas JSON array": ("t.json", _json_array),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_text_of_other_programs(spark: SparkSession, tmp_path: Path, writer: str) -> None:
    name, write = WRITERS[writer]
    write(tmp_path / name)
    assert rows(spark, tmp_path, {"path": name}, "SELECT * FROM t ORDER BY id") == as_rows()


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".gzip", gzip.compress), (".bz2", bz2.compress), (".deflate", zlib.compress)],
)
def test_compressions_by_suffix(
    spark: SparkSession, tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    data = b"id,v\n" + b"".join(b"%d,x\n" % number for number in range(50_000))
    (tmp_path / f"t.csv{suffix}").write_bytes(compress(data))
    found = planned(spark, tmp_path, {"path": f"t.csv{suffix}"}, "SELECT COUNT(*) AS n, SUM(id) AS s FROM t")
    assert found.frame.collect() == [(50_000, sum(range(50_000)))]
    (size,) = found.report.tables
    assert 25_000 < size.rows < 100_000


@pytest.mark.parametrize("codec", ["lz4", "snappy"])
def test_blocks_of_hadoop(spark: SparkSession, tmp_path: Path, codec: str) -> None:
    spark.range(20_000).selectExpr("id", "'v' || id AS v").coalesce(1).write.option("compression", codec).option(
        "header", True
    ).csv(f"file://{tmp_path}/t")
    assert rows(spark, tmp_path, {"path": "t"}, "SELECT COUNT(v) AS n, MAX(id) AS m FROM t") == [
        {"n": 20_000, "m": 19_999}
    ]


def test_options_of_spark_and_pandas(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(
        "# note\nid; name;day;at\n1; 'ä;\\'b';31/12/2024;01.02.2024 10:30\n2; ;NA;NA\n".encode("latin-1")
    )
    options = {
        "sep": ";",
        "quotechar": "'",
        "escapechar": "\\",
        "comment": "#",
        "charset": "latin1",
        "na_values": ["NA"],
        "dateFormat": "dd/MM/yyyy",
        "timestampFormat": "dd.MM.yyyy HH:mm",
        "skipinitialspace": True,
    }
    assert rows(spark, tmp_path, {"path": "t.csv", "options": options}) == [
        {"id": 1, "name": "ä;'b", "day": date(2024, 12, 31), "at": _datetime(2024, 2, 1, 10, 30)},
        {"id": 2, "name": None, "day": None, "at": None},
    ]


def test_columns_with_other_types_than_the_inferred_ones(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,amount\n1,12.30\n2,7\n")
    table = {"path": "t.csv", "columns": {"amount": "DECIMAL(10,2)", "ID": "STRING"}}
    assert rows(spark, tmp_path, table) == [
        {"id": "1", "amount": Decimal("12.30")},
        {"id": "2", "amount": Decimal("7.00")},
    ]


class TestPartitions:
    """Columns in the names of directories."""

    def write(self, root: Path) -> None:
        days = pa.array([date(2024, 1, 1 + number % 3) for number in range(30)])
        table = pa.table({"v": range(30), "day": days, "region": [f"r {n % 2}" for n in range(30)]})
        pq.write_to_dataset(table, root / "t", partition_cols=["day", "region"])
        pq.write_table(
            pa.table({"v": [100]}),
            self.directory(root / "t" / "day=__HIVE_DEFAULT_PARTITION__" / "region=x%3Ay") / "p.parquet",
        )

    def directory(self, path: Path) -> Path:
        path.mkdir(parents=True)
        return path

    def test_they_are_columns_and_filters_choose_directories(self, spark: SparkSession, tmp_path: Path) -> None:
        self.write(tmp_path)
        sql = (
            "SELECT day, region, SUM(v) AS s FROM t WHERE day = DATE '2024-01-02' GROUP BY day, region ORDER BY region"
        )
        found = planned(spark, tmp_path, {"path": "t"}, sql)
        assert [tuple(row) for row in found.frame.collect()] == [
            (date(2024, 1, 2), "r 0", 4 + 10 + 16 + 22 + 28),
            (date(2024, 1, 2), "r 1", 1 + 7 + 13 + 19 + 25),
        ]
        assert "PartitionFilters: [isnotnull(day" in str(found.report.physical_plan)
        nulls = rows(spark, tmp_path, {"path": "t"}, "SELECT v, region FROM t WHERE day IS NULL")
        assert nulls == [{"v": 100, "region": "x:y"}]

    def test_the_optimizer_reads_their_values_from_the_names(self, spark: SparkSession, tmp_path: Path) -> None:
        for number in range(40):
            pq.write_table(
                pa.table({"v": range(10)}),
                self.directory(tmp_path / "t" / f"day=2024-01-{number % 28 + 1:02}" / f"h={number}") / "p.parquet",
            )
        found = planned(
            spark, tmp_path, {"path": "t"}, "SELECT h, COUNT(DISTINCT v) AS n FROM t WHERE h < 10 GROUP BY h"
        )
        (share,) = found.statistics.selectivities.values()
        assert share == pytest.approx(0.25, abs=0.02)
        (key,) = (sketch for key, sketch in found.statistics.keys.items() if key == ("t.h",))
        assert key.distinct_keys == 40
        assert key.hot_keys == () or max(hot.share for hot in key.hot_keys) < 0.05

    def test_text_and_wildcards(self, spark: SparkSession, tmp_path: Path) -> None:
        for month in ("01", "02", "12"):
            self.directory(tmp_path / "t" / f"month={month}")
            (tmp_path / "t" / f"month={month}" / "a.csv").write_text(f"v\n{int(month)}.5\n")
        sql = "SELECT month, v FROM t ORDER BY month"
        assert rows(spark, tmp_path, {"path": "t"}, sql)[-1] == {"month": 12, "v": 12.5}
        some = {"path": "t/month=0*/*.csv", "partitions": "month STRING", "columns": {"v": "STRING"}}
        assert rows(spark, tmp_path, some, sql) == [{"month": "01", "v": "1.5"}, {"month": "02", "v": "2.5"}]


def test_a_time_with_a_zone_is_an_instant(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("at\n2024-01-01T10:00:00+02:00\n")
    (found,) = rows(spark, tmp_path, {"path": "t.csv"})
    assert found["at"].astimezone(UTC).replace(tzinfo=None) == _datetime(2024, 1, 1, 8)


BAD = {
    "t.csv": "id,v\n1,a\nx,b\n3\n4,d,e\n5,f\n",
    "t.jsonl": '{"id":1,"v":"a"}\n{"id":"x","v":"b"}\nnothing\n{"id":5,"v":"f"}\n',
}
CORRUPT = {"t.csv": 3, "t.jsonl": 2}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("sql", ["SELECT COUNT(*) AS n FROM t", "SELECT COUNT(v) AS n FROM t WHERE id IS NOT NULL"])
def test_corrupt_records_are_counted(spark: SparkSession, tmp_path: Path, name: str, sql: str) -> None:
    (tmp_path / name).write_text(BAD[name])
    table = {"path": name, "schema": "id BIGINT, v STRING", "header": True, "options": {"mode": "DROPMALFORMED"}}
    found = planned(spark, tmp_path, table, sql)
    found.frame.write.mode("overwrite").format("noop").save()
    assert found.corrupt.counts() == {"t": CORRUPT[name]}
    assert found.frame.collect() == [(2,)]


@pytest.mark.parametrize("name", BAD)
def test_corrupt_records_are_put_aside(spark: SparkSession, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(BAD[name])
    table = {"path": name, "schema": "id BIGINT, v STRING", "header": True, "options": {"mode": "PERMISSIVE"}}
    sql = "SELECT a._corrupt_record AS r FROM t a JOIN t b ON a.v = b.v WHERE a._corrupt_record IS NOT NULL"
    found = planned(spark, tmp_path, table, sql)
    assert {row["r"] for row in found.frame.collect()} <= set(BAD[name].splitlines())
    assert found.corrupt.counts() == {"t": CORRUPT[name]}
    failing = {**table, "options": {"mode": "FAILFAST"}}
    with pytest.raises(Exception, match="MALFORMED"):
        rows(spark, tmp_path, failing)
