"""Progress and stages of tagged jobs, read from a live application."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from service.contract.reports import Progress
from workers.engine.spark.monitor import SparkMonitor

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def monitor(spark: SparkSession) -> SparkMonitor:
    return SparkMonitor(spark.sparkContext)


def tagged(spark: SparkSession, tag: str, run: Callable[[], object]) -> None:
    spark.sparkContext.addJobTag(tag)
    try:
        run()
    finally:
        spark.sparkContext.removeJobTag(tag)


def test_stages_of_an_aggregate(spark: SparkSession, monitor: SparkMonitor, tmp_path: Path) -> None:
    source = str(tmp_path / "in")
    spark.range(60_000, numPartitions=3).selectExpr("id % 100 AS k", "id AS d").write.parquet(source)
    query = spark.read.parquet(source).groupBy("k").count()
    tagged(spark, "stages-1", lambda: query.write.parquet(str(tmp_path / "out")))
    stages = monitor.outcome("stages-1")[0]
    assert [stage.stage_id for stage in stages] == sorted(stage.stage_id for stage in stages)
    assert {stage.status for stage in stages} == {"COMPLETE"}
    first, last = stages[0], stages[-1]
    assert (first.name, last.name) == ("tables -> shuffle", "shuffle -> files")
    assert first.input_rows == 60_000
    assert first.input_bytes > 0
    assert first.shuffle_write_rows == last.shuffle_read_rows > 0
    assert first.shuffle_write_bytes == last.shuffle_read_bytes > 0
    assert first.records is not None
    assert first.records.min <= first.records.median <= first.records.max <= 60_000
    assert first.duration_ms is not None
    assert first.wall_ms >= first.duration_ms.max * 0.5
    assert all(stage.failed_tasks == 0 for stage in stages)


def test_other_jobs_are_left_out(spark: SparkSession, monitor: SparkMonitor) -> None:
    tagged(spark, "mine", lambda: spark.range(10).count())
    tagged(spark, "mine too", lambda: spark.range(10).count())
    assert {stage.stage_id for stage in monitor.outcome("mine")[0]}.isdisjoint(
        stage.stage_id for stage in monitor.outcome("mine too")[0]
    )


def test_a_tag_without_jobs_has_no_stages_and_no_progress(monitor: SparkMonitor) -> None:
    start = time.monotonic()
    assert monitor.outcome("nobody")[0] == ()
    assert time.monotonic() - start < 5
    assert monitor.progress("nobody") == Progress()


def test_failed_tasks_are_counted(spark: SparkSession, monitor: SparkMonitor) -> None:
    with pytest.raises(Exception, match="zz"):
        tagged(spark, "failing", lambda: spark.range(10).selectExpr("raise_error('zz')").collect())
    stages = monitor.outcome("failing")[0]
    assert [stage.status for stage in stages] == ["FAILED"]
    assert stages[0].failed_tasks >= 1


def test_progress_while_running_and_at_the_end(spark: SparkSession, monitor: SparkMonitor) -> None:
    seen: list[Progress] = []
    finished = threading.Event()

    def run() -> None:
        try:
            # Written, since a count would need no column and so not sleep.
            slow = spark.range(8, numPartitions=8).selectExpr("reflect('java.lang.Thread', 'sleep', 400L + id)")
            tagged(spark, "slow", lambda: slow.repartition(2).write.format("noop").mode("overwrite").save())
        finally:
            finished.set()

    thread = InheritableThread(target=run)
    thread.start()
    deadline = time.monotonic() + 60
    while not finished.is_set() and time.monotonic() < deadline:
        seen.append(monitor.progress("slow"))
        finished.wait(0.05)
    thread.join()
    monitor.outcome("slow")[0]
    end = monitor.progress("slow")
    assert end.stages_done == end.stages_total >= 2
    assert end.tasks_done == end.tasks_total >= 9
    assert all(progress.tasks_done <= progress.tasks_total for progress in seen)
    assert any(0 < progress.tasks_done < progress.tasks_total for progress in seen)
