"""A bucket that Spark has no client for is noticed before the first job fails on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cli.spark_jars import lacks_s3a
from service.settings import Settings


def test_a_bucket_needs_a_jar_that_someone_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path))
    assert not lacks_s3a(Settings())
    monkeypatch.setenv("EVENKEEL_DATA_ROOTS", "hdfs://namenode:8020/x")
    assert not lacks_s3a(Settings())
    monkeypatch.setenv("EVENKEEL_DATA_ROOTS", "s3a://bucket")
    assert lacks_s3a(Settings())
    properties = tmp_path / "spark.properties"
    properties.write_text("spark.executor.logs.rolling.maxSize 1000\n")
    monkeypatch.setenv("EVENKEEL_SPARK_PROPERTIES_FILE", str(properties))
    assert lacks_s3a(Settings())
    properties.write_text("spark.jars.packages org.apache.hadoop:hadoop-aws:3.4.2\n")
    assert not lacks_s3a(Settings())
