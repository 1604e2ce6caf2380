"""An operator's own Spark properties, and those that are not the operator's to set."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.spark_properties import SparkPropertiesError, read_properties


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "spark.conf"
    path.write_text(text)
    return path


def test_the_format_of_spark_defaults(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "# of the store\n\nspark.hadoop.fs.s3a.endpoint   http://127.0.0.1:9000\n"
        "spark.hadoop.fs.s3a.secret.key=a b=c\nspark.jars.packages: org.apache.hadoop:hadoop-aws:3.4.1\n",
    )
    assert read_properties(path) == {
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:9000",
        "spark.hadoop.fs.s3a.secret.key": "a b=c",
        "spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.4.1",
    }
    assert read_properties(None) == {}


@pytest.mark.withstands(
    "Spark switches turned off",
    kind="attack",
    how="`spark.sql.restrictedMode.enabled` and others in the operator's own properties",
    times=5,
    guaranteed="the worker does not start; no job can set any property",
)
@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("spark.sql.restrictedMode.enabled", "arbitrary Java"),
        ("spark.sql.ansi.enabled", "ANSI"),
        ("spark.sql.legacy.timeParserPolicy", "meaning of SQL"),
        ("spark.ui.retainedJobs", "progress"),
        ("spark.executor.memory", "set EVENKEEL_SPARK_EXECUTOR_MEMORY"),
    ],
)
def test_what_evenkeel_depends_on_is_refused_by_name(tmp_path: Path, key: str, reason: str) -> None:
    with pytest.raises(SparkPropertiesError, match=f"line 2: {key} is Evenkeel's to set: .*{reason}"):
        read_properties(write(tmp_path, f"\n{key} true\n"))


@pytest.mark.parametrize("key", ["spark.executor.memoryOverhead", "spark.driver.memoryOverhead"])
def test_what_only_begins_alike_is_free(tmp_path: Path, key: str) -> None:
    assert read_properties(write(tmp_path, f"{key} 1g")) == {key: "1g"}


@pytest.mark.parametrize("line", ["spark.alone", "spark.jars a,\\", "fs.s3a.secret.key hush"])
def test_a_line_that_says_nothing_to_spark_is_refused_without_its_value(tmp_path: Path, line: str) -> None:
    with pytest.raises(SparkPropertiesError, match="line 1") as caught:
        read_properties(write(tmp_path, line))
    assert "hush" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SparkPropertiesError, match=r"missing\.conf cannot be read: No such file"):
        read_properties(tmp_path / "missing.conf")
