"""The settings of Hadoop that make small jobs faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from workers.driver.hadoop import prepare_hadoop


@pytest.mark.spark
def test_only_defaults_that_nothing_uses_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    context = spark.sparkContext
    jvm: Any = context._jvm
    configuration = context._jsc.hadoopConfiguration()
    kept = "yarn.resourcemanager.address"
    configuration.set(kept, "set-by-the-operator:8032")
    local = jvm.org.apache.hadoop.fs.FileSystem.getLocal(configuration)
    try:
        prepare_hadoop(context)
        assert configuration.get("yarn.nodemanager.address") is None
        assert configuration.get("mapreduce.job.maps") is None
        assert configuration.get("mapreduce.outputcommitter.factory.scheme.s3a") is not None
        assert configuration.get("io.file.buffer.size") is not None
        assert configuration.get(kept) == "set-by-the-operator:8032"
        local.create(jvm.org.apache.hadoop.fs.Path(str(tmp_path / "file"))).close()
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
    finally:
        configuration.unset(kept)
        configuration.reloadConfiguration()
        local.setWriteChecksum(True)
