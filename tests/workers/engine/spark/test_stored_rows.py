"""Rows that executors keep, and the shuffle files that compute them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from workers.engine.spark.stored_rows import stored

pytestmark = pytest.mark.spark

CLEANUP = "spark.sql.classic.shuffleDependency.fileCleanup.enabled"


@pytest.fixture
def removing(spark: SparkSession) -> SparkSession:
    """A session that removes shuffle files at the end of a query, as those of workers do."""
    session = spark.newSession()
    session.conf.set(CLEANUP, "true")
    session.conf.set("spark.sql.adaptive.enabled", "true")
    return session


def _files(session: SparkSession, shuffle: int | str = "*") -> set[Path]:
    root = Path(session.sparkContext.getConf().get("spark.local.dir") or "")
    return set(root.glob(f"blockmgr-*/*/shuffle_{shuffle}_*.index"))


def _wait_until_removed(
    session: SparkSession, before: AbstractSet[Path] = frozenset(), shuffle: int | str = "*"
) -> None:
    deadline = time.monotonic() + 30
    while not _files(session, shuffle) <= before:
        assert time.monotonic() < deadline, "shuffle files were left"
        time.sleep(0.05)


def test_rows_are_computed_once_and_their_files_are_removed(removing: SparkSession) -> None:
    counter = removing.sparkContext.accumulator(0)

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            counter.add(batch.num_rows)
            yield batch

    rows = removing.range(100).mapInArrow(counted, "id BIGINT").groupBy("id").count()
    kept = stored(rows, eager=False)
    (shuffle,) = kept.shuffles
    assert kept.frame.count() == kept.frame.count() == 100
    assert counter.value == 100
    assert _files(removing, shuffle)
    assert removing.conf.get(CLEANUP) == "true"
    kept.release()
    _wait_until_removed(removing, shuffle=shuffle)


def test_rows_that_are_computed_at_once_leave_no_files(removing: SparkSession) -> None:
    before = _files(removing)
    kept = stored(removing.range(100).groupBy("id").count(), eager=True)
    assert kept.shuffles == ()
    _wait_until_removed(removing, before)
    assert kept.frame.count() == 100
    kept.release()
