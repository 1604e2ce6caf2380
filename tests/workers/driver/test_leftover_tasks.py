"""Tasks that run although their stage has ended, and the jobs that they belong to."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.support.processes import wait_for
from workers.driver.driver import leftover_tasks

pytestmark = pytest.mark.spark


@contextmanager
def stuck(spark: SparkSession, gate: Path) -> Iterator[threading.Thread]:
    """A job of two tasks with the tag "own", that wait for a pipe to be opened, and do not hear a cancellation. They
    end with the context.
    """
    context = spark.sparkContext
    os.mkfifo(gate)
    # Each task opens it to read, which returns once somebody opens it to write.
    waiting = f"reflect('scala.io.Source', 'fromFile', '{gate}', 'UTF-8') IS NOT NULL"

    def run() -> None:
        context.addJobTag("own")
        context.setInterruptOnCancel(True)
        with suppress(Py4JJavaError):  # it was cancelled
            spark.range(0, 2, 1, 2).where(waiting).collect()
        context.clearJobTags()
        context.setInterruptOnCancel(False)

    # An earlier test may have cancelled a job without waiting for its tasks.
    wait_for("the tasks of earlier tests to end", lambda: running_tasks(context) == 0, 60)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_for("both tasks", lambda: running_tasks(context) == 2, 60)
        yield thread
    finally:
        opened = os.open(gate, os.O_RDWR)
        thread.join(60)
        wait_for("the tasks to end", lambda: running_tasks(context) == 0, 60)
        os.close(opened)


def running_tasks(context: SparkContext) -> int:
    """How many the scheduler has, whosever they are."""
    return int(context._jsc.sc().taskScheduler().rootPool().runningTasks())


def test_tasks_of_a_running_job_are_not_leftover(spark: SparkSession, tmp_path: Path) -> None:
    context = spark.sparkContext
    with stuck(spark, tmp_path / "gate"):
        # Spark's store of executors has them long before that of stages.
        assert [leftover_tasks(context) for _ in range(20)] == [0] * 20
        assert leftover_tasks(context, "own") == 0


def test_leftover_tasks_are_those_of_the_cancelled_job(spark: SparkSession, tmp_path: Path) -> None:
    context = spark.sparkContext
    with stuck(spark, tmp_path / "gate") as job:
        context.cancelJobsWithTag("own")
        job.join(60)
        assert not job.is_alive()
        # The end of its stage comes through Spark's listener bus.
        wait_for("the leftover tasks", lambda: leftover_tasks(context) == 2, 30)
        assert (leftover_tasks(context, "own"), leftover_tasks(context, "other")) == (2, 0)
    assert leftover_tasks(context) == 0
