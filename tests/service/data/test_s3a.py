"""Spark's S3 client is told where the store is, and no secret."""

from __future__ import annotations

from service.config.data import DataSettings
from service.data.roots import s3a_properties


def test_nothing_is_told_without_a_bucket() -> None:
    assert s3a_properties(DataSettings(roots="/data", s3_endpoint="http://minio:9000")) == {}
    assert s3a_properties(DataSettings(roots="hdfs://namenode:8020/x,/data", s3_region="x")) == {}


def test_a_store_of_the_operators_own() -> None:
    settings = DataSettings(
        roots="/data,s3a://bucket/x",
        s3_endpoint="https://minio:9000/",
        s3_region="eu-central-1",
        s3_access_key="hunter1",
        s3_secret_key="hunter2",
    )
    assert s3a_properties(settings) == {
        "spark.hadoop.fs.s3a.endpoint": "https://minio:9000",
        "spark.hadoop.fs.s3a.endpoint.region": "eu-central-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "true",
    }


def test_aws_itself() -> None:
    assert s3a_properties(DataSettings(roots="s3a://bucket")) == {}
    assert s3a_properties(DataSettings(roots="s3://bucket", s3_region="eu-west-1")) == {
        "spark.hadoop.fs.s3a.endpoint.region": "eu-west-1",
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    }
