"""Samples of ORC and Avro files are limited, also those of files whose rows take almost no bytes."""

from __future__ import annotations

import io
import random
import resource
import tracemalloc
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import orc

from service.contract.read_options import TableFormat
from service.data.orc_files import first_rows
from workers.engine.spark import avro_source
from workers.engine.spark.avro_source import read_avro
from workers.engine.spark.row_sampling import BINARY_SAMPLERS, FileSample, sample_rows
from workers.engine.spark.sampling import Sample


class CountingFile(io.FileIO):
    """Counts the bytes that are read of a file."""

    read_bytes = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size) or b""
        self.read_bytes += len(data)
        return data


def _orc(path: Path, column: str) -> FileSample:
    return BINARY_SAMPLERS[TableFormat.ORC](path, [column])


def _avro(path: Path, rows: int, interval: int = 16_000, codec: str = "null") -> Path:
    schema = {"type": "record", "name": "r", "fields": [{"name": "v", "type": "boolean"}]}
    with path.open("wb") as file:
        fastavro.writer(file, schema, ({"v": True} for _ in range(rows)), sync_interval=interval, codec=codec)
    return path


def test_the_first_rows_of_a_stripe_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.orc"
    orc.write_table(pa.table({"v": pa.repeat(7, 5_000_000)}), str(path), compression="zlib")
    assert path.stat().st_size < 1 << 20
    sample = _orc(path, "v")
    assert sample.table is not None
    assert (sample.rows, sample.table.num_rows, sample.is_counted, sample.is_whole) == (5_000_000, 16_384, True, False)


def test_only_the_beginning_of_a_file_with_many_stripes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.orc"
    texts = random.Random(1)
    # So many batches that half of them are never decoded in advance.
    table = pa.table({"v": pa.array(texts.randbytes(4).hex() for _ in range(1_600_000))})
    orc.write_table(table, str(path), stripe_size=1 << 20, compression="uncompressed")
    assert orc.ORCFile(str(path)).nstripes > 4
    with CountingFile(path) as stream:
        found = first_rows(stream, ["v"], 1000)
    assert found is not None
    assert found.to_pylist() == table.slice(0, 1000).to_pylist()
    assert stream.read_bytes < path.stat().st_size / 2


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_texts_of_orc(tmp_path: Path, compression: str, threshold: float) -> None:
    path = tmp_path / "t.orc"
    table = pa.table({"n": [[1]] * 5000, "v": [f"name {number % 70}" for number in range(5000)], "w": range(5000)})
    orc.write_table(table, str(path), compression=compression, dictionary_key_size_threshold=threshold)
    sample = BINARY_SAMPLERS[TableFormat.ORC](path, ["w", "v"])
    assert sample.table is not None
    assert sample.table.select(["v", "w"]).to_pylist() == table.select(["v", "w"]).to_pylist()
    assert _orc(path, "n").table is None


@pytest.mark.withstands(
    "an ORC file that has a long text once for many rows",
    kind="attack",
    how="a text of a megabyte in 200 rows",
    times=1,
    guaranteed="a sample stops after 64 MB",
)
def test_a_long_text_of_many_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.orc"
    with orc.ORCWriter(str(path), compression="zlib", dictionary_key_size_threshold=1.0) as writer:
        writer.write(pa.table({"v": ["x" * (1 << 20)] * 200}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sample = _orc(path, "v")
    assert sample.table is not None
    assert sample.table.num_rows < 80
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


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
    assert (sample.rows, sample.rows_are_exact, sample.table.num_rows) == (1_000_000, False, 4_096)
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


def test_rows_of_few_orc_files_are_enough_for_few_values(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.orc" for number in range(8)]
    for number, file in enumerate(files):
        values = random.Random(number).randbytes(700_000)
        orc.write_table(pa.table({"v": pa.array(values, pa.uint8()).cast(pa.int32())}), str(file))
    size = sum(file.stat().st_size for file in files)
    asked: list[int] = []

    def is_enough(sample: Sample) -> bool:
        assert sample.table is not None
        asked.append(sample.table.num_rows)
        return len(asked) == 1

    sampler = BINARY_SAMPLERS[TableFormat.ORC]
    for rows in (3, 8):
        sample = sample_rows(sampler, files, size, ["v"], is_enough=is_enough)
        assert (sample.rows, sample.rows_are_exact) == (8 * 700_000, True)
        assert sample.table is not None
        assert sample.table.num_rows == rows * 16_384
    assert asked == [3 * 16_384] * 2


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2"])
def test_only_the_beginning_of_a_large_avro_block_is_decoded(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "t.avro"
    schema = {"type": "record", "name": "r", "fields": [{"name": "v", "type": "string"}]}
    texts = random.Random(1)
    rows = [{"v": texts.randbytes(600).hex()} for _ in range(10_000)]
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, sync_interval=1 << 30, codec=codec)
    sample = BINARY_SAMPLERS[TableFormat.AVRO](path, ["v"])
    assert sample.table is not None
    assert (sample.rows, sample.bytes) == (10_000, path.stat().st_size)
    assert 1_500 <= sample.table.num_rows < 1_800
    assert sample.table.column("v").to_pylist() == [row["v"] for row in rows[: sample.table.num_rows]]
    assert not sample.is_whole
