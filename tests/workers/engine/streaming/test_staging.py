"""The stage: one directory for each try of a mini-batch."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from service.sql.types.data_types import BIGINT, STRING, Field, Schema
from tests.conformance.stream_runs import StreamRun, write_rows
from workers.engine.spark.small_results import collect_parquet
from workers.engine.streaming import query
from workers.engine.streaming.query import MOST_BYTES, Stage, update_state


def left(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_only_rows_of_older_attempts_are_removed(tmp_path: Path) -> None:
    for name in ("7-1", "8-2", "8-3", "9-10"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part-0.parquet").touch()
    Stage(tmp_path, 3).clear_older()
    assert left(tmp_path) == ["8-3", "9-10"]


def test_a_mini_batch_is_removed_by_the_attempt_that_wrote_it(tmp_path: Path) -> None:
    for name in ("8-2", "8-3", "9-3"):
        (tmp_path / name).mkdir()
    stage = Stage(tmp_path, 3)
    stage.remove(8)
    stage.remove(8)
    assert left(tmp_path) == ["8-2", "9-3"]


def test_a_missing_stage_is_no_error(tmp_path: Path) -> None:
    Stage(tmp_path / "none", 1).clear_older()
    Stage(tmp_path / "none", 1).remove(0)
    assert not (tmp_path / "none").exists()


@pytest.mark.spark
def test_staged_rows_are_counted_and_in_order(spark: SparkSession, tmp_path: Path) -> None:
    staged = Stage(tmp_path, 4).write(spark.range(0, 7, 1, 2).toDF("n"), 11)
    assert [path.parent for path in staged.files] == [tmp_path / "11-4"] * len(staged.files)
    assert [row for path in staged.files for row in pq.read_table(path)["n"].to_pylist()] == list(range(7))
    assert staged.rows == 7
    assert staged.bytes == sum(path.stat().st_size for path in staged.files)
    again = Stage(tmp_path, 4).write(spark.range(2).toDF("n"), 11)
    assert again.rows == 2


@pytest.mark.spark
def test_only_small_mini_batches_are_collected(spark: SparkSession, tmp_path: Path) -> None:
    stage = Stage(tmp_path, 4, collects=True)
    for batch, rows in enumerate((7, MOST_BYTES)):
        staged = stage.write(spark.range(0, rows, 1, 2).toDF("n"), batch)
        assert [path.name == "part-00000.parquet" for path in staged.files] == ([True] if batch == 0 else [False] * 2)
        assert staged.rows == rows
        assert staged.bytes == sum(path.stat().st_size for path in staged.files)


@pytest.mark.spark
def test_a_mini_batch_that_runs_again_changes_the_state_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collected_in_vain(frame: DataFrame, directory: Path) -> bool:
        assert collect_parquet(frame, directory)
        return False

    monkeypatch.setattr(query, "collect_parquet", collected_in_vain)
    schema = Schema((Field("k", STRING), Field("v", BIGINT)))
    sql = "SELECT k, COUNT(*) AS n, COUNT(DISTINCT v) AS d, SUM(v) AS total FROM s GROUP BY k"
    run = StreamRun(spark, tmp_path, sql, {"s": schema})
    assert run.planned.collects
    for batch in range(4):
        run.put("s", write_rows(tmp_path / f"{batch}.parquet", schema, [("a", batch), ("b", 7), ("a", batch)]))
    # The second attempt does not collect: it reads the state from the checkpoint.
    for _ in range(2):
        assert run.catch_up() is None
        assert len(run.at.done) == run.next_batch
        run.put("s", write_rows(tmp_path / "last.parquet", schema, [("a", 0), ("b", 8)]))
    assert run.catch_up() is None
    assert sorted(run.rows) == [("a", 10, 4, 12), ("b", 6, 2, 44)]


@pytest.mark.spark
def test_update_state_runs_the_mini_batch_completely(spark: SparkSession) -> None:
    seen = spark.sparkContext.accumulator(0)

    def counted(row: Row) -> Row:
        seen.add(1)
        return row

    update_state(spark.createDataFrame(spark.range(0, 9, 1, 3).rdd.map(counted), "id BIGINT"))
    assert seen.value == 9
