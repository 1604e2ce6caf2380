"""Files of posted rows: durable before they are shown, whole when they are, and read by Spark as what was declared."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.data.file_io import make_directory
from service.data.posted_rows import (
    hidden_directory,
    hidden_path,
    remove_hidden,
    segment_name,
    show,
    stream_directory,
    write_hidden,
)
from service.data.schemas import data_type
from service.results.columns import arrow_schema
from service.sql.ddl import parse_schema, schema_text
from tests.support.posted_rows import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = pa.table({"uid": [1, 2]})
FULL = {
    "flag": True,
    "tiny": -128,
    "small": 32767,
    "int": -(2**31),
    "big": 2**63 - 1,
    "single": 0.5,
    "double": 0.1,
    "text": "ä\n",
    "price": Decimal("-999.99"),
    "at": datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC),
    "local": datetime(2026, 1, 31, 12, 0, 0, 123456),  # noqa: DTZ001 - of no zone
    "day": date(2024, 2, 29),
    "raw": b"\x00\xff",
}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    directory = stream_directory(tmp_path, "default", "clicks", "a1")
    make_directory(directory)
    return directory / segment_name(1, "0123456789abcdef")


def test_where_things_are(tmp_path: Path, target: Path) -> None:
    assert target == tmp_path / "input" / "default" / "clicks" / "a1" / "000000000001-0123456789ab.parquet"
    assert hidden_path(tmp_path, "x") == tmp_path / "input" / ".hidden" / "x.parquet"


def test_written_and_shown(tmp_path: Path, target: Path) -> None:
    segment = write_hidden(tmp_path, ROWS)
    assert not target.exists()
    assert (segment.rows, segment.bytes) == (2, hidden_path(tmp_path, segment.id).stat().st_size)
    assert show(tmp_path, segment.id, target)
    assert pq.read_table(target).equals(ROWS)
    assert list(hidden_directory(tmp_path).iterdir()) == []
    assert show(tmp_path, segment.id, target), "somebody else has shown it"
    target.unlink()
    assert not show(tmp_path, segment.id, target)


def test_file_and_directory_are_durable_first(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append("file" if path.suffix == ".parquet" else path.name)
        # What is synced of a file must be all of it.
        assert path.is_dir() or pq.read_table(path).equals(ROWS)
        sync(descriptor)

    write_hidden(tmp_path, ROWS)  # makes the directory
    monkeypatch.setattr(os, "fsync", note)
    segment = write_hidden(tmp_path, ROWS)
    assert synced == ["file", ".hidden"]
    show(tmp_path, segment.id, target)
    assert synced == ["file", ".hidden", "a1"]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    make_directory(hidden_directory(tmp_path))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_hidden(tmp_path, ROWS)
    assert list(hidden_directory(tmp_path).iterdir()) == []


def test_removed(tmp_path: Path) -> None:
    segment = write_hidden(tmp_path, ROWS)
    remove_hidden(tmp_path, segment.id)
    remove_hidden(tmp_path, segment.id)
    assert list(hidden_directory(tmp_path).iterdir()) == []


def test_the_files_columns_are_the_declared_ones(tmp_path: Path, target: Path) -> None:
    segment = write_hidden(tmp_path, pa.Table.from_pylist([FULL], arrow_schema(SCHEMA.fields)))
    show(tmp_path, segment.id, target)
    read = pq.read_schema(target)
    assert [(field.name, data_type(field.type)) for field in read] == [
        (field.name, field.type) for field in SCHEMA.fields
    ]


@pytest.mark.spark
def test_spark_reads_them_as_a_stream(spark: SparkSession, tmp_path: Path, target: Path) -> None:
    """One file at a time, in whatever order they appear, each once; what is hidden not at all."""
    schema = parse_schema(schema_text(SCHEMA), "/schema")
    empty = dict.fromkeys(schema.names)

    def put(sequence: int, row: dict[str, object]) -> None:
        segment = write_hidden(tmp_path, pa.Table.from_pylist([row], arrow_schema(schema.fields)))
        assert show(tmp_path, segment.id, target.with_name(segment_name(sequence, "0" * 64)))

    def run() -> None:
        frame = spark.readStream.format("parquet").schema(schema_text(schema)).load(str(target.parent))
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()

    put(2, FULL)
    write_hidden(tmp_path, pa.Table.from_pylist([FULL], arrow_schema(schema.fields)))
    run()
    put(1, empty)
    run()
    rows = [row.asDict() for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(row["big"] is None for row in rows) == [False, True]
    (full,) = (row for row in rows if row["big"] is not None)
    assert {**full, "raw": bytes(full["raw"]), "at": None} == {**FULL, "at": None}
    (at,) = spark.read.parquet(str(tmp_path / "out")).selectExpr("unix_micros(max(at)) AS at").collect()
    assert at["at"] == 1769860800123456
