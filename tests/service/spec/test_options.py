"""Settings under every accepted spelling."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from service.spec.options import AggPhase, JobSettings, Toggle, declared_settings


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
def test_spellings_of_one_thing(raw: dict[str, Any]) -> None:
    parsed = settings(**raw)
    assert (parsed.distinct_split.enabled, parsed.distinct_split.bucket_num) == (Toggle.TRUE, 16)


def test_both_generations_of_flink() -> None:
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
        ({"distinct_split": {"bucket_num": 65_537}}, "less_than_equal", "65536"),
        ({"mini_batch": {"allow_latency": "2h"}}, "less_than_equal", ""),
        ({"mini_batch": {"allow_latency": 5}}, "value_error", "a duration is"),
        ({"skew": {"factor": 0.5}}, "greater_than_equal", "1"),
        ({"skew": {"threshold": "many"}}, "value_error", "a size is"),
        ({"agg_phase": "THREE_PHASE"}, "enum", "ONE_PHASE"),
        ({"distinct_split": {"enabled": "maybe"}}, "enum", "auto"),
    ],
)
def test_refused(raw: dict[str, Any], kind: str, told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(**raw)
    (error,) = caught.value.errors()
    assert error["type"] == kind
    assert told in error["msg"]


def test_settings_read_back_from_what_is_stored() -> None:
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
    assert all(each.description for each in declared)
