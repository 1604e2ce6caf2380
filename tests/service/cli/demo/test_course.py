"""Settings as a skew report advises them."""

from __future__ import annotations

from service.cli.demo.course import advised_settings
from service.contract.reports import SkewReport


def report(setting: str | None, value: str | None) -> SkewReport:
    return SkewReport(skewed=True, keys=(), stages=(), lost_ms=0, advice="", setting=setting, value=value)


def test_the_advised_setting_replaces_the_one_there_was() -> None:
    assert advised_settings({"agg_phase": "ONE_PHASE", "skew": {"threshold": "1MB"}}, report("agg_phase", "AUTO")) == {
        "agg_phase": "AUTO",
        "skew": {"threshold": "1MB"},
    }


def test_a_setting_of_a_group_joins_what_the_group_has() -> None:
    given = {"distinct_split": {"bucket_num": 16}}
    assert advised_settings(given, report("distinct_split.enabled", "true")) == {
        "distinct_split": {"bucket_num": 16, "enabled": "true"}
    }


def test_no_advice_no_settings() -> None:
    assert advised_settings({}, report(None, None)) is None
