"""The settings that the demo takes from the advice of a skew report."""

from __future__ import annotations

from service.cli.demo_course import advised_settings
from service.contract.reports import SkewReport


def report(setting: str | None, value: str | None) -> SkewReport:
    return SkewReport(skewed=True, keys=(), stages=(), lost_ms=0, advice="", setting=setting, value=value)


def test_advised_setting_replaces_the_old_value() -> None:
    assert advised_settings({"agg_phase": "ONE_PHASE", "skew": {"threshold": "1MB"}}, report("agg_phase", "AUTO")) == {
        "agg_phase": "AUTO",
        "skew": {"threshold": "1MB"},
    }


def test_advised_setting_is_merged_into_its_group() -> None:
    given = {"distinct_split": {"bucket_num": 16}}
    assert advised_settings(given, report("distinct_split.enabled", "true")) == {
        "distinct_split": {"bucket_num": 16, "enabled": "true"}
    }


def test_no_settings_without_advice() -> None:
    assert advised_settings({}, report(None, None)) is None
