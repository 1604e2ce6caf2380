"""Result files read from any row, Spark's INT96 instants included."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.contract.errors import ResultMissingError
from service.results.files import open_result
from service.results.json_values import json_rows


def write(directory: Path, sizes: list[int], row_group_size: int = 4) -> None:
    directory.mkdir()
    start = 0
    for index, size in enumerate(sizes):
        part = pa.table({"n": pa.array(range(start, start + size), pa.int64())})
        pq.write_table(part, directory / f"part-{index:05}.parquet", row_group_size=row_group_size)
        start += size


@pytest.mark.parametrize("sizes", [[10], [0, 10], [3, 0, 7], [1] * 10, [4, 4, 2], [10, 0]])
@pytest.mark.parametrize("start", [0, 1, 3, 4, 9, 10, 11])
@pytest.mark.parametrize("limit", [1, 4, 100])
def test_a_page_from_any_row(tmp_path: Path, sizes: list[int], start: int, limit: int) -> None:
    write(tmp_path / "r", sizes)
    files = open_result(tmp_path / "r")
    assert files.rows == 10
    assert files.page(start, limit)["n"].to_pylist() == list(range(10))[start : start + limit]


def test_int96_instants_of_any_year(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    times = [datetime(1, 1, 1), datetime(2013, 1, 31, 5), datetime(9999, 12, 31)]  # noqa: DTZ001
    declared = {"type": "struct", "fields": [{"name": "at", "type": "timestamp"}]}
    table = pa.table({"at": pa.array(times, pa.timestamp("us"))}).replace_schema_metadata(
        {"org.apache.spark.sql.parquet.row.metadata": json.dumps(declared)}
    )
    pq.write_table(table, tmp_path / "r" / "part-0.parquet", use_deprecated_int96_timestamps=True)
    files = open_result(tmp_path / "r")
    assert files.columns[0].type == "TIMESTAMP"
    assert json_rows(files.page(0, 10)) == [
        ["0001-01-01T00:00:00.000000Z"],
        ["2013-01-31T05:00:00.000000Z"],
        ["9999-12-31T00:00:00.000000Z"],
    ]


def test_files_removed_while_they_are_read_are_told(tmp_path: Path) -> None:
    write(tmp_path / "r", [5, 5])
    files = open_result(tmp_path / "r")
    batches = files.batches(batch_rows=5)
    assert next(batches).num_rows == 5
    for file in (tmp_path / "r").iterdir():
        file.unlink()
    with pytest.raises(ResultMissingError):
        list(batches)


def test_no_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(ResultMissingError):
        open_result(tmp_path / "nowhere")
