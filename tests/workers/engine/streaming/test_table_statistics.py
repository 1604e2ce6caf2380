"""The statistics of a stream's tables before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.contract.options import JobSettings
from service.contract.read_options import TableFormat
from service.contract.tables import TableSource
from service.data.files import TableFiles
from tests.support.stream_queries import SCHEMAS, STREAMS, planned
from workers.engine.spark.sources import TableInput
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.engine.statistics.model import Statistics
from workers.engine.streaming import table_statistics
from workers.engine.streaming.sources import BatchBound, Input, RateInput, StreamInput
from workers.engine.streaming.static_joins import static_joins
from workers.engine.streaming.table_statistics import gather_for_joins

SQL = "SELECT n.name, COUNT(*) AS c FROM s JOIN n ON s.g = n.g GROUP BY n.name"
ROWS, FILES = 1000, 10
PARTED = {"join": {"ship": "REPARTITION"}}


def files(directory: Path, number: int, column: str) -> tuple[Path, ...]:
    directory.mkdir()
    paths = tuple(directory / f"{place}.parquet" for place in range(number))
    for path in paths:
        rows = {"g": pa.array([7 if row % 2 else row for row in range(ROWS)], pa.int32()), column: ["x"] * ROWS}
        pq.write_table(pa.table(rows), path)
    return paths


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Input]:
    of_stream, of_table = files(tmp_path / "s", FILES, "k"), files(tmp_path / "n", 1, "name")
    source = TableSource(format=TableFormat.PARQUET, path="t")
    static = TableFiles("n", tmp_path / "n", of_table, of_table[0].stat().st_size)
    return {
        "s": StreamInput(source, f"file://{tmp_path / 's'}", SCHEMAS["s"], of_stream),
        "n": TableInput(source, static, SCHEMAS["n"]),
    }


def gathered(tables: dict[str, Input], bound: BatchBound, settings: dict[str, Any] = PARTED) -> Statistics:
    plan = planned(SQL).node
    joins = tuple(static_joins(plan, STREAMS))
    told = JobSettings.model_validate(settings)
    return gather_for_joins(plan, joins, tables, {"s": bound}, told, 2, 1 << 28, StatisticsCache())


def test_the_size_of_a_stream_is_that_of_a_mini_batch(tables: dict[str, Input]) -> None:
    found = gathered(tables, BatchBound(files=3))
    size, sketch = found.tables["s"], found.keys[("s.g",)]
    assert (size.files, size.rows, size.rows_are_exact) == (3, 3 * ROWS, False)
    assert sketch.hot_keys[0].estimated_rows == pytest.approx(1.5 * ROWS, rel=0.01)
    assert (found.tables["n"].rows, found.tables["n"].rows_are_exact) == (ROWS, True)


def test_a_limit_in_bytes_reads_between_one_and_all_files(tables: dict[str, Input]) -> None:
    assert gathered(tables, BatchBound(bytes=1)).tables["s"].rows == ROWS
    assert gathered(tables, BatchBound(bytes=1 << 30)).tables["s"].rows == FILES * ROWS
    assert gathered(tables, BatchBound()).tables["s"].rows == FILES * ROWS


def test_some_files_are_examined_for_all(tables: dict[str, Input], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_statistics, "MOST_FILES", 4)
    assert gathered(tables, BatchBound(bytes=1 << 30)).tables["s"].rows == FILES * ROWS


def test_a_removed_file_is_skipped(tables: dict[str, Input], tmp_path: Path) -> None:
    (tmp_path / "s" / "3.parquet").unlink()
    assert gathered(tables, BatchBound(files=2)).tables["s"].rows == 2 * ROWS


def test_a_stream_joined_with_a_broadcast_table_is_not_opened(tables: dict[str, Input], tmp_path: Path) -> None:
    for path in (tmp_path / "s").iterdir():
        path.write_bytes(b"no Parquet" * 100)
    found = gathered(tables, BatchBound(files=2), {})
    assert (found.tables["s"].bytes, found.warnings) == (2000, ())
    assert set(found.keys) == {("n.g",)}


@pytest.mark.parametrize("stream", ["empty", "rate"])
def test_a_stream_without_files_has_no_statistics(tables: dict[str, Input], stream: str) -> None:
    given = tables["s"]
    assert isinstance(given, StreamInput)
    tables["s"] = RateInput(5) if stream == "rate" else StreamInput(given.source, given.directory, given.schema)
    assert set(gathered(tables, BatchBound(files=3)).tables) == {"n"}


def test_no_file_is_opened_if_every_strategy_is_set(tables: dict[str, Input], tmp_path: Path) -> None:
    for path in (tmp_path / "s").iterdir():
        path.write_bytes(b"no Parquet")
    found = gathered(tables, BatchBound(files=2), {"join": {"ship": "BROADCAST_RIGHT"}})
    assert (found.keys, found.tables["s"].bytes) == ({}, 20)
    assert [table for table, _ in found.warnings] == [None]
