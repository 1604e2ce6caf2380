"""Settings under every accepted spelling."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from service.contract.options import AggPhase, JobSettings, JoinSkew, Toggle, declared_settings


def settings(**raw: Any) -> JobSettings:
    return JobSettings.model_validate(raw)


@pytest.mark.parametrize(
    "raw",
    [
        {"distinct_split": {"enabled": True, "bucket_num": 16}},
        {"distinct_split.enabled": "true", "distinct_split.bucket_num": "16"},
        {
            "table.optimizer.distinct-agg.split.enabled": True,
            "table.optimizer.distinct-agg.split.bucket-num": 16,
        },
        {"sql.optimizer.data-skew.distinct-agg": "TRUE", "sql.optimizer.data-skew.distinct-agg.bucket": 16},
        {"distinct_split": {"enabled": True}, "table.optimizer.distinct-agg.split.bucket-num": 16},
        {"distinct_split": {"enabled": True, "bucket_num": 16}, "distinct_split.bucket_num": 16},
    ],
)
def test_spellings_of_one_setting(raw: dict[str, Any]) -> None:
    parsed = settings(**raw)
    assert (parsed.distinct_split.enabled, parsed.distinct_split.bucket_num) == (Toggle.TRUE, 16)


def test_current_and_former_keys_of_flink() -> None:
    new = settings(
        **{
            "table.exec.mini-batch.enabled": "true",
            "table.exec.mini-batch.allow-latency": "5 s",
            "table.exec.mini-batch.size": "5000",
            "table.optimizer.agg-phase-strategy": "TWO_PHASE",
            "table.optimizer.skewed-join-optimization.skewed-factor": 5,
            "table.optimizer.skewed-join-optimization.skewed-threshold": "256mb",
        }
    )
    old = settings(
        **{
            "sql.exec.mini-batch.allowLatency.ms": 5000,
            "sql.exec.mini-batch.size": 5000,
            "sql.optimizer.agg.phase.enforcer": "NONE",
        }
    )
    assert new.mini_batch.allow_latency == old.mini_batch.allow_latency == timedelta(seconds=5)
    assert new.mini_batch.size == old.mini_batch.size == 5000
    assert (new.agg_phase, old.agg_phase) == (AggPhase.TWO_PHASE, AggPhase.AUTO)
    assert (new.skew.factor, new.skew.threshold) == (5.0, 256 << 20)


@pytest.mark.parametrize(
    "key", ["incremental_agg", "table.optimizer.incremental-agg-enabled", "sql.exec.incremental-agg.enabled"]
)
@pytest.mark.parametrize("value", [False, "false", "FALSE"])
def test_incremental_aggregation(key: str, value: object) -> None:
    assert settings().incremental_agg is True
    assert settings(**{key: value}).incremental_agg is False


@pytest.mark.parametrize(
    "key", ["join.skew", "skew.join_strategy", "table.optimizer.skewed-join-optimization.strategy"]
)
@pytest.mark.parametrize("value", ["forced", "FORCED", "isolate"])
def test_the_strategy_for_skewed_joins(key: str, value: str) -> None:
    assert settings().join.skew is JoinSkew.AUTO
    assert settings(**{key: value}).join.skew is JoinSkew.ISOLATE


def test_a_stored_job_of_the_previous_version_can_be_read() -> None:
    before = {"skew": {"factor": 4.0, "threshold": 64 << 20, "join_strategy": "auto"}, "incremental_agg": True}
    assert settings(**before) == JobSettings()


@pytest.mark.parametrize(
    "raw",
    [
        {"mini_batch.size": 5000, "table.exec.mini-batch.size": "5000"},
        {"incremental_agg": True, "sql.exec.incremental-agg.enabled": "true"},
        {"distinct_split.enabled": True, "sql.optimizer.data-skew.distinct-agg": "TRUE"},
        {"agg_phase": "AUTO", "sql.optimizer.agg.phase.enforcer": "NONE"},
        {"skew": {"threshold": "64MB"}, "skew.threshold": "65536 kb"},
        {"mini_batch.allow_latency": "5s", "sql.exec.mini-batch.allowLatency.ms": 5000},
    ],
)
def test_equal_values_do_not_contradict(raw: dict[str, Any]) -> None:
    settings(**raw)


@pytest.mark.parametrize("value", [5000, "5000", " 5000 ", "5 s", "5s", timedelta(seconds=5)])
def test_milliseconds_by_their_key_or_by_a_unit(value: object) -> None:
    parsed = settings(**{"sql.exec.mini-batch.allowLatency.ms": value})
    assert parsed.mini_batch.allow_latency == timedelta(seconds=5)


@pytest.mark.parametrize(
    ("raw", "kind", "told"),
    [
        ({"distinct_splt.enabled": True}, "unknown_setting", "distinct_split.enabled"),
        ({"distinct_split": {"bucketnum": 5}}, "unknown_setting", "distinct_split.bucket_num"),
        ({"table.exec.mini-batch.sise": 5}, "unknown_setting", "table.exec.mini-batch.size"),
        ({"spark.sql.ansi.enabled": "false"}, "unknown_setting", "spark.sql.ansi.enabled"),
        (
            {"agg_phase": "ONE_PHASE", "table.optimizer.agg-phase-strategy": "TWO_PHASE"},
            "contradicting_settings",
            "table.optimizer.agg-phase-strategy",
        ),
        ({"distinct_split": {"bucket_num": 0}}, "greater_than_equal", "1"),
        ({"mini_batch": {"allow_latency": "0ms"}}, "greater_than_equal", "at least 1ms"),
        ({"mini_batch": {"allow_latency": "61min"}}, "less_than_equal", "at most 1h"),
        ({"distinct_split": {"bucket_num": 65_537}}, "less_than_equal", "65536"),
        ({"mini_batch": {"allow_latency": "2h"}}, "less_than_equal", ""),
        ({"mini_batch": {"allow_latency": 5}}, "value_error", "a duration is"),
        ({"skew": {"factor": 0.5}}, "greater_than_equal", "1"),
        ({"skew": {"threshold": "many"}}, "value_error", "a size is"),
        ({"agg_phase": "THREE_PHASE"}, "enum", "ONE_PHASE"),
        ({"incremental_agg": "perhaps"}, "bool_parsing", "boolean"),
        ({"skew.join_strategy": "pepper"}, "enum", "ISOLATE"),
        ({"sql.exec.mini-batch.allowLatency.ms": True}, "value_error", "a duration is"),
        (
            {"mini_batch.size": 5000, "table.exec.mini-batch.size": "5001"},
            "contradicting_settings",
            "table.exec.mini-batch.size",
        ),
        ({"distinct_split": {"enabled": "maybe"}}, "enum", "auto"),
    ],
)
def test_refused(raw: dict[str, Any], kind: str, told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(**raw)
    (error,) = caught.value.errors()
    assert error["type"] == kind
    assert told in error["msg"]


def test_stored_settings_can_be_read() -> None:
    given = settings(agg_phase="one_phase", **{"mini_batch.allow_latency": "500ms", "skew.threshold": "1GB"})
    assert JobSettings.model_validate(given.model_dump(mode="json")) == given


def test_every_setting_is_declared_once_with_its_bounds() -> None:
    declared = declared_settings()
    keys = [each.key for each in declared]
    spellings = [*keys, *(alias for each in declared for alias in each.aliases)]
    assert len(spellings) == len(set(spellings))
    rows = {each.key: (each.default, each.bounds) for each in declared}
    assert rows["agg_phase"] == ("AUTO", "AUTO, ONE_PHASE, TWO_PHASE")
    assert rows["distinct_split.bucket_num"] == ("1024", "1 to 65536")
    assert rows["mini_batch.allow_latency"] == ("5s", "1ms to 1h")
    assert rows["skew.threshold"][0] == "64MB"
    assert rows["join.skew"] == ("AUTO", "AUTO, NONE, ISOLATE, SALT")
    assert rows["incremental_agg"] == ("true", "true, false")
    assert all(each.description for each in declared)


@pytest.mark.withstands(
    "Spark configuration in a job",
    kind="attack",
    how="Spark, Hadoop and JDBC keys as settings, nested and dotted, in upper and lower case, and as options of a "
    "table",
    times=9,
    guaranteed="422 `unknown_setting`: settings are an allow-list of exact keys, checked after aliases are resolved",
)
@pytest.mark.parametrize(
    "raw",
    [
        {"spark.sql.restrictedMode.enabled": "false"},
        {"spark": {"sql": {"runSQLOnFiles": "true"}}},
        {"SPARK.SQL.VARIABLE.SUBSTITUTE": "true"},
        {"spark.sql.extensions": "evil.Extensions"},
        {"spark.driver.extraJavaOptions": "-agentpath:/tmp/x.so"},
        {"spark.hadoop.fs.s3a.secret.key": "x"},
        {"fs.defaultFS": "file:///"},
        {"javax.jdo.option.ConnectionURL": "jdbc:derby:x"},
        {"agg_phase\u200b": "AUTO"},
    ],
)
def test_no_setting_reaches_spark_by_its_own_name(raw: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(**raw)
    assert {error["type"] for error in caught.value.errors()} == {"unknown_setting"}
