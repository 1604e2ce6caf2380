"""How many files a mini-batch reads for a size in rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.contract.options import MiniBatchSettings
from service.contract.tables import TableSource
from service.sql.types.data_types import STRING, Field, Schema
from workers.engine.plan.nodes import Scan
from workers.engine.streaming.sources import DEFAULT_ROWS, BatchBound, StreamInput, bound_of, read_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1000
"""Of a file."""

CSV = TableSource.model_validate({"format": "csv", "path": "t"})


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Forty of one size."""
    for number in range(40):
        (tmp_path / f"{number:02d}.csv").write_text(f"{number:02d},abc\n" * ROWS)
    return sorted(tmp_path.iterdir())


def taken(bound: BatchBound, files: list[Path]) -> int:
    """As Spark takes them: while they stay within the bound, and one at least."""
    assert bound.bytes is not None
    return max(1, bound.bytes // files[0].stat().st_size)


@pytest.mark.parametrize(
    ("rows", "expected"), [(1, 1), (ROWS, 1), (1490, 1), (1510, 2), (19_990, 20), (20_010, 20), (20_600, 21)]
)
def test_a_mini_batch_takes_the_files_that_come_closest_to_its_rows(
    files: list[Path], rows: int, expected: int
) -> None:
    assert taken(bound_of(MiniBatchSettings(size=rows), CSV, files), files) == expected


def test_large_files_do_not_make_mini_batches_of_small_ones_large(tmp_path: Path) -> None:
    large = tmp_path / "large.csv"
    large.write_text("1,abc\n" * 100 * ROWS)
    bound = bound_of(MiniBatchSettings(size=ROWS), CSV, [large])
    assert bound.bytes == ROWS * 6


def test_lines_within_values_are_not_rows(tmp_path: Path) -> None:
    row = '1,"' + "a\n" * 19 + 'a"\n'
    (tmp_path / "1.csv").write_text(row * ROWS)
    source = TableSource.model_validate({"format": "csv", "path": "t", "options": {"multi_line": True}})
    bound = bound_of(MiniBatchSettings(size=10 * ROWS), source, [tmp_path / "1.csv"])
    assert taken(bound, [tmp_path / "1.csv"]) == 10


@pytest.mark.spark
def test_spark_reads_files_up_to_the_limit(spark: SparkSession, files: list[Path]) -> None:
    for file in files[5:]:
        file.unlink()
    fields = Schema((Field("a", STRING), Field("b", STRING)))
    stream = StreamInput(CSV, f"file://{files[0].parent}", fields, tuple(files[:5]))
    scan = Scan("t", "t", tuple((Field(f"t.{field.name}", field.type), field.name) for field in fields.fields))
    frame = read_stream(spark, scan, stream, BatchBound(bytes=2 * files[0].stat().st_size))
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert [progress.numInputRows for progress in query.recentProgress] == [2 * ROWS, 2 * ROWS, ROWS]


def test_bytes_per_row_are_read_from_parquet_footers(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": range(ROWS)}), tmp_path / "1.parquet")
    size = (tmp_path / "1.parquet").stat().st_size
    parquet = TableSource.model_validate({"format": "parquet", "path": "t"})
    assert bound_of(MiniBatchSettings(size=4 * ROWS), parquet, [tmp_path / "1.parquet"]) == BatchBound(
        bytes=round(4.5 * size)
    )


def test_without_files_bytes_per_row_have_a_default(tmp_path: Path) -> None:
    for files in ([], [tmp_path / "gone.csv"]):
        bound = bound_of(MiniBatchSettings(), CSV, files)
        assert bound.bytes is not None
        assert bound.bytes >= DEFAULT_ROWS


def test_without_mini_batches_each_file_is_one(files: list[Path]) -> None:
    off = MiniBatchSettings.model_validate({"enabled": "FALSE"})
    assert bound_of(off, CSV, files) == BatchBound(files=1)
