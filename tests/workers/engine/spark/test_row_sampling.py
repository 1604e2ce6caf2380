"""Samples of ORC and Avro files are limited, also those of files whose rows take almost no bytes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import orc

from service.contract.read_options import TableFormat
from workers.engine.spark import avro_source
from workers.engine.spark.avro_source import read_avro
from workers.engine.spark.row_sampling import BINARY_SAMPLERS, FileSample, sample_rows


def _orc(path: Path, column: str) -> FileSample:
    return BINARY_SAMPLERS[TableFormat.ORC](path, [column])


def _avro(path: Path, rows: int, interval: int = 16_000, codec: str = "null") -> Path:
    schema = {"type": "record", "name": "r", "fields": [{"name": "v", "type": "boolean"}]}
    with path.open("wb") as file:
        fastavro.writer(file, schema, ({"v": True} for _ in range(rows)), sync_interval=interval, codec=codec)
    return path


def test_a_stripe_of_millions_of_equal_rows_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "t.orc"
    orc.write_table(pa.table({"v": pa.repeat(7, 5_000_000)}), str(path), compression="zlib")
    assert path.stat().st_size < 1 << 20
    sample = _orc(path, "v")
    assert (sample.rows, sample.table) == (5_000_000, None)


def test_an_ordinary_stripe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.orc"
    orc.write_table(pa.table({"v": range(50_000), "w": ["x"] * 50_000}), str(path))
    sample = _orc(path, "v")
    assert sample.table is not None
    assert (sample.rows, sample.table.num_rows, sample.is_whole) == (50_000, 16_384, True)


def test_a_damaged_orc_file_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "t.orc"
    path.write_bytes(b"ORC" + bytes(100))
    sample = sample_rows(BINARY_SAMPLERS[TableFormat.ORC], [path], 103, ["v"])
    assert sample.warnings == ("A sample of t.orc cannot be read: its content does not match its format.",)


def test_a_sample_ends_within_a_large_block(tmp_path: Path) -> None:
    path = _avro(tmp_path / "t.avro", 1_000_000, interval=2_000_000, codec="deflate")
    tracemalloc.start()
    try:
        sample = sample_rows(BINARY_SAMPLERS[TableFormat.AVRO], [path], path.stat().st_size, ["v"])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sample.table is not None
    assert (sample.rows, sample.rows_are_exact, sample.table.num_rows) == (1_000_000, False, 16_384)
    assert peak < 32 << 20


def test_a_sample_of_a_small_avro_file_is_exact(tmp_path: Path) -> None:
    path = _avro(tmp_path / "t.avro", 1000, interval=100)
    sample = sample_rows(BINARY_SAMPLERS[TableFormat.AVRO], [path], path.stat().st_size, ["v"])
    assert sample.table is not None
    assert (sample.rows, sample.rows_are_exact, sample.table.num_rows) == (1000, True, 1000)


@pytest.mark.spark
def test_files_are_divided_among_tasks(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [_avro(tmp_path / f"{number}.avro", number + 1) for number in range(6)]
    one_each = read_avro(spark, files, "v BOOLEAN").rdd.mapPartitions(lambda rows: [len(list(rows))]).collect()
    assert one_each == [1, 2, 3, 4, 5, 6]
    monkeypatch.setattr(avro_source, "_MAX_TASKS", 2)
    two = read_avro(spark, files, "v BOOLEAN").rdd.mapPartitions(lambda rows: [len(list(rows))]).collect()
    assert two == [6, 15]
