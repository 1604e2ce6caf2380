"""A task's part of the heap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from workers.engine.spark.session_options import is_in_driver, task_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_tasks_share_the_heap_that_spark_does_not_reserve(spark: SparkSession) -> None:
    # The suite's driver has 2 GB, of which the collector hides a little.
    whole = task_memory(spark, 1)
    assert 0.5 * 0.6 * (2 << 30) < whole < 0.6 * (2 << 30)
    assert task_memory(spark, 4) == round(whole / 4)
    assert task_memory(spark, 1 << 62) == 1


def test_a_cluster_on_this_machine_has_executors_of_its_own() -> None:
    assert [is_in_driver(master) for master in ("local", "local[2]", "local[*]")] == [True] * 3
    assert not any(map(is_in_driver, ("local-cluster[2,1,1024]", "spark://host:7077", "yarn")))
