"""The jobs and stages in Spark's status store."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from workers.engine.spark.status_store import StatusStore

pytestmark = pytest.mark.spark


@pytest.fixture
def context(spark: SparkSession) -> Iterator[SparkContext]:
    context = spark.sparkContext
    context.addJobTag("tagged")
    yield context
    context.clearJobTags()


def test_it_returns_the_data_of_the_rest_interface(spark: SparkSession, context: SparkContext) -> None:
    spark.range(100, numPartitions=3).selectExpr("id % 7 AS k").groupBy("k").count().collect()
    store = StatusStore(context)
    jobs = json.loads(store.jobs("tagged"))
    assert jobs
    address = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    for job in jobs:
        assert httpx.get(f"{address}/jobs/{job['jobId']}", trust_env=False, timeout=60).json() == job
        for stage_id in job["stageIds"]:
            parameters = {"details": "false", "withSummaries": "true", "quantiles": "0.0,0.5,1.0"}
            answer = httpx.get(f"{address}/stages/{stage_id}", params=parameters, trust_env=False, timeout=60)
            (found,) = json.loads(store.stages([stage_id], (0.0, 0.5, 1.0)))
            assert found == (answer.json() if answer.status_code == 200 else [])
    assert json.loads(store.jobs("another")) == []


def test_an_unknown_stage_has_no_attempts(context: SparkContext) -> None:
    assert json.loads(StatusStore(context).stages([1_000_000])) == [[]]
