"""When the rows of each value are counted before PERCENTILE. The golden plans have the common cases."""

from __future__ import annotations

from typing import Any

import pytest

from service.contract.options import JobSettings
from service.contract.problems import SpecError
from service.contract.reports import HotKey, RuleTrace
from tests.support.compiled import compiled
from workers.engine.planner import Plan, plan_query
from workers.engine.rules.distinct.counted_percentiles import CountedPercentiles
from workers.engine.rules.required_statistics import is_all_forced, statistics_keys
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

TABLES = {"o": "k BIGINT, v INT, f DOUBLE, s STRING"}
ROWS = 20_000_000
MEDIAN = "SELECT k, MEDIAN(v) AS m FROM o GROUP BY k"


def known(share: float, groups: int, pairs: int, slots: int = 8) -> Statistics:
    """Returns statistics by which one key of `o.k` has this share of the rows."""
    hot = (HotKey(value="7", share=share, estimated_rows=round(share * ROWS)),)
    by_key = KeySketch("o", ("o.k",), 60_000, groups, 0.0, hot)
    by_value = KeySketch("o", ("o.k", "o.v"), 60_000, pairs, 0.0, ())
    values = KeySketch("o", ("o.v",), 60_000, pairs, 0.0, ())
    keys = {sketch.columns: sketch for sketch in (by_key, by_value, values)}
    return Statistics({"o": TableSize("o", 8, 1 << 30, ROWS, True)}, keys, slots)


def planned(sql: str, statistics: Statistics, **settings: Any) -> Plan:
    return plan_query(compiled(TABLES, sql), statistics, JobSettings.model_validate(settings))


def trace(plan: Plan) -> RuleTrace:
    (found,) = (one for one in plan.trace if one.rule == CountedPercentiles.name)
    return found


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT MEDIAN(s) AS m FROM o", "o.s is not known to be a number"),
        ("SELECT PERCENTILE(v, 0.5, v) AS m FROM o", "frequencies of its own"),
        ("SELECT MEDIAN(v) AS m, COUNT(DISTINCT s) AS n FROM o", "DISTINCT values, which other rules handle"),
        ("SELECT MEDIAN(v) AS m, STDDEV(v) AS n FROM o", "cannot be split"),
        ("SELECT k, MEDIAN(v) AS m FROM o GROUP BY ROLLUP (k)", "grouping sets"),
    ],
)
def test_what_cannot_be_counted_stays(sql: str, reason: str) -> None:
    plan = planned(sql, known(0.9, 1000, 100_000), **{"distinct_split.enabled": "auto"})
    assert reason in trace(plan).reason


@pytest.mark.parametrize(
    ("share", "groups", "pairs", "fires"),
    [
        (0.9, 1_000, 100_000, True),
        (0.9, 100_000, 1_000_000, True),
        (0.9, 1_000, 19_000_000, False),
        (0.001, 1_000, 100_000, False),
    ],
)
def test_auto_counts_the_values_of_hot_groups(share: float, groups: int, pairs: int, fires: bool) -> None:
    assert (trace(planned(MEDIAN, known(share, groups, pairs))).outcome == "fired") is fires


def test_without_group_keys_all_rows_are_one_group() -> None:
    found = trace(planned("SELECT MEDIAN(v) AS m FROM o", known(0.9, 1_000, 100_000)))
    assert found.reason.startswith("All rows are one group: the rows of each value are counted first")


@pytest.mark.parametrize("method", ["bitmap", "native", "branches"])
def test_another_method_leaves_it_to_spark(method: str) -> None:
    sql = "SELECT COUNT(DISTINCT v) AS n, COUNT(DISTINCT s) AS s FROM o WHERE k IN (SELECT MEDIAN(v) AS m FROM o)"
    found = trace(planned(sql, known(0.9, 1_000, 100_000), distinct_method=method))
    assert found.reason == f"distinct_method is {method}."


def test_the_split_is_accepted_for_percentiles() -> None:
    job = {"settings": {"distinct_split.enabled": "true"}}
    compiled(TABLES, MEDIAN, **job)
    with pytest.raises(SpecError, match="DISTINCT"):
        compiled(TABLES, "SELECT SUM(v) AS m FROM o", **job)


def test_it_needs_the_values_of_the_groups_unless_it_is_forced() -> None:
    before = planned(MEDIAN, known(0.9, 1_000, 100_000)).before
    assert statistics_keys(before) == {("o.k",), ("o.k", "o.v")}
    phase = {"agg_phase": "TWO_PHASE"}
    assert not is_all_forced(before, JobSettings.model_validate(phase))
    assert is_all_forced(before, JobSettings.model_validate({**phase, "distinct_split.enabled": "false"}))
