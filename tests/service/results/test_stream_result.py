"""Reading a managed table: pages of one version, kept once they were put together."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from service.contract.errors import ResultMissingError, ResultNotReadyError
from service.results.files import as_parquet
from service.results.stream_result import open_stream_result, result_directory
from service.sql.types.data_types import BIGINT, STRING, Field
from tests.support.staged import staged
from workers.engine.streaming.sinks import managed as compaction
from workers.engine.streaming.sinks.base import SinkTarget
from workers.engine.streaming.sinks.managed import ManagedSink

COLUMNS = (Field("k", STRING), Field("n", BIGINT))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return result_directory(tmp_path, "job", 1)


def written(path: Path, tmp_path: Path, batches: int, keys: tuple[str, ...] | None = ("k",)) -> ManagedSink:
    """A table with so many mini-batches, each with the keys `a` and its number."""
    sink = ManagedSink(path, SinkTarget("evenkeel/job/1", 1, COLUMNS, COLUMNS[::-1], keys))
    sink.prepare()
    for number in range(batches):
        sink.commit(number, staged(tmp_path, COLUMNS, [("a", number), (str(number), number)]))
    return sink


def test_there_is_no_result_before_there_is_a_table(path: Path) -> None:
    with pytest.raises(ResultNotReadyError, match="first mini-batch"):
        open_stream_result(path)


def test_pages_and_downloads_are_of_one_version(path: Path, tmp_path: Path) -> None:
    sink = written(path, tmp_path, 3)
    first = open_stream_result(path)
    assert [(column.name, column.type) for column in first.files.columns] == [("n", "BIGINT"), ("k", "STRING")]
    sink.commit(3, staged(tmp_path, COLUMNS, [("a", 3), ("new", 3)]))
    again = open_stream_result(path, first.version)
    assert again.files.page(0, 2).to_pydict() == {"n": [0, 1], "k": ["0", "1"]}
    assert again.files.page(2, 2).to_pydict() == {"n": [2, 2], "k": ["a", "2"]}
    assert again.files.rows == 4
    whole = pq.read_table(pa.BufferReader(b"".join(as_parquet(first.files))))
    assert whole.to_pydict() == {"n": [0, 1, 2, 2], "k": ["0", "1", "a", "2"]}
    assert open_stream_result(path).files.page(4, 2).to_pydict() == {"n": [3], "k": ["new"]}


def test_a_version_is_put_together_once_and_alike_when_it_is_again(path: Path, tmp_path: Path) -> None:
    written(path, tmp_path, 3)
    first = open_stream_result(path).files
    (file,) = first.paths
    before = (file.stat().st_ino, file.read_bytes())
    assert open_stream_result(path).files.paths == (file,)
    assert file.stat().st_ino == before[0]
    shutil.rmtree(file.parent)
    assert open_stream_result(path, 3).files.paths[0].read_bytes() == before[1]


def test_few_versions_are_kept(path: Path, tmp_path: Path) -> None:
    written(path, tmp_path, 6)
    for version in range(1, 5):
        open_stream_result(path, version)
        os.utime(path.parent / "served" / f"v{version}", (version, version))
    open_stream_result(path, 1)
    for version in range(5, 7):
        open_stream_result(path, version)
    assert {found.name for found in (path.parent / "served").iterdir()} == {"v1", "v4", "v5", "v6"}


def test_what_a_reader_left_that_died_is_removed(path: Path, tmp_path: Path) -> None:
    written(path, tmp_path, 1)
    left, under_way = path.parent / "served" / ".left", path.parent / "served" / ".under-way"
    left.mkdir(parents=True)
    under_way.mkdir()
    os.utime(left, (1, 1))
    open_stream_result(path)
    assert (left.exists(), under_way.exists()) == (False, True)


@pytest.mark.parametrize("keys", [("k",), None])
def test_files_of_the_table_are_read_as_they_are_where_no_row_replaces_another(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...] | None
) -> None:
    monkeypatch.setattr(compaction, "LEAST_ROWS", 0)
    monkeypatch.setattr(compaction, "LEAST_FILES", 0)
    written(path, tmp_path, 2, keys).tidy()
    result = open_stream_result(path).files
    assert not (path.parent / "served").exists()
    whole: dict[str, list[int | str]] = (
        {"n": [0, 1, 1], "k": ["0", "a", "1"]} if keys else {"n": [0, 0, 1, 1], "k": ["a", "0", "a", "1"]}
    )
    assert result.page(0, 10).to_pydict() == whole
    # Batch by batch as any result.
    assert result.page(1, 1).to_pydict() == {name: values[1:2] for name, values in whole.items()}


def test_a_version_that_is_gone(path: Path, tmp_path: Path) -> None:
    written(path, tmp_path, 2)
    with pytest.raises(ResultMissingError, match=r"Version 99 .* without a cursor"):
        open_stream_result(path, 99)
    for file in path.glob("*.parquet"):
        file.unlink()
    with pytest.raises(ResultMissingError, match=r"Version 2 .* without a cursor"):
        open_stream_result(path)
    assert not list((path.parent / "served").iterdir())


def test_a_table_of_another_make(path: Path) -> None:
    write_deltalake(path, pa.table({"k": [1]}))
    with pytest.raises(ResultMissingError, match="cannot be read"):
        open_stream_result(path)
    assert DeltaTable(path).version() == 0
