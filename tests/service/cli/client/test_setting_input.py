"""Settings of the command line go before those of the file, whatever each calls them."""

from __future__ import annotations

import pytest

from service.cli.client.setting_input import given_settings, merged_settings
from service.cli.errors import CliError, ExitCode
from service.spec.options import JobSettings


def test_values_are_as_json_has_them() -> None:
    given = given_settings(["agg_phase=TWO_PHASE", "distinct_split.enabled=true", "skew.factor=4.5", "x= a=b "])
    assert given == {"agg_phase": "TWO_PHASE", "distinct_split.enabled": True, "skew.factor": 4.5, "x": "a=b"}


@pytest.mark.parametrize("pair", ["agg_phase", "=x", ""])
def test_what_is_no_pair_is_refused(pair: str) -> None:
    with pytest.raises(CliError) as raised:
        given_settings([pair])
    assert raised.value.code == ExitCode.USAGE


@pytest.mark.parametrize(
    "base",
    [
        {"skew": {"factor": 2, "threshold": "1MB"}},
        {"skew.factor": 2, "skew.threshold": "1MB"},
        {"table.optimizer.skewed-join-optimization.skewed-factor": 2, "skew": {"threshold": "1MB"}},
    ],
)
@pytest.mark.parametrize("key", ["skew.factor", "table.optimizer.skewed-join-optimization.skewed-factor"])
def test_the_service_takes_what_is_merged(base: dict[str, object], key: str) -> None:
    merged = JobSettings.model_validate(merged_settings(base, {key: 8}))
    assert (merged.skew.factor, merged.skew.threshold) == (8, 1 << 20)


def test_what_is_unknown_is_for_the_service_to_judge() -> None:
    assert merged_settings({"future": {"a": 1}, "x": 1}, {"y": 2}) == {"future.a": 1, "x": 1, "y": 2}
    assert merged_settings({"future": {"a": 1}}, {}) == {"future": {"a": 1}}
